//! Writes superblocks of a device that no engine uses: the newest good copy, with changes of
//! single fields.
//!
//! # Invariants
//!
//! - **PA1** A superblock is written by patching the bytes of a good copy. So fields that this
//!   program does not know stay as they are.
//! - **PA2** Each copy is flushed before the next copy is written, so a power cut tears at most one
//!   copy.

use buttress_block::{Device, Error};
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{CompatRo, CsumType, Generation};

use crate::volume::Volume;

const BYTENR_AT: usize = 48;
/// The offset of the flags that tell whether the free-space tree is valid.
pub const COMPAT_RO_AT: usize = 180;

/// The offset of the field with the number of bytes that all extents use.
pub const BYTES_USED_AT: usize = 120;
/// The offset of the generation of the old free-space cache.
pub const CACHE_GENERATION_AT: usize = 555;

/// A change of a superblock: its offset and the new bytes. An empty change at the offset of the
/// flags marks the free-space tree as invalid.
pub type Change = (usize, Vec<u8>);

/// Writes every copy of a device's superblock: the newest good copy, with changes (PA1).
///
/// # Errors
///
/// When the device cannot be read or written.
pub fn write_superblocks(device: &dyn Device, changes: &[Change]) -> Result<(), Error> {
    let mut best: Option<(Generation, CsumType, Vec<u8>, u64)> = None;
    for (mirror, offset) in SUPER_OFFSETS.into_iter().enumerate() {
        let Ok(copy) = Volume::read_superblock_mirror(device, mirror) else { continue };
        if best.as_ref().is_none_or(|(generation, ..)| copy.generation > *generation) {
            let mut bytes = vec![0; SUPER_SIZE];
            device.read_at(offset, &mut bytes)?;
            let end = copy.dev_item.total_bytes.min(device.len());
            best = Some((copy.generation, copy.csum_type, bytes, end));
        }
    }
    // There is a good copy, because the volume was opened.
    let Some((_, csum, mut bytes, end)) = best else { return Ok(()) };
    for (at, new) in changes {
        if *at == COMPAT_RO_AT && new.is_empty() {
            let mut flags = [0; 8];
            flags.copy_from_slice(&bytes[*at..*at + 8]);
            let flags = CompatRo(u64::from_le_bytes(flags));
            let flags = flags.without(CompatRo::FREE_SPACE_TREE_VALID);
            bytes[*at..*at + 8].copy_from_slice(&flags.0.to_le_bytes());
        } else {
            bytes[*at..*at + new.len()].copy_from_slice(new);
        }
    }
    for (mirror, offset) in SUPER_OFFSETS.into_iter().enumerate() {
        if mirror > 0 && offset + SUPER_SIZE as u64 >= end {
            continue;
        }
        bytes[BYTENR_AT..BYTENR_AT + 8].copy_from_slice(&offset.to_le_bytes());
        let digest = csum.digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        device.write_at(offset, &bytes)?;
        // One copy after the other (PA2).
        device.flush()?;
    }
    Ok(())
}
