//! Devices that a program opened, to be released at its end.

use std::sync::{Arc, Weak};

use buttress_block::FileDevice;
use buttress_remote::{Opened, RemoteDevice};

use crate::exit::{Failure, Result};

/// What a program has to release at its end. A file of this machine may be closed before.
#[derive(Debug)]
pub enum ToRelease {
    /// A regular file, a block device, or the disk of a part.
    File(Weak<FileDevice>),
    /// A place in a store.
    Remote(Arc<RemoteDevice>),
}

impl From<Opened> for ToRelease {
    fn from(opened: Opened) -> Self {
        match opened {
            Opened::File(device) | Opened::Part(device, _) => Self::File(Arc::downgrade(&device)),
            Opened::Remote(device) => Self::Remote(device),
        }
    }
}

impl ToRelease {
    /// As [`Opened::release`]. A file that is closed has no lock any more.
    ///
    /// # Errors
    ///
    /// As [`Opened::release`].
    pub fn release(&self) -> Result<()> {
        match self {
            Self::File(device) => {
                if let Some(device) = device.upgrade() {
                    device.unlock();
                }
                Ok(())
            }
            Self::Remote(device) => device.close().map_err(Failure::of_remote),
        }
    }
}
