//! Attributes, times and device numbers between the volume's form and the protocol's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::IdMap;
use buttress_fs::{Attr, FileKind, Timespec, mode};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

const BLOCK_SIZE: u32 = 4096;

/// Turns an inode's attributes into the protocol's; `ino` is what programs see as its number.
pub(crate) fn to_wire(attr: &Attr, ino: u64, users: &IdMap, groups: &IdMap) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: time_to_wire(attr.atime),
        mtime: time_to_wire(attr.mtime),
        ctime: time_to_wire(attr.ctime),
        crtime: time_to_wire(attr.otime),
        kind: kind_to_wire(attr.kind),
        perm: (attr.mode & mode::PERMISSIONS) as u16,
        nlink: attr.nlink,
        uid: users.show(attr.uid),
        gid: groups.show(attr.gid),
        rdev: device_to_wire(attr.rdev),
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// What stands in for the attributes of an inode that cannot be read, so that its name is still
/// listed; asking for the inode itself then says why.
pub(crate) fn unreadable(ino: u64, kind: FileKind) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: kind_to_wire(kind),
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// Attributes that say "there is no such name, and you may remember that".
pub(crate) fn absent() -> FileAttr {
    unreadable(0, FileKind::Regular)
}

/// Turns the kind of an inode into the protocol's.
pub(crate) fn kind_to_wire(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Character => FileType::CharDevice,
        FileKind::Block => FileType::BlockDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

fn time_to_wire(time: Timespec) -> SystemTime {
    let fraction = Duration::from_nanos(u64::from(time.nsec.min(999_999_999)));
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let seconds =
        if time.sec < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    // A time on disk may be any number; one that no clock can show is shown as the epoch.
    seconds.and_then(|seconds| seconds.checked_add(fraction)).unwrap_or(UNIX_EPOCH)
}

/// Turns a time that the protocol library has parsed into the volume's form.
pub(crate) fn time_from_wire(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec { sec: after.as_secs() as i64, nsec: after.subsec_nanos() },
        // The library counts the nanoseconds of times before the epoch backwards, while on the wire
        // they always count forwards. Seconds and nanoseconds themselves arrive unharmed.
        Err(before) => {
            let before = before.duration();
            Timespec { sec: (before.as_secs() as i64).wrapping_neg(), nsec: before.subsec_nanos() }
        }
    }
}

/// Resolves a time that may be "now".
pub(crate) fn time_or_now(time: TimeOrNow) -> Timespec {
    match time {
        TimeOrNow::SpecificTime(time) => time_from_wire(time),
        TimeOrNow::Now => buttress_fs::now(),
    }
}

/// On disk a device number is 12 bits of major above 20 of minor; on the wire the minor is split.
fn device_to_wire(device: u64) -> u32 {
    let (major, minor) = ((device >> 20) as u32, (device & 0xf_ffff) as u32);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Turns a device number of the protocol into the volume's form.
pub(crate) fn device_from_wire(device: u32) -> u64 {
    let (major, minor) = (device >> 8 & 0xfff, (device & 0xff) | (device >> 12 & 0xf_ff00));
    u64::from(major) << 20 | u64::from(minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device numbers survive the way to the kernel and back, with large minors.
    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (8, 1), (259, 0x12345), (4095, 0xf_ffff)] {
            let device = major << 20 | minor;
            assert_eq!(device_from_wire(device_to_wire(device)), device);
        }
        assert_eq!(device_to_wire(8 << 20 | 1), 0x801);
    }

    /// Times before 1970 keep their nanoseconds on the way out.
    #[test]
    fn times_before_the_epoch() {
        let time = Timespec { sec: -2, nsec: 800_000_000 };
        assert_eq!(time_to_wire(time), UNIX_EPOCH - Duration::from_millis(1200));
        let far = Timespec { sec: i64::MIN, nsec: u32::MAX };
        let _ = time_to_wire(far);
    }

    /// What the library makes of -1.2 s is read back as what the kernel sent.
    #[test]
    fn times_before_the_epoch_come_back() {
        let as_parsed = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(time_from_wire(as_parsed), Timespec { sec: -2, nsec: 800_000_000 });
    }
}
