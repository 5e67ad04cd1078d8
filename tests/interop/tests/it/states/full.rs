//! Full volumes. Linux replays a log without free space, and shows all synced data, whole
//! snapshots, and the same files as our replay. `btrfs check` checks the volume after each replay.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_fs::XattrFlags;
use buttress_interop::linux::{Images, check, has_linux_btrfs, save};
use buttress_sim::{Crash, campaign};
use buttress_volume::Volume;

use super::wall::{ASIDE, Shown, Tale, full, work};
use super::{OPTIONS, STATES, Seen, difference, open_with, survey_of_linux};

/// The longest of these volumes.
const LEN: u64 = 160 << 20;

/// The files that Linux shows of a mounted volume and its snapshots.
fn shown(top: &Path) -> Shown {
    let own = top.metadata().expect("a folder").dev();
    let mut snapshots = BTreeMap::new();
    for entry in std::fs::read_dir(top).expect("a listing") {
        let entry = entry.expect("a name");
        let name = entry.file_name().into_string().expect("ASCII");
        if entry.metadata().expect("an inode").dev() != own && name != ASIDE {
            snapshots.insert(name, survey_of_linux(&entry.path()));
        }
    }
    Shown { state: survey_of_linux(top), snapshots }
}

fn through_linux(images: &Images) -> Shown {
    let mount = images.mount("");
    let shown = shown(mount.path());
    mount.unmount();
    shown
}

/// The difference between two results, in a short text.
fn differ(ours: &Shown, theirs: &Shown) -> Option<String> {
    if let Some(what) = difference(&ours.state, &theirs.state) {
        return Some(what);
    }
    let names = ours.snapshots.keys().chain(theirs.snapshots.keys());
    for name in names {
        let (Some(our), Some(their)) = (ours.snapshots.get(name), theirs.snapshots.get(name))
        else {
            return Some(format!("only one of us sees snapshot {name}"));
        };
        if let Some(what) = difference(our, their) {
            return Some(format!("in snapshot {name}: {what}"));
        }
    }
    None
}

fn examine(crash: &Crash, tale: &Tale, images: &Images, seen: &mut Seen) -> Result<(), String> {
    let done = crash.mark.unwrap_or(0) as usize;
    let found = &crash.devices[0];
    seen.states += 1;
    let device: Arc<dyn Device> = Arc::new(found.fork());
    let fs = open_with(Arc::clone(&device), OPTIONS);
    let ours = Shown::of(&fs);
    tale.check(&ours, done).map_err(|what| format!("our replay: {what}"))?;
    match Volume::read_superblock_mirror(found, 0) {
        Ok(superblock) => {
            seen.logs += usize::from(superblock.log_root.0 != 0);
            save(found, images.path());
            let theirs = through_linux(images);
            tale.check(&theirs, done).map_err(|what| format!("Linux' replay: {what}"))?;
            if let Some(what) = differ(&ours, &theirs) {
                return Err(format!("each replays its own way: {what}"));
            }
            check(images.path());
        }
        Err(_) => seen.torn += 1,
    }
    // A change makes this mount write a torn superblock copy again. If the volume has no space for
    // the change, the copy stays torn.
    full(fs.root().set_xattr(b"user.seen", b"1", XattrFlags::default()));
    fs.sync().map_err(|error| format!("a commit where it is full: {error}"))?;
    fs.close().map_err(|error| error.to_string())?;
    if Volume::read_superblock_mirror(&*device, 0).is_ok() {
        save(&*device, images.path());
        check(images.path());
        if let Some(what) = differ(&ours, &through_linux(images)) {
            return Err(format!("after our replay: {what}"));
        }
    }
    Ok(())
}

#[test]
fn full_volumes_are_shown_to_linux() {
    if !has_linux_btrfs() {
        return;
    }
    let set = std::env::var(STATES).ok().map(|text| text.parse().expect("a number"));
    let wanted = set.unwrap_or(9);
    let images = Images::new(1, LEN);
    let mut seen = Seen::default();
    for seed in campaign::seeds(1..3) {
        let (log, tale, refused) = work(seed);
        assert!(refused > 0, "seed {seed}: everything fitted");
        let stride = (log.len() * 2).div_ceil(wanted);
        log.crashes(&mut Rng::new(seed), 1, stride, |crash| {
            if let Err(what) = examine(crash, &tale, &images, &mut seen) {
                for (index, line) in tale.history.iter().enumerate() {
                    eprintln!("{index:3} {line}");
                }
                let Crash { event, draw, mark, .. } = crash;
                panic!("seed {seed}, event {event}, draw {draw}, {mark:?} done: {what}");
            }
        });
    }
    let Seen { states, logs, torn } = seen;
    eprintln!("{states} states of full volumes, {logs} with a log, {torn} with a torn superblock");
    campaign::count("states", states);
    campaign::count("logs", logs);
    // With other seeds, a dozen states may have no log.
    let expected = usize::from(campaign::round() == 0);
    assert!(states >= wanted / 3 && logs >= expected, "only {states} states, {logs} with a log");
}
