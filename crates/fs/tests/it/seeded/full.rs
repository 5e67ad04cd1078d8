//! A full volume under one seed. Threads fill, delete, cut, copy and sync on this volume. In any
//! order, `ENOSPC` is their only failure. Some threads are interrupted while they wait, and no
//! thread waits for ever. Debug builds compare the accounts with groups and tokens at every commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_base::{Rng, seeded, thread};
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{
    Error, ErrorKind, Filesystem, Inode, MakeOptions, MountOptions, NewInode, SetAttr, TreeId,
};
use buttress_sim::campaign;

use crate::checker::{check, expect_sound};
use crate::fsync::{fill, full};
use crate::interrupted::at_look;
use crate::volume::{content, mount, pattern};

const CLIENTS: u64 = 4;

/// Files that were written without an error, by name: seed and length of their content.
type Kept = BTreeMap<String, (u64, usize)>;

fn options(rng: &mut Rng) -> MountOptions {
    let preempt = rng.choose(&["clamp", "off"]).expect("one of them");
    let commit = rng.choose(&[1, 5, 300]).expect("one of them");
    let dirty = rng.choose(&["512K", "4M"]).expect("one of them");
    let policy = rng.choose(&["counted", "levels"]).expect("one of them");
    let text =
        format!("rw,noatime,commit={commit},preempt={preempt},dirty={dirty},reserve={policy}");
    MountOptions::parse(&text).expect("options")
}

fn remove(dir: &Inode, name: &str) {
    dir.unlink(name.as_bytes()).expect("removing always works");
}

/// Runs an operation that needs room, and may cancel the operation while it waits. Returns the
/// result if there was room.
fn wanted<T>(rng: &mut Rng, work: impl FnOnce() -> Result<T, Error>) -> Option<T> {
    let looks = if rng.chance(2, 3) { rng.below(3) as u32 } else { u32::MAX };
    match at_look(looks).run(work) {
        Err(error) if error.kind() == ErrorKind::Interrupted => None,
        other => full(other),
    }
}

/// Writes a file, and notes it in `kept` if all of it was accepted.
fn put(dir: &Inode, name: &str, rng: &mut Rng, kept: &mut Kept) {
    let (seed, len) = (rng.next_u64(), rng.below(150_000) as usize);
    let file = dir.lookup(name.as_bytes()).expect("it is there");
    let none = SetAttr { size: Some(0), ..SetAttr::default() };
    file.set_attr(&none).expect("shrinking always works");
    kept.remove(name);
    match wanted(rng, || file.write_at(0, &pattern(seed, len))) {
        Some(_) => drop(kept.insert(name.to_owned(), (seed, len))),
        None => remove(dir, name),
    }
}

/// The work of one client on a full volume. Returns the files that it left.
fn stay_full(fs: &Filesystem, dir: &Inode, mut rng: Rng) -> Kept {
    let mut kept = Kept::new();
    let mut snapshot = None;
    for count in 0..50 {
        let victim = kept.keys().nth(rng.below(kept.len().max(1) as u64) as usize).cloned();
        match (rng.below(14), victim) {
            (0..=5, _) | (_, None) => {
                let name = format!("f{count}");
                let create = || dir.create(name.as_bytes(), NewInode::file(0o644));
                if wanted(&mut rng, create).is_some() {
                    put(dir, &name, &mut rng, &mut kept);
                }
            }
            (6, Some(name)) => put(dir, &name, &mut rng, &mut kept),
            (7 | 8, Some(name)) => {
                let file = dir.lookup(name.as_bytes()).expect("it is there");
                file.sync().expect("what was taken can be synced");
            }
            (9 | 10, Some(name)) => {
                remove(dir, &name);
                kept.remove(&name);
            }
            (11, _) => fs.sync().expect("what was taken can be committed"),
            _ => match snapshot.take() {
                None => {
                    let name = format!("s{}-{count}", dir.id().ino.0);
                    let cut = || fs.root().snapshot(name.as_bytes(), TreeId::FS, true);
                    let made = wanted(&mut rng, cut);
                    snapshot = made.map(|_| name);
                }
                Some(name) => {
                    let root = fs.root();
                    root.delete_subvolume(name.as_bytes()).expect("removing always works");
                }
            },
        }
    }
    kept
}

