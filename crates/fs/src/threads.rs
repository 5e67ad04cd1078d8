//! The threads that a mount started.

use buttress_base::sync::Mutex;
use buttress_base::thread::{Builder, JoinHandle, current};

/// See the module.
#[derive(Default)]
pub(crate) struct Threads {
    /// Unranked: held while threads are started.
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Starts a thread `buttress-<name>`. Returns whether it could. Without it its work still
    /// happens, in threads that need it.
    pub(crate) fn start(&self, name: &str, work: impl FnOnce() + Send + 'static) -> bool {
        let mut running = self.running.lock();
        match Builder::new().name(format!("buttress-{name}")).spawn(work) {
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

    /// Waits until all have ended, but for the calling thread.
    pub(crate) fn join(&self) {
        let threads = std::mem::take(&mut *self.running.lock());
        for thread in threads {
            if thread.thread().id() != current().id() && thread.join().is_err() {
                tracing::error!("a background thread panicked");
            }
        }
    }
}
