//! Names on mounts. The verbs that change an image do the same on a mount, through the kernel.
//!
//! # Place
//!
//! A verb opens an image itself. A mounted volume is open already, so the verb asks the file system
//! at the mount, as any other program does.
//!
//! # Invariants
//!
//! - **MN1** A name belongs to the mount on which its directory lies. A symbolic link of that name
//!   is not followed.
//! - **MN2** An error that has a name in a volume is reported with the words of an image.
//! - **MN3** No other file system that is mounted below a directory loses a name.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use buttress_control::exit::{Exit, Failure, Result};
use buttress_control::live;
use buttress_control::location::{Location, show};
use buttress_control::named::begins_as_volume;
use buttress_control::ui::Progress;
use buttress_fs::{FileKind, NameError};
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::host::DIR_FLAGS;
use crate::import::kind;
use crate::names::Names;

/// Why a hard link is refused.
pub const LINK_STAYS: &str =
    "a hard link stays within its volume; --symbolic makes one that does not";

/// Why a rename is refused.
pub const MOVE_STAYS: &str = "mv works within one volume; use cp --recursive, then rm --recursive";

/// A name in a directory on a mount. The name need not exist.
#[derive(Debug)]
pub struct Entry {
    dir: OwnedFd,
    name: OsString,
    text: String,
}

impl Entry {
    /// Finds the directory of a name on a mount. `None` if the argument means an image, or a path
    /// on no mount.
    ///
    /// # Errors
    ///
    /// The argument is the top of a mount, or its directory does not exist, or running mounts
    /// cannot be asked.
    pub fn parse(argument: &OsStr) -> Result<Option<Self>> {
        let Some(path) = host_path(argument) else { return Ok(None) };
        let Some(name) = path.file_name() else { return top(path) };
        let parent = parent(path);
        if live::served(parent)?.is_none() {
            return top(path);
        }
        let text = show(argument.as_bytes());
        let dir = open(parent).map_err(|errno| failed(&text, errno))?;
        Ok(Some(Self { dir, name: name.to_owned(), text }))
    }

    /// Makes a directory with this name.
    ///
    /// # Errors
    ///
    /// The name exists, or the file system refuses it.
    pub fn make_directory(&self, mode: u32) -> Result<()> {
        make(&self.dir, &self.name, mode).map_err(|errno| failed(&self.text, errno))
    }

    /// Removes the name, and with `recursive` also a directory with everything in it. With `force`,
    /// the name need not exist.
    ///
    /// # Errors
    ///
    /// The name does not exist, or is that of a directory, or the file system refuses a removal.
    pub fn remove(&self, recursive: bool, force: bool, bar: &Progress) -> Result<()> {
        let found = match stat(&self.dir, &self.name) {
            Err(Errno::NOENT) if force => return Ok(()),
            found => found.map_err(|errno| failed(&self.text, errno))?,
        };
        if kind(&found) != Some(FileKind::Directory) {
            let removed = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::empty());
            return removed.map_err(|errno| failed(&self.text, errno));
        }
        if !recursive {
            let what = format!("{}: is a directory; --recursive removes it", self.text);
            return Err(Failure::new(Exit::Failure, what));
        }
        let inside = enter(&self.dir, &self.name).map_err(|errno| failed(&self.text, errno))?;
        self.empty(inside, bar)?;
        let removed = rustix::fs::unlinkat(&self.dir, &self.name, AtFlags::REMOVEDIR);
        removed.map_err(|errno| failed(&self.text, errno))
    }

    /// Removes everything in a directory (`transfer::X2`).
    fn empty(&self, top: OwnedFd, bar: &Progress) -> Result<()> {
        let refuse = |errno| failed(&self.text, errno);
        self.expect_same(&self.dir, &top)?;
        let names = |dir: &OwnedFd| Names::of(dir, &|_| false);
        let mut stack = vec![(names(&top)?, top, OsString::new())];
        while let Some((left, dir, _)) = stack.last_mut() {
            let Some(name) = left.next()? else {
                let done = stack.pop();
                if let (Some((.., name)), Some((_, above, _))) = (done, stack.last()) {
                    rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR).map_err(refuse)?;
                    bar.add(1);
                }
                continue;
            };
            if kind(&stat(dir, &name).map_err(refuse)?) == Some(FileKind::Directory) {
                let inside = enter(dir, &name).map_err(refuse)?;
                self.expect_same(dir, &inside)?;
                stack.push((names(&inside)?, inside, name));
            } else {
                rustix::fs::unlinkat(&*dir, &name, AtFlags::empty()).map_err(refuse)?;
                bar.add(1);
            }
        }
        Ok(())
    }

    /// Refuses a directory at which another file system is mounted (MN3).
    fn expect_same(&self, dir: &OwnedFd, inside: &OwnedFd) -> Result<()> {
        let device = |dir| Ok(rustix::fs::fstat(dir)?.st_dev);
        let refuse = |errno| failed(&self.text, errno);
        if device(dir).map_err(refuse)? == device(inside).map_err(refuse)? {
            return Ok(());
        }
        let what = "something is mounted in it: unmount it, or remove a subvolume that is a mount \
                    of its own with `subvolume delete`";
        Err(Failure::new(Exit::Failure, format!("{}: {what}", self.text)))
    }
}

