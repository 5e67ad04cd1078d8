//! Tests against refusals that come too early: other operations hold the missing space, and give it
//! back as soon as they can.

use buttress_base::AlignedBuf;
use buttress_fs::{FallocateMode, Filesystem, Inode, SetAttr};

use crate::checker::check;
use crate::room::fill;
use crate::volume::{file_with, memory, mount_with, nocow, pattern};

const BLOCK: u64 = 4096;
const WRITERS: usize = 64;

/// Threads write at the same time, each to its own blocks, over and over. Returns the number of
/// refused writes.
fn refused(files: &[Inode], blocks: u64) -> usize {
    let (mut refused, mut turn) = (0, 0);
    for _ in 0..6 {
        turn += 1;
        refused += std::thread::scope(|scope| {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| {
                    scope.spawn(move || {
                        let file = &files[writer % files.len()];
                        let first = writer as u64 * blocks;
                        let write = |block| {
                            let data = [turn; BLOCK as usize];
                            file.write_at((first + block) * BLOCK, &data).is_err()
                        };
                        (0..blocks).filter(|block| write(*block)).count()
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().expect("no panic")).sum::<usize>()
        });
    }
    refused
}

/// Files with data that is overwritten in place, on a volume without any space for data left.
fn in_place(fs: &Filesystem, files: usize, blocks: u64) -> Vec<Inode> {
    let make = |number| {
        let file = nocow(fs, &format!("in place {number}"));
        let how = FallocateMode::Allocate { keep_size: false };
        file.fallocate(0, blocks * BLOCK, how).expect("there is room");
        file.write_at(0, &vec![1; (blocks * BLOCK) as usize]).expect("there is room");
        file
    };
    let files: Vec<_> = (0..files).map(make).collect();
    fs.sync().expect("durable");
    let _filler = fill(fs, 0);
    fs.sync().expect("durable");
    files
}

/// E4 for metadata and writes in place: once a writer knows where its data lies, no thread can
/// write its file back. But dirty data, of other files or of the same file, may hold the metadata
/// that the writer needs.
#[test]
fn writers_in_place_wait_for_dirty_data() {
    for (policy, files, blocks) in [("levels", WRITERS, 1), ("levels", 1, 4), ("counted", 1, 4)] {
        let device = memory(256);
        let fs = mount_with(&device, &format!("reserve={policy},commit=300"));
        let all = in_place(&fs, files, WRITERS as u64 * blocks);
        assert_eq!(refused(&all, blocks), 0, "reserve={policy}, {files} files");
        drop(all);
        fs.close().expect("it closes");
        check(&device);
    }
}

/// V1: dirty data that is cut to an inline length has room reserved in the tree, and does not draw
/// on the global reserve.
#[test]
fn cut_to_inline_is_reserved() {
    for options in ["rw", "compress-force=zstd"] {
        let device = memory(512);
        let fs = mount_with(&device, &format!("{options},commit=300"));
        for i in 0..300_u64 {
            let file = file_with(&fs.root(), &format!("f{i}"), &vec![i as u8; 9000]);
            let size = Some(1 + i * 13 % 2040);
            file.set_attr(&SetAttr { size, ..SetAttr::default() }).expect("shrinking always works");
        }
        fs.sync().expect("durable");
        assert_eq!(fs.space_stats().shortfalls, 0, "{options}");
        // Here a file is cut when its data already lies in an extent, and then written within its
        // length or just past it.
        for i in 0..300_u64 {
            let file = file_with(&fs.root(), &format!("g{i}"), &vec![i as u8; 9000]);
            file.sync().expect("durable");
            let size = Some(100 + i * 5);
            file.set_attr(&SetAttr { size, ..SetAttr::default() }).expect("shrinking always works");
            file.write_at(i % 90, &[1; 10]).expect("there is room");
        }
        fs.sync().expect("durable");
        assert_eq!(fs.space_stats().shortfalls, 0, "{options}, written");
        fs.close().expect("it closes");
        check(&device);
    }
}

/// V1: dirty data that grows over a hole and stays inline has room reserved in the tree for the
/// added length, too. The room is reserved once, however often the length goes up and down.
#[test]
fn growth_to_inline_is_reserved() {
    for options in ["rw", "compress-force=zstd"] {
        let device = memory(512);
        let fs = mount_with(&device, &format!("{options},commit=300"));
        let resize = |file: &Inode, size| {
            let size = Some(size);
            file.set_attr(&SetAttr { size, ..SetAttr::default() }).expect("there is room");
        };
        let grown = |name: &str| {
            let make = |i: u64| {
                let file =
                    file_with(&fs.root(), &format!("{name}{i}"), &pattern(i, 1 + i as usize));
                resize(&file, 550 + i * 5);
                file
            };
            (0..300).map(make).collect::<Vec<_>>()
        };
        grown("f");
        fs.sync().expect("durable");
        assert_eq!(fs.space_stats().shortfalls, 0, "{options}");
        let files = grown("g");
        let reserved = || fs.space_stats().accounts.outstanding.bytes;
        let before = reserved();
        for _ in 0..50 {
            files.iter().for_each(|file| resize(file, 3000));
            files.iter().for_each(|file| resize(file, 550));
        }
        // With compression, 3000 bytes may also lie in the tree.
        assert!(reserved() <= before + 300 * 2048, "{options}: {} after {before}", reserved());
        fs.sync().expect("durable");
        assert_eq!(fs.space_stats().shortfalls, 0, "{options}, up and down");
        drop(files);
        fs.close().expect("it closes");
        check(&device);
    }
}

/// E4 for direct writes: an overwrite needs as much space as it frees, and a commit gives the freed
/// space back. If the free space holds one block of each writer, no writer is refused, however many
/// come at once.
#[test]
fn direct_writers_wait_for_the_space_they_free() {
    for ordered in [false, true] {
        let device = memory(160);
        let fs = mount_with(&device, "commit=300");
        let files: Vec<_> =
            (0..WRITERS).map(|i| file_with(&fs.root(), &format!("f{i}"), b"")).collect();
        for file in &files {
            file.write_direct(0, &AlignedBuf::zeroed(8 * BLOCK as usize)).expect("there is room");
        }
        let _filler = fill(&fs, 2 << 20);
        fs.sync().expect("durable");
        let refused: usize = std::thread::scope(|scope| {
            let writers: Vec<_> = files
                .iter()
                .map(|file| {
                    scope.spawn(move || {
                        let data = AlignedBuf::zeroed(BLOCK as usize);
                        let write = |turn: u64| {
                            let block = if ordered { turn % 8 } else { turn * 5 % 8 };
                            file.write_direct(block * BLOCK, &data).is_err()
                        };
                        (0..60).filter(|turn| write(*turn)).count()
                    })
                })
                .collect();
            writers.into_iter().map(|writer| writer.join().expect("no panic")).sum()
        });
        assert_eq!(refused, 0, "ordered: {ordered}");
        drop(files);
        fs.close().expect("it closes");
        check(&device);
    }
}
