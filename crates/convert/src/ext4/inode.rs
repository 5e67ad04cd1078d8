//! Inodes.

use buttress_format::Timespec;

use super::BLOCK;
use super::numbers::{damaged, le16, le32, split};
use super::opened::Ext4;
use crate::error::{Error, Result};

/// The flags of an inode that this reader has to know.
const EXTENTS: u32 = 0x8_0000;
const EA_INODE: u32 = 0x20_0000;
const INLINE: u32 = 0x1000_0000;
const ENCRYPTED: u32 = 0x800;
const VERITY: u32 = 0x10_0000;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Regular,
    Directory,
    Symlink,
    Character,
    Block,
    Fifo,
    Socket,
}

/// An inode.
///
/// Plain data: a copy of the inode on the device.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) number: u32,
    pub(crate) kind: Kind,
    /// Type and permission bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u16,
    /// Bytes of content.
    pub(crate) size: u64,
    pub(crate) atime: Timespec,
    pub(crate) mtime: Timespec,
    pub(crate) ctime: Timespec,
    /// Flags, as chattr(1) and ioctls number them.
    pub(crate) flags: u32,
    /// The block of attributes that do not fit into the inode; zero for none.
    pub(super) attributes: u64,
    /// The root of the map of blocks, or the target of a short link.
    pub(super) map: [u8; 60],
    /// The space for attributes behind the fields.
    pub(super) tail: Vec<u8>,
}

impl Inode {
    pub(super) fn has_extents(&self) -> bool {
        self.flags & EXTENTS != 0
    }

    /// The device number, as btrfs stores it: the major number from bit 20 on.
    pub(crate) fn device(&self) -> Result<u64> {
        let (old, new) = (u64::from(le32(&self.map, 0)?), u64::from(le32(&self.map, 4)?));
        let (major, minor) = match old {
            0 => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xfff00),
            _ => (old >> 8 & 0xff, old & 0xff),
        };
        Ok(major << 20 | minor)
    }

    /// The target of a symbolic link, if it is short enough to lie in the space of the map.
    pub(crate) fn short_target(&self) -> Option<&[u8]> {
        let is_short = self.kind == Kind::Symlink && self.size < 60 && !self.has_extents();
        is_short.then(|| &self.map[..self.size as usize])
    }
}

impl Ext4 {
    /// Reads an inode. `None` if it has no links or no mode: such an inode is unused, is deleted,
    /// or belongs to the file system itself.
    pub(crate) fn inode(&self, number: u32) -> Result<Option<Inode>> {
        let mut bytes = vec![0; self.superblock.inode_len];
        self.device.read_at(self.inode_offset(number)?, &mut bytes)?;
        let mode = le16(&bytes, 0)?;
        let links = le16(&bytes, 0x1a)?;
        if links == 0 || mode == 0 {
            return Ok(None);
        }
        let kind = match mode & 0xf000 {
            0x8000 => Kind::Regular,
            0x4000 => Kind::Directory,
            0xa000 => Kind::Symlink,
            0x2000 => Kind::Character,
            0x6000 => Kind::Block,
            0x1000 => Kind::Fifo,
            0xc000 => Kind::Socket,
            _ => return Err(damaged(format!("inode {number} has no type"))),
        };
        let flags = le32(&bytes, 0x20)?;
        for (bit, name) in [
            (EA_INODE, "ea_inode"),
            (INLINE, "inline_data"),
            (ENCRYPTED, "encrypt"),
            (VERITY, "verity"),
        ] {
            if flags & bit != 0 {
                return Err(Error::Feature(name.to_owned()));
            }
        }
        let extra = match bytes.len() {
            128 => 0,
            _ => usize::from(le16(&bytes, 0x80)?).min(bytes.len() - 128),
        };
        let time = |at: usize, more: usize| -> Result<Timespec> {
            let seconds = i64::from(le32(&bytes, at)?.cast_signed());
            let has_more = 128 + extra >= more + 4;
            let more = if has_more { le32(&bytes, more)? } else { 0 };
            Ok(Timespec {
                sec: seconds + (i64::from(more & 3) << 32),
                nsec: (more >> 2).min(999_999_999),
            })
        };
        let mut map = [0; 60];
        map.copy_from_slice(&bytes[0x28..0x64]);
        let size = u64::from(le32(&bytes, 0x4)?) | u64::from(le32(&bytes, 0x6c)?) << 32;
        if size > i64::MAX as u64 - BLOCK {
            return Err(damaged(format!("inode {number} is too long")));
        }
        Ok(Some(Inode {
            number,
            kind,
            mode: mode.into(),
            uid: u32::from(le16(&bytes, 0x2)?) | u32::from(le16(&bytes, 0x78)?) << 16,
            gid: u32::from(le16(&bytes, 0x18)?) | u32::from(le16(&bytes, 0x7a)?) << 16,
            links,
            size,
            atime: time(0x8, 0x8c)?,
            mtime: time(0x10, 0x88)?,
            ctime: time(0xc, 0x84)?,
            flags,
            attributes: split(le32(&bytes, 0x68)?, le16(&bytes, 0x76)?),
            map,
            tail: bytes[128 + extra..].to_vec(),
        }))
    }
}