/// Makes a directory on a mount, and the missing directories above it. Directories that exist are
/// accepted. Returns false if the argument means no place on a mount.
///
/// # Errors
///
/// A part of the path is no directory, or the file system refuses a directory.
pub fn make_directories(argument: &OsStr, mode: u32) -> Result<bool> {
    let Some(path) = host_path(argument) else { return Ok(false) };
    let here = |path| if path == Path::new("") { Path::new(".") } else { path };
    let Some(above) = path.ancestors().find(|path| here(path).exists()) else { return Ok(false) };
    if live::served(here(above))?.is_none() {
        return Ok(false);
    }
    let text = show(argument.as_bytes());
    let refuse = |errno| failed(&text, errno);
    let missing = path.strip_prefix(above).unwrap_or(Path::new(""));
    if missing == Path::new("") && !path.is_dir() {
        return Err(refuse(Errno::EXIST));
    }
    let mut dir = open(here(above)).map_err(refuse)?;
    for name in missing.components() {
        match make(&dir, name.as_os_str(), mode) {
            // Another program made it meanwhile.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(refuse(errno)),
        }
        dir = enter(&dir, name.as_os_str()).map_err(refuse)?;
    }
    Ok(true)
}

/// Makes a link on a mount: a symbolic one with `target` as its text, or another name of `target`.
/// Returns false if the link is on no mount.
///
/// # Errors
///
/// The target is in another volume, or the file system refuses the link.
pub fn link(target: &OsStr, link: &OsStr, is_symbolic: bool) -> Result<bool> {
    let Some(link) = Entry::parse(link)? else { return Ok(false) };
    if is_symbolic {
        let made = rustix::fs::symlinkat(target, &link.dir, &link.name);
        return made.map(|()| true).map_err(|errno| failed(&link.text, errno));
    }
    let other = || Failure::new(Exit::Usage, LINK_STAYS);
    let target = Entry::parse(target)?.ok_or_else(other)?;
    let made =
        rustix::fs::linkat(&target.dir, &target.name, &link.dir, &link.name, AtFlags::empty());
    match made {
        Err(Errno::XDEV) if are_apart(&target.dir, &link.dir) => Err(other()),
        Err(Errno::NOENT) if stat(&target.dir, &target.name).err() == Some(Errno::NOENT) => {
            Err(failed(&target.text, Errno::NOENT))
        }
        Err(Errno::PERM) if enter(&target.dir, &target.name).is_ok() => {
            Err(failed(&link.text, Errno::ISDIR))
        }
        made => made.map(|()| true).map_err(|errno| failed(&link.text, errno)),
    }
}

/// Renames on a mount. If `target` is a directory, the name moves into it, unless two names are
/// exchanged. Returns false if neither place is on a mount.
///
/// # Errors
///
/// The places are in different volumes, or the file system refuses the change.
pub fn rename(source: &OsStr, target: &OsStr, how: buttress_fs::RenameFlags) -> Result<bool> {
    let from = Entry::parse(source)?;
    let into = if how.exchange { None } else { directory(target)? };
    let to = match (&from, into) {
        (Some(from), Some(dir)) => {
            Some(Entry { dir, name: from.name.clone(), text: show(target.as_bytes()) })
        }
        (None, Some(_)) => return Err(Failure::new(Exit::Usage, MOVE_STAYS)),
        (_, None) => Entry::parse(target)?,
    };
    let (from, to) = match (from, to) {
        (None, None) => return Ok(false),
        (Some(from), Some(to)) => (from, to),
        _ => return Err(Failure::new(Exit::Usage, MOVE_STAYS)),
    };
    let mut flags = RenameFlags::empty();
    flags.set(RenameFlags::NOREPLACE, how.no_replace);
    flags.set(RenameFlags::EXCHANGE, how.exchange);
    let what = || format!("{} to {}", from.text, to.text);
    match rustix::fs::renameat_with(&from.dir, &from.name, &to.dir, &to.name, flags) {
        Err(Errno::XDEV) if are_apart(&from.dir, &to.dir) => {
            Err(Failure::new(Exit::Usage, MOVE_STAYS))
        }
        Err(Errno::INVAL) => {
            let why = "invalid argument: a directory cannot be moved below itself";
            Err(Failure::new(Exit::Usage, format!("{}: {why}", what())))
        }
        moved => moved.map(|()| true).map_err(|errno| failed(&what(), errno)),
    }
}

