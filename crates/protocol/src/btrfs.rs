//! The commands of ioctl(2) that Linux's btrfs has: arguments as checked types, answers as bytes.
//!
//! # Place
//!
//! The number of an ioctl tells the size of its argument. Linux's FUSE copies that many bytes in,
//! out, or both. FUSE does not copy further buffers to which an argument points.
//!
//! The layouts are those of the kernel's `include/uapi/linux/btrfs.h`, in the machine's byte order.
//!
//! # What must hold
//!
//! - A field is read only where the argument is long enough. A shorter argument is `EINVAL`.
//! - No answer is longer than the argument of its command.

mod answers;
mod records;

pub use answers::{
    DeviceFacts, Features, SEARCH_ITEM_LEN, SearchPage, SubvolumeFacts, VolumeFacts, inode_path,
    subvolume_path, subvolume_refs,
};
pub use records::trimmed;

use crate::{Errno, WireTime};

/// Length of the argument of most commands, in bytes.
pub const ARGUMENT_LEN: usize = 4096;
/// Length of a name with the zero byte at its end, in bytes.
const NAME_LEN: usize = 256;
/// Length of a record of `INHERIT`, which the program keeps in memory of its own, in bytes.
const INHERIT_LEN: std::ops::RangeInclusive<u64> = 72..=4096;

/// Numbers of commands.
mod number {
    pub(super) const SNAP_CREATE: u32 = 0x5000_9401;
    pub(super) const SYNC: u32 = 0x0000_9408;
    pub(super) const SUBVOL_CREATE: u32 = 0x5000_940e;
    pub(super) const SNAP_DESTROY: u32 = 0x5000_940f;
    pub(super) const TREE_SEARCH: u32 = 0xd000_9411;
    pub(super) const INO_LOOKUP: u32 = 0xd000_9412;
    pub(super) const DEFAULT_SUBVOL: u32 = 0x4008_9413;
    pub(super) const WAIT_SYNC: u32 = 0x4008_9416;
    pub(super) const SNAP_CREATE_V2: u32 = 0x5000_9417;
    pub(super) const SUBVOL_CREATE_V2: u32 = 0x5000_9418;
    pub(super) const START_SYNC: u32 = 0x8008_9418;
    pub(super) const SUBVOL_GETFLAGS: u32 = 0x8008_9419;
    pub(super) const SUBVOL_SETFLAGS: u32 = 0x4008_941a;
    pub(super) const SET_RECEIVED_SUBVOL: u32 = 0xc0c8_9425;
    pub(super) const GET_DEV_STATS: u32 = 0xc408_9434;
    /// The kernel's `FITRIM`, a command of all file systems.
    pub(super) const TRIM: u32 = 0xc018_5879;
    pub(super) const DEV_INFO: u32 = 0xd000_941e;
    pub(super) const FS_INFO: u32 = 0x8400_941f;
    pub(super) const GET_FEATURES: u32 = 0x8018_9439;
    pub(super) const GET_SUBVOL_INFO: u32 = 0x81f8_943c;
    pub(super) const GET_SUBVOL_ROOTREF: u32 = 0xd000_943d;
    pub(super) const INO_LOOKUP_USER: u32 = 0xd000_943e;
    pub(super) const SNAP_DESTROY_V2: u32 = 0x5000_943f;
    pub(super) const GETVERSION: u32 = 0x8008_7601;
}

/// Flags of a subvolume in the second version of arguments.
pub struct SubvolumeFlags;

impl SubvolumeFlags {
    /// The subvolume cannot be changed.
    pub const READ_ONLY: u64 = 1 << 1;
    /// Quota groups come with the argument.
    pub const INHERIT: u64 = 1 << 2;
    /// The subvolume is given by its number.
    pub const BY_ID: u64 = 1 << 4;
}

