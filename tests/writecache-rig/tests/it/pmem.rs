//! Caches in persistent memory with DAX: Linux's cache in the mode for persistent memory, and ours
//! in a file that is mapped with `MAP_SYNC`.
//!
//! The machine is emulated, so a start takes some seconds. `BUTTRESS_RIG_ROUNDS` sets the number of
//! rounds.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_cache::{CacheDevice, CacheOptions, PmemDevice, inspect};
use buttress_interop::linux::run;
use buttress_writecache_rig::machine::PMEM_START;
use buttress_writecache_rig::work::{Step, checksum};
use buttress_writecache_rig::{Machine, Work, has_machine};

use crate::killed::rounds;
use crate::{SECTORS, blank, content, file, program};

const MEMORY: u64 = 16 << 20;
const START_SECTOR: u64 = PMEM_START / 512;

fn work(seed: u64, steps: usize, align: usize) -> Work {
    Work { seed, steps, sectors: SECTORS, align }
}

/// The line that reports one of the first flushes as durable.
fn some_flush(work: &Work, rng: &mut Rng) -> String {
    let steps = (1..).zip(work.list());
    let flushes: Vec<_> =
        steps.filter(|(_, step)| *step == Step::Flush).map(|(count, _)| count).collect();
    format!("flushed {}", flushes[rng.below(flushes.len() as u64 * 3 / 4) as usize])
}

/// Linux in its persistent-memory mode is killed. The cache is read from outside, and no
/// acknowledged write is lost. We map the cache and add blocks, which Linux then reads and drains.
/// Finally, we use the cache inside the machine, and Linux uses it after us.
#[test]
fn linux_has_its_cache_in_persistent_memory() {
    if !has_machine() {
        return;
    }
    let machine = Machine::new(program(), MEMORY);
    let origin = blank(machine.path("origin"), SECTORS);
    let create = format!(
        "dmsetup create wc --noudevsync --noudevrules --table \
         '0 {SECTORS} writecache p /dev/nvme1n1 /dev/pmem0 4096 0'"
    );
    let mut rng = Rng::new(1);
    let mut model = vec![0; SECTORS];
    for round in 0..rounds(1) {
        // Linux fills the cache and is killed.
        let theirs = work(3 * round + 1, 600, 8);
        let script = format!(
            "cat /sys/block/pmem0/queue/dax\n{create}\n\
             rig-work device /dev/dm-0 {} {} 8",
            theirs.seed, theirs.steps
        );
        let said = machine.run(&script, &origin, Some(&some_flush(&theirs, &mut rng)));
        assert!(said.lines.iter().any(|line| line == "1"), "no DAX: {:#?}", said.lines);
        let scan = inspect::scan(file(&machine.memory()), None, START_SECTOR).expect("a cache");
        assert!(scan.faults.is_empty(), "{:?}", scan.faults);

        // We open the cache from outside, and leave it dirty.
        let memory = PmemDevice::open(machine.memory(), OpenOptions::WRITE).expect("it is mapped");
        let list = format!("mode=pmem,start_sector={START_SECTOR},pause_writeback=0");
        let options = CacheOptions::parse(&list).expect("right");
        let cached = CacheDevice::open(file(&origin), Arc::new(memory), options).expect("a cache");
        let found = content(&cached);
        theirs.check(&model, &found, said.flushed(), theirs.steps);
        model = found;
        let ours = work(3 * round + 2, 300, 1);
        for step in ours.list() {
            match step {
                Step::Write { at, count, value } => {
                    let bytes = buttress_writecache_rig::sector(value).repeat(count);
                    cached.write_at((at * 512) as u64, &bytes).expect("files");
                }
                Step::Flush => cached.flush().expect("files"),
            }
        }
        ours.apply(&mut model, ours.steps);
        drop(cached);

        // We use the cache again, in the machine, through the block device, which cannot be mapped
        // with MAP_SYNC. Then Linux uses it. The test reads block by block. In this mode, Linux
        // (6.1.192) may return bytes of other sectors for a read that spans cached and uncached
        // blocks.
        let inside = work(3 * round + 3, 200, 1);
        let script = format!(
            "rig-work cached /dev/nvme1n1 /dev/pmem0 mode=pmem {} {} 1\n{create}\n\
             rig-work sum /dev/dm-0 4096\ndmsetup message wc 0 flush\necho status $(dmsetup status wc)\n\
             dmsetup remove wc\nrig-work sum /dev/nvme1n1 65536",
            inside.seed, inside.steps
        );
        let said = machine.run(&script, &origin, None);
        assert!(said.lines.iter().any(|line| line == "msync"), "{:#?}", said.lines);
        inside.apply(&mut model, inside.steps);
        let expected = format!("sum {:08x}", checksum(&model));
        let sums: Vec<_> = said.lines.iter().filter(|line| line.starts_with("sum ")).collect();
        assert_eq!(sums, [&expected, &expected], "the cached device, then the origin alone");
        assert_eq!(said.line("status ").split_whitespace().count(), 3 + 14);
        assert_eq!(content(&*file(&origin)), model);
    }
}

