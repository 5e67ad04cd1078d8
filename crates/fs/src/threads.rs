//! The threads that a mount started.

use buttress_base::activity;
use buttress_base::sync::Mutex;
use buttress_base::thread::{Builder, JoinHandle, current};

/// The running threads of a mount.
#[derive(Default)]
pub(crate) struct Threads {
    /// Unranked: held while threads are started.
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Starts a thread `buttress-<name>`. Returns false if the start fails. In that case other
    /// threads do the work when they need it.
    pub(crate) fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> bool {
        let mut running = self.running.lock();
        let listed = move || {
            activity::register();
            work();
        };
        match Builder::new().name(format!("buttress-{name}")).spawn(listed) {
            Ok(thread) => {
                running.push(thread);
                true
            }
            Err(error) => {
                tracing::warn!(%error, name, "no background thread");
                false
            }
        }
    }

    /// Waits until all threads except the calling thread have ended.
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut *self.running.lock());
        for thread in threads {
            if thread.thread().id() != current().id() && thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}
