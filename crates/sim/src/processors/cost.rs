//! The cost of a thread's work on a simulated machine.

use std::thread;
use std::time::{Duration, Instant};

/// Number of measurements of a wake-up.
const WAKINGS: usize = 200;

/// The cost of a thread's work.
#[derive(Clone, Copy, Debug)]
pub enum Cost {
    /// A fixed time for each place where threads may switch; wake-ups are free.
    Step(Duration),
    /// The measured time on this machine. A wake-up costs the waking thread `wake`, and the other
    /// thread runs after `until_awake`.
    Measured {
        /// Cost for the thread that wakes another.
        wake: Duration,
        /// Delay until the other thread runs, if a processor is free.
        until_awake: Duration,
    },
}

impl Cost {
    /// Measured costs, with the median time of some hundred wake-ups on this machine.
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
            // After this time the thread and its processor sleep.
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
