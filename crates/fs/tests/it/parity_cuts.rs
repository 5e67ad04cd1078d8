//! Power is cut while data is written with parity, and one device is lost as well. All committed
//! data can be read.
//!
//! `BUTTRESS_CUTS` multiplies the number of checked states.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::Profile;
use buttress_fs::make::make_on;
use buttress_fs::{Filesystem, MakeOptions, MountOptions};
use buttress_sim::{Log, campaign};

use crate::volume::{content, file_with, list, pattern, setting};

const ROUNDS: u64 = 8;
const FILES: u64 = 14;

fn name(round: u64, file: u64) -> String {
    format!("r{round}f{file}")
}

/// The content of a file. Most files are small, some have the size of about a row, and some are
/// long.
fn expected(round: u64, file: u64) -> Vec<u8> {
    let len = match file % 7 {
        0 => 700_000,
        1 => 131_072,
        2 => 140_000,
        more => 4096 * more as usize + 17,
    };
    pattern(round * 100 + file, len)
}

fn open(devices: Vec<Arc<dyn Device>>, options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(devices, options).expect("a mount")
}

fn power_is_cut(data: Profile, metadata: Profile, count: usize) {
    let bases: Vec<_> = (0..count).map(|_| MemoryDevice::new(256 << 20)).collect();
    let parts: Vec<_> = bases.iter().map(|device| device as &dyn Device).collect();
    let options =
        MakeOptions { metadata: Some(metadata), data: Some(data), ..MakeOptions::default() };
    make_on(&parts, &options).expect("a volume");
    let log = Log::new();
    let recorders: Vec<_> = bases.iter().map(|base| log.device(base, 4096)).collect();
    let devices: Vec<_> =
        recorders.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    let fs = open(devices, "rw");
    log.start(&recorders.iter().map(|device| &**device).collect::<Vec<_>>());
    let root = fs.root();
    for round in 1..=ROUNDS {
        for file in 0..FILES {
            let made = file_with(&root, &name(round, file), &expected(round, file));
            if file % 5 == 0 {
                made.sync().expect("an fsync");
            }
            // The deletions leave free space within rows.
            if round > 2 {
                root.unlink(name(round - 2, file).as_bytes()).expect("an old file");
            }
        }
        fs.sync().expect("a sync");
        log.mark(round);
    }
    drop(root);
    fs.close().expect("a close");

    let more = setting("BUTTRESS_CUTS", 1) as usize;
    let stride = (log.len() / (10 * more)).max(1);
    let shown = log.crashes(&mut Rng::new(56 + campaign::round()), 1, stride, |crash| {
        let round = crash.mark.unwrap_or(0);
        let lost = (crash.event / stride + crash.draw) % count;
        let when = format!("event {} draw {} round {round} lost {lost}", crash.event, crash.draw);
        let there = crash.devices.iter().enumerate().filter(|(index, _)| *index != lost);
        let there: Vec<_> =
            there.map(|(_, device)| Arc::new(device.fork()) as Arc<dyn Device>).collect();
        let fs = open(there, "rw,degraded");
        let root = fs.root();
        let names = list(&root);
        // All files of the last synced round exist.
        for file in (0..FILES).filter(|_| round > 0) {
            let found = root.lookup(name(round, file).as_bytes());
            let found = content(&found.unwrap_or_else(|e| panic!("{when}: {e}: {names:?}")));
            assert!(found == expected(round, file), "{when}: file {file}");
        }
        // The next round deletes the files of the round before the last. The files that still exist
        // have their content.
        for old in (1..round).rev().take(1) {
            for file in 0..FILES {
                let Ok(found) = root.lookup(name(old, file).as_bytes()) else { continue };
                assert!(content(&found) == expected(old, file), "{when}: {old} {file}");
            }
        }
        drop(root);
        fs.close().expect("a close");
    });
    campaign::count("states", shown);
    assert!(shown > 20, "{shown} states");
}

#[test]
fn power_is_cut_beside_raid5() {
    power_is_cut(Profile::Raid5, Profile::Raid1, 3);
}

#[test]
fn power_is_cut_beside_raid6() {
    power_is_cut(Profile::Raid6, Profile::Raid1c3, 4);
}
