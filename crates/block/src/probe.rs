//! Recognises the content of a device by its first bytes. Messages say what a new filesystem would
//! overwrite, or what a wrong file contains.
//!
//! # Place
//!
//! This module runs before a filesystem is made, and when no btrfs is found. It only reads, and
//! does not verify the format.
//!
//! # Invariants
//!
//! - **P1** Nothing read here is used as a length or an address. Each signature lies at a fixed
//!   place, and a device that is too short for a signature does not have the signature.

use crate::device::Device;
use crate::error::Error;

/// Names the filesystem, container or partition table on a device, if the format is known.
///
/// # Errors
///
/// Those of reading the device.
pub fn identify(device: &dyn Device) -> Result<Option<String>, Error> {
    let probe = Probe { device };
    for signature in SIGNATURES {
        if probe.holds(signature.offset, signature.magic)? {
            return Ok(Some(signature.name.to_owned()));
        }
    }
    // These formats need several checks. Partition tables come last, because a device with another
    // format may have a partition table in its first sectors as well.
    for recognise in [ext, swap, lvm, software_raid, fat, zfs, minix, gpt, mbr] {
        if let Some(name) = recognise(&probe)? {
            return Ok(Some(name.to_owned()));
        }
    }
    Ok(None)
}

/// A name, and the bytes of its signature.
struct Signature {
    name: &'static str,
    offset: u64,
    magic: &'static [u8],
}

const fn signature(name: &'static str, offset: u64, magic: &'static [u8]) -> Signature {
    Signature { name, offset, magic }
}

const BCACHE_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";
const BCACHEFS_MAGIC: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";

/// Long signatures come first, so that they win over a chance match of a short one.
const SIGNATURES: &[Signature] = &[
    signature("btrfs", 0x1_0040, b"_BHRfS_M"),
    signature("bcachefs", 4096 + 24, BCACHEFS_MAGIC),
    signature("bcache", 4096 + 24, BCACHE_MAGIC),
    signature("LUKS", 0, b"LUKS\xba\xbe"),
    signature("LUKS", 0x4000, b"SKUL\xba\xbe"),
    signature("NTFS", 3, b"NTFS    "),
    signature("exFAT", 3, b"EXFAT   "),
    signature("reiserfs", 0x1_0034, b"ReIsErFs"),
    signature("reiserfs", 0x1_0034, b"ReIsEr2Fs"),
    signature("reiserfs", 0x1_0034, b"ReIsEr3Fs"),
    signature("iso9660", 0x8001, b"CD001"),
    signature("udf", 0x8001, b"BEA01"),
    signature("jfs", 0x8000, b"JFS1"),
    signature("xfs", 0, b"XFSB"),
    signature("squashfs", 0, b"hsqs"),
    signature("squashfs", 0, b"sqsh"),
    signature("f2fs", 0x400, b"\x10\x20\xf5\xf2"),
    signature("erofs", 0x400, b"\xe2\xe1\xf5\xe0"),
    signature("dm-writecache", 0, b"\x21\x93\x48\x23"),
    signature("a qcow2 image", 0, b"QFI\xfb"),
    signature("bfs", 0, b"\xce\xfa\xad\x1b"),
    signature("cramfs", 0, b"\x45\x3d\xcd\x28"),
    signature("cramfs", 512, b"\x45\x3d\xcd\x28"),
];

struct Probe<'a> {
    device: &'a dyn Device,
}

impl Probe<'_> {
    /// Whether the bytes at `offset` are `magic`. False if the device ends before them (P1).
    fn holds(&self, offset: u64, magic: &[u8]) -> Result<bool, Error> {
        Ok(self.window(offset, magic.len())?.is_some_and(|bytes| bytes == magic))
    }

    /// Reads a few bytes, if the device has them.
    fn window(&self, offset: u64, len: usize) -> Result<Option<Vec<u8>>, Error> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.device.len()) {
            return Ok(None);
        }
        let mut bytes = vec![0; len];
        self.device.read_at(offset, &mut bytes)?;
        Ok(Some(bytes))
    }

    fn u16_at(&self, offset: u64) -> Result<Option<u16>, Error> {
        let bytes = self.window(offset, 2)?;
        Ok(bytes.and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes))
    }

    fn u32_at(&self, offset: u64) -> Result<Option<u32>, Error> {
        let bytes = self.window(offset, 4)?;
        Ok(bytes.and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes))
    }
}

