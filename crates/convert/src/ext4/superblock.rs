//! The superblock: sizes, features, and whether the file system is clean.

use buttress_block::Device;
use buttress_format::CsumType;

use super::BLOCK;
use super::numbers::{damaged, le16, le32, split};
use crate::error::{Error, Result};

/// Where the superblock lies, and its length.
const OFFSET: u64 = 1024;
const LEN: usize = 1024;

/// Known features. A feature with a name is refused, because this reader cannot read files that use
/// the feature.
const INCOMPAT: [(u32, Option<&str>); 16] = [
    (0x1, Some("compression")),
    (0x2, None),
    (0x4, Some("needs_recovery")),
    (0x8, Some("journal_dev")),
    (0x10, None),
    (0x40, None),
    (0x80, None),
    (0x100, Some("mmp")),
    (0x200, None),
    (0x400, Some("ea_inode")),
    (0x1000, Some("dirdata")),
    (0x2000, None),
    (0x4000, None),
    (0x8000, Some("inline_data")),
    (0x1_0000, Some("encrypt")),
    (0x2_0000, Some("casefold")),
];

/// Features with which free space is unsafe to write, or files are read wrongly. Unknown features
/// are refused, too.
const RO_COMPAT: [(u32, &str); 4] =
    [(0x200, "bigalloc"), (0x4000, "shared_blocks"), (0x8000, "verity"), (0x80, "has_snapshot")];
const RO_COMPAT_KNOWN: u32 = 0x357f;
const ORPHANS_PRESENT: u32 = 0x1_0000;

/// `sparse_super`: only some groups have a superblock copy. `sparse_super2` names two groups with
/// copies. `meta_bg` puts the blocks of descriptors into the groups that they describe. The
/// remaining features change the format.
const SPARSE_SUPER: u32 = 0x1;
const SPARSE_SUPER2: u32 = 0x200;
const META_BG: u32 = 0x10;
const WIDE: u32 = 0x80;
const METADATA_CSUM: u32 = 0x400;
const GROUP_CSUM: u32 = 0x10;

/// The content of the superblock.
///
/// Plain data: all of it was checked.
#[derive(Clone, Debug)]
pub(crate) struct Superblock {
    /// Blocks of the file system.
    pub(crate) blocks: u64,
    /// Free blocks, as the superblock counts them.
    pub(crate) free_blocks: u64,
    /// The number of inodes, used and free.
    pub(crate) inodes: u32,
    /// Free inodes, as the superblock counts them.
    pub(crate) free_inodes: u32,
    /// Blocks of a group.
    pub(crate) group_blocks: u64,
    /// Inodes of a group.
    pub(crate) group_inodes: u32,
    /// Bytes of an inode.
    pub(crate) inode_len: usize,
    /// Bytes of a group's descriptor.
    pub(crate) descriptor_len: usize,
    /// Blocks that are reserved behind the descriptors.
    pub(crate) reserved_descriptors: u64,
    /// From this block on, each block of descriptors lies in the groups that it describes. Without
    /// the feature `meta_bg`, no block does.
    pub(crate) first_meta: u64,
    /// The volume's label.
    pub(crate) label: Vec<u8>,
    /// Whether descriptors of groups have checksums. Without checksums, the flags of the groups
    /// have no meaning.
    pub(super) has_group_sums: bool,
    is_sparse: bool,
    /// The two groups with copies, if the feature `sparse_super2` is on.
    backups: Option<[u32; 2]>,
}

impl Superblock {
    pub(super) fn read(device: &dyn Device) -> Result<Self> {
        if device.len() < OFFSET + LEN as u64 {
            return Err(Error::NotExt);
        }
        let mut bytes = vec![0; LEN];
        device.read_at(OFFSET, &mut bytes)?;
        Self::parse(&bytes, device.len())
    }

