//! The kernel's list of mounts, as this process sees it.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// The file in which the kernel lists mounts. A poll of the file reports changes.
pub(crate) const LIST: &str = "/proc/self/mountinfo";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// The part of the file system that the mount shows, as a path from its top.
    pub top: PathBuf,
    /// The mount point.
    pub point: PathBuf,
}

/// All mounts, in the order in which they were made. The last one at a place hides the others.
pub(crate) fn all() -> io::Result<Vec<Listed>> {
    let list = std::fs::read(LIST)?;
    Ok(parse(&list))
}

fn parse(list: &[u8]) -> Vec<Listed> {
    list.split(|&byte| byte == b'\n').filter_map(of_line).collect()
}

/// The visible mount at a place.
pub(crate) fn at(point: &Path) -> Option<Listed> {
    all().ok()?.into_iter().rev().find(|one| one.point == point)
}

/// Unmounts, lazily if the mount is in use; returns whether it was. A missing mount is no error.
pub(crate) fn take_away(point: &Path) -> io::Result<bool> {
    match unmount(point, UnmountFlags::NOFOLLOW) {
        Ok(()) | Err(Errno::INVAL | Errno::NOENT) => Ok(false),
        Err(_) => {
            unmount(point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
            Ok(true)
        }
    }
}

fn of_line(line: &[u8]) -> Option<Listed> {
    let mut fields = line.split(|&byte| byte == b' ').skip(2);
    let (major, minor) = str::from_utf8(fields.next()?).ok()?.split_once(':')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    Some(Listed { device, top: unescape(fields.next()?), point: unescape(fields.next()?) })
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

    /// The parser reads names with spaces, and the subtree of a bind mount.
    #[test]
    fn lines_of_the_list_are_read() {
        let all = parse(
            b"40 22 0:50 / /mnt/a\\040b rw - fuse.buttress x rw\n\
              41 22 0:50 /@home /home rw - fuse.buttress x rw\n\nodd\n",
        );
        let listed = |top: &str, point: &str| Listed {
            device: (0, 50),
            top: top.into(),
            point: point.into(),
        };
        assert_eq!(all, [listed("/", "/mnt/a b"), listed("/@home", "/home")]);
    }
}
