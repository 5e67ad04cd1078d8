//! Converts attributes, times and device numbers between the volume's form and the protocol's.

use buttress_fs::{Attr, FileKind, Timespec, mode};
use buttress_protocol::{Attr as WireAttr, FileType, WireTime};

use crate::IdMap;

const BLOCK_SIZE: u32 = 4096;
const NSEC_MAX: u32 = 999_999_999;

/// Converts an inode's attributes to the protocol's form. `ino` is the inode number that programs
/// see.
pub(crate) fn to_wire(attr: &Attr, ino: u64, users: &IdMap, groups: &IdMap) -> WireAttr {
    let [atime, mtime, ctime] = [attr.atime, attr.mtime, attr.ctime].map(time_to_wire);
    WireAttr {
        ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: atime.sec,
        mtime: mtime.sec,
        ctime: ctime.sec,
        atime_nsec: atime.nsec,
        mtime_nsec: mtime.nsec,
        ctime_nsec: ctime.nsec,
        mode: kind_to_wire(attr.kind).bits() | attr.mode & mode::PERMISSIONS,
        nlink: attr.nlink,
        uid: users.show(attr.uid),
        gid: groups.show(attr.gid),
        rdev: device_to_wire(attr.rdev),
        blksize: attr.block_size,
        flags: 0,
    }
}

/// Placeholder attributes for an inode that cannot be read, so that its name is still listed. A
/// request for the inode itself returns the error.
pub(crate) fn unreadable(ino: u64, kind: FileKind) -> WireAttr {
    let mode = kind_to_wire(kind).bits();
    WireAttr { ino, mode, nlink: 1, blksize: BLOCK_SIZE, ..WireAttr::default() }
}

/// Attributes that mark a missing name, which the kernel may cache.
pub(crate) fn absent() -> WireAttr {
    unreadable(0, FileKind::Regular)
}

/// Turns the kind of an inode into the protocol's.
pub(crate) fn kind_to_wire(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::Regular,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Character => FileType::Character,
        FileKind::Block => FileType::Block,
        FileKind::Fifo => FileType::Pipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// Converts a time to the protocol's form. A time on disk may have any number of nanoseconds; the
/// kernel accepts less than a second.
pub(crate) fn time_to_wire(time: Timespec) -> WireTime {
    WireTime { sec: time.sec, nsec: time.nsec.min(NSEC_MAX) }
}

/// Turns a time of a request into the volume's form.
pub(crate) fn time_from_wire(time: WireTime) -> Timespec {
    Timespec { sec: time.sec, nsec: time.nsec }
}

/// Converts a device number. On disk it has 20 bits of minor, then 12 bits of major. The protocol
/// splits the minor.
fn device_to_wire(device: u64) -> u32 {
    let (major, minor) = ((device >> 20) as u32, (device & 0xf_ffff) as u32);
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12
}

/// Major and minor number of a device number of the protocol.
pub(crate) fn device_parts(device: u32) -> (u32, u32) {
    (device >> 8 & 0xfff, (device & 0xff) | (device >> 12 & 0xf_ff00))
}

/// Turns a device number of the protocol into the volume's form.
pub(crate) fn device_from_wire(device: u32) -> u64 {
    let (major, minor) = device_parts(device);
    u64::from(major) << 20 | u64::from(minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Device numbers are equal after a conversion to the kernel's form and back, even with large
    /// minors.
    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (8, 1), (259, 0x12345), (4095, 0xf_ffff)] {
            let device = major << 20 | minor;
            assert_eq!(device_from_wire(device_to_wire(device)), device);
        }
        assert_eq!(device_to_wire(8 << 20 | 1), 0x801);
    }

    /// Times before 1970 are equal after a conversion and back, and nanoseconds stay below a
    /// second.
    #[test]
    fn times_before_the_epoch() {
        let time = Timespec { sec: -2, nsec: 800_000_000 };
        assert_eq!(time_to_wire(time), WireTime { sec: -2, nsec: 800_000_000 });
        assert_eq!(time_from_wire(time_to_wire(time)), time);
        let far = Timespec { sec: i64::MIN, nsec: u32::MAX };
        assert_eq!(time_to_wire(far), WireTime { sec: i64::MIN, nsec: NSEC_MAX });
    }
}