    fn parse(bytes: &[u8], device_len: u64) -> Result<Self> {
        if le16(bytes, 0x38)? != 0xef53 {
            return Err(Error::NotExt);
        }
        let (compat, incompat, ro_compat) =
            (le32(bytes, 0x5c)?, le32(bytes, 0x60)?, le32(bytes, 0x64)?);
        check_features(incompat, ro_compat)?;
        let is_wide = incompat & WIDE != 0;
        if ro_compat & METADATA_CSUM != 0 {
            let sum = CsumType::Crc32c.digest(&bytes[..0x3fc]);
            // The format stores the register itself. The digest is the complement of the register.
            let stored = le32(bytes, 0x3fc)?;
            if stored != !u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]) {
                return Err(damaged("the checksum of its superblock is wrong"));
            }
        }
        let state = le16(bytes, 0x3a)?;
        if state & 0x1 == 0 || state & 0x2 != 0 {
            return Err(damaged("it was not unmounted, or has errors"));
        }
        if le32(bytes, 0xe8)? != 0 {
            return Err(damaged("it has files without a name"));
        }
        if le32(bytes, 0x18)? != 2 {
            let size = 1024_u64.checked_shl(le32(bytes, 0x18)?).unwrap_or(0);
            return Err(Error::Feature(format!("blocks of {size} bytes, not {BLOCK}")));
        }
        let high = |at| if is_wide { le32(bytes, at) } else { Ok(0) };
        let blocks = u64::from(le32(bytes, 0x4)?) | u64::from(high(0x150)?) << 32;
        let free = u64::from(le32(bytes, 0xc)?) | u64::from(high(0x158)?) << 32;
        let is_old = le32(bytes, 0x4c)? == 0;
        let inode_len = if is_old { 128 } else { usize::from(le16(bytes, 0x58)?) };
        let descriptor_len = if is_wide { usize::from(le16(bytes, 0xfe)?) } else { 32 };
        let (group_blocks, group_inodes) = (le32(bytes, 0x20)?, le32(bytes, 0x28)?);
        let inodes = le32(bytes, 0)?;
        let fits = |size: usize, least| size.is_power_of_two() && (least..=4096).contains(&size);
        let per_block = |count: u32| (1..=BLOCK as u32 * 8).contains(&count);
        let is_sound = fits(inode_len, 128)
            && fits(descriptor_len, 32)
            && per_block(group_blocks)
            && per_block(group_inodes)
            && le32(bytes, 0x14)? == 0
            && free <= blocks
            && le32(bytes, 0x10)? <= inodes
            && blocks > u64::from(group_blocks.min(16))
            && u64::from(inodes) == u64::from(group_inodes) * blocks.div_ceil(group_blocks.into());
        if !is_sound {
            return Err(damaged("the numbers of its superblock contradict each other"));
        }
        if blocks.checked_mul(BLOCK).is_none_or(|bytes| bytes > device_len) {
            return Err(damaged(format!("it has {blocks} blocks, and the device ends before")));
        }
        let label = bytes[0x78..0x88].split(|&byte| byte == 0).next().unwrap_or_default();
        let first_meta = if incompat & META_BG != 0 { le32(bytes, 0x104)? } else { u32::MAX };
        let backups = [le32(bytes, 0x24c)?, le32(bytes, 0x250)?];
        Ok(Self {
            blocks,
            free_blocks: free,
            inodes,
            free_inodes: le32(bytes, 0x10)?,
            group_blocks: group_blocks.into(),
            group_inodes,
            inode_len,
            descriptor_len,
            reserved_descriptors: le16(bytes, 0xce)?.into(),
            first_meta: first_meta.into(),
            label: label.to_vec(),
            has_group_sums: ro_compat & (METADATA_CSUM | GROUP_CSUM) != 0,
            is_sparse: ro_compat & SPARSE_SUPER != 0,
            backups: (compat & SPARSE_SUPER2 != 0).then_some(backups),
        })
    }

    /// The number of groups.
    pub(crate) fn groups(&self) -> u64 {
        self.blocks.div_ceil(self.group_blocks)
    }

    /// How many descriptors a block has.
    pub(crate) fn descriptors_each(&self) -> u64 {
        BLOCK / self.descriptor_len as u64
    }

    /// Whether a group begins with a copy of the superblock.
    pub(crate) fn has_copy(&self, group: u64) -> bool {
        if group == 0 {
            return true;
        }
        if let Some(backups) = self.backups {
            return backups.iter().any(|&backup| u64::from(backup) == group);
        }
        !self.is_sparse || group == 1 || [3, 5, 7].iter().any(|&base| is_power(group, base))
    }

    /// How many blocks at a group's start hold the superblock copy, the descriptors and the blocks
    /// reserved for more. Zero if the group has neither a superblock copy nor a block of
    /// descriptors.
    pub(crate) fn copy_blocks(&self, group: u64) -> u64 {
        let each = self.descriptors_each();
        let is_meta = group / each >= self.first_meta;
        let copy = u64::from(self.has_copy(group));
        if is_meta {
            // One block describes several groups. The first two and the last of these groups have a
            // copy of the block.
            let within = group % each;
            return copy + u64::from(within < 2 || within == each - 1);
        }
        let all = self.groups().div_ceil(each).min(self.first_meta);
        copy * (1 + all + self.reserved_descriptors)
    }
}

fn is_power(mut number: u64, base: u64) -> bool {
    while number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

fn check_features(incompat: u32, ro_compat: u32) -> Result<()> {
    for bit in (0..32).map(|bit| 1_u32 << bit).filter(|bit| incompat & bit != 0) {
        match INCOMPAT.iter().find(|(known, _)| *known == bit) {
            Some((_, None)) => {}
            Some((0x4, _)) => return Err(damaged("its journal has to be replayed")),
            Some((_, Some(name))) => return Err(Error::Feature((*name).to_owned())),
            None => return Err(Error::Feature(format!("incompat {bit:#x}"))),
        }
    }
    if ro_compat & ORPHANS_PRESENT != 0 {
        return Err(damaged("it has files without a name"));
    }
    let unknown = ro_compat & !RO_COMPAT_KNOWN;
    match RO_COMPAT.iter().find(|(bit, _)| ro_compat & bit != 0) {
        Some((_, name)) => Err(Error::Feature((*name).to_owned())),
        None if unknown != 0 => Err(Error::Feature(format!("ro_compat {unknown:#x}"))),
        None => Ok(()),
    }
}

/// The address of a descriptor's block.
pub(super) fn descriptor_block(superblock: &Superblock, index: u64) -> u64 {
    if index < superblock.first_meta {
        return 1 + index;
    }
    let group = index * superblock.descriptors_each();
    group * superblock.group_blocks + u64::from(superblock.has_copy(group))
}

/// Joins the two halves of a number in a descriptor. A short descriptor has no upper half.
pub(super) fn halves(bytes: &[u8], low: usize, high: usize) -> Result<u64> {
    let has_high = bytes.len() >= 64;
    let high = if has_high { le32(bytes, high)? } else { 0 };
    Ok(split(le32(bytes, low)?, 0) | u64::from(high) << 32)
}
