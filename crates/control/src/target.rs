//! What an order is carried out on, and the bytes that come with it.

use std::io::{Read, Write};

use buttress_fs::Filesystem;
use buttress_fuse::Beside;

/// What an order is carried out on.
pub struct Open<'o> {
    /// The volume.
    pub fs: &'o Filesystem,
    /// What it is called in errors.
    pub name: &'o str,
    /// Its mount, if it has one.
    pub beside: Option<&'o Beside>,
}

/// What comes with an order, or goes back beside its answer.
pub enum Stream<'s> {
    /// Nothing.
    None,
    /// Bytes that the order takes.
    In(&'s mut dyn Read),
    /// Bytes that the order gives.
    Out(&'s mut dyn Write),
}
