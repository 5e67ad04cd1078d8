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
    /// Keeps its mount in step with it, if it has one.
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
