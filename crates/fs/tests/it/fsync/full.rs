//! Power is cut while a volume is full (`wall`).
//!
//! The test takes states from every interval between two flushes. Each state must mount, although
//! replay has no free space. It must have the synced files and complete snapshots, and all files
//! can be deleted.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::Device;
use buttress_fs::{Filesystem, NewInode, TreeId};
use buttress_sim::{Crash, campaign};

use super::wall::{Shown, Tale, full, work};
use super::{number, replay};
use crate::checker::{check, expect_cut_sound, expect_sound};
use crate::volume::{drop_all, list, pattern};

/// A variable for a longer run: the number of seeds to try.
const SEEDS: &str = "BUTTRESS_FULL_SEEDS";

/// Mounts a full volume after a crash, compares its content, and now and then deletes all files.
fn examine(crash: &Crash, tale: &Tale, rng: &mut Rng, depth: u32) -> Result<(), String> {
    let done = crash.mark.unwrap_or(0) as usize;
    let device: Arc<dyn Device> = Arc::new(crash.devices[0].fork());
    if depth == 0 && rng.chance(1, 30) {
        let log = replay(crash);
        let mut outcome = Ok(());
        log.intervals(&mut Rng::new(rng.next_u64()), 3, 1, |crash| {
            if outcome.is_ok() {
                outcome = examine(crash, tale, rng, 1);
            }
        });
        outcome.map_err(|what| format!("after a crash of replay: {what}"))?;
    }
    if campaign::always_or(rng.chance(1, 40)) {
        expect_cut_sound(&device, "as the crash left it");
    }
    let options = buttress_fs::MountOptions::parse(super::OPTIONS).expect("options");
    let fs = Filesystem::open(vec![Arc::clone(&device)], options);
    let fs = fs.map_err(|error| format!("no mount: {error}"))?;
    if let Some(why) = fs.read_only_reason() {
        return Err(format!("read-only: {why}"));
    }
    tale.check(&Shown::of(&fs), done)?;
    let root = fs.root();
    let emptied = rng.chance(1, 6);
    if emptied {
        for name in list(&root) {
            let inode = root.lookup(name.as_bytes()).map_err(|error| error.to_string())?;
            let gone = match inode.id().tree {
                TreeId::FS => root.unlink(name.as_bytes()),
                _ => root.delete_subvolume(name.as_bytes()),
            };
            gone.map_err(|error| format!("{name} cannot be removed: {error}"))?;
        }
        drop_all(&fs);
        fs.sync().map_err(|error| format!("emptied: {error}"))?;
        let file = root.create(b"next", NewInode::file(0o644)).expect("there is room again");
        file.write_at(0, &pattern(1, 4 << 20)).expect("there is room again");
    } else {
        // A mount that changes nothing would not repair a torn copy of the superblock, so change an
        // attribute.
        full(root.set_xattr(b"user.seen", b"1", buttress_fs::XattrFlags::default()));
        fs.sync().map_err(|error| format!("a commit where it is full: {error}"))?;
    }
    drop(root);
    fs.close().map_err(|error| error.to_string())?;
    match rng.below(if emptied { 20 } else { 60 }) {
        0 => check(&device),
        drawn if campaign::always_or(drawn <= 4) => expect_sound(&device),
        _ => {}
    }
    Ok(())
}

#[test]
fn a_full_volume_keeps_its_word() {
    let seeds = number(SEEDS).unwrap_or(if campaign::round() > 0 { 4 } else { 2 });
    let (singles, draws) = if seeds > 2 { (6, 2) } else { (2, 1) };
    let (mut states, mut refusals) = (0, 0);
    for seed in campaign::seeds(1..1 + seeds) {
        let (log, tale, refused) = work(seed);
        refusals += refused;
        let mut rng = Rng::new(seed);
        states += log.intervals(&mut rng.clone(), singles, draws, |crash| {
            if let Err(what) = examine(crash, &tale, &mut rng, 0) {
                for (index, line) in tale.history.iter().enumerate() {
                    eprintln!("{index:3} {line}");
                }
                let Crash { event, draw, mark, .. } = crash;
                panic!("seed {seed}, event {event}, draw {draw}, {mark:?} done: {what}");
            }
        });
    }
    campaign::count("states", states);
    campaign::count("refusals", refusals);
    assert!(states > 100 * seeds as usize, "only {states} states were seen");
    assert!(refusals > 5 * seeds as usize, "only {refusals} times nothing fitted");
}
