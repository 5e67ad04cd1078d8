//! Inode flags, as `lsattr` and `chattr` read and change them.

use buttress_fs::{FileKind, SetAttr};
use fuser::Errno;

use super::{Answer, Door, refuse};

const GET_FLAGS: u32 = 0x8008_6601;
const SET_FLAGS: u32 = 0x4008_6602;

const NODATASUM: u64 = 1;
const NODATACOW: u64 = 1 << 1;
const NOCOW_SHOWN: u32 = 0x0080_0000;

/// The flags as the format numbers them, and as programs do.
const SHOWN: [(u64, u32); 9] = [
    (NODATACOW, NOCOW_SHOWN),
    (1 << 3, 0x400),
    (1 << 5, 0x8),
    (1 << 6, 0x10),
    (1 << 7, 0x20),
    (1 << 8, 0x40),
    (1 << 9, 0x80),
    (1 << 10, 0x0001_0000),
    (1 << 11, 0x4),
];

impl Door {
    /// Answers `ioctl`: two are known.
    pub(crate) fn ioctl(&self, id: u64, command: u32, argument: &[u8]) -> Answer<Vec<u8>> {
        match command {
            GET_FLAGS => self.inode_flags(id).map(|flags| flags.to_ne_bytes().to_vec()),
            SET_FLAGS => {
                let flags = argument.first_chunk().ok_or(Errno::EINVAL)?;
                self.set_inode_flags(id, u32::from_ne_bytes(*flags)).map(|()| Vec::new())
            }
            _ => Err(Errno::ENOTTY),
        }
    }

    fn inode_flags(&self, id: u64) -> Answer<u32> {
        Ok(shown(self.node(id)?.inode.attr().flags))
    }

    fn set_inode_flags(&self, id: u64, wanted: u32) -> Answer<()> {
        let node = self.node(id)?;
        let attr = node.inode.attr();
        let all = SHOWN.iter().fold(0, |all, (_, bit)| all | bit);
        if wanted & !all != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let changed = wanted ^ shown(attr.flags);
        let mut flags = SHOWN.iter().fold(attr.flags, |flags, (bit, shown)| {
            if wanted & shown != 0 { flags | bit } else { flags & !bit }
        });
        // Extents of a file that is overwritten in place have no checksums. Both can be decided
        // only while there are none; a directory passes the flag on to what is made in it.
        if changed & NOCOW_SHOWN != 0 && attr.kind == FileKind::Regular {
            if attr.size != 0 {
                return Err(Errno::EINVAL);
            }
            flags = if wanted & NOCOW_SHOWN != 0 { flags | NODATASUM } else { flags & !NODATASUM };
        }
        if changed != 0 {
            let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
            node.inode.set_attr(&set).map_err(refuse)?;
        }
        Ok(())
    }
}

fn shown(flags: u64) -> u32 {
    SHOWN.iter().fold(0, |all, (bit, shown)| if flags & bit != 0 { all | shown } else { all })
}