/// Whether a path of the host is on a mount, or is the top of one.
///
/// # Errors
///
/// Running mounts cannot be asked.
pub fn holds(path: &Path) -> Result<bool> {
    Ok(live::served(parent(path))?.is_some() || live::served(path)?.is_some())
}

/// An existing directory on a mount.
fn directory(argument: &OsStr) -> Result<Option<OwnedFd>> {
    let Some(path) = host_path(argument) else { return Ok(None) };
    let is_directory = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    if !is_directory || live::served(path)?.is_none() {
        return Ok(None);
    }
    let opened = open(path).map_err(|errno| failed(&show(argument.as_bytes()), errno))?;
    Ok(Some(opened))
}

/// The path, if the argument means neither a place in an image nor an image.
fn host_path(argument: &OsStr) -> Option<&Path> {
    let path = Path::new(argument);
    let is_image = || path.is_file() && begins_as_volume(path);
    matches!(Location::parse(argument), Location::Host(_)).then_some(path).filter(|_| !is_image())
}

/// The answer for a path that is no name on a mount. Refuses the top of a mount.
fn top(path: &Path) -> Result<Option<Entry>> {
    if live::served(path)?.is_none() {
        return Ok(None);
    }
    let what = format!("{}: names no entry of a directory", show(path.as_os_str().as_bytes()));
    Err(Failure::new(Exit::Usage, what))
}

fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// Whether two directories lie in file systems of their own. Subvolumes of one mount do not.
fn are_apart(one: &OwnedFd, other: &OwnedFd) -> bool {
    let device = |dir| rustix::fs::fstat(dir).map(|found| found.st_dev).ok();
    device(one) != device(other)
}

/// Makes a directory with exactly this mode, as in an image: without the mask of this process.
fn make(dir: &OwnedFd, name: &OsStr, mode: u32) -> rustix::io::Result<()> {
    let mask = rustix::process::umask(Mode::empty());
    let made = rustix::fs::mkdirat(dir, name, Mode::from(mode));
    rustix::process::umask(mask);
    made?;
    // The call above ignores the bits for users and groups.
    if mode & 0o6000 != 0 {
        rustix::fs::fchmod(enter(dir, name)?, Mode::from(mode))?;
    }
    Ok(())
}

/// Opens a directory that the user named, also through a symbolic link.
fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, DIR_FLAGS.difference(OFlags::NOFOLLOW), Mode::empty())
}

fn enter(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    rustix::fs::openat(dir, name, DIR_FLAGS, Mode::empty())
}

fn stat(dir: &OwnedFd, name: &OsStr) -> rustix::io::Result<rustix::fs::Stat> {
    rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)
}

/// Wraps an error of the kernel (MN2).
#[must_use]
pub fn failed(what: &str, errno: Errno) -> Failure {
    let name = match errno {
        Errno::NOENT => NameError::NotFound,
        Errno::EXIST => NameError::Exists,
        Errno::NOTDIR => NameError::NotDir,
        Errno::ISDIR => NameError::IsDir,
        Errno::NOTEMPTY => NameError::NotEmpty,
        Errno::NAMETOOLONG => NameError::TooLong,
        Errno::MLINK => NameError::TooManyLinks,
        Errno::XDEV => NameError::CrossDevice,
        Errno::BUSY => NameError::Busy,
        other => {
            let exit = match other {
                Errno::NOSPC | Errno::DQUOT => Exit::NoSpace,
                Errno::INVAL => Exit::Usage,
                _ => Exit::Failure,
            };
            return Failure::with_source(exit, what, std::io::Error::from(other));
        }
    };
    Failure::of_volume(what, name.into())
}
