//! The kernel's list of mounts, as this process sees it.
//!
//! # Invariants
//!
//! - **L1** A line that cannot be read is left out, and hides no other line.
//! - **L2** Names are bytes: the names of other mounts need not be UTF-8.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// The file in which the kernel lists mounts.
const LIST: &str = "/proc/self/mountinfo";

/// The list of mounts that a thread sees. A thread may have mounts of its own.
pub(crate) const LIST_OF_THREAD: &str = "/proc/thread-self/mountinfo";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The kernel's number of the mount.
    pub id: u64,
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// The part of the file system that the mount shows, as a path from its top.
    pub top: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// Whether this mount is read-only. Other mounts of the file system may be writable.
    pub is_read_only: bool,
    /// The type of the file system, such as `fuse.buttress`.
    pub kind: String,
    /// The source of the mount, by the name that the source had when it was mounted.
    pub source: PathBuf,
}

impl Listed {
    /// All mounts, in the order in which they were made. If several mounts are at one place,
    /// programs see the last.
    ///
    /// # Errors
    ///
    /// The errors of reading the list.
    pub fn all() -> io::Result<Vec<Self>> {
        Ok(Self::parse(&std::fs::read(LIST)?))
    }

    /// The mount that is visible at a path, which is absolute and has no symbolic links. Asks no
    /// server, so that a dead server cannot block the caller.
    ///
    /// # Errors
    ///
    /// The errors of reading the list.
    pub fn at(point: &Path) -> io::Result<Option<Self>> {
        Ok(Self::all()?.into_iter().rev().find(|one| one.point == point))
    }

    /// Parses the content of a list.
    #[must_use]
    pub fn parse(list: &[u8]) -> Vec<Self> {
        list.split(|&byte| byte == b'\n').filter_map(Self::of_line).collect()
    }

    /// The device number, as `stat` reports it.
    #[must_use]
    pub fn device_number(&self) -> u64 {
        rustix::fs::makedev(self.device.0, self.device.1)
    }

    fn of_line(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let id = str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let (major, minor) = str::from_utf8(fields.nth(1)?).ok()?.split_once(':')?;
        let device = (major.parse().ok()?, minor.parse().ok()?);
        let (top, point) = (unescape(fields.next()?), unescape(fields.next()?));
        let is_read_only = fields.next()?.split(|&byte| byte == b',').any(|word| word == b"ro");
        // Optional fields follow, any number of them, and end at a dash.
        let mut behind = fields.skip_while(|&field| field != b"-").skip(1);
        let kind = unescape(behind.next()?).display().to_string();
        let source = unescape(behind.next()?);
        Some(Self { id, device, top, point, is_read_only, kind, source })
    }
}

/// Unmounts, lazily if the mount is in use. Returns true for a lazy unmount. A missing mount is no
/// error.
pub(crate) fn take_away(point: &Path) -> io::Result<bool> {
    match unmount(point, UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(false),
        Err(_) => {
            unmount(point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
            Ok(true)
        }
    }
}

/// Decodes a field of the list, in which the kernel writes separators in octal.
fn unescape(field: &[u8]) -> PathBuf {
    let mut name = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| first == b'\\');
        let octal = octal.and_then(|digits| str::from_utf8(digits).ok());
        let (byte, behind) = match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => (byte, &behind[3..]),
            None => (first, behind),
        };
        name.push(byte);
        rest = behind;
    }
    PathBuf::from(OsString::from_vec(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Escaped names are decoded, a mount of a part of a file system names the part, and odd lines
    /// do not hide the other lines.
    #[test]
    fn list_gives_every_mount_it_can_read() {
        let all = Listed::parse(
            b"40 22 0:50 / /mnt/a\\040b rw,noatime - fuse.buttress /a\\040b rw,user_id=0\n\
              41 22 0:50 /@home /home ro shared:2 master:3 - fuse.buttress x rw\n\nodd\n",
        );
        let first = Listed {
            id: 40,
            device: (0, 50),
            top: "/".into(),
            point: "/mnt/a b".into(),
            is_read_only: false,
            kind: "fuse.buttress".into(),
            source: "/a b".into(),
        };
        let second = Listed {
            id: 41,
            top: "/@home".into(),
            point: "/home".into(),
            is_read_only: true,
            source: "x".into(),
            ..first.clone()
        };
        assert_eq!(all, [first, second]);
    }

    /// A backslash without three octal digits after it stays as it is.
    #[test]
    fn unescape_keeps_what_is_no_number() {
        assert_eq!(unescape(b"a\\040b\\134c\\9\\"), Path::new("a b\\c\\9\\"));
    }
}
