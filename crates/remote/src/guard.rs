//! Finds the content that a new file system would overwrite, before any device is opened for
//! writing.
//!
//! # Invariants
//!
//! - **G1** The examination changes nothing: no file is made or grown, and nothing is locked.
//! - **G2** A range of a disk is free only if the whole disk has no file system. The range must
//!   overlap no partition table. Besides, the range must be equal to a partition, or overlap no
//!   partition.

use std::path::Path;

use buttress_block::partition;
use buttress_block::{Device, FileDevice, OpenOptions, probe};

use crate::error::Result;
use crate::inside::Inside;
use crate::place::is_remote;

/// Bytes of a GPT at each end of a disk: a header and a list, and at the beginning also the MBR. A
/// table in sectors of 4 KiB is the longest.
const TABLE: u64 = 6 * 4096;

/// Names the content that a new file system at `volume` would overwrite, if there is any (G1, G2).
/// Returns `None` for a volume in a store, because a volume in a store can only be examined when it
/// is open.
///
/// # Errors
///
/// Those of opening and reading the device.
pub fn overwritten(volume: &Path) -> Result<Option<String>> {
    let how = OpenOptions { lock: false, ..OpenOptions::READ };
    if let Some(inside) = Inside::of(volume) {
        let (disk, window) = inside.open(how)?;
        let found = match inside.is_range() {
            true => around(&*disk, &inside)?,
            false => None,
        };
        return Ok(found.or(probe::identify(&*window)?));
    }
    let has_bytes = |found: std::fs::Metadata| !found.is_file() || found.len() > 0;
    if is_remote(volume) || !volume.metadata().is_ok_and(has_bytes) {
        return Ok(None);
    }
    Ok(probe::identify(&FileDevice::open(volume, how)?)?)
}

/// Names the content that a write of the range would overwrite: a part of a partition, a table, or
/// a file system of the whole disk (G2).
fn around(disk: &dyn Device, inside: &Inside) -> Result<Option<String>> {
    let region = inside.region(disk)?;
    if region.number.is_some() {
        return Ok(None);
    }
    let Some(whole) = probe::identify(disk)? else { return Ok(None) };
    let Some(table) = partition::read(disk).ok().flatten() else { return Ok(Some(whole)) };
    let (start, end) = (region.start, region.start + region.len);
    let cut = |part: &&partition::Partition| {
        part.start < end && part.start.saturating_add(part.len) > start
    };
    if let Some(part) = table.iter().find(cut) {
        return Ok(Some(format!("a part of partition {}", part.number)));
    }
    // The records of logical partitions lie within extended partitions.
    let extended = partition::extended(disk)?;
    let is_record = extended.iter().any(|at| at.start < end && at.end > start);
    let is_table = is_record || start < TABLE || end > disk.len().saturating_sub(TABLE);
    Ok((is_table || !whole.ends_with("partition table")).then_some(whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges that overlap a partition, the table or a file system of the whole disk are found; the
    /// place of a whole partition and a gap are free.
    #[test]
    fn a_range_is_free_only_if_the_disk_holds_nothing_there() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("disk.img");
        let at = |part: &str| std::path::PathBuf::from(format!("{}{part}", path.display()));
        let mut bytes = vec![0; 8 << 20];
        std::fs::write(&path, &bytes).expect("a disk");
        let is_free = |part: &str| overwritten(&at(part)).expect("a disk").is_none();
        assert!(is_free("") && is_free("@1MiB"));
        for (slot, kind, start) in [(0, 0x83, 2048_u32), (1, 0x83, 8192), (2, 5, 12288)] {
            let entry = &mut bytes[446 + 16 * slot..][..16];
            entry[4] = kind;
            entry[8..12].copy_from_slice(&start.to_le_bytes());
            entry[12..].copy_from_slice(&2048_u32.to_le_bytes());
        }
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        std::fs::write(&path, &bytes).expect("a disk");
        for free in ["#1", "#2", "@1MiB", "@1MiB+1MiB", "@2MiB+1MiB", "@2MiB", "@5MiB"] {
            assert!(is_free(free), "{free}");
        }
        for used in [
            "",
            "@0+64K",
            "@512",
            "@16K+4K",
            "@1MiB+2MiB",
            "@1MiB+512K",
            "@1536K+1MiB",
            "@4MiB+2MiB",
            "@6MiB",
            "@5MiB+2MiB",
        ] {
            assert!(!is_free(used), "{used}");
        }
        let mut bytes = vec![0; 8 << 20];
        bytes[0x1_0040..][..8].copy_from_slice(b"_BHRfS_M");
        std::fs::write(&path, &bytes).expect("a disk");
        assert!(!is_free("") && !is_free("@1MiB") && !is_free("@0"));
        assert_eq!(std::fs::read(&path).expect("a disk"), bytes, "G1");
    }
}
