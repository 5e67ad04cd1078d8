//! Two processes, each with a cache of its own, take a volume from each other under load.
//!
//! `BUTTRESS_FIGHTS` says how often each process takes the volume: 10 times by default.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use buttress_block::Device;
use buttress_remote::{Error, Options, Site};

use crate::options;

const LEN: u64 = 16 << 20;
/// Places that each process writes, over and over.
const SLOTS: u64 = 64;
/// The number of commits that a process makes before it lets the other process take the volume.
const STEPS: u64 = 4;
/// The environment variable that tells a process of the test its number and the folder of the
/// volume.
const ROLE: &str = "BUTTRESS_FIGHT_ROLE";

fn site(folder: &Path, cache: Option<&str>) -> Site {
    let cache_dir = cache.map(|cache| folder.join(cache));
    let options = Options { takeover: true, discard_local: true, cache_dir, ..options() };
    let place = format!("file://{}", folder.join("store").display());
    Site::of(place.as_ref(), options).expect("a place")
}

fn fights() -> u64 {
    std::env::var("BUTTRESS_FIGHTS").ok().and_then(|text| text.parse().ok()).unwrap_or(10)
}

/// For each slot, the last stamp that a commit acknowledged, and the last stamp that was written.
#[derive(Default)]
struct Known {
    slots: BTreeMap<u64, (u64, u64)>,
    lost: u64,
}

/// Takes the volume, writes and commits, until the other process takes it.
fn fight(folder: &Path, own: u64) -> Known {
    let site = site(folder, Some(&format!("cache-{own}")));
    let mut known = Known::default();
    let mut stamp = 0;
    let mut turns = 0;
    while turns < fights() {
        let device = match site.open() {
            Ok(device) => device,
            Err(Error::Busy { .. } | Error::Fenced { .. }) => continue,
            Err(error) => panic!("process {own} cannot take the volume: {error}"),
        };
        turns += 1;
        for _ in 0..STEPS {
            stamp += 1;
            let slot = own * SLOTS + stamp % SLOTS;
            let content = stamp.to_le_bytes().repeat(512);
            let place = known.slots.entry(slot).or_default();
            place.1 = stamp;
            let written = device.write_at(slot * 4096, &content).map_err(Error::Block);
            match written.and_then(|()| device.push()) {
                Ok(()) => place.0 = stamp,
                Err(error) => {
                    let text = format!("{error:?}");
                    assert!(text.contains("Fenced"), "process {own}: {text}");
                    known.lost += 1;
                    break;
                }
            }
        }
        // The close may find that the other process has the volume.
        let _ = device.close();
    }
    known
}

/// One of the two processes. It does nothing in an ordinary run of the tests.
#[test]
fn one_of_two_processes() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (own, folder) = role.split_once(' ').expect("a number and a folder");
    let folder = Path::new(folder);
    let own: u64 = own.parse().expect("a number");
    // With a late start, one process could have ended before the other one takes the volume.
    std::fs::write(folder.join(format!("ready-{own}")), "").expect("a file");
    while !folder.join(format!("ready-{}", 1 - own)).exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let known = fight(folder, own);
    let line = |(slot, (acknowledged, written)): (&u64, &(u64, u64))| {
        format!("{slot} {acknowledged} {written}\n")
    };
    let lines: String = known.slots.iter().map(line).collect();
    std::fs::write(folder.join(format!("result-{own}")), format!("{}\n{lines}", known.lost))
        .expect("a file");
}

/// Each write that a commit of the store acknowledged can be read, and the process that lost the
/// volume was told so.
#[test]
fn two_processes_fight_for_a_volume() {
    let dir = tempfile::tempdir().expect("tempdir");
    let folder = dir.path();
    std::fs::create_dir(folder.join("store")).expect("a folder");
    drop(site(folder, None).create(LEN).expect("a folder is a store"));
    let start = |own: u64| {
        Command::new(std::env::current_exe().expect("a program"))
            .args(["--exact", "fight::one_of_two_processes", "--nocapture"])
            .env(ROLE, format!("{own} {}", folder.display()))
            .spawn()
            .expect("it starts")
    };
    for mut process in [start(0), start(1)] {
        assert!(process.wait().expect("it ends").success());
    }
    let last = site(folder, None).open().expect("both have ended");
    let mut losses = 0;
    for own in 0..2 {
        let result = std::fs::read_to_string(folder.join(format!("result-{own}")));
        let result = result.expect("a result");
        let (lost, lines) = result.split_once('\n').expect("lines");
        losses += lost.parse::<u64>().expect("a number");
        for line in lines.lines() {
            let numbers: Vec<u64> =
                line.split(' ').map(|word| word.parse().expect("a number")).collect();
            let [slot, acknowledged, written] = numbers[..] else { panic!("{line}") };
            let mut content = [0; 4096];
            last.read_at(slot * 4096, &mut content).expect("within");
            let found = u64::from_le_bytes(content[..8].try_into().expect("8 bytes"));
            let is_whole = content.chunks(8).all(|part| part == &content[..8]);
            let is_right = (acknowledged..=written).contains(&found);
            assert!(is_whole && is_right, "slot {slot}: {found} of {acknowledged} to {written}");
        }
    }
    eprintln!("{} times taken, {losses} times lost", 2 * fights());
    assert!(losses > 0, "they did not meet");
}
