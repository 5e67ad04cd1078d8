//! Fixed parts of requests and answers, as the kernel's `include/uapi/linux/fuse.h` lays them out.

use std::time::{Duration, SystemTime};

use buttress_fs::{SetAttr, Timespec};
use fuser::{Errno, FileAttr, FileType};

use super::abi::Fields;
use crate::door::content::Asked;
use crate::door::listing::{Entries, Names};
use crate::door::{Answer, Entry, VALID};

/// Length of `fuse_entry_out`, bytes.
const ENTRY_LEN: usize = 128;
/// Length of `fuse_dirent` without its name, bytes; names end at a multiple of eight.
const DIRENT_LEN: usize = 24;
const DIRENT_ALIGN: usize = 8;

/// Bits of `fuse_setattr_in::valid`.
pub(super) mod valid {
    pub(in crate::ring) const MODE: u32 = 1;
    pub(in crate::ring) const UID: u32 = 1 << 1;
    pub(in crate::ring) const GID: u32 = 1 << 2;
    pub(in crate::ring) const SIZE: u32 = 1 << 3;
    pub(in crate::ring) const ATIME: u32 = 1 << 4;
    pub(in crate::ring) const MTIME: u32 = 1 << 5;
    pub(in crate::ring) const HANDLE: u32 = 1 << 6;
    pub(in crate::ring) const ATIME_NOW: u32 = 1 << 7;
    pub(in crate::ring) const MTIME_NOW: u32 = 1 << 8;
    pub(in crate::ring) const CTIME: u32 = 1 << 10;
}

/// How a `fuse_setattr_in` asks for times.
pub(super) fn asked(op: Fields<'_>) -> Asked {
    let asked = |bit: u32| op.u32(0) & bit != 0;
    Asked {
        has_handle: asked(valid::HANDLE),
        is_access_now: asked(valid::ATIME_NOW),
        is_change_now: asked(valid::MTIME_NOW),
    }
}

/// `fuse_setattr_in`.
pub(super) fn set_attr(op: Fields<'_>) -> SetAttr {
    let bits = op.u32(0);
    let asked = |bit: u32| bits & bit != 0;
    let time = |bit: u32, now: u32, sec: usize, nsec: usize| {
        asked(bit).then(|| match asked(now) {
            true => buttress_fs::now(),
            false => Timespec { sec: op.u64(sec).cast_signed(), nsec: op.u32(nsec) },
        })
    };
    SetAttr {
        mode: asked(valid::MODE).then(|| op.u32(68)),
        uid: asked(valid::UID).then(|| op.u32(76)),
        gid: asked(valid::GID).then(|| op.u32(80)),
        size: asked(valid::SIZE).then(|| op.u64(16)),
        atime: time(valid::ATIME, valid::ATIME_NOW, 32, 56),
        mtime: time(valid::MTIME, valid::MTIME_NOW, 40, 60),
        ctime: time(valid::CTIME, 0, 48, 64),
        ..SetAttr::default()
    }
}

/// `fuse_getxattr_out`, or the value.
pub(super) fn sized(value: Vec<u8>, room: u32) -> Answer<Vec<u8>> {
    match room as usize {
        0 => Ok(words(&[u32::try_from(value.len()).unwrap_or(u32::MAX), 0])),
        room if value.len() > room => Err(Errno::ERANGE),
        _ => Ok(value),
    }
}

/// `fuse_entry_out`.
pub(super) fn entry_out(entry: &Entry, valid: Duration) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENTRY_LEN + 16);
    let secs = valid.as_secs();
    for number in [entry.attr.ino.0, entry.generation.0, secs, secs] {
        bytes.extend(number.to_ne_bytes());
    }
    bytes.extend(words(&[0, 0]));
    attr(&mut bytes, &entry.attr);
    bytes
}

/// `fuse_attr_out`.
pub(super) fn attr_out(of: &FileAttr) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(104);
    bytes.extend(VALID.as_secs().to_ne_bytes());
    bytes.extend(words(&[0, 0]));
    attr(&mut bytes, of);
    bytes
}

/// `fuse_open_out`; no state is kept for an open file, so its handle is zero.
pub(super) fn open_out(flags: u32) -> Vec<u8> {
    words(&[0, 0, flags, 0])
}

/// `fuse_attr`.
fn attr(bytes: &mut Vec<u8>, of: &FileAttr) {
    let times = [of.atime, of.mtime, of.ctime].map(wire_time);
    for number in [of.ino.0, of.size, of.blocks, times[0].0, times[1].0, times[2].0] {
        bytes.extend(number.to_ne_bytes());
    }
    let mode = mode_bits(of.kind) | u32::from(of.perm);
    let nsecs = times.map(|(_, nsec)| nsec);
    bytes.extend(words(&nsecs));
    bytes.extend(words(&[mode, of.nlink, of.uid, of.gid, of.rdev, of.blksize, of.flags]));
}

