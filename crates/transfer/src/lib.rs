//! Copies trees of files between the host and volumes, and changes names on mounts.
//!
//! # Invariants
//!
//! - **X1** On the host each access uses one name below an opened directory, and follows no
//!   symbolic link. So neither a tree that is read nor a volume that is unpacked can lead a copy to
//!   another place.
//! - **X2** Directories are walked without recursion: depth costs memory, not stack.

#![forbid(unsafe_code)]

mod acl;
mod across;
mod archive;
mod clones;
mod digest;
mod export;
mod host;
mod import;
mod links;
pub mod listing;
pub mod mounted;
mod names;
mod rights;
mod special;
mod tar;
mod within;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use buttress_fs::{ErrorKind, FileKind, Inode, NameError, NewInode, SetAttr};

use buttress_control::exit::Result;
use buttress_control::ui::Progress;

pub use self::across::Across;
pub use self::archive::{Unpack, survey_archive};
pub use self::clones::Clones;
pub use self::digest::{Chain, digest, digest_archive};
pub use self::export::Export;
pub use self::import::{Census, Import, open_dir, survey};
pub use self::special::{Flags, Search, Special};
pub use self::within::Within;

/// The attribute with what a program may do without being root.
const CAPABILITY: &[u8] = b"security.capability";

/// Bytes read and written at a time.
const CHUNK: usize = 1 << 20;

/// The properties that a copy keeps besides content.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// Modes and times.
    pub attributes: bool,
    /// Owners, extended attributes, and hard links between names.
    pub everything: bool,
}

/// Whether files within a volume share their content with their copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Reflink {
    /// Share the data, or fail.
    Always,
    /// Share the data if possible, otherwise copy it.
    #[default]
    Auto,
    /// Always copy the data.
    Never,
}

/// The counts of a copy.
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
    /// The properties that are kept besides content.
    pub keep: Keep,
    /// Whether directories are copied.
    pub recursive: bool,
    /// Whether files within a volume share their content.
    pub reflink: Reflink,
    /// The progress bar.
    pub bar: &'a Progress,
    /// Names that are left out, wherever they are.
    pub skip: &'a dyn Fn(&[u8]) -> bool,
    /// Device and inode numbers of the images in use. They are left out, so that no volume is
    /// copied into itself.
    images: Vec<(u64, u64)>,
    /// If set, equal trees become equal volumes, wherever the trees are. Blocks of zeros become
    /// holes, and attributes have a fixed order. No time is later than this second, and access
    /// times are not used.
    pub canonical: Option<i64>,
    /// If set, the image shares the data of the files.
    pub clones: Option<&'a Clones>,
    /// The paths that become subvolumes or get flags.
    pub special: Special,
    /// The counts so far.
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
            clones: None,
            special: Special::default(),
            tally: Tally::default(),
        }
    }
}

impl Job<'_> {
    /// Leaves an image out, if it lies in the copied tree.
    pub fn leave_out(&mut self, image: &Path) {
        if let Ok(metadata) = buttress_remote::host_file(image).metadata() {
            self.images.push((metadata.dev(), metadata.ino()));
        }
    }
}

/// Returns the user and group that this program runs as. This user and this group own the files
/// that the program makes.
pub fn caller() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

/// Refuses a directory without `--recursive`.
fn needs_recursive(job: &Job<'_>, what: &str) -> Result<()> {
    if job.recursive {
        return Ok(());
    }
    let what = format!("{what}: is a directory; --recursive copies it");
    Err(buttress_control::exit::Failure::new(buttress_control::exit::Exit::Failure, what))
}

/// Returns a path of an entry in an opened directory, for system calls without `at`.
fn through(dir: &impl std::os::fd::AsRawFd, name: &Path) -> std::path::PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

/// Makes an object with a name in a volume. An object that has the name already is removed, unless
/// it is a directory.
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

/// Makes a directory, or returns the existing directory. Returns whether it is new.
fn directory(
    dir: &Inode,
    name: &[u8],
    mode: u32,
    (uid, gid): (u32, u32),
) -> buttress_fs::Result<(Inode, bool)> {
    match dir.mkdir(name, mode & 0o7777, uid, gid) {
        Err(error) if error.kind() == ErrorKind::Name(NameError::Exists) => {
            let found = dir.lookup(name)?;
            if found.attr().kind == FileKind::Directory { Ok((found, false)) } else { Err(error) }
        }
        other => other.map(|made| (made, true)),
    }
}

/// Makes a regular file, or empties an existing file. Any other object with the name is replaced.
/// Returns whether the file is new. New content takes the capabilities of the old one away.
fn regular(
    dir: &Inode,
    name: &[u8],
    mode: u32,
    (uid, gid): (u32, u32),
) -> buttress_fs::Result<(Inode, bool)> {
    if let Ok(found) = dir.lookup(name)
        && found.attr().kind == FileKind::Regular
    {
        let mtime = Some(buttress_fs::now());
        found.set_attr(&SetAttr { size: Some(0), mtime, ..SetAttr::default() })?;
        if found.xattr(CAPABILITY).is_ok() {
            found.remove_xattr(CAPABILITY)?;
        }
        return Ok((found, false));
    }
    Ok((replacing(dir, name, || dir.create(name, NewInode::file(mode).owner(uid, gid)))?, true))
}
