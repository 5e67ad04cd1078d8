//! The reservation of thousands of dirty blocks of one file, where metadata is scarce.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use buttress_base::{AlignedBuf, Rng};
use buttress_block::Device;
use buttress_fs::{Filesystem, Inode, MakeOptions, SpaceKind};

use crate::checker::check;
use crate::room::fill;
use crate::volume::{file_with, memory_with, mount_with};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 5000;

/// A volume with metadata that is more than half full, and without space for another chunk. Each
/// block of its file is an extent.
fn scarce(nodesize: u32, options: &str) -> (Arc<dyn Device>, Filesystem, Inode) {
    let device = memory_with(256, &MakeOptions { nodesize, ..MakeOptions::default() });
    let fs = mount_with(&device, &format!("preempt=off,commit=300,dirty=64M,{options}"));
    let mut rng = Rng::new(7);
    let file = file_with(&fs.root(), "file", b"");
    let mut order: Vec<_> = (0..BLOCKS).collect();
    for left in (1..order.len()).rev() {
        order.swap(left, rng.below(left as u64 + 1) as usize);
    }
    let mut data = AlignedBuf::zeroed(BLOCK as usize);
    for block in order {
        data.fill(block as u8);
        file.write_direct(block * BLOCK, &data).expect("there is room");
    }
    for i in 0.. {
        let metadata = fs.space_stats().accounts.metadata;
        if metadata.used > metadata.total / 100 * 55 {
            break;
        }
        for j in 0..50 {
            file_with(&fs.root(), &format!("{i}-{j}"), &[3; 1500]);
        }
        fs.sync().expect("durable");
    }
    let _filler = fill(&fs, 48 << 20);
    fs.sync().expect("durable");
    (device, fs, file)
}

/// Blocks all over the file are overwritten. The overwrites change the same few leaves, so no
/// writer waits for the ordered extents of others, and no ordered extent has a shortfall.
#[test]
fn blocks_of_one_file_wait_for_no_metadata() {
    for nodesize in [4 << 10, 16 << 10] {
        let (device, fs, file) = scarce(nodesize, "rw");
        let mut rng = Rng::new(u64::from(nodesize));
        let waits = || fs.space_stats().engine.waits.of_kind(SpaceKind::Metadata).count();
        let before = waits();
        for turn in 0..2_u8 {
            for _ in 0..4000 {
                let block = rng.below(BLOCKS);
                file.write_at(block * BLOCK, &[turn; BLOCK as usize]).expect("there is room");
            }
            fs.sync().expect("durable");
        }
        let stats = fs.space_stats();
        // If each block reserved a whole path, there would be dozens of waits.
        let waited = waits() - before;
        assert!(waited < 8, "nodes of {nodesize}: {waited} waits");
        assert_eq!(stats.shortfalls, 0, "nodes of {nodesize}");
        assert_eq!(stats.engine.reserve_taken_max, 0, "nodes of {nodesize}");
        drop(file);
        fs.close().expect("it closes");
        check(&device);
    }
}

/// A thread reads old trees all the time, so no commit gives space back. If each writeback wrote
/// only a part of the dirty data, each writeback would make the same leaves anew and use up the
/// space. Even when writers are refused, the space that is reserved already stays available.
#[test]
fn readers_of_old_trees_take_no_reservation() {
    for nodesize in [4 << 10, 16 << 10] {
        let (device, fs, file) = scarce(nodesize, "notreelog");
        let old = fs.view();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut rng = Rng::new(u64::from(nodesize));
                // Without free room the write waits for readers, and may be refused.
                while !stop.load(Ordering::Relaxed) {
                    let _ = file.write_at(rng.below(BLOCKS) * BLOCK, &[1; BLOCK as usize]);
                }
            });
            for i in 0..40 {
                // The sync finishes all ordered extents and commits.
                fs.root().unlink(format!("0-{i}").as_bytes()).expect("what frees space is let in");
                fs.root().sync().expect("no commit lacks what was reserved");
            }
            drop(old);
            stop.store(true, Ordering::Relaxed);
            writer.join().expect("no panic");
        });
        assert_eq!(fs.read_only_reason(), None, "nodes of {nodesize}");
        fs.sync().expect("durable");
        drop(file);
        fs.close().expect("it closes");
        check(&device);
    }
}
