//! Snapshots beside writers: the content of a snapshot never changes, and was the content of its
//! source at one moment.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::Rng;
use buttress_fs::{FileKind, Filesystem, Inode, InodeFlags, NewInode, TreeId};

use crate::checker::check;
use crate::volume::{content, file_with, memory, mount, pattern};

/// The content below a directory, without other subvolumes: length and sum of each file, by path.
type Print = BTreeMap<String, (u64, u64)>;

fn fingerprint(top: &Inode) -> Print {
    let mut print = Print::new();
    let mut stack = vec![(String::new(), top.clone())];
    while let Some((path, dir)) = stack.pop() {
        let mut names = Vec::new();
        dir.read_dir(0, |entry| {
            names.push((entry.name.to_vec(), entry.id, entry.kind));
            ControlFlow::Continue(())
        })
        .expect("a listing");
        for (name, id, kind) in names {
            let path = format!("{path}/{}", String::from_utf8_lossy(&name));
            if id.tree != top.id().tree || id.ino.0 == 2 {
                print.insert(path, (0, 1));
                continue;
            }
            let inode = dir.lookup(&name).expect("it was listed");
            match kind {
                FileKind::Directory => stack.push((path, inode)),
                FileKind::Regular => {
                    let bytes = content(&inode);
                    let sum = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| {
                        (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
                    });
                    print.insert(path, (bytes.len() as u64, sum));
                }
                _ => drop(print.insert(path, (0, 2))),
            }
        }
    }
    print
}

/// The present snapshots with their expected content, and whether each is read-only.
#[derive(Default)]
pub(crate) struct Snapshots {
    known: Mutex<BTreeMap<String, (Print, bool)>>,
    next: AtomicU64,
}

impl Snapshots {
    /// Makes, compares, changes or deletes one snapshot.
    pub(crate) fn step(&self, fs: &Filesystem, rng: &mut Rng) {
        let mut known = self.known.lock().expect("no panic before");
        let picks: Vec<_> = known.keys().cloned().collect();
        let pick = rng.choose(&picks).cloned();
        match (rng.below(8), pick) {
            (0..=2, _) | (_, None) if picks.len() < 8 => {
                let name = format!("snapshot-{}", self.next.fetch_add(1, Ordering::Relaxed));
                let read_only = rng.chance(1, 2);
                let made = fs.root().snapshot(name.as_bytes(), TreeId::FS, read_only);
                let print = fingerprint(&made.expect("a snapshot"));
                known.insert(name, (print, read_only));
            }
            (3, Some(name)) if picks.len() < 8 => {
                // Takes a snapshot of a snapshot, which may have been changed since it was made.
                let of = fs.resolve(&name).expect("it is there").id().tree;
                let copy = format!("{name}-{}", self.next.fetch_add(1, Ordering::Relaxed));
                let made = fs.root().snapshot(copy.as_bytes(), of, true).expect("a snapshot");
                let print = known[&name].0.clone();
                assert_eq!(fingerprint(&made), print, "{copy} of {name}");
                known.insert(copy, (print, true));
            }
            (4, Some(name)) => {
                let (print, read_only) = &known[&name];
                let top = fs.resolve(&name).expect("it is there");
                assert_eq!(fingerprint(&top), *print, "{name}");
                if !read_only {
                    let print = Self::change(&top, rng);
                    known.insert(name, (print, false));
                }
            }
            (5..=6, Some(name)) => {
                fs.root().delete_subvolume(name.as_bytes()).expect("a deletion");
                known.remove(&name);
            }
            _ => {
                drop(known);
                std::thread::sleep(std::time::Duration::from_millis(rng.below(20)));
            }
        }
    }

    /// Writes and removes files of a writable snapshot. Returns its new content.
    fn change(top: &Inode, rng: &mut Rng) -> Print {
        let files: Vec<_> = fingerprint(top).into_keys().collect();
        for _ in 0..6 {
            let Some(path) = rng.choose(&files) else { break };
            let mut at = top.clone();
            let mut parts = path.trim_start_matches('/').split('/').peekable();
            while let Some(part) = parts.next() {
                if parts.peek().is_none() {
                    let there = at.lookup(part.as_bytes());
                    match there {
                        Ok(file) if file.kind() == FileKind::Regular => {
                            let data = pattern(rng.next_u64(), rng.below(30_000) as usize);
                            let offset = rng.below(file.attr().size + 1);
                            if rng.chance(1, 4) {
                                at.unlink(part.as_bytes()).expect("an unlink");
                            } else {
                                file.write_at(offset, &data).expect("a write");
                            }
                        }
                        _ => {}
                    }
                    break;
                }
                at = at.lookup(part.as_bytes()).expect("a directory");
            }
        }
        let name = format!("new-{}", rng.next_u64());
        file_with(top, &name, &pattern(rng.next_u64(), 10_000));
        fingerprint(top)
    }