/// A command with its argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Tell about the volume.
    VolumeFacts,
    /// Tell about the device with this number. Its uuid must match, too, unless `uuid` is zero.
    DeviceFacts {
        /// Number of the device.
        id: u64,
        /// Its uuid.
        uuid: [u8; 16],
    },
    /// Tell the feature flags.
    Features,
    /// Tell about the subvolume of the inode.
    SubvolumeFacts,
    /// List the subvolumes that lie directly in the subvolume of the inode, from a number on.
    SubvolumeRefs {
        /// The least number.
        from: u64,
    },
    /// Tell the path to an inode from the top of its subvolume.
    InodePath {
        /// The subvolume. Zero means the subvolume of the file.
        tree: u64,
        /// Number of the inode.
        ino: u64,
    },
    /// Tell the name of a subvolume and the path to its directory.
    SubvolumePath {
        /// The directory that has the name.
        dir: u64,
        /// The subvolume.
        tree: u64,
    },
    /// Tell the flags of the subvolume.
    Flags,
    /// Set the flags of the subvolume.
    SetFlags(u64),
    /// Make everything durable.
    Sync,
    /// Begin a commit, and tell its number.
    StartSync,
    /// Wait for a commit. Zero means the commit that is under way.
    WaitSync(u64),
    /// Set the subvolume that a mount shows. Zero means the top level.
    SetDefault(u64),
    /// Make a subvolume.
    Create(Made<'a>),
    /// Make a snapshot.
    Snapshot {
        /// The program's descriptor of the top of the source.
        source: i64,
        /// The new subvolume.
        made: Made<'a>,
    },
    /// Delete a subvolume by its name in the directory.
    Destroy {
        /// The name.
        name: Name<'a>,
        /// Flags of the second version of the argument.
        flags: u64,
    },
    /// Delete a subvolume by its number.
    DestroyById(u64),
    /// Show items of a tree.
    Search(SearchKey),
    /// Tell the generation of the inode.
    Generation,
    /// Tell the error counts of a device.
    DeviceErrors(DeviceErrors<'a>),
    /// Record the origin of a received subvolume.
    SetReceived(Origin<'a>),
    /// Discard free space.
    Trim {
        /// The first byte, as an address of the volume.
        from: u64,
        /// Length of the range, in bytes.
        len: u64,
        /// The least length of a free range to discard, in bytes.
        least: u64,
    },
}

/// A request for the error counts of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceErrors<'a> {
    /// Number of the device.
    pub id: u64,
    /// Whether all counts are to be zero afterwards.
    pub reset: bool,
    /// The whole argument. The answer repeats it, except for the counts.
    given: &'a [u8],
}

/// The origin of a received subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Uuid of the original.
    pub uuid: [u8; 16],
    /// Transaction of the original.
    pub transaction: u64,
    /// Time of the original.
    pub time: WireTime,
    /// The whole argument. The answer repeats it, except for transaction and time of the reception.
    given: &'a [u8],
}

/// A subvolume that is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made<'a> {
    /// Its name.
    pub name: Name<'a>,
    /// [`SubvolumeFlags`]; always zero in the first version of the argument.
    pub flags: u64,
    /// Bytes of the record of quota groups, with [`SubvolumeFlags::INHERIT`].
    inherit_len: u64,
}

impl Made<'_> {
    /// Checks the flags.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` for a flag that is not known, `EINVAL` for a record of impossible length.
    pub fn check_flags(&self) -> Result<(), Errno> {
        if self.flags & !(SubvolumeFlags::READ_ONLY | SubvolumeFlags::INHERIT) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let has_record = self.flags & SubvolumeFlags::INHERIT != 0;
        if has_record && !INHERIT_LEN.contains(&self.inherit_len) {
            return Err(Errno::EINVAL);
        }
        Ok(())
    }
}

/// The field of a name. Programs should end the name with a zero byte, but this is not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// The bytes before the zero byte.
    ///
    /// # Errors
    ///
    /// `ENAMETOOLONG` where no zero byte is in the field.
    pub fn bytes(self) -> Result<&'a [u8], Errno> {
        let end = self.0.iter().position(|&byte| byte == 0).ok_or(Errno::ENAMETOOLONG)?;
        Ok(&self.0[..end])
    }
}

/// The items that a search is to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SearchKey {
    /// The tree. Zero means the subvolume of the file.
    pub tree: u64,
    /// The first key: object, kind and offset.
    pub from: (u64, u8, u64),
    /// The last key.
    pub to: (u64, u8, u64),
    /// Transactions of the leaves, from the first to the last.
    pub generations: (u64, u64),
    /// The largest number of items.
    pub count: u32,
}

impl SearchKey {
    /// Length of the key at the front of argument and answer, in bytes.
    pub(crate) const LEN: usize = 104;
    /// Offset of the number of items.
    pub(crate) const COUNT_AT: usize = 64;

