//! Copies trees of files between the host and volumes.
//!
//! # Invariants
//!
//! - **X1** On the host nothing is reached by a path of more than one name below an opened
//!   directory, and no symbolic link is followed: neither a tree being read nor a volume being
//!   unpacked can lead outside of itself.
//! - **X2** No directory is descended by recursion: depth costs memory, not stack.

mod digest;
mod export;
mod import;
mod within;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use buttress_fs::{ErrorKind, FileKind, Inode, NameError, SetAttr};

use crate::exit::Result;
use crate::ui::Progress;

pub use self::digest::{Chain, digest};
pub use self::export::Export;
pub use self::import::{Census, Import, open_dir, survey};
pub use self::within::copy_within;

/// Bytes read and written at a time.
const CHUNK: usize = 1 << 20;

/// What is kept besides content.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// Modes and times.
    pub attributes: bool,
    /// Owners, extended attributes, and which names are links to one file.
    pub everything: bool,
}

/// Whether files within a volume come to share their content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reflink {
    /// They must.
    Always,
    /// Where they can.
    #[default]
    Auto,
    /// They do not.
    Never,
}

/// What a copy went through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Links, devices, fifos, sockets.
    pub others: u64,
    /// Bytes of content.
    pub bytes: u64,
}

/// A copy under way.
pub struct Job<'a> {
    /// What is kept besides content.
    pub keep: Keep,
    /// Whether directories are copied.
    pub recursive: bool,
    /// Whether files within a volume share their content.
    pub reflink: Reflink,
    /// What shows how far it is.
    pub bar: &'a Progress,
    /// Names that are left out, wherever they are.
    pub skip: &'a dyn Fn(&[u8]) -> bool,
    /// Device and inode of the images in use: a volume is not copied into itself.
    images: Vec<(u64, u64)>,
    /// Copies so that equal trees give equal volumes, wherever they lie: blocks of zeros are holes,
    /// attributes come in order, no time is after this second, and none of access counts.
    pub canonical: Option<i64>,
    /// What was copied so far.
    pub tally: Tally,
}

impl<'a> Job<'a> {
    /// A job that has copied nothing yet, and leaves nothing out.
    pub fn new(keep: Keep, recursive: bool, bar: &'a Progress) -> Self {
        Self {
            keep,
            recursive,
            reflink: Reflink::default(),
            bar,
            skip: &|_| false,
            images: Vec::new(),
            canonical: None,
            tally: Tally::default(),
        }
    }
}

impl Job<'_> {
    /// Leaves an image out, should it lie in what is copied.
    pub fn leave_out(&mut self, image: &Path) {
        if let Ok(metadata) = image.metadata() {
            self.images.push((metadata.dev(), metadata.ino()));
        }
    }
}

/// The user and group that this program runs as: the owner of what it makes.
pub fn caller() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Refuses a directory without `--recursive`.
fn needs_recursive(job: &Job<'_>, what: &str) -> Result<()> {
    if job.recursive {
        return Ok(());
    }
    let what = format!("{what}: is a directory; --recursive copies it");
    Err(crate::exit::Failure::new(crate::exit::Exit::Failure, what))
}

/// The path of an entry of an opened directory that system calls without `at` understand.
fn through(dir: &impl std::os::fd::AsRawFd, name: &Path) -> std::path::PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

/// Makes a name in a volume; takes away what has it already, unless that is a directory.
fn replacing<T>(
    dir: &Inode,
    name: &[u8],
    make: impl Fn() -> buttress_fs::Result<T>,
) -> buttress_fs::Result<T> {
    match make() {
        Err(error) if error.kind() == ErrorKind::Name(NameError::Exists) => {
            dir.unlink(name)?;
            make()
        }
        other => other,
    }
}

/// Makes a directory, or finds the one that is there.
fn directory(
    dir: &Inode,
    name: &[u8],
    mode: u32,
    (uid, gid): (u32, u32),
) -> buttress_fs::Result<Inode> {
    match dir.mkdir(name, mode & 0o7777, uid, gid) {
        Err(error) if error.kind() == ErrorKind::Name(NameError::Exists) => {
            let found = dir.lookup(name)?;
            if found.attr().kind == FileKind::Directory { Ok(found) } else { Err(error) }
        }
        other => other,
    }
}

/// Makes a regular file, or empties the one that is there; anything else there gives way.
fn regular(
    dir: &Inode,
    name: &[u8],
    mode: u32,
    (uid, gid): (u32, u32),
) -> buttress_fs::Result<Inode> {
    if let Ok(found) = dir.lookup(name)
        && found.attr().kind == FileKind::Regular
    {
        found.set_attr(&SetAttr { size: Some(0), ..SetAttr::default() })?;
        return Ok(found);
    }
    replacing(dir, name, || dir.create(name, mode, uid, gid, 0))
}
