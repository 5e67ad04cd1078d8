//! Finds the other devices of a volume among the block devices of this machine, as Linux does when
//! one device of several is mounted.
//!
//! # Invariants
//!
//! - **SC1** Devices are looked for only if one block device was named. Image files are never
//!   picked up.
//! - **SC2** A found device has the volume's identifier, and a number that the named one has not.
//! - **SC3** All devices show the same commit and the same log. A device that missed a degraded
//!   mount is behind. So where devices differ, or two have one number, the command line has to
//!   decide. `degraded` leaves out what differs and is not newer, as the named device alone would
//!   do.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use buttress_block::OpenOptions;
use buttress_format::{DeviceId, Logical, ReplaceItem, Superblock};
use buttress_remote::{OpenRequest, host_file, is_remote};
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
    shows: Shows,
}

/// What the superblock of a device shows (SC3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shows {
    generation: u64,
    /// The nodes at the top: of the roots, of the chunks, and of the log.
    tops: [Logical; 3],
}

impl Shows {
    /// Orders contents by age, as far as superblocks tell: a log comes after its transaction.
    fn age(&self) -> (u64, bool) {
        (self.generation, self.tops[2].0 != 0)
    }
}

impl Part {
    fn new(path: &Path, superblock: &Superblock) -> Self {
        let tops = [superblock.root, superblock.chunk_root, superblock.log_root];
        let shows = Shows { generation: superblock.generation.0, tops };
        Self { path: path.to_path_buf(), id: superblock.dev_item.devid, shows }
    }
}

/// Returns the other devices of the volume of `named`. Returns none if that is all of the volume,
/// or if it is an image (SC1). With `degraded`, some may be left out (SC3).
///
/// # Errors
///
/// If the command line has to decide between devices (SC3).
pub fn others(named: &Path, degraded: bool) -> Result<Vec<PathBuf>> {
    if !is_block_device(named) {
        return Ok(Vec::new());
    }
    // An unreadable superblock is reported when the volume is opened.
    let Some(superblock) = superblock(named).filter(|found| found.num_devices > 1) else {
        return Ok(Vec::new());
    };
    let number = device_number(named);
    let seen = block_devices()
        .into_iter()
        .filter(|path| device_number(path) != number)
        .filter_map(|path| {
            let found = self::superblock(&path).filter(|found| found.fsid == superblock.fsid)?;
            Some(Part::new(&path, &found))
        })
        .collect();
    choose(&Part::new(named, &superblock), seen, superblock.num_devices, degraded)
}

/// Chooses among the devices that were found.
fn choose(named: &Part, seen: Vec<Part>, expected: u64, degraded: bool) -> Result<Vec<PathBuf>> {
    let mut places: BTreeMap<u64, Vec<Part>> = BTreeMap::new();
    // The target of a replacement is no device of the volume yet.
    let is_place = |part: &Part| part.id != named.id && part.id != ReplaceItem::TARGET;
    for part in seen.into_iter().filter(is_place) {
        places.entry(part.id.0).or_default().push(part);
    }
    let mut chosen = Vec::new();
    let mut differing = Vec::new();
    for (_, parts) in places {
        let (equal, others): (Vec<_>, Vec<_>) =
            parts.into_iter().partition(|part| part.shows == named.shows);
        differing.extend(others);
        match equal.as_slice() {
            [] => {}
            [part] => chosen.push(part.path.clone()),
            [first, second, ..] => {
                let what = format!(
                    "{} and {} both say that they are device {} of the volume: name all devices \
                     that it has, with device=",
                    names::of_path(&first.path),
                    names::of_path(&second.path),
                    first.id.0,
                );
                return Err(Failure::new(Exit::Failure, what));
            }
        }
    }
    // If all places are taken, a device that differs belongs to the volume no more.
    let is_complete = chosen.len() as u64 + 1 >= expected;
    let newest = differing.into_iter().max_by_key(|part| part.shows.age());
    let Some(part) = newest.filter(|_| !is_complete) else { return Ok(chosen) };
    let (path, named_path) = (names::of_path(&part.path), names::of_path(&named.path));
    let (theirs, ours) = (part.shows.generation, named.shows.generation);
    let differs = match theirs == ours {
        true => format!("{path} and {named_path} show other contents of transaction {ours}"),
        false => format!("{path} is at transaction {theirs}, and {named_path} at {ours}"),
    };
    if degraded && part.shows.age() <= named.shows.age() {
        crate::ui::note(format!("{differs}: it is left out"));
        return Ok(chosen);
    }
    let what = format!(
        "{differs}: name all devices with device= to join them, or mount the newer one with \
         degraded"
    );
    Err(Failure::new(Exit::Failure, what))
}

