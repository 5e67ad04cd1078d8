//! What the work of a thread costs it on a simulated machine.

use std::thread;
use std::time::{Duration, Instant};

/// How many times waking is measured.
const WAKINGS: usize = 200;

/// What the work of a thread costs it.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    /// So much for each place where the turn may change hands, and nothing for waking others.
    Step(Duration),
    /// What it takes on this machine. Waking a thread takes `wake` of the waking one, and
    /// `until_awake` until the other runs.
    Measured {
        /// Of the thread that wakes another.
        wake: Duration,
        /// From then on, where a processor is free.
        until_awake: Duration,
    },
}

impl Cost {
    /// Measured, with what waking takes on this machine now: the median of some hundreds.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let (mut wakes, mut sleeps) = (Vec::new(), Vec::new());
        let (told, hears) = std::sync::mpsc::channel();
        let sleeper = thread::spawn(move || {
            for _ in 0..WAKINGS {
                thread::park();
                if told.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
        for _ in 0..WAKINGS {
            // It sleeps by then, and its processor too.
            thread::sleep(Duration::from_micros(300));
            let begun = Instant::now();
            sleeper.thread().unpark();
            wakes.push(begun.elapsed());
            if let Ok(awake) = hears.recv() {
                sleeps.push(awake.saturating_duration_since(begun));
            }
        }
        drop((hears, sleeper.join()));
        let median = |times: &mut Vec<Duration>| {
            times.sort_unstable();
            times.get(times.len() / 2).copied().unwrap_or_default()
        };
        Self::Measured { wake: median(&mut wakes), until_awake: median(&mut sleeps) }
    }
}
