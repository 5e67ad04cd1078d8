//! Finds the other devices of a volume among the block devices of this machine, as Linux does when
//! one device of several is mounted.
//!
//! # Invariants
//!
//! - **SC1** Devices are looked for only if the first named device is a block device. Image files
//!   are never picked up.
//! - **SC2** A found device has the volume's identifier, and a number that no named device has.
//! - **SC3** A device may be one transaction behind the newest one, as after a power cut between
//!   two superblocks. If a device is further behind, or if two devices have one number, the command
//!   line has to decide.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use buttress_block::OpenOptions;
use buttress_format::{DeviceId, Generation, ReplaceItem, Superblock};
use buttress_remote::{Asked, host_file, is_remote};
use buttress_volume::Volume;

use crate::exit::{Exit, Failure, Result};
use crate::names;

/// Where Linux lists block devices.
const BLOCK_DEVICES: &str = "/sys/class/block";

/// A block device with a superblock of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    path: PathBuf,
    id: DeviceId,
    generation: Generation,
}

/// Returns the devices of a volume that are not among `named`. Returns none if `named` are all, or
/// begin with an image (SC1). With `degraded`, a device that is too far behind is left out.
///
/// # Errors
///
/// If the command line has to decide between devices (SC3).
pub fn others(named: &[&Path], degraded: bool) -> Result<Vec<PathBuf>> {
    let Some(first) = named.first().filter(|path| is_block_device(path)) else {
        return Ok(Vec::new());
    };
    // An unreadable superblock is reported when the volume is opened.
    let Some(superblock) = superblock(first) else { return Ok(Vec::new()) };
    if superblock.num_devices <= named.len() as u64 {
        return Ok(Vec::new());
    }
    let part = |path: &Path, superblock: &Superblock| Part {
        path: path.to_path_buf(),
        id: superblock.dev_item.devid,
        generation: superblock.generation,
    };
    let have: Vec<Part> = named
        .iter()
        .filter_map(|path| self::superblock(path).map(|found| part(path, &found)))
        .collect();
    let numbers: HashSet<u64> = named.iter().filter_map(|path| device_number(path)).collect();
    let seen = block_devices()
        .into_iter()
        .filter(|path| device_number(path).is_some_and(|number| !numbers.contains(&number)))
        .filter_map(|path| {
            let found = self::superblock(&path).filter(|found| found.fsid == superblock.fsid)?;
            Some(part(&path, &found))
        })
        .collect();
    choose(&have, seen, superblock.num_devices, degraded)
}

/// Chooses among the devices that were found.
fn choose(have: &[Part], seen: Vec<Part>, expected: u64, degraded: bool) -> Result<Vec<PathBuf>> {
    let is_new = |part: &Part| have.iter().all(|named| named.id != part.id);
    let mut places: BTreeMap<u64, Vec<Part>> = BTreeMap::new();
    for part in seen.into_iter().filter(is_new) {
        places.entry(part.id.0).or_default().push(part);
    }
    let generations = places.values().flatten().chain(have).map(|part| part.generation.0);
    let newest = generations.max().unwrap_or_default();
    let is_behind = |part: &Part| part.generation.0.saturating_add(1) < newest;

    let mut chosen = Vec::new();
    let mut behind = Vec::new();
    let mut members = have.iter().filter(|part| part.id != ReplaceItem::TARGET).count() as u64;
    for (_, parts) in places {
        let (old, current): (Vec<_>, Vec<_>) = parts.into_iter().partition(is_behind);
        behind.extend(old);
        match current.as_slice() {
            [] => {}
            [part] => {
                members += u64::from(part.id != ReplaceItem::TARGET);
                chosen.push(part.path.clone());
            }
            [first, second, ..] => {
                let what = format!(
                    "{} and {} both say that they are device {} of the volume: name one of them \
                     with device=",
                    names::of_path(&first.path),
                    names::of_path(&second.path),
                    first.id.0,
                );
                return Err(Failure::new(Exit::Failure, what));
            }
        }
    }
    // mount(8) may have taken any device of the volume for its UUID.
    if let Some(named) = have.iter().find(|part| is_behind(part)) {
        let what = format!(
            "{} is at transaction {}, not {newest}: name all devices with device= to use it, or \
             mount another one with degraded",
            names::of_path(&named.path),
            named.generation.0,
        );
        return Err(Failure::new(Exit::Failure, what));
    }
    // If all places are taken, an old device belongs to the volume no more.
    let Some(part) = behind.into_iter().find(|part| part.id != ReplaceItem::TARGET) else {
        return Ok(chosen);
    };
    if members >= expected {
        return Ok(chosen);
    }
    let path = names::of_path(&part.path);
    let behind = format!("{path} is at transaction {}, not {newest}", part.generation.0);
    if degraded {
        crate::ui::note(format!("{behind}: it is left out"));
        return Ok(chosen);
    }
    let what = format!("{behind}: name it with device={path} to use it, or leave it out: degraded");
    Err(Failure::new(Exit::Failure, what))
}