/// Our cache is a file on ext4 with DAX, and is mapped with `MAP_SYNC`. When the machine is killed,
/// no acknowledged write is lost. The cache is then read from outside.
#[test]
fn our_cache_is_a_file_with_dax() {
    if !has_machine() {
        return;
    }
    let machine = Machine::new(program(), MEMORY);
    let origin = blank(machine.path("origin"), SECTORS);
    let volume = machine.path("volume");
    let image = blank(volume.clone(), ((MEMORY - PMEM_START) / 512) as usize);
    // DAX needs blocks of the size of a page.
    let image = image.display().to_string();
    run("mke2fs", ["-q", "-t", "ext4", "-b", "4096", &image]);
    let mut rng = Rng::new(2);
    let mut model = vec![0; SECTORS];
    for round in 0..rounds(1) {
        put(&volume, &machine.memory());
        let ours = work(round + 1, 1500, 1);
        // A kernel that finds no mode for the namespace sets a mode first, which changes no data.
        let list =
            "mode=pmem,autocommit_time=5,pause_writeback=0,high_watermark=30,low_watermark=5";
        let script = format!(
            "mount -t ext4 -o dax /dev/pmem0 /mnt\n\
             [ -e /mnt/cache ] || {{ dd if=/dev/zero of=/mnt/cache bs=1M count=3; sync; }}\n\
             rig-work cached /dev/nvme1n1 /mnt/cache {list} {} {} 1",
            ours.seed, ours.steps
        );
        let said = machine.run(&script, &origin, Some(&some_flush(&ours, &mut rng)));
        assert!(said.lines.iter().any(|line| line == "map-sync"), "{:#?}", said.lines);

        take(&machine.memory(), &volume);
        let cache = extract(&machine, &volume);
        let cached = CacheDevice::open(file(&origin), file(&cache), CacheOptions::default());
        let cached = cached.expect("a cache");
        let found = content(&cached);
        ours.check(&model, &found, said.flushed(), ours.steps);
        model = found;
        cached.drain(|_| {}).expect("files");
        cached.close().expect("files");
        drop(cached);
        assert_eq!(content(&*file(&origin)), model);
        // The next round begins with a blank file, so this file is removed.
        run("debugfs", ["-w".as_ref(), "-R".as_ref(), "rm /cache".as_ref(), volume.as_os_str()]);
        run("e2fsck", ["-fp".as_ref(), volume.as_os_str()]);
    }
}

/// Copies a filesystem into the memory, at the place of `/dev/pmem0`.
fn put(volume: &Path, memory: &Path) {
    let bytes = std::fs::read(volume).expect("a file");
    let memory = File::options().write(true).open(memory).expect("a file");
    memory.write_all_at(&bytes, PMEM_START).expect("there is room");
}

/// Copies the filesystem out of the memory.
fn take(memory: &Path, volume: &Path) {
    let mut bytes = vec![0; (MEMORY - PMEM_START) as usize];
    let memory = FileDevice::open(memory, OpenOptions::READ).expect("a file");
    memory.read_at(PMEM_START, &mut bytes).expect("it is as long");
    std::fs::write(volume, bytes).expect("there is room");
}

/// Copies the cache file out of a filesystem that was not unmounted.
fn extract(machine: &Machine, volume: &Path) -> std::path::PathBuf {
    // The exit code 1 means that e2fsck made a change: it replayed the journal.
    let repaired = std::process::Command::new("e2fsck").arg("-fp").arg(volume).output();
    let repaired = repaired.expect("it starts");
    assert!(matches!(repaired.status.code(), Some(0 | 1)), "{repaired:?}");
    let cache = machine.path("cache");
    let dump = format!("dump /cache {}", cache.display());
    run("debugfs", ["-R".as_ref(), dump.as_ref(), volume.as_os_str()]);
    assert_eq!(std::fs::metadata(&cache).expect("it was there").len(), 3 << 20);
    cache
}
