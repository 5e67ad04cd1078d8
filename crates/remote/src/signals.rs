//! What threads of an open volume wait for.
//!
//! # Invariants
//!
//! - **SG1** All these signals belong to the lock of `Core::state`. A thread that changes what
//!   others wait for raises their signal after the change. So each signal wakes few threads: a
//!   flush to the local log wakes none but those that wait for room.

use buttress_base::sync::Condvar;

/// The signals of an open volume.
#[derive(Debug, Default)]
pub(crate) struct Signals {
    /// A segment was sealed. The threads that send and log segments wait for this.
    pub(crate) sealed: Condvar,
    /// A segment was sent or logged, or the local log got shorter. Writers that need room wait for
    /// this, and commits that need objects.
    pub(crate) room: Condvar,
    /// The local log is full. The keeper waits for this, and so do threads that wait for a time to
    /// pass.
    pub(crate) due: Condvar,
}

impl Signals {
    /// Wakes all waiting threads: the volume failed, or is closing.
    pub(crate) fn all(&self) {
        for signal in [&self.sealed, &self.room, &self.due] {
            signal.notify_all();
        }
    }
}
