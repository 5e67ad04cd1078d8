use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::*;
use crate::sync::{Condvar, Mutex, RwLock};
use crate::{clock, thread};

fn start(work: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().spawn(work).expect("a thread")
}

/// Reads and writes a counter, with the lock released in between. In some orders of the threads an
/// update is lost.
fn lost_update(seed: u64) -> (u32, Report) {
    let work = || {
        let count = Arc::new(Mutex::new(0));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let count = Arc::clone(&count);
                start(move || {
                    let seen = *count.lock();
                    *count.lock() = seen + 1;
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        *count.lock()
    };
    run(seed, Options::default(), work).expect("no thread waits for ever")
}

/// D2: the same seed gives the same order, and other seeds give other orders.
#[test]
fn a_seed_is_an_order() {
    let runs: Vec<_> = (0..40).map(lost_update).collect();
    for (seed, (count, report)) in runs.iter().enumerate() {
        let (again, second) = lost_update(seed as u64);
        assert_eq!((*count, report.digest), (again, second.digest), "seed {seed}");
    }
    assert!(runs.iter().any(|(count, _)| *count == 3));
    assert!(runs.iter().any(|(count, _)| *count < 3));
}

/// D4: if two locks are taken in two orders, the scheduler reports the deadlock with the places.
#[test]
fn a_deadlock_is_reported() {
    let work = || {
        let locks = Arc::new((Mutex::new(()), Mutex::new(())));
        let other = Arc::clone(&locks);
        let thread = start(move || {
            let _second = other.1.lock();
            let _first = other.0.lock();
        });
        let _first = locks.0.lock();
        let _second = locks.1.lock();
        drop((_first, _second));
        thread.join().expect("no panic");
    };
    let stuck =
        (0..50).find_map(|seed| run(seed, Options::default(), work).err()).expect("a deadlock");
    assert_eq!(stuck.threads.matches("waits for Mutex").count(), 2, "{stuck}");
    assert!(stuck.threads.contains("tests.rs"), "{stuck}");
}

/// D4: a reader that takes its lock again waits behind a writer, and the writer waits for the
/// reader.
#[test]
fn reading_twice_is_a_deadlock() {
    let work = || {
        let lock = Arc::new(RwLock::new(()));
        let other = Arc::clone(&lock);
        let thread = start(move || drop(other.write()));
        let first = lock.read();
        drop(lock.read());
        drop(first);
        thread.join().expect("no panic");
    };
    assert!((0..50).any(|seed| run(seed, Options::default(), work).is_err()));
}

/// D3: hours of sleep take no real time. A wait ends by a notification or at its limit.
#[test]
fn time_is_the_schedulers() {
    let began = Instant::now();
    let (told, report) = run(7, Options::default(), || {
        let place = Arc::new((Mutex::new(false), Condvar::new()));
        let other = Arc::clone(&place);
        let thread = start(move || {
            thread::sleep(Duration::from_secs(3600));
            *other.0.lock() = true;
            other.1.notify_all();
        });
        let then = clock::now();
        let mut held = place.0.lock();
        let mut late = 0;
        while !*held {
            late += u32::from(place.1.wait_for(&mut held, Duration::from_secs(600)).timed_out());
        }
        drop(held);
        thread.join().expect("no panic");
        assert!(clock::since(then) >= Duration::from_secs(600));
        late
    })
    .expect("no thread waits for ever");
    assert!((1..=6).contains(&told), "{told}");
    assert!(report.elapsed >= Duration::from_secs(600));
    assert!(began.elapsed() < Duration::from_secs(600));
}

/// A thread that joins another thread gets the panic of that thread, and other threads go on. This
/// holds for scoped threads, too.
#[test]
fn panics_pass() {
    let ran = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&ran);
    let result = run(3, Options::default(), move || {
        let thread = start(|| panic!("on purpose"));
        assert!(thread.join().is_err());
        thread::scope(|scope| {
            let other = scope.spawn(|| seen.fetch_add(1, Ordering::Relaxed));
            seen.fetch_add(1, Ordering::Relaxed);
            other.join().expect("no panic")
        })
    });
    assert!(result.is_ok());
    assert_eq!(ran.load(Ordering::Relaxed), 2);
}

/// An `unpark` before the `park` is not lost.
#[test]
fn a_token_is_kept() {
    for seed in 0..20 {
        run(seed, Options::default(), || {
            let parked = Arc::new(AtomicU32::new(0));
            let own = Arc::clone(&parked);
            let sleeper = start(move || {
                while own.load(Ordering::Relaxed) == 0 {
                    thread::park();
                }
            });
            parked.store(1, Ordering::Relaxed);
            sleeper.thread().unpark();
            sleeper.join().expect("no panic");
        })
        .expect("no thread waits for ever");
    }
}
