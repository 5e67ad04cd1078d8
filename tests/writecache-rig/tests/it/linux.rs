//! Caches that this project exchanges with a real Linux kernel.

use buttress_cache::inspect;
use buttress_cache::layout::Cut;
use buttress_writecache_rig::work::checksum;
use buttress_writecache_rig::{Work, has_guest};

use crate::{SECTORS, blank, content, file, guest, make, open};

const DEVICE: &str = "/dev/dm-0";

pub(crate) fn create(block_size: u32, options: &str) -> String {
    let count = options.split_whitespace().count();
    format!(
        "dmsetup create wc --noudevsync --noudevrules --table \
         '0 {SECTORS} writecache s /dev/ubda /dev/ubdb {block_size} {count} {options}'"
    )
}

fn work(seed: u64, steps: usize, block_size: u32) -> Work {
    Work { seed, steps, sectors: SECTORS, align: block_size as usize / 512 }
}

pub(crate) fn do_work(work: &Work) -> String {
    format!("rig-work device {DEVICE} {} {} {}", work.seed, work.steps, work.align)
}

/// Linux formats and fills a cache, and is killed meanwhile. The cache is read and drained here,
/// and no acknowledged write is lost. Then Linux continues with our cache. The test runs for each
/// block size, with a large and a small cache.
#[test]
fn linux_is_killed_and_we_recover() {
    if !has_guest() {
        return;
    }
    for (block_size, cache_sectors, kill_at) in
        [(512, 9000, 40), (1024, 1500, 70), (4096, 20_000, 90)]
    {
        let origin = blank(guest().path(&format!("killed-origin-{block_size}")), SECTORS);
        let cache = blank(guest().path(&format!("killed-cache-{block_size}")), cache_sectors);
        let mut model = vec![0; SECTORS];
        let first = work(1, 200, block_size);
        let flush = first
            .list()
            .iter()
            .take(kill_at)
            .rposition(|step| *step == buttress_writecache_rig::work::Step::Flush);
        let line = format!("flushed {}", flush.expect("there is one") + 1);
        let script = format!("{}\n{}", create(block_size, ""), do_work(&first));
        let said = guest().run(&script, &origin, &cache, Some(&line));
        assert!(said.killed);
        let scan = inspect::scan(file(&cache), None, 0).expect("a cache");
        assert!(scan.faults.is_empty(), "{:?}", scan.faults);
        assert_eq!(scan.superblock.geometry.block_size(), u64::from(block_size));

        let cached = open(&origin, &cache, "");
        let found = content(&cached);
        first.check(&model, &found, said.flushed(), first.steps);
        model = found;
        if block_size == 1024 {
            cached.drain(|_| {}).expect("files");
        }
        cached.close().expect("files");
        // Dropping the cache releases the locks.
        drop(cached);
        if block_size == 1024 {
            assert_eq!(content(&*file(&origin)), model);
        }

        // Linux uses the cache that we left, adds blocks to it, and closes it cleanly.
        let second = work(2, 100, block_size);
        let script = format!(
            "{}\nrig-work sum {DEVICE} 65536\n{}\ndmsetup remove wc",
            create(block_size, ""),
            do_work(&second)
        );
        let said = guest().run(&script, &origin, &cache, None);
        assert_eq!(said.line("sum "), format!("{:08x}", checksum(&model)));
        second.apply(&mut model, second.steps);
        let cached = open(&origin, &cache, "");
        assert_eq!(content(&cached), model);
        cached.drain(|_| {}).expect("files");
        cached.close().expect("files");
        drop(cached);
        assert_eq!(content(&*file(&origin)), model);
    }
}

/// We format and fill a cache, and do not close it. Linux reads and drains it. The cache is then
/// empty, and our stamp is unchanged. The test runs in both modes, which share the layout.
#[test]
fn we_leave_and_linux_drains() {
    if !has_guest() {
        return;
    }
    for (block_size, list) in [
        (512, "mode=pmem"),
        (1024, "consistent_origin=on"),
        (4096, "high_watermark=30,low_watermark=10,pause_writeback=0"),
    ] {
        let origin = blank(guest().path(&format!("left-origin-{block_size}")), SECTORS);
        let cache = blank(guest().path(&format!("left-cache-{block_size}")), 6000);
        make(&origin, &cache, block_size);
        // Writes are aligned to sectors, not blocks, so our cache must combine parts of blocks.
        let ours = Work { seed: 3, steps: 300, sectors: SECTORS, align: 1 };
        let status = std::process::Command::new(crate::program())
            .arg("cached")
            .args([&origin, &cache])
            .args([list, "3", "300", "1"])
            .stdout(std::process::Stdio::null())
            .status();
        assert!(status.expect("it starts").success());
        let mut model = vec![0; SECTORS];
        ours.apply(&mut model, ours.steps);
        let stamp = inspect::scan(file(&cache), None, 0).expect("a cache").superblock.stamp;
        assert!(stamp.is_some());

        let script = format!(
            "{}\nrig-work sum {DEVICE} 65536\ndmsetup message wc 0 flush\necho status $(dmsetup status wc)\n\
             dmsetup remove wc\nrig-work sum /dev/ubda 65536",
            create(block_size, "")
        );
        let said = guest().run(&script, &origin, &cache, None);
        let expected = format!("sum {:08x}", checksum(&model));
        let sums: Vec<_> = said.lines.iter().filter(|line| line.starts_with("sum ")).collect();
        assert_eq!(sums, [&expected, &expected], "the cached device, then the origin alone");
        // The line is `0 LEN writecache`, then fourteen fields, which we print in the same way.
        assert_eq!(said.line("status ").split_whitespace().count(), 3 + 14);

        let scan = inspect::scan(file(&cache), Some(&*file(&origin)), 0).expect("a cache");
        assert!(
            scan.faults.is_empty()
                && scan.entries.iter().all(|(_, fate)| *fate == inspect::Fate::Free)
        );
        assert_eq!(scan.superblock.stamp, stamp, "Linux keeps bytes 32 to 63");
        let cached = open(&origin, &cache, "");
        assert_eq!((cached.cached_blocks(), cached.status().cut), (0, Cut::None));
        assert_eq!(content(&cached), model);
    }
}

/// An empty cache of ours without a stamp equals an empty cache of Linux, in all bytes that the
/// format defines.
#[test]
fn both_format_alike() {
    if !has_guest() {
        return;
    }
    for block_size in [512, 1024, 2048, 4096] {
        let origin = blank(guest().path(&format!("format-origin-{block_size}")), SECTORS);
        let theirs = blank(guest().path(&format!("format-theirs-{block_size}")), 3333);
        let ours = blank(guest().path(&format!("format-ours-{block_size}")), 3333);
        buttress_cache::format(file(&ours), None, block_size, 0, false).expect("it fits");
        guest().run(&create(block_size, ""), &origin, &theirs, Some("rig-done"));
        let end =
            inspect::scan(file(&ours), None, 0).expect("a cache").superblock.geometry.entries_end();
        let front = |path| std::fs::read(path).expect("a file")[..end as usize].to_vec();
        // After the last entry, Linux writes undefined bytes of its memory.
        assert!(front(&ours) == front(&theirs), "block size {block_size}");
    }
}