/// Runs all clients from one seed. Returns the volume and the files of each client.
fn storm(seed: u64) -> (Arc<dyn Device>, Vec<Kept>, [u64; 2]) {
    let work = move || {
        let mut rng = Rng::new(seed ^ 0xf011);
        let base = MemoryDevice::new(112 << 20);
        let nodesize = *rng.choose(&[4096, 16384]).expect("one of them");
        let make = MakeOptions { nodesize, seed: Some(seed), ..MakeOptions::default() };
        Filesystem::make(&base, &make).expect("a volume");
        let device: Arc<dyn Device> = Arc::new(base);
        let fs = Filesystem::open(vec![Arc::clone(&device)], options(&mut rng)).expect("a mount");
        let dirs: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let name = format!("c{client}");
                fs.root().mkdir(name.as_bytes(), 0o755, 0, 0).expect("a directory")
            })
            .collect();
        fill(&fs, 1_500_000);
        fs.sync().expect("a sync");
        let clients: Vec<_> = dirs
            .into_iter()
            .map(|dir| {
                let (fs, rng) = (fs.clone(), Rng::new(rng.next_u64()));
                let work = move || stay_full(&fs, &dir, rng);
                thread::Builder::new().name("client".to_owned()).spawn(work).expect("a thread")
            })
            .collect();
        let kept: Vec<_> = clients.into_iter().map(|client| client.join().expect("one")).collect();
        let stats = fs.space_stats();
        assert_eq!(fs.read_only_reason(), None, "{}", stats.accounts);
        assert_eq!(stats.accounts.waiting, (0, 0), "no request is left in a line");
        fs.close().expect("a full volume unmounts");
        (device, kept, [stats.engine.enospc, stats.engine.interrupted])
    };
    let (outcome, _) = seeded::run(seed, seeded::Options::default(), work)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    outcome
}

#[test]
fn a_full_volume_in_every_order() {
    let (mut refusals, mut interrupted) = (0, 0);
    let seeds = campaign::seeds_or(1..4);
    for seed in seeds.clone() {
        let told = std::panic::catch_unwind(|| {
            let (device, kept, gave_up) = storm(seed);
            if seed.is_multiple_of(3) {
                check(&device);
            } else {
                expect_sound(&device);
            }
            let fs = mount(&device);
            for (client, kept) in kept.iter().enumerate() {
                let dir = fs.resolve(format!("c{client}")).expect("the folder");
                for (name, (seed, len)) in kept {
                    let found = content(&dir.lookup(name.as_bytes()).expect("it was taken"));
                    assert!(found == pattern(*seed, *len), "client {client}: {name}");
                    remove(&dir, name);
                }
            }
            fs.root().delete_subvolume(b"aside").expect("removing always works");
            fs.close().expect("it unmounts");
            expect_sound(&device);
            gave_up
        });
        let gave_up = told.unwrap_or_else(|panic| {
            eprintln!(
                "again: BUTTRESS_SEED={seed} cargo test -p buttress-fs --test it a_full_volume_in"
            );
            std::panic::resume_unwind(panic)
        });
        refusals += gave_up[0];
        interrupted += gave_up[1];
    }
    campaign::count("orders", (seeds.end - seeds.start) as usize);
    campaign::count("refusals", refusals as usize);
    campaign::count("interrupted", interrupted as usize);
    assert!(refusals > 0, "it was never full");
}

/// One client on a full volume: it removes the file that fills the volume, and writes.
fn make_room_and_write(seed: u64) -> Arc<dyn Device> {
    let work = move || {
        let mut rng = Rng::new(seed ^ 0xf112);
        let base = MemoryDevice::new(112 << 20);
        let make = MakeOptions { seed: Some(seed), ..MakeOptions::default() };
        Filesystem::make(&base, &make).expect("a volume");
        let device: Arc<dyn Device> = Arc::new(base);
        let fs = Filesystem::open(vec![Arc::clone(&device)], options(&mut rng)).expect("a mount");
        let root = fs.root();
        fill(&fs, 3_000_000);
        fs.sync().expect("a sync");
        for round in 0..6 {
            let file = root.create(b"fill", NewInode::file(0o644)).expect("a file");
            let mut len = 0;
            while full(file.write_at(len, &pattern(round, 100_000))).is_some() {
                len += 100_000;
            }
            assert!(len >= 1_000_000, "only {len} bytes in round {round}");
            if rng.chance(1, 2) {
                let _ = full(file.sync());
            }
            remove(&root, "fill");
            drop(file);
            let little = root.create(b"little", NewInode::file(0o644)).expect("a file");
            little.write_at(0, &pattern(round, 800_000)).expect("what was removed makes room");
            drop(little);
            remove(&root, "little");
        }
        fs.close().expect("a full volume unmounts");
        device
    };
    let (device, _) = seeded::run(seed, seeded::Options::default(), work)
        .unwrap_or_else(|stuck| panic!("{stuck}"));
    device
}

/// A thread that removed and closed a file can use the file's space. Another thread may have been
/// about to write the file back at that moment.
#[test]
fn removed_file_gives_its_space_beside_writeback() {
    for seed in campaign::seeds_or(210..222) {
        let device = std::panic::catch_unwind(|| make_room_and_write(seed));
        expect_sound(&device.unwrap_or_else(|panic| {
            eprintln!(
                "again: BUTTRESS_SEED={seed} cargo test -p buttress-fs --test it removed_file_gives"
            );
            std::panic::resume_unwind(panic)
        }));
    }
}
