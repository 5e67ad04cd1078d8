use std::sync::Arc;

use buttress_base::seeded::{Options, Report, run};
use buttress_base::sync::{Condvar, Mutex};
use buttress_base::{clock, thread};

use super::*;

fn start(work: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().spawn(work).expect("a thread")
}

/// Runs eight threads on `count` processors, a thousand steps of a microsecond each. Each step
/// takes a lock that only its thread uses. With `shared`, every fourth step takes a lock that all
/// threads use.
fn on_processors(count: usize, shared: bool) -> Report {
    let cost = Cost::Step(Duration::from_micros(1));
    let options =
        Options { processors: Some(Processors { count, cost }.machine()), ..Options::default() };
    let work = move || {
        let all = Arc::new(Mutex::new(0_u64));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let (own, all) = (Mutex::new(()), Arc::clone(&all));
                start(move || {
                    for step in 0..1000 {
                        if shared && step % 4 == 0 {
                            let mut all = all.lock();
                            thread::yield_now();
                            *all += 1;
                        } else {
                            drop(own.lock());
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(thread::parallelism(), count);
        assert_eq!(clock::since(clock::now()), Duration::ZERO);
        *all.lock()
    };
    let (sum, report) = run(1, options, work).expect("no thread waits for ever");
    assert_eq!(sum, if shared { 2000 } else { 0 });
    report
}

/// M1, M3: all processors share the work, and processors beyond the number of threads do not help.
#[test]
fn work_is_shared_by_processors() {
    let one = on_processors(1, false);
    for (count, part) in [(2, 2), (4, 4), (8, 8), (64, 8)] {
        let report = on_processors(count, false);
        assert_eq!(report.busy, one.busy, "{count}: the work is the same");
        let (took, fair) = (report.elapsed, one.elapsed / part);
        assert!(took >= fair && took < fair * 11 / 10, "{count}: {took:?}, {:?}", one.elapsed);
    }
    assert_eq!(
        on_processors(4, false).digest,
        on_processors(4, false).digest,
        "counted steps repeat"
    );
}

/// M2: work under one lock is serial with any number of processors.
#[test]
fn a_lock_of_all_is_the_limit() {
    let report = on_processors(64, true);
    // 2,000 steps run under the shared lock.
    assert!(report.elapsed >= Duration::from_micros(2000), "{:?}", report.elapsed);
    let one = on_processors(1, true).elapsed;
    assert!(report.elapsed < one / 2, "{:?}, {one:?}", report.elapsed);
}

/// A sleep, a notification and a timed wait take simulated time.
#[test]
fn waits_take_their_time_on_processors() {
    let cost = Cost::Step(Duration::from_micros(1));
    let options =
        Options { processors: Some(Processors { count: 2, cost }.machine()), ..Options::default() };
    let (told, report) = run(1, options, || {
        let place = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&place);
        let thread = start(move || {
            thread::sleep(Duration::from_millis(35));
            *other.0.lock() = true;
            other.1.notify_all();
        });
        let mut held = place.0.lock();
        let mut late = 0;
        while !*held {
            late += u32::from(place.1.wait_for(&mut held, Duration::from_millis(10)).timed_out());
        }
        drop(held);
        thread.join().expect("no panic");
        late
    })
    .expect("no thread waits for ever");
    assert_eq!(told, 3);
    assert!(report.elapsed >= Duration::from_millis(35));
    assert!(report.elapsed < Duration::from_millis(36), "{:?}", report.elapsed);
}
