//! A btrfs volume on a cached device: `btrfs check` and Linux check it as on a plain device. After
//! a power cut, the origin alone is a volume.

use std::sync::Arc;

use buttress_block::{Device, FileDevice, MemoryDevice, OpenOptions};
use buttress_cache::layout::Cut;
use buttress_cache::{CacheDevice, CacheOptions, format, inspect};
use buttress_fs::make::{MakeOptions, make};
use buttress_fs::{Filesystem, MountOptions};
use buttress_interop::linux::{Images, has_linux_btrfs, has_program};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Library, Scale, change, fill};
use buttress_sim::Log;

use crate::{blank, file, open};

fn mount(device: &Arc<CacheDevice>) -> Filesystem {
    let options = MountOptions::parse("rw,noatime").expect("known");
    Filesystem::open(vec![Arc::clone(device) as Arc<dyn Device>], options).expect("it opens")
}

/// A volume is made, filled and changed over several openings, through a small cache that drains
/// meanwhile. After a flush, the checker finds nothing, and Linux sees the same files as we do.
#[test]
fn linux_checks_a_volume_that_was_cached() {
    if !has_program("btrfs") {
        return;
    }
    let lists = [
        "high_watermark=30,low_watermark=10,pause_writeback=0",
        "consistent_origin=on,high_watermark=20,low_watermark=5",
        "writeback=lru,autocommit_blocks=100,pause_writeback=0",
        "metadata_only,high_watermark=10,low_watermark=5",
    ];
    for (list, block_size) in lists.into_iter().zip([4096, 512, 1024, 4096]) {
        let images = Images::new(1, 512 << 20);
        let origin = images.path();
        let cache = blank(images.scratch().join("cache"), 40_000);
        format(file(&cache), Some(&*file(origin)), block_size, 0, false).expect("it fits");
        let scale = Scale { big_bytes: 6 << 20, dirs: 3, ..Scale::default() };
        let device = Arc::new(open(origin, &cache, list));
        let options = MakeOptions { seed: Some(5), ..MakeOptions::default() };
        make(&*device, &options).expect("a volume");
        for round in 0..3 {
            let fs = mount(&device);
            match round {
                0 => fill(&Library::new(&fs), &scale),
                _ => change(&Library::new(&fs), &scale, round),
            }
            fs.close().expect("it closes");
        }
        device.close().expect("files");
        drop(device);

        // The test opens the cache as another process would, so only committed blocks are there.
        let device = Arc::new(open(origin, &cache, "high_watermark=100,low_watermark=90"));
        let fs = mount(&device);
        let ours = Manifest::of_library(&fs);
        fs.close().expect("it closes");
        device.drain(|_| {}).expect("files");
        device.close().expect("files");
        drop(device);
        images.check();
        if has_linux_btrfs() {
            let mount = images.mount("ro");
            let linux = Manifest::of_folder(mount.path());
            mount.unmount();
            ours.assert_same(
                "ours through the cache",
                &linux,
                "Linux on the origin",
                Depth::Volume,
            );
        }
    }
}

/// Power cuts while a volume is written through a cache with a consistent origin. If the cache
/// reports a whole origin, the origin alone opens as a volume, even if the cache is lost for good.
/// Otherwise, the origin and the cache together open as a volume.
#[test]
fn the_origin_alone_is_a_volume_after_every_cut() {
    const LEN: u64 = 128 << 20;
    let origin = MemoryDevice::named("origin", LEN);
    make(&origin, &MakeOptions { seed: Some(6), ..MakeOptions::default() }).expect("a volume");
    let cache = Arc::new(MemoryDevice::named("cache", 8 << 20));
    format(Arc::clone(&cache) as _, Some(&origin), 4096, 0, false).expect("it fits");
    let log = Log::new();
    let (origin, cache) = (log.device(&origin, 512), log.device(&cache, 512));
    let mut options = CacheOptions::parse("consistent_origin=on").expect("known");
    options.background = false;
    let opened =
        CacheDevice::open(Arc::clone(&origin) as _, Arc::clone(&cache) as _, options.clone());
    let device = Arc::new(opened.expect("it opens"));
    device.drain(|_| {}).expect("memory");
    let fs = mount(&device);
    log.start(&[&origin, &cache]);
    let scale = Scale { big_bytes: 1 << 20, dirs: 2, files: 10, links: 20, ..Scale::default() };
    fill(&Library::new(&fs), &scale);
    fs.sync().expect("it commits");
    device.drain(|_| {}).expect("memory");
    for round in 1..3 {
        change(&Library::new(&fs), &scale, round);
        fs.sync().expect("it commits");
        device.drain(|_| {}).expect("memory");
    }
    fs.close().expect("it closes");

    let stride = (log.len() / 60).max(1);
    let (mut alone, mut together) = (0, 0);
    let open = |device: Arc<dyn Device>| {
        let options = buttress_check::Options::thorough();
        let devices = vec![Arc::clone(&device)];
        let report = buttress_check::check_devices(devices, &options, &buttress_check::NoProgress);
        let report = report.unwrap_or_else(|error| panic!("buttress check: {error}"));
        assert!(report.is_clean(), "buttress check:\n{}", report.to_text());
        let read_only = MountOptions::parse("ro").expect("known");
        // Reads every file, so all checksums are verified.
        drop(Manifest::of_library(&Filesystem::open(vec![device], read_only).expect("a volume")));
    };
    let images = has_program("btrfs").then(|| Images::new(1, LEN));
    log.crashes(&mut buttress_base::Rng::new(3), 1, stride, |crash| {
        let [origin, cache] = [0, 1].map(|index| Arc::new(crash.devices[index].fork()));
        let scan = inspect::scan(Arc::clone(&cache) as _, None, 0).expect("a cache");
        if let Some(Cut::Whole(_)) = scan.superblock.stamp.map(|stamp| stamp.cut) {
            if let Some(images) = images.as_ref().filter(|_| alone % 8 == 0) {
                save(&*origin, images.path());
                images.check();
            }
            open(origin);
            alone += 1;
        } else {
            let device = CacheDevice::open(origin, cache, options.clone()).expect("it recovers");
            open(Arc::new(device));
            together += 1;
        }
    });
    assert!(alone > 20 && together > 5, "{alone} {together}");
}

/// Saves the content of a device as an image.
fn save(device: &dyn Device, path: &std::path::Path) {
    let mut bytes = vec![0; device.len() as usize];
    device.read_at(0, &mut bytes).expect("memory");
    std::fs::write(path, bytes).expect("a file");
}

/// A volume in a cache file and an origin file is opened again, read-only. The opening changes no
/// byte of the cache.
#[test]
fn read_only_opening_changes_nothing() {
    let images = Images::new(1, 256 << 20);
    let cache = blank(images.scratch().join("cache"), 40_000);
    format(file(&cache), Some(&*file(images.path())), 4096, 0, false).expect("it fits");
    let device = open(images.path(), &cache, "high_watermark=100,low_watermark=90");
    make(&device, &MakeOptions { seed: Some(7), ..MakeOptions::default() }).expect("a volume");
    device.close().expect("files");
    drop(device);
    let before = std::fs::read(&cache).expect("a file");
    let look = |path| Arc::new(FileDevice::open(path, OpenOptions::READ).expect("it opens"));
    let opened = CacheDevice::open(look(images.path()), look(&*cache), CacheOptions::default());
    let device = Arc::new(opened.expect("it opens"));
    let read_only = MountOptions::parse("ro").expect("known");
    Filesystem::open(vec![device as Arc<dyn Device>], read_only).expect("a volume");
    assert!(std::fs::read(&cache).expect("a file") == before);
}