/// The block devices that nothing lies on top of.
fn block_devices() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(BLOCK_DEVICES) else { return Vec::new() };
    let mut devices: Vec<PathBuf> = entries.filter_map(|entry| node(&entry.ok()?.path())).collect();
    devices.sort();
    devices
}

/// The device node of an entry of `/sys/class/block`. Returns `None` for a device without a medium,
/// and for one that a mapper or an array is made of: the volume is on that.
fn node(entry: &Path) -> Option<PathBuf> {
    let read = |name: &str| fs::read_to_string(entry.join(name)).ok();
    if read("size")?.trim() == "0" || has_entries(&entry.join("holders")) {
        return None;
    }
    let event = read("uevent")?;
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    let path = Path::new("/dev").join(name);
    is_block_device(&path).then_some(path)
}

fn has_entries(folder: &Path) -> bool {
    fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some())
}

fn is_block_device(path: &Path) -> bool {
    !is_remote(path)
        && fs::metadata(host_file(path)).is_ok_and(|found| found.file_type().is_block_device())
}

fn device_number(path: &Path) -> Option<u64> {
    let found = fs::metadata(path).ok()?;
    found.file_type().is_block_device().then(|| found.rdev())
}

/// Reads a superblock. Takes no lock, since a server may have the device.
fn superblock(path: &Path) -> Option<Superblock> {
    let how = OpenOptions { write: false, lock: false, ..OpenOptions::default() };
    let opened = buttress_remote::open(path, how, &Asked::default()).ok()?;
    Volume::read_superblock(&*opened.device()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, id: u64, generation: u64) -> Part {
        let path = Path::new("/dev").join(name);
        Part { path, id: DeviceId(id), generation: Generation(generation) }
    }

    fn chosen(seen: &[Part], expected: u64, degraded: bool) -> std::result::Result<String, String> {
        let chosen = choose(&[part("a", 1, 9)], seen.to_vec(), expected, degraded);
        let names = |paths: Vec<PathBuf>| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        chosen.map(names).map_err(|failure| failure.to_string())
    }

    /// What is missing is found, also one transaction behind. A second device with a named number
    /// is no candidate.
    #[test]
    fn missing_devices_are_chosen() {
        let seen = [part("d", 3, 8), part("c", 2, 9), part("copy", 1, 9)];
        assert_eq!(chosen(&seen, 3, false).expect("clear"), "/dev/c /dev/d");
        assert_eq!(chosen(&[], 3, false).expect("the volume says what is missing"), "");
    }

    /// Two devices for one place are refused by name, and an old copy of a present one is not.
    #[test]
    fn two_devices_for_one_place_are_refused() {
        let why = chosen(&[part("c", 2, 9), part("d", 2, 8)], 2, true).expect_err("unclear");
        assert!(why.contains("/dev/c and /dev/d") && why.contains("device="), "{why}");
        assert_eq!(chosen(&[part("c", 2, 9), part("d", 2, 3)], 2, false).expect("clear"), "/dev/c");
    }

    /// A device that missed transactions is refused by name if its place is free.
    #[test]
    fn a_device_that_is_behind_is_refused() {
        let why = chosen(&[part("c", 2, 7)], 2, false).expect_err("behind");
        assert!(why.contains("device=/dev/c") && why.contains("transaction 7, not 9"), "{why}");
        assert_eq!(chosen(&[part("c", 2, 7)], 2, true).expect("it is left out"), "");
        // The named device itself may be the old one.
        let why = chosen(&[part("c", 2, 12)], 2, true).expect_err("behind");
        assert!(why.contains("/dev/a is at transaction 9, not 12"), "{why}");
    }

    /// The target of a replacement comes along, and is no member.
    #[test]
    fn the_target_of_a_replacement_is_found() {
        let seen = [part("c", 2, 9), part("t", 0, 9)];
        assert_eq!(chosen(&seen, 2, false).expect("clear"), "/dev/t /dev/c");
        assert_eq!(chosen(&[part("t", 0, 2), part("c", 2, 9)], 2, false).expect("clear"), "/dev/c");
        // With all members there, an old device belongs to nothing any more.
        assert_eq!(chosen(&[part("c", 2, 9), part("d", 3, 2)], 2, false).expect("clear"), "/dev/c");
    }
}
