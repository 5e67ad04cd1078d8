//! The target of an order, and the stream that comes with it.

use std::io::{Read, Write};

use buttress_fs::Filesystem;
use buttress_fuse::KernelSync;

/// The target of an order.
pub struct Open<'o> {
    /// The volume.
    pub fs: &'o Filesystem,
    /// The name of the volume in errors.
    pub name: &'o str,
    /// Tells the kernel of changes that the order makes. `None` if this process serves no mount of
    /// the volume.
    pub kernel_sync: Option<&'o KernelSync>,
}

/// A stream that comes with an order.
pub enum Stream<'s> {
    /// No stream.
    None,
    /// Bytes that the order reads.
    In(&'s mut dyn Read),
    /// Bytes that the order writes.
    Out(&'s mut dyn Write),
}