    /// Checks that all snapshots have their expected content.
    pub(crate) fn verify(&self, fs: &Filesystem) {
        for (name, (print, _)) in self.known.lock().expect("no panic before").iter() {
            let top = fs.resolve(name).expect("it is there");
            assert_eq!(fingerprint(&top), *print, "{name}");
        }
    }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Each writer writes a number to its first file, then to its second. If a snapshot has a number in
/// the second file, it has the same or a later number in the first file. The snapshot also has
/// every number that was written before the snapshot was requested.
#[test]
fn a_snapshot_is_a_cut() {
    let device = memory(512);
    let fs = mount(&device);
    let live = fs.root().create_subvolume(b"live", 0o755, 0, 0).expect("a subvolume");
    let done = AtomicBool::new(false);
    let written: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (writer, written) in written.iter().enumerate() {
            let first = file_with(&live, &format!("first-{writer}"), &[0; 8]);
            let second = live.create(format!("second-{writer}").as_bytes(), NewInode::file(0o644));
            let second = second.expect("a file");
            if writer > 0 {
                // Until a snapshot shares the data, it is written in place.
                second.set_flags(InodeFlags::NODATACOW).expect("an empty file");
            }
            second.write_at(0, &[0; 20_000]).expect("a write");
            let (fs, done) = (&fs, &done);
            scope.spawn(move || {
                let mut number = 0_u64;
                while !done.load(Ordering::Relaxed) {
                    number += 1;
                    first.write_at(0, &number.to_le_bytes()).expect("a write");
                    for at in [0, 4096, 12_288] {
                        if writer == 2 && number.is_multiple_of(7) && at > 0 {
                            let block: Vec<u8> = number.to_le_bytes().repeat(512);
                            second.write_direct(at, &block).expect("a write");
                        } else {
                            second.write_at(at, &number.to_le_bytes()).expect("a write");
                        }
                    }
                    written.store(number, Ordering::SeqCst);
                    if number.is_multiple_of(50) {
                        second.flush_data().expect("a flush");
                    }
                    if number.is_multiple_of(1000) {
                        fs.sync().expect("a sync");
                    }
                }
            });
        }
        let number_at = |top: &Inode, name: &str, at: u64| {
            let mut bytes = [0; 8];
            let file = top.lookup(name.as_bytes()).expect("a file");
            file.read_at(at, &mut bytes).expect("a read");
            u64::from_le_bytes(bytes)
        };
        // The drop of this value stops the writers even when an assertion fails. Otherwise they
        // would go on for ever.
        let _stop = Stop(&done);
        let mut all = Vec::new();
        for round in 0..12 {
            let before: Vec<_> = written.iter().map(|w| w.load(Ordering::SeqCst)).collect();
            let name = format!("snapshot-{round}");
            let top = fs.root().snapshot(name.as_bytes(), live.id().tree, round % 2 == 0);
            let top = top.expect("a snapshot");
            for (writer, before) in before.iter().enumerate() {
                let first = number_at(&top, &format!("first-{writer}"), 0);
                let mut last = first;
                for at in [0, 4096, 12_288] {
                    let second = number_at(&top, &format!("second-{writer}"), at);
                    assert!(second <= last, "{name}, {writer}: {second} at {at} behind {last}");
                    assert!(second >= *before, "{name}, {writer}: {second} at {at}, not {before}");
                    last = second;
                }
            }
            all.push((fingerprint(&top), top));
            std::thread::sleep(std::time::Duration::from_millis(30));
            for (print, top) in &all {
                assert_eq!(fingerprint(top), *print);
            }
        }
    });
    drop(live);
    fs.close().expect("a close");
    check(&device);
}

/// A graph of subvolumes as container engines make it. Each layer is a snapshot of another layer,
/// with small changes.
#[test]
fn two_hundred_snapshots() {
    let device = memory(512);
    let mut rng = Rng::new(200);
    let fs = mount(&device);
    let base = fs.root().create_subvolume(b"layer-0", 0o755, 0, 0).expect("a subvolume");
    for number in 0..150_u64 {
        file_with(&base, &format!("f{number}"), &pattern(number, 5000));
    }
    drop(base);
    let mut prints: BTreeMap<u64, Print> = BTreeMap::new();
    prints.insert(0, fingerprint(&fs.resolve("layer-0").expect("it")));
    for layer in 1..=200_u64 {
        let of = *rng.choose(&prints.keys().copied().collect::<Vec<_>>()).expect("some");
        let tree = fs.resolve(format!("layer-{of}")).expect("it").id().tree;
        let name = format!("layer-{layer}");
        let top = fs.root().snapshot(name.as_bytes(), tree, false).expect("a snapshot");
        for _ in 0..5 {
            let file = format!("f{}", rng.below(150));
            if let Ok(file) = top.lookup(file.as_bytes()) {
                file.write_at(rng.below(5000), &pattern(layer, 300)).expect("a write");
            }
        }
        let _ = top.unlink(format!("f{}", rng.below(150)).as_bytes());
        prints.insert(layer, fingerprint(&top));
    }
    fs.close().expect("a close");
    check(&device);
    let fs = mount(&device);
    for layer in (0..=200).filter(|layer| layer % 3 != 0) {
        fs.root().delete_subvolume(format!("layer-{layer}").as_bytes()).expect("a deletion");
        prints.remove(&layer);
    }
    // Some snapshots are dropped now, some after the next mount.
    fs.sync().expect("a sync");
    fs.close().expect("a close");
    check(&device);
    let fs = mount(&device);
    for _ in 0..600 {
        if fs.dying_subvolumes().expect("a list").is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(fs.dying_subvolumes().expect("a list"), []);
    for (layer, print) in &prints {
        let top = fs.resolve(format!("layer-{layer}")).expect("it is there");
        assert_eq!(fingerprint(&top), *print, "{layer}");
    }
    fs.close().expect("a close");
    check(&device);
}