fn wire_time(time: SystemTime) -> (u64, u32) {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => (after.as_secs(), after.subsec_nanos()),
        Err(before) => {
            // Nanoseconds always count forwards.
            let before = before.duration();
            let nsec = before.subsec_nanos();
            let sec = 0u64.wrapping_sub(before.as_secs() + u64::from(nsec > 0));
            (sec, if nsec > 0 { 1_000_000_000 - nsec } else { 0 })
        }
    }
}

/// The kind of a file as in `st_mode`.
fn mode_bits(kind: FileType) -> u32 {
    match kind {
        FileType::NamedPipe => 0o010_000,
        FileType::CharDevice => 0o020_000,
        FileType::Directory => 0o040_000,
        FileType::BlockDevice => 0o060_000,
        FileType::RegularFile => 0o100_000,
        FileType::Symlink => 0o120_000,
        FileType::Socket => 0o140_000,
    }
}

pub(super) fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// A listing that grows in a place of fixed length.
pub(super) struct List<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> List<'a> {
    pub(super) fn new(room: &'a mut [u8]) -> Self {
        Self { room, len: 0 }
    }

    /// Bytes that it has.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Adds what comes before a name, and `fuse_dirent`; true when there was no room for it.
    fn push(&mut self, head: &[u8], ino: u64, position: u64, kind: FileType, name: &[u8]) -> bool {
        let len = (head.len() + DIRENT_LEN + name.len()).next_multiple_of(DIRENT_ALIGN);
        let Some(place) = self.room.get_mut(self.len..).and_then(|rest| rest.get_mut(..len)) else {
            return true;
        };
        self.len += len;
        let name_len = u32::try_from(name.len()).expect("a name has 255 bytes at most");
        let (before, dirent) = place.split_at_mut(head.len());
        before.copy_from_slice(head);
        dirent[..8].copy_from_slice(&ino.to_ne_bytes());
        dirent[8..16].copy_from_slice(&position.to_ne_bytes());
        dirent[16..20].copy_from_slice(&name_len.to_ne_bytes());
        dirent[20..24].copy_from_slice(&(mode_bits(kind) >> 12).to_ne_bytes());
        dirent[DIRENT_LEN..DIRENT_LEN + name.len()].copy_from_slice(name);
        dirent[DIRENT_LEN + name.len()..].fill(0);
        false
    }
}

impl Names for List<'_> {
    fn add(&mut self, ino: u64, position: u64, kind: FileType, name: &[u8]) -> bool {
        self.push(&[], ino, position, kind, name)
    }
}

impl Entries for List<'_> {
    fn add(&mut self, entry: &Entry, valid: Duration, position: u64, name: &[u8]) -> bool {
        let (ino, kind) = (entry.attr.ino.0, entry.attr.kind);
        self.push(&entry_out(entry, valid), ino, position, kind, name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times before the epoch count their nanoseconds forwards.
    #[test]
    fn times_before_the_epoch() {
        let time = SystemTime::UNIX_EPOCH - Duration::from_millis(1200);
        assert_eq!(wire_time(time), ((-2i64).cast_unsigned(), 800_000_000));
    }

    /// A listing has whole entries only, each at a multiple of eight.
    #[test]
    fn listings_end_where_the_room_does() {
        let mut room = [0xff; 64];
        let mut list = List::new(&mut room);
        assert!(!Names::add(&mut list, 7, 3, FileType::Directory, b"name"));
        assert_eq!(list.len(), 32);
        assert!(!Names::add(&mut list, 8, 4, FileType::RegularFile, b"12345678"));
        assert!(Names::add(&mut list, 9, 5, FileType::RegularFile, b""));
        assert_eq!(list.len(), 64);
        assert_eq!(&room[16..32], [4, 0, 0, 0, 4, 0, 0, 0, b'n', b'a', b'm', b'e', 0, 0, 0, 0]);
    }

    /// A value is not cut: who brought too little room is told.
    #[test]
    fn values_come_whole() {
        assert_eq!(sized(b"abc".to_vec(), 0), Ok(words(&[3, 0])));
        assert_eq!(sized(b"abc".to_vec(), 3), Ok(b"abc".to_vec()));
        assert_eq!(sized(b"abc".to_vec(), 2), Err(Errno::ERANGE));
    }
}