    fn read(fields: &Fields<'_>) -> Result<Self, Errno> {
        let word = |index: usize| fields.u64(index * 8);
        // The kernel, too, takes the lowest byte of a kind.
        let kind = |at| fields.u32(at).map(|kind| (kind & 0xff) as u8);
        Ok(Self {
            tree: word(0)?,
            from: (word(1)?, kind(56)?, word(3)?),
            to: (word(2)?, kind(60)?, word(4)?),
            generations: (word(5)?, word(6)?),
            count: fields.u32(Self::COUNT_AT)?,
        })
    }
}

/// Fields of an argument by their offsets.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Errno> {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk::<N>());
        bytes.copied().ok_or(Errno::EINVAL)
    }

    fn u64(&self, at: usize) -> Result<u64, Errno> {
        self.array(at).map(u64::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> Result<u32, Errno> {
        self.array(at).map(u32::from_ne_bytes)
    }

    /// The name that fills the argument from an offset on.
    fn name(&self, at: usize) -> Result<Name<'a>, Errno> {
        self.0.get(at..ARGUMENT_LEN).map(Name).ok_or(Errno::EINVAL)
    }

    /// A descriptor and a name: the first version of arguments about subvolumes.
    fn first(&self) -> Result<(i64, Made<'a>), Errno> {
        let made = Made { name: self.name(8)?, flags: 0, inherit_len: 0 };
        Ok((self.u64(0)?.cast_signed(), made))
    }

    /// A descriptor, a name and flags: the second version of arguments about subvolumes.
    fn second(&self) -> Result<(i64, Made<'a>), Errno> {
        let made = Made { name: self.name(56)?, flags: self.u64(16)?, inherit_len: self.u64(24)? };
        Ok((self.u64(0)?.cast_signed(), made))
    }
}

impl<'a> Command<'a> {
    /// Reads a command. `None` for a number that this module does not know.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an argument that is too short.
    pub fn decode(command: u32, argument: &'a [u8]) -> Result<Option<Self>, Errno> {
        let fields = Fields(argument);
        Ok(Some(match command {
            number::FS_INFO => Self::VolumeFacts,
            number::DEV_INFO => Self::DeviceFacts { id: fields.u64(0)?, uuid: fields.array(8)? },
            number::GET_FEATURES => Self::Features,
            number::GET_SUBVOL_INFO => Self::SubvolumeFacts,
            number::GET_SUBVOL_ROOTREF => Self::SubvolumeRefs { from: fields.u64(0)? },
            number::INO_LOOKUP => Self::InodePath { tree: fields.u64(0)?, ino: fields.u64(8)? },
            number::INO_LOOKUP_USER => {
                Self::SubvolumePath { dir: fields.u64(0)?, tree: fields.u64(8)? }
            }
            number::SUBVOL_GETFLAGS => Self::Flags,
            number::SUBVOL_SETFLAGS => Self::SetFlags(fields.u64(0)?),
            number::SYNC => Self::Sync,
            number::START_SYNC => Self::StartSync,
            number::WAIT_SYNC => Self::WaitSync(fields.u64(0)?),
            number::DEFAULT_SUBVOL => Self::SetDefault(fields.u64(0)?),
            number::SUBVOL_CREATE => Self::Create(fields.first()?.1),
            number::SUBVOL_CREATE_V2 => Self::Create(fields.second()?.1),
            number::SNAP_CREATE => {
                let (source, made) = fields.first()?;
                Self::Snapshot { source, made }
            }
            number::SNAP_CREATE_V2 => {
                let (source, made) = fields.second()?;
                Self::Snapshot { source, made }
            }
            number::SNAP_DESTROY => Self::Destroy { name: fields.first()?.1.name, flags: 0 },
            number::SNAP_DESTROY_V2 => {
                let Made { name, flags, .. } = fields.second()?.1;
                if flags == SubvolumeFlags::BY_ID {
                    // The number takes the place of the name.
                    return Ok(Some(Self::DestroyById(fields.u64(56)?)));
                }
                Self::Destroy { name, flags }
            }
            number::TREE_SEARCH => Self::Search(SearchKey::read(&fields)?),
            number::GETVERSION => Self::Generation,
            number::GET_DEV_STATS => Self::DeviceErrors(DeviceErrors::read(&fields)?),
            number::SET_RECEIVED_SUBVOL => Self::SetReceived(Origin::read(&fields)?),
            number::TRIM => {
                Self::Trim { from: fields.u64(0)?, len: fields.u64(8)?, least: fields.u64(16)? }
            }
            _ => return Ok(None),
        }))
    }

