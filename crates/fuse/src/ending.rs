//! The end of the kernel's mount of a block device, at which the volume is closed.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// The end of a mount of a block device. The kernel sends `destroy`, and waits until the volume is
/// closed.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Whether the session is served. If so, the end of the session closes the volume.
    pub(crate) is_served: AtomicBool,
    /// Whether the kernel has ended the last mount.
    pub(crate) has_begun: AtomicBool,
    /// The error with which closing the volume failed.
    pub(crate) failure: OnceLock<Arc<buttress_fs::Error>>,
}
