//! A commit that is held for a reader outside of the mount: it stays whole, however much is written
//! after it.

use std::sync::Arc;

use buttress_block::Device;
use buttress_check::{NoProgress, Options, check_held};
use buttress_format::Superblock;
use buttress_fs::{Filesystem, Inode};

use crate::checker::check;
use crate::volume::{file_with, memory, mount_with, pattern};

const MIB: usize = 1 << 20;
const FILES: usize = 12;

/// Checks the commit with this superblock.
fn checked(device: &Arc<dyn Device>, superblock: &Superblock) -> Result<(), String> {
    let devices = vec![Arc::clone(device)];
    let report = check_held(devices, superblock, &Options::thorough(), &NoProgress);
    let report = report.map_err(|error| error.to_string())?;
    if report.is_clean() { Ok(()) } else { Err(report.to_text()) }
}

fn name(number: usize) -> String {
    format!("file-{number}")
}

/// Rewrites every file or replaces it by a new file, with logs in between.
fn rewrite(fs: &Filesystem, round: usize) {
    for number in 0..FILES {
        let bytes = pattern((round * FILES + number) as u64, MIB);
        let file: Inode = if number % 2 == 0 {
            let file = fs.root().lookup(name(number).as_bytes()).expect("a file");
            assert_eq!(file.write_at(0, &bytes).expect("room"), MIB);
            file
        } else {
            fs.root().unlink(name(number).as_bytes()).expect("it is there");
            file_with(&fs.root(), &name(number), &bytes)
        };
        if number % 5 == 0 {
            file.sync().expect("a log");
        }
    }
    fs.commit().expect("a commit");
}

/// Nothing that the held commit reaches is overwritten. So the commit is whole after many more
/// commits. The commit includes data from an earlier log. When the commit is released, its space is
/// used again.
#[test]
fn a_held_commit_stays_whole() {
    let device = memory(160);
    let fs = mount_with(&device, "commit=3600");
    for number in 0..FILES {
        file_with(&fs.root(), &name(number), &pattern(number as u64, MIB));
    }
    rewrite(&fs, 1);
    let synced = fs.root().lookup(name(0).as_bytes()).expect("a file");
    synced.write_at(0, b"in a log").expect("room");
    synced.sync().expect("a log");
    let held = fs.hold_commit();
    assert_eq!(held.superblock().log_root.0, 0, "the log may grow, and is no part of it");
    checked(&device, held.superblock()).expect("it is whole at first");
    for round in 2..5 {
        rewrite(&fs, round);
        checked(&device, held.superblock()).unwrap_or_else(|what| panic!("round {round}: {what}"));
    }
    let superblock = held.superblock().clone();
    drop(held);
    fs.commit().expect("a commit");
    // The places of the next extents depend on the number of processors. So the test fills the
    // volume, which uses all free space.
    let filler = file_with(&fs.root(), "filler", b"");
    let chunk = pattern(99, MIB);
    let written = (0..).take_while(|&at| filler.write_at(at * MIB as u64, &chunk).is_ok()).count();
    assert!(written > FILES, "{written} MiB");
    fs.commit().expect("a commit");
    assert!(checked(&device, &superblock).is_err(), "its space is used again");
    fs.close().expect("everything durable");
    check(&device);
}