    /// Whether the command may take minutes: the devices are slow at it.
    #[must_use]
    pub fn may_take_minutes(&self) -> bool {
        matches!(self, Self::Trim { .. })
    }

    /// Whether the command changes the volume, walks a tree, or waits for the kernel, for a commit,
    /// or until all block groups were read. All other commands look up single items at most, as
    /// most requests do.
    #[must_use]
    pub fn may_take_long(&self) -> bool {
        use Command::*;
        matches!(
            self,
            SetFlags(_)
                | Sync
                | StartSync
                | WaitSync(_)
                | SetDefault(_)
                | Create(_)
                | Snapshot { .. }
                | Destroy { .. }
                | DestroyById(_)
                | Search(_)
                | DeviceErrors(self::DeviceErrors { reset: true, .. })
                | SetReceived(_)
                | Trim { .. }
                // Missing devices are known only after all block groups were read.
                | VolumeFacts
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 24] = [
        number::SNAP_CREATE,
        number::SYNC,
        number::SUBVOL_CREATE,
        number::SNAP_DESTROY,
        number::TREE_SEARCH,
        number::INO_LOOKUP,
        number::DEFAULT_SUBVOL,
        number::WAIT_SYNC,
        number::SNAP_CREATE_V2,
        number::SUBVOL_CREATE_V2,
        number::START_SYNC,
        number::SUBVOL_GETFLAGS,
        number::SUBVOL_SETFLAGS,
        number::DEV_INFO,
        number::FS_INFO,
        number::GET_FEATURES,
        number::GET_SUBVOL_INFO,
        number::GET_SUBVOL_ROOTREF,
        number::INO_LOOKUP_USER,
        number::SNAP_DESTROY_V2,
        number::GETVERSION,
        number::GET_DEV_STATS,
        number::SET_RECEIVED_SUBVOL,
        number::TRIM,
    ];

    /// The length of the argument in bits 16 to 29 of a command's number. Zero if the program
    /// passes no argument.
    fn len_in(command: u32) -> usize {
        let gives = command & 0x4000_0000 != 0;
        if gives { (command >> 16 & 0x3fff) as usize } else { 0 }
    }

    /// Every command takes an argument of the length that its number tells, and a shorter argument
    /// gives an error or a command, without a panic.
    #[test]
    fn commands_take_arguments_of_their_length() {
        for command in ALL {
            for fill in [0, 1, 0xff] {
                let argument = vec![fill; len_in(command)];
                assert!(matches!(Command::decode(command, &argument), Ok(Some(_))), "{command:x}");
                for len in (0..argument.len()).step_by(7) {
                    let _ = Command::decode(command, &argument[..len]);
                }
            }
            if len_in(command) > 0 {
                assert_eq!(Command::decode(command, &[]), Err(Errno::EINVAL), "{command:x}");
            }
        }
        assert_eq!(Command::decode(0x9499, &[]), Ok(None));
    }

    #[test]
    fn names_end_within_their_field() {
        let mut argument = vec![b'a'; ARGUMENT_LEN];
        let named = |argument: &[u8]| match Command::decode(number::SNAP_DESTROY, argument) {
            Ok(Some(Command::Destroy { name, .. })) => name.bytes().map(<[u8]>::to_vec),
            other => panic!("{other:?}"),
        };
        assert_eq!(named(&argument), Err(Errno::ENAMETOOLONG));
        argument[11] = 0;
        assert_eq!(named(&argument), Ok(b"aaa".to_vec()));
    }

    #[test]
    fn flags_are_checked_as_linux_does() {
        let made = |flags, inherit_len| Made { name: Name(b"\0"), flags, inherit_len };
        let inherit = SubvolumeFlags::INHERIT;
        assert_eq!(made(SubvolumeFlags::READ_ONLY, 0).check_flags(), Ok(()));
        assert_eq!(made(inherit, 71).check_flags(), Err(Errno::EINVAL));
        assert_eq!(made(inherit, 72).check_flags(), Ok(()));
        assert_eq!(made(1, 0).check_flags(), Err(Errno::EOPNOTSUPP));
        assert_eq!(made(SubvolumeFlags::BY_ID, 0).check_flags(), Err(Errno::EOPNOTSUPP));
    }
}
