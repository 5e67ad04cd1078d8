//! Blocks of one file that are dirty by the thousand, where metadata is scarce: what they are promised.

use buttress_base::{AlignedBuf, Rng};
use buttress_fs::{MakeOptions, SpaceKind};

use crate::checker::check;
use crate::room::fill;
use crate::volume::{file_with, memory_with, mount_with};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 5000;

/// Metadata is more than half full, no chunk can come, and blocks all over a file are overwritten, each of them an extent: they
/// change the same few leaves, so nobody waits for the others to land, and nothing lands short of what it was promised.
#[test]
fn blocks_of_one_file_wait_for_no_metadata() {
    for nodesize in [4 << 10, 16 << 10] {
        let device = memory_with(256, &MakeOptions { nodesize, ..MakeOptions::default() });
        let fs = mount_with(&device, "preempt=off,commit=300,dirty=64M");
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
        let metadata = || fs.space_stats().accounts.metadata;
        for i in 0.. {
            if metadata().used > metadata().total / 100 * 55 {
                break;
            }
            for j in 0..50 {
                file_with(&fs.root(), &format!("{i}-{j}"), &[3; 1500]);
            }
            fs.sync().expect("durable");
        }
        let _filler = fill(&fs, 48 << 20);
        fs.sync().expect("durable");
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
        assert_eq!((waits() - before, stats.short_landings), (0, 0), "nodes of {nodesize}");
        assert_eq!(stats.engine.reserve_taken_max, 0, "nodes of {nodesize}");
        drop(file);
        fs.close().expect("it closes");
        check(&device);
    }
}
