//! What the store lacks of an open volume, as messages show it, and giving up the wait for it.

use buttress_base::clock;

use crate::core::Failure;
use crate::device::RemoteDevice;

/// What the store lacks of an open volume.
///
/// Plain data: a snapshot for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Behind {
    /// The name of the volume.
    pub place: String,
    /// Bytes that were written and are in no commit.
    pub bytes: u64,
    /// How long ago the first of these bytes was written, in seconds.
    pub seconds: u64,
    /// The last failure of the store, and how long ago it was, in seconds.
    pub failure: Option<(String, u64)>,
    /// The folder of the local log that has all flushed writes, if there is one.
    pub log: Option<String>,
}

impl RemoteDevice {
    /// Returns what the store lacks of the volume.
    #[must_use]
    pub fn behind(&self) -> Behind {
        let core = &self.core;
        let state = core.state.lock();
        let seconds = state.behind_since.map_or(0, |then| clock::since(then).as_secs());
        let bytes = state.written_bytes - state.committed_bytes;
        let dir = core.cache.as_ref().filter(|_| state.logging.is_some());
        let log = dir.map(|cache| cache.dir().display().to_string());
        drop(state);
        let failure = core.chain.store.last_failure();
        Behind { place: core.chain.place.clone(), bytes, seconds, failure, log }
    }

    /// Returns whether the device makes its last commit.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        self.core.state.lock().is_last
    }

    /// Returns whether the device makes no more commits, and waits for none.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.core.state.lock().is_closing
    }

    /// Gives up waiting for the store: all that waits fails soon, and nothing more is written. The
    /// volume is then as after a crash, with the local log as it is.
    pub fn give_up(&self) {
        self.core.fail(Failure::Failed("the wait for the store was given up".to_owned()));
        self.core.chain.store.give_up();
        self.core.given_up.raise();
    }
}
