//! A device that gets longer while it is open.
//!
//! # Invariants
//!
//! - **W1** No commit has a sector past its own end. No record of the local log has a sector past
//!   the end of the commit on which the log builds. So the longer length is in a commit before a
//!   write can use it. A replay and a salvage then never meet a write that is past the end.
//! - **W2** The length only grows. After a crash the device has the old length or the new one. With
//!   the new length the device is longer than the file system on it, as after an opening with a
//!   larger `size`.

use std::sync::atomic::Ordering;

use crate::core::Core;
use crate::error::{Error, Result};
use crate::units::{LEN_MAX, SECTOR};

impl Core {
    /// Makes the device at least `len` bytes long, and waits for a commit with that length. The new
    /// part has no runs in the map, so it reads as zeroes (W1, W2).
    pub(crate) fn grow(&self, len: u64) -> Result<()> {
        let wrong = || {
            let why = format!("no volume has {len} bytes: the most are {LEN_MAX}");
            Error::Place { place: self.chain.place.clone(), why }
        };
        let len = len.checked_next_multiple_of(SECTOR).filter(|len| *len <= LEN_MAX);
        let len = len.ok_or_else(wrong)?;
        {
            let state = self.state.lock();
            self.check_open(&state)?;
            self.len.fetch_max(len, Ordering::AcqRel);
        }
        if self.last.lock().device_len >= len {
            return Ok(());
        }
        // A cut that was planned before the device grew has the shorter length, so another cut is
        // needed.
        self.cut(false)
    }
}
