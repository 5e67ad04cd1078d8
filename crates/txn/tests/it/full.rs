//! A full volume: the only failure is `ENOSPC`, for writers that fill it.
//!
//! Data that was written without an error stays readable, and removing always works. The volume
//! unmounts, mounts and is clean.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use buttress_base::Rng;
use buttress_block::{FileDevice, OpenOptions};
use buttress_fs::{
    ErrorKind, Filesystem, Inode, MountOptions, NewInode, SetAttr, make::MakeOptions,
};

use crate::checker;

mod storms;

fn open(path: &Path) -> Filesystem {
    let device = FileDevice::open(path, OpenOptions::WRITE).expect("the image opens");
    let fs = Filesystem::open(vec![Arc::new(device)], MountOptions::default()).expect("it mounts");
    assert_eq!(fs.read_only_reason(), None);
    fs
}

fn content(rng_seed: u64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    Rng::new(rng_seed).fill(&mut data);
    data
}

/// Files that were written without an error, by name: seed and length of their content.
type Kept = BTreeMap<String, (u64, usize)>;

/// Returns the result of an operation, or `None` if the volume was full. Any other error is a
/// failure of the test.
fn full<T>(outcome: buttress_fs::Result<T>) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
            None
        }
    }
}

/// The least length of names, and the most of files.
#[derive(Clone, Copy)]
struct Sizes {
    name_len: usize,
    len_max: u64,
}

/// Creates files until nothing fits any more, and now and then shrinks or removes some of them.
fn fill(dir: &Inode, seed: u64, sizes: Sizes, refusals_max: u32, kept: &mut Kept) {
    let Sizes { name_len, len_max } = sizes;
    let mut rng = Rng::new(seed);
    let mut refusals = 0;
    let mut count = 0;
    while refusals < refusals_max {
        count += 1;
        let name = format!("{seed}-{count:0name_len$}");
        let (seed, len) = (rng.next_u64(), rng.below(len_max) as usize);
        let Some(file) = full(dir.create(name.as_bytes(), NewInode::file(0o644))) else {
            refusals += 1;
            continue;
        };
        let written = full(file.write_at(0, &content(seed, len))).is_some_and(|n| n == len);
        // With a commit for every file, this test would mostly test commits. So most files only
        // flush their data.
        let kept_now = if rng.chance(1, 40) { file.sync() } else { file.flush_data() };
        if written && full(kept_now).is_some() {
            kept.insert(name, (seed, len));
        } else {
            refusals += 1;
            dir.unlink(name.as_bytes()).expect("removing always works");
        }
        if rng.chance(1, 50)
            && let Some((name, (seed, len))) = kept.iter().next().map(|(n, k)| (n.clone(), *k))
        {
            let file = dir.lookup(name.as_bytes()).expect("it is there");
            let half = SetAttr { size: Some(len as u64 / 2), ..SetAttr::default() };
            file.set_attr(&half).expect("shrinking always works");
            let _ = seed;
            kept.remove(&name);
            dir.unlink(name.as_bytes()).expect("removing always works");
        }
    }
}

fn verify(dir: &Inode, kept: &Kept) {
    for (name, (seed, len)) in kept {
        let file = dir.lookup(name.as_bytes()).expect("what was written is there");
        let mut found = vec![0; len + 1];
        let n = file.read_at(0, &mut found).expect("it reads");
        assert!(n == *len && found[..n] == content(*seed, *len), "{name} has its content");
    }
}

fn fill_and_empty(size: u64, sizes: Sizes, rounds: u64) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = checker::volume(dir.path(), size, &MakeOptions::default());
    for round in 0..rounds {
        let fs = open(&path);
        let threads = 3;
        let kept: Vec<Kept> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|thread| {
                    let fs = fs.clone();
                    scope.spawn(move || {
                        let name = format!("dir{thread}");
                        let dir = fs.root().mkdir(name.as_bytes(), 0o755, 0, 0).expect("a folder");
                        let mut kept = Kept::new();
                        fill(&dir, round * 10 + thread, sizes, 4, &mut kept);
                        kept
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).collect()
        });
        fs.close().expect("a full volume unmounts");
        checker::check(&path);
        let fs = open(&path);
        for (thread, kept) in kept.iter().enumerate() {
            let name = format!("dir{thread}");
            let dir = fs.root().lookup(name.as_bytes()).expect("the folder");
            assert!(!kept.is_empty());
            verify(&dir, kept);
            for name in kept.keys() {
                dir.unlink(name.as_bytes()).expect("removing always works");
            }
            fs.root().rmdir(name.as_bytes()).expect("the folder is empty");
        }
        fs.close().expect("it unmounts");
        checker::check(&path);
    }
}

/// Tests E9.
#[test]
fn volume_full_of_large_files_is_emptied() {
    fill_and_empty(192 << 20, Sizes { name_len: 0, len_max: 4 << 20 }, 2);
}

/// Tests E9.
#[test]
fn volume_full_of_small_files_is_emptied() {
    fill_and_empty(120 << 20, Sizes { name_len: 0, len_max: 12 << 10 }, 2);
}

/// Tests E9.
/// Long names fill the volume with a third of the files that short ones need.
#[test]
fn volume_full_of_names_is_emptied() {
    fill_and_empty(110 << 20, Sizes { name_len: 200, len_max: 2 }, 1);
}
