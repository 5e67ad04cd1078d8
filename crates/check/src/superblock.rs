//! The superblock's copies, on every device.

use std::sync::Arc;
use std::time::Duration;

use buttress_base::thread;
use buttress_block::Device;
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{Generation, Logical, RootBackup, Superblock};
use buttress_volume::{Error, Volume};

use crate::report::Findings;
use buttress_issue::Issue;

/// How often a superblock copy is read if it may be half written, and the pause between two reads.
const LIVE_READS: usize = 5;
const LIVE_PAUSE: Duration = Duration::from_millis(20);

/// Checks each copy that a device has room for.
pub(crate) fn check_copies(findings: &Findings, devices: &[Arc<dyn Device>], newest: &Superblock) {
    each_copy(devices, |device, mirror, offset| {
        let seeds = seeds_own(device, newest);
        check_copy(findings, device, mirror, offset, seeds.as_ref().unwrap_or(newest));
    });
}

/// The superblock of a device that is a seed of this volume. This superblock stays as it was when
/// the volume was grown from the seed.
fn seeds_own(device: &dyn Device, newest: &Superblock) -> Option<Superblock> {
    let own = Volume::read_superblock(device).ok()?;
    (buttress_volume::is_seed(&own) && own.fsid != newest.fsid).then_some(own)
}

/// Checks the copies of a volume that a process is writing. Each copy must be valid, belong to this
/// volume, and be at most one commit older than the commit that the process holds.
pub(crate) fn check_live_copies(
    findings: &Findings,
    devices: &[Arc<dyn Device>],
    held: &Superblock,
) {
    each_copy(devices, |device, mirror, offset| {
        let seeds = seeds_own(device, held);
        let held = seeds.as_ref().unwrap_or(held);
        for left in (0..LIVE_READS).rev() {
            match Volume::read_superblock_mirror(device, mirror) {
                Ok(copy) if copy.fsid == held.fsid && copy.generation.next() >= held.generation => {
                    return;
                }
                // The copy may be half written.
                Err(Error::Superblock { .. }) if left > 0 => thread::sleep(LIVE_PAUSE),
                _ => return check_copy(findings, device, mirror, offset, held),
            }
        }
    });
}

fn each_copy(devices: &[Arc<dyn Device>], mut look: impl FnMut(&dyn Device, usize, u64)) {
    for device in devices {
        for (mirror, offset) in SUPER_OFFSETS.into_iter().enumerate() {
            // Every device has the first copy. A device has another copy if the volume's part of
            // the device has room for that copy.
            let end = newest_end(&**device);
            if mirror > 0 && offset + SUPER_SIZE as u64 >= end {
                continue;
            }
            look(&**device, mirror, offset);
        }
    }
}

fn newest_end(device: &dyn Device) -> u64 {
    let item = Volume::read_superblock(device).map(|superblock| superblock.dev_item.total_bytes);
    item.unwrap_or(u64::MAX).min(device.len())
}

fn check_copy(
    findings: &Findings,
    device: &dyn Device,
    mirror: usize,
    offset: u64,
    newest: &Superblock,
) {
    let name = device.name();
    let copy = match Volume::read_superblock_mirror(device, mirror) {
        Ok(copy) => copy,
        // A restored dump of metadata lacks the other copies, and mounts read only the first copy.
        Err(Error::NotBtrfs { .. }) if mirror > 0 => {
            findings.add(Issue::SuperCopyMissing { device: name, offset });
            return;
        }
        Err(error) => {
            let source = std::error::Error::source(&error);
            let why = source.map_or_else(|| error.to_string(), ToString::to_string);
            findings.add(Issue::SuperCopyDamaged { device: name, offset, why });
            return;
        }
    };
    let (found, expected) = (copy.generation, newest.generation);
    if mirror > 0 && copy.fsid != newest.fsid {
        // Another volume left this copy here. This volume never wrote a copy at this place.
        findings.add(Issue::SuperCopyMissing { device: name, offset });
    } else if copy.fsid != newest.fsid || found > expected {
        findings.add(Issue::SuperCopyMismatch { device: name, offset });
    } else if found < expected {
        findings.add(Issue::SuperCopyStale { device: name, offset, found, newest: expected });
    } else if as_common(&copy) != as_common(newest) {
        findings.add(Issue::SuperCopyMismatch { device: name, offset });
    }
}

/// Returns a copy without the fields that may differ between copies of one commit.
fn as_common(copy: &Superblock) -> Superblock {
    let mut common = copy.clone();
    common.bytenr = 0;
    common.dev_item = Default::default();
    // The fields of the log are written only to the first copy, or to the other copies in a later
    // step.
    common.log_root = Logical(0);
    common.log_root_level = 0;
    common.log_root_transid = 0;
    // Some tools write these fields in a later step than the other fields.
    common.backups = [RootBackup::default(); 4];
    common.uuid_tree_generation = Generation::default().0;
    common
}