/// The block devices on which a volume can lie.
fn block_devices() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(BLOCK_DEVICES) else { return Vec::new() };
    let mut devices: Vec<PathBuf> = entries.filter_map(|entry| node(&entry.ok()?.path())).collect();
    devices.sort();
    devices
}

/// The device node of an entry of `/sys/class/block`. Returns `None` for a device without a medium
/// and for one that does not answer. A mapper or an array has the volume of its parts, so `None` is
/// returned for these parts, too.
fn node(entry: &Path) -> Option<PathBuf> {
    let read = |name: &str| fs::read_to_string(entry.join(name)).ok();
    let is_set = |name: &str| read(name).is_some_and(|text| text.trim() == "1");
    if read("size")?.trim() == "0" || is_set("dm/suspended") || has_entries(&entry.join("holders"))
    {
        return None;
    }
    let event = read("uevent")?;
    let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
    // Floppies and optical disks answer after seconds.
    if name.starts_with("fd") || name.starts_with("sr") {
        return None;
    }
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
    let opened = buttress_remote::open(path, how, &OpenRequest::default()).ok()?;
    Volume::read_superblock(&*opened.device()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, id: u64, generation: u64) -> Part {
        let path = Path::new("/dev").join(name);
        let tops = [Logical(generation), Logical(2), Logical(0)];
        Part { path, id: DeviceId(id), shows: Shows { generation, tops } }
    }

    fn chosen(seen: &[Part], expected: u64) -> std::result::Result<String, String> {
        chosen_if(false, seen, expected)
    }

    fn chosen_if(
        degraded: bool,
        seen: &[Part],
        expected: u64,
    ) -> std::result::Result<String, String> {
        let chosen = choose(&part("a", 1, 9), seen.to_vec(), expected, degraded);
        let names = |paths: Vec<PathBuf>| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" ")
        };
        chosen.map(names).map_err(|failure| failure.to_string())
    }

    /// What is missing is found. A second device with the named number is no candidate, and neither
    /// is the target of a replacement.
    #[test]
    fn missing_devices_are_chosen() {
        let seen = [part("d", 3, 9), part("c", 2, 9), part("copy", 1, 9), part("t", 0, 9)];
        assert_eq!(chosen(&seen, 3).expect("clear"), "/dev/c /dev/d");
        assert_eq!(chosen(&[], 3).expect("the volume says what is missing"), "");
    }

    /// Two devices for one place are refused by name, and an old copy of a present one is not.
    #[test]
    fn two_devices_for_one_place_are_refused() {
        let why = chosen(&[part("c", 2, 9), part("d", 2, 9)], 2).expect_err("unclear");
        assert!(why.contains("/dev/c and /dev/d") && why.contains("device="), "{why}");
        assert_eq!(chosen(&[part("c", 2, 9), part("d", 2, 8)], 2).expect("clear"), "/dev/c");
    }

    /// A device that missed a transaction is refused by name if its place is free. So is one that
    /// shows another log, or another content of the same transaction.
    #[test]
    fn devices_that_differ_are_refused() {
        let why = chosen(&[part("c", 2, 8)], 2).expect_err("behind");
        assert!(why.contains("/dev/c is at transaction 8, and /dev/a at 9"), "{why}");
        let why = chosen(&[part("c", 2, 10)], 2).expect_err("the named device is behind");
        assert!(why.contains("/dev/c is at transaction 10, and /dev/a at 9"), "{why}");
        for top in 0..3 {
            let mut other = part("c", 2, 9);
            other.shows.tops[top] = Logical(77);
            let why = chosen(&[other], 2).expect_err("another content");
            assert!(why.contains("other contents of transaction 9"), "{why}");
        }
        // With all members there, a device that differs belongs to nothing any more.
        assert_eq!(chosen(&[part("c", 2, 9), part("d", 3, 8)], 2).expect("clear"), "/dev/c");
    }

    /// `degraded` takes what is there, leaves out what is older, and refuses what is newer.
    #[test]
    fn degraded_leaves_out_what_is_older() {
        assert_eq!(chosen_if(true, &[part("c", 2, 9)], 2).expect("clear"), "/dev/c");
        let seen = [part("c", 2, 8), part("d", 3, 9)];
        assert_eq!(chosen_if(true, &seen, 3).expect("it is left out"), "/dev/d");
        let seen = [part("c", 2, 8), part("d", 3, 10)];
        chosen_if(true, &seen, 3).expect_err("the named device is behind");
        let mut with_log = part("c", 2, 9);
        with_log.shows.tops[2] = Logical(77);
        chosen_if(true, &[with_log], 2).expect_err("the named device has no log");
    }
}
