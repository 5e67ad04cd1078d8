//! Sectors of 8, 16 and 64 KiB: volumes that `mkfs.btrfs` made and that are written here, and
//! volumes that are made here. Linux does not mount volumes with sectors larger than its pages, so
//! `btrfs check` and `btrfs restore` check the results.

use std::path::Path;

use buttress_block::{Device, FileDevice};
use buttress_fs::make::make_on;
use buttress_fs::{BalanceOptions, FallocateMode, Filesystem, Filter, MakeOptions, NewInode};
use buttress_interop::linux::{Images, has_program, run};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Library, Scale, change, fill, noise};

use crate::open::{close, manifest, open_with, scrubbed};

const LEN: u64 = 400 << 20;

fn scale() -> Scale {
    Scale { dirs: 4, files: 16, big_bytes: 3 << 20, ..Scale::default() }
}

fn can_run() -> bool {
    has_program("mkfs.btrfs") && has_program("btrfs")
}

/// A volume with sectors of this size that Linux's tool made.
fn made_by_linux(sector: u32, more: &[&str]) -> Images {
    let images = Images::new(1, LEN);
    let (sectors, nodes) = (sector.to_string(), sector.max(16 << 10).to_string());
    let words: Vec<_> =
        ["-s", &sectors, "-n", &nodes].into_iter().chain(more.iter().copied()).collect();
    images.mkfs(&words);
    images
}

/// A volume with sectors of this size that was made here.
fn made_here(sector: u32) -> Images {
    let images = Images::new(1, LEN);
    let device = FileDevice::create(images.path(), LEN).expect("the image opens");
    let nodesize = sector.max(16 << 10);
    let options = MakeOptions { sectorsize: sector, nodesize, ..MakeOptions::default() };
    make_on(&[&device as &dyn Device], &options).expect("a new volume");
    images
}

/// Fills, overwrites, shares, preallocates, moves and scrubs. Both checkers find nothing, and
/// Linux's tool restores all written files.
#[track_caller]
fn written(images: &Images, sector: u64, options: &str) {
    let filesystem = open_with(images.paths(), &format!("rw,noatime,{options}"));
    assert_eq!(filesystem.read_only_reason(), None);
    fill(&Library::new(&filesystem), &scale());
    filesystem.sync().expect("a sync");
    edges(&filesystem, sector);
    close(filesystem);
    images.check();

    let filesystem = open_with(images.paths(), &format!("rw,noatime,{options}"));
    change(&Library::new(&filesystem), &scale(), 1);
    let all = || Some(Filter::default());
    let moved = BalanceOptions { data: all(), metadata: all(), system: all() };
    filesystem.balance(&moved, &mut |_| true).expect("a balance");
    let found = scrubbed(&filesystem, false);
    assert!(!found.has_errors(), "{found:?}");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    images.check();
    written.assert_same("written", &manifest(images.paths()), "read again", Depth::Volume);
    restored(images.path(), &filesystem_files(&written, images));
}

/// Writes around the ends of sectors: whole sectors, parts, holes, clones, truncations and direct
/// writes.
fn edges(filesystem: &Filesystem, sector: u64) {
    let top = filesystem.root();
    let [one, two] = ["edges", "edges-shared"]
        .map(|name| top.create(name.as_bytes(), NewInode::file(0o644)).expect("made"));
    let mut expected = vec![0; 12 * sector as usize + 77];
    let mut write = |at: u64, len: usize| {
        let bytes = noise(at, len);
        expected[at as usize..at as usize + len].copy_from_slice(&bytes);
        one.write_at(at, &bytes).expect("a write");
    };
    write(sector - 1, 2);
    write(4096, 512);
    write(3 * sector + 4096, 3 * sector as usize);
    filesystem.sync().expect("a sync");
    write(5 * sector - 10, 20);
    write(12 * sector, 77);
    one.sync().expect("a sync of the file");
    let direct = noise(7, sector as usize);
    one.write_direct(8 * sector, &direct).expect("a direct write");
    expected[8 * sector as usize..9 * sector as usize].copy_from_slice(&direct);
    one.write_direct(9 * sector + 4096, &direct[..4096]).expect("a direct write of a part");
    let part = 9 * sector as usize + 4096;
    expected[part..part + 4096].copy_from_slice(&direct[..4096]);
    one.fallocate(4 * sector + 100, sector, FallocateMode::PunchHole).expect("a hole");
    expected[4 * sector as usize + 100..5 * sector as usize + 100].fill(0);
    one.clone_range(0, &two, 0, 8 * sector).expect("a clone");
    let refused = one.clone_range(4096, &two, 4096, 4096);
    assert!(refused.is_err(), "a clone of a part of a sector");
    for (file, len) in [(&one, expected.len()), (&two, 8 * sector as usize)] {
        let mut found = vec![1; len];
        file.read_at(0, &mut found).expect("a read");
        assert!(found == expected[..len], "what was written is there");
    }
    assert_eq!(u64::from(one.attr().block_size), sector);
}

/// The contents of plain files, by their names in the volume.
fn filesystem_files(written: &Manifest, images: &Images) -> Vec<(String, Vec<u8>)> {
    assert!(written.bytes() > 0);
    let filesystem = open_with(images.paths(), "ro");
    let files = ["edges", "edges-shared"].map(|name| {
        let file = filesystem.resolve(name).expect("a file");
        let mut bytes = vec![0; file.attr().size as usize];
        file.read_at(0, &mut bytes).expect("a read");
        (name.to_owned(), bytes)
    });
    close(filesystem);
    files.to_vec()
}

/// Linux's tool restores these files as they are.
#[track_caller]
fn restored(image: &Path, files: &[(String, Vec<u8>)]) {
    let folder = tempfile::tempdir().expect("a folder");
    run("btrfs", ["restore".as_ref(), image.as_os_str(), folder.path().as_os_str()]);
    for (name, bytes) in files {
        let found = std::fs::read(folder.path().join(name)).expect("restored");
        assert!(found == *bytes, "{name} differs");
    }
}

/// The volume is made by Linux's tool. The sectors have the size of ARM's pages.
#[test]
pub(crate) fn sectors_of_16k_made_by_linux_are_written_here() {
    if can_run() {
        written(&made_by_linux(16 << 10, &[]), 16 << 10, "compress=zstd");
    }
}

/// The volume is made by Linux's tool. The sectors have the size of POWER's pages.
#[test]
pub(crate) fn sectors_of_64k_made_by_linux_are_written_here() {
    if can_run() {
        written(&made_by_linux(64 << 10, &[]), 64 << 10, "compress-force=lzo");
    }
}

/// Data and nodes share block groups, with nodes of one sector.
#[test]
fn mixed_groups_with_large_sectors_are_written() {
    if can_run() {
        written(&made_by_linux(16 << 10, &["--mixed"]), 16 << 10, "compress=zlib");
    }
}

/// Volumes are made here with sectors of each size.
#[test]
pub(crate) fn sectors_of_every_size_are_made_here() {
    if can_run() {
        for kib in [8, 64] {
            written(&made_here(kib << 10), u64::from(kib) << 10, "");
        }
    }
}
