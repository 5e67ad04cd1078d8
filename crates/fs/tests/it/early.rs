//! Refusals that would come too early: what lacks is held by others, who give it back as soon as they are let.

use buttress_fs::{FallocateMode, Filesystem, Inode};

use crate::checker::check;
use crate::room::fill;
use crate::volume::{memory, mount_with, nocow};

const BLOCK: u64 = 4096;
const WRITERS: usize = 64;

/// Writers of blocks of their own at the same time, over and over; how many were refused.
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

/// Files whose data is overwritten in place, on a volume without any space for data left.
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

/// E4 for metadata and writes in place: who has found where his data lies keeps others from writing that file back. What he is
/// promised for it may be held by dirty data all the same, of other files or of his own.
#[test]
fn e4_writers_in_place_wait_for_dirty_data() {
    for (promise, files, blocks) in [("levels", WRITERS, 1), ("levels", 1, 4), ("counted", 1, 4)] {
        let device = memory(256);
        let fs = mount_with(&device, &format!("promise={promise},commit=300"));
        let all = in_place(&fs, files, WRITERS as u64 * blocks);
        assert_eq!(refused(&all, blocks), 0, "promise={promise}, {files} files");
        drop(all);
        fs.close().expect("it closes");
        check(&device);
    }
}
