//! Either device fails at the n-th request, for every n: no acknowledged write is lost, and nothing
//! panics.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_cache::CacheDevice;
use buttress_sim::{FaultDevice, Faults, campaign};

use crate::rig::{Model, blank, by_hand, open, place, read, write};

const SECTORS: usize = 160;

/// Does all steps, even if requests fail. Returns the number of failures, and in `may_hold` the
/// values that each sector may have. A flush that succeeds leaves one value for each sector. A
/// write adds a value, whether the write succeeds or not.
fn work(cached: &CacheDevice, may_hold: &mut [Vec<u32>], rng: &mut Rng) -> usize {
    let mut failures = 0;
    let mut is_in_doubt = false;
    for step in 1..40_u32 {
        match rng.below(8) {
            0..5 => {
                let range = place(rng, SECTORS, 16);
                let values = vec![step; range.len()];
                let written = write(cached, range.start, &values);
                failures += usize::from(written.is_err());
                is_in_doubt |= written.is_err();
                for held in &mut may_hold[range] {
                    held.push(step);
                }
            }
            5 | 6 => match cached.flush() {
                // After a failed write its sectors may have the old or the new value until they are
                // written again.
                Ok(()) if !is_in_doubt => {
                    for held in may_hold.iter_mut() {
                        let last = *held.last().expect("never empty");
                        held.clear();
                        held.push(last);
                    }
                }
                Ok(()) => {}
                Err(_) => {
                    failures += 1;
                    is_in_doubt = true;
                }
            },
            _ => failures += usize::from(cached.drain(|_| {}).is_err()),
        }
    }
    failures
}

fn check(may_hold: &[Vec<u32>], found: &Model, about: &str) {
    for (at, value) in found.iter().enumerate() {
        assert!(
            may_hold[at].contains(value),
            "{about}: sector {at} holds {value}, not {:?}",
            may_hold[at]
        );
    }
}

fn run(n: Option<u64>, sticky: bool, which: usize, blocks: u64, list: &str) -> u64 {
    let (origin, cache) = blank(1024, blocks, SECTORS as u64);
    let (origin, cache) = (Arc::new(origin), Arc::new(cache));
    let faults = Faults::none();
    let mut devices: [Arc<dyn Device>; 2] = [Arc::clone(&origin) as _, Arc::clone(&cache) as _];
    devices[which] = FaultDevice::new(Arc::clone(&devices[which]), &faults);
    let [first, second] = devices;
    faults.fail(n.unwrap_or(u64::MAX), sticky);
    let about = format!("request {n:?} of device {which}, sticky {sticky}, {list}");
    let mut may_hold = vec![vec![0]; SECTORS];
    match CacheDevice::open(first, second, by_hand(list)) {
        Err(error) => assert!(n.is_some() && !error.to_string().is_empty(), "{about}"),
        Ok(cached) => {
            let failures = work(&cached, &mut may_hold, &mut Rng::new(4 + campaign::round()));
            assert!(n.is_some() || failures == 0, "{about}");
            // Bytes that can still be read after the failure must be right, too.
            let mut buf = vec![0; SECTORS * 512];
            // A read may fail here, but not return wrong bytes.
            let _ = cached.read_at(0, &mut buf);
            let _ = cached.close();
        }
    }
    let count = faults.count();
    faults.heal();
    let forked = |device: &MemoryDevice| Arc::new(device.fork()) as Arc<dyn Device>;
    let cached = open(forked(&origin), forked(&cache), &by_hand(list));
    check(&may_hold, &read(&cached), &about);
    cached.drain(|_| {}).expect("both devices work");
    check(&may_hold, &read(&cached), &about);
    count
}

/// The origin of a full cache fails while threads are at work. Writers get an error instead of
/// waiting for ever, and reads continue. When the origin works again, nothing is lost.
#[test]
fn a_full_cache_with_a_failing_origin_answers() {
    for list in ["", "mode=pmem", "consistent_origin=on"] {
        let (origin, cache) = blank(1024, 30, 2 * SECTORS as u64);
        let origin = Arc::new(origin);
        let faults = Faults::none();
        let failing = FaultDevice::new(Arc::clone(&origin) as _, &faults);
        let options = buttress_cache::CacheOptions::parse(list).expect("right");
        let cached = open(failing, Arc::new(cache), &options);
        faults.fail(0, true);
        let mut held = vec![0; 2 * SECTORS];
        let mut is_told = false;
        for step in 0..2 * SECTORS / 2 {
            let value = step as u32 + 1;
            match write(&cached, step * 2, &[value; 2]) {
                Ok(()) => held[step * 2..step * 2 + 2].fill(value),
                Err(_) => {
                    is_told = true;
                    break;
                }
            }
        }
        assert!(is_told, "{list}: thirty blocks do not hold a hundred and sixty");
        // Without options the failed write itself went to the origin. With the other options, the
        // write waited for a sweep.
        assert!(list.is_empty() || cached.status().error == 1, "{list}");
        let mut buf = [0; 512];
        cached.read_at(0, &mut buf).expect("it is in the cache");
        assert!(buf == crate::rig::sector(1), "{list}");
        faults.heal();
        cached.flush().expect("both work");
        cached.drain(|_| {}).expect("both work");
        let found = read(&*origin);
        // A failed write may have taken effect or not.
        let is_right = |(at, value): (usize, &u32)| held[at] == *value || held[at] == 0;
        assert!(found.iter().enumerate().all(is_right), "{list}");
    }
}

/// Each request of each device fails once alone. Every third request also fails once together with
/// all later requests. The test runs with much room and with little.
#[test]
fn the_nth_request_fails() {
    let mut faults = 0;
    for (blocks, list) in [(200, ""), (10, ""), (200, "mode=pmem"), (20, "consistent_origin=on")] {
        for which in [0, 1] {
            let requests = run(None, false, which, blocks, list);
            assert!(requests > 20);
            for n in 0..requests {
                run(Some(n), false, which, blocks, list);
                faults += 1;
                if n % 3 == 0 {
                    run(Some(n), true, which, blocks, list);
                    faults += 1;
                }
            }
        }
    }
    campaign::count("faults", faults);
}