/// ext2, ext3 and ext4 have one signature and differ by features.
fn ext(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    const SUPER: u64 = 0x400;
    const MAGIC: u16 = 0xef53;
    const COMPAT_JOURNAL: u32 = 0x4;
    /// The features of ext3: compression, directory types, recovery, a separate device for the
    /// journal, meta block groups.
    const INCOMPAT_BEFORE_EXT4: u32 = 0x1f;

    if probe.u16_at(SUPER + 56)? != Some(MAGIC) {
        return Ok(None);
    }
    let compat = probe.u32_at(SUPER + 92)?.unwrap_or(0);
    let incompat = probe.u32_at(SUPER + 96)?.unwrap_or(0);
    Ok(Some(if incompat & !INCOMPAT_BEFORE_EXT4 != 0 {
        "ext4"
    } else if compat & COMPAT_JOURNAL != 0 {
        "ext3"
    } else {
        "ext2"
    }))
}

/// Swap space has its signature at the end of its first page, and pages come in several sizes.
fn swap(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    for page in [4096, 8192, 16384, 65536] {
        for magic in [b"SWAPSPACE2", b"SWAP-SPACE"] {
            if probe.holds(page - magic.len() as u64, magic)? {
                return Ok(Some("swap"));
            }
        }
    }
    Ok(None)
}

/// A physical volume of LVM2 has its label in one of the first four sectors.
fn lvm(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    for sector in 0..4 {
        let at = sector * 512;
        if probe.holds(at, b"LABELONE")? && probe.holds(at + 24, b"LVM2 001")? {
            return Ok(Some("LVM2"));
        }
    }
    Ok(None)
}

/// Members of a software RAID have their superblock at the start, at 4 KiB, or near the end.
fn software_raid(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    const MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
    let len = probe.device.len();
    let version_0 = (len & !0xffff).checked_sub(0x1_0000);
    let version_1 = (len & !0xfff).checked_sub(0x2000);
    for at in [Some(0), Some(4096), version_0, version_1].into_iter().flatten() {
        if probe.holds(at, &MAGIC)? {
            return Ok(Some("a RAID member"));
        }
    }
    Ok(None)
}

/// FAT has the mark of a boot sector, and its name as text at a place that depends on its width.
fn fat(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    if !probe.holds(510, b"\x55\xaa")? {
        return Ok(None);
    }
    let named = probe.holds(82, b"FAT32   ")?
        || probe.holds(54, b"FAT16   ")?
        || probe.holds(54, b"FAT12   ")?
        || probe.holds(54, b"FAT     ")?;
    Ok(named.then_some("FAT"))
}

/// The label of ZFS ends in an array of uberblocks, and any uberblock may be the first in use.
fn zfs(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    const UBERBLOCKS: u64 = 128 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let Some(array) = probe.window(UBERBLOCKS, 128 << 10)? else { return Ok(None) };
    let (little, big) = (MAGIC.to_le_bytes(), MAGIC.to_be_bytes());
    let found =
        array.chunks_exact(1024).any(|slot| slot.starts_with(&little) || slot.starts_with(&big));
    Ok(found.then_some("ZFS"))
}

/// The magic of minix has only two bytes. So the counts of bitmap blocks and the zone size must be
/// plausible, too.
fn minix(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    const SUPER: u64 = 0x400;
    /// Versions 1 and 2, with names of 14 and 30 bytes.
    const MAGICS: [u16; 4] = [0x137f, 0x138f, 0x2468, 0x2478];
    const MAGIC_3: u16 = 0x4d5a;

    let is_old = probe.u16_at(SUPER + 16)?.is_some_and(|magic| MAGICS.contains(&magic));
    let counts = if is_old {
        SUPER + 4
    } else if probe.u16_at(SUPER + 24)? == Some(MAGIC_3) {
        SUPER + 6
    } else {
        return Ok(None);
    };
    let has_maps = [counts, counts + 2].into_iter().try_fold(true, |has, at| {
        Ok::<_, Error>(has && probe.u16_at(at)?.is_some_and(|blocks| blocks > 0))
    })?;
    let zones = probe.u16_at(counts + 6)?;
    Ok((has_maps && zones.is_some_and(|log| log < 8)).then_some("minix"))
}

/// The header of a GPT lies in the second sector, for both sector sizes.
fn gpt(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    for sector in [512, 4096] {
        if probe.holds(sector, b"EFI PART")? {
            return Ok(Some("a GPT partition table"));
        }
    }
    Ok(None)
}

/// The mark of a boot sector is not enough. The sector also needs four entries that could be
/// partitions.
fn mbr(probe: &Probe<'_>) -> Result<Option<&'static str>, Error> {
    let Some(sector) = probe.window(0, 512)? else { return Ok(None) };
    let (code, table) = sector.split_at(446);
    let (entries, mark) = table.split_at(64);
    if mark != b"\x55\xaa" || code.is_empty() {
        return Ok(None);
    }
    let mut used = 0;
    for entry in entries.chunks_exact(16) {
        let (status, kind) = (entry[0], entry[4]);
        if status & 0x7f != 0 {
            return Ok(None);
        }
        used += u32::from(kind != 0);
    }
    Ok((used > 0).then_some("an MBR partition table"))
}

#[cfg(test)]
mod tests;
