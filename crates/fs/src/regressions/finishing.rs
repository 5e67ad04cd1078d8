//! The reservation of dirty data counts the leaves of its inode twice: for the running transaction
//! and for the next one. While a reader holds old trees, no commit frees replaced leaves. Each
//! partial writeback of the data copies the leaves again.

use super::freeing::crowd;
use super::*;
use crate::make::MakeOptions;

/// Extents of the file, in random order, and how many of them are overwritten.
const EXTENTS: u64 = 3000;
const OVERWRITTEN: usize = 1000;
/// The number of parts that are written back, each followed by a commit.
const PARTS: usize = 40;

/// A volume full of metadata except for a few leaves and the space of one chunk. Its file has
/// extents of one block each.
fn scattered() -> Arc<dyn Device> {
    let device = Arc::new(MemoryDevice::new(256 * MIB));
    let make = MakeOptions { nodesize: 4096, seed: Some(7), ..MakeOptions::default() };
    Filesystem::make(&*device, &make).expect("a volume");
    let device: Arc<dyn Device> = device;
    let fs = mount(&device, "rw,commit=300");
    let file = file(&fs, "scattered");
    let mut order: Vec<_> = (0..EXTENTS).collect();
    Rng::new(1).shuffle(&mut order);
    for extent in order {
        file.write_direct(extent * 2 * SECTOR, &[1; SECTOR as usize]).expect("there is room");
    }
    fs.sync().expect("durable");
    let count = crowd(&fs).len();
    let filler = fs.resolve("filler").expect("the file");
    let size = Some(filler.attr().size - 16 * MIB);
    filler.set_attr(&SetAttr { size, ..SetAttr::default() }).expect("shrinking always works");
    for number in count * 94 / 100..count {
        fs.root().unlink(format!("f{number}").as_bytes()).expect("removing always works");
    }
    fs.sync().expect("durable");
    drop((filler, file));
    fs.close().expect("closed");
    device
}

/// I4: a commit may leave no space for data that is still dirty after the commit. The data is
/// therefore written back before such a commit. Otherwise later writeback would use the reserve of
/// commits until a commit fails.
#[test]
fn a_commit_lets_dirty_data_finish() {
    let device = scattered();
    let fs = mount(&device, "rw,notreelog,preempt=off,commit=300,dirty=64M");
    let file = fs.resolve("scattered").expect("the file");
    let old = fs.view();
    let mut rng = Rng::new(5);
    let mut dirty: Vec<_> = (0..OVERWRITTEN).map(|_| rng.below(EXTENTS)).collect();
    dirty.sort_unstable();
    dirty.dedup();
    for extent in &dirty {
        file.write_at(extent * 2 * SECTOR, &[2; SECTOR as usize]).expect("there is room");
    }
    let mount = fs.mount();
    for part in 0..PARTS {
        for extent in dirty.iter().skip(part).step_by(PARTS) {
            let at = extent * 2 * SECTOR;
            mount
                .files
                .writeback()
                .write_back(&file.cell.file, at..at + SECTOR)
                .expect("it was reserved");
        }
        mount.engine.commit().expect("a commit never runs out of space");
        // A commit uses the reserve before it makes a chunk. Free and unallocated space together
        // stay at three quarters of the reserve or more.
        let accounts = fs.space_stats().accounts;
        let (reserve, left) = (accounts.metadata.global_reserve, accounts.metadata.free());
        assert!(left + accounts.unallocated >= reserve / 4 * 3, "part {part}: {accounts}");
    }
    let stats = fs.space_stats();
    assert_eq!(stats.shortfalls, 0, "it was reserved");
    drop(old);
    let mut found = vec![0; (EXTENTS * 2 * SECTOR) as usize];
    file.read_at(0, &mut found).expect("a read");
    for extent in 0..EXTENTS {
        let expected = if dirty.binary_search(&extent).is_ok() { 2 } else { 1 };
        let at = (extent * 2 * SECTOR) as usize;
        assert!(found[at..at + SECTOR as usize].iter().all(|byte| *byte == expected), "{extent}");
    }
    drop(file);
    fs.close().expect("closed");
    check_volume(&device);
}
