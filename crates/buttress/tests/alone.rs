//! A program that has no other crate of the project than this one.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress::admin::{
    Account, Accounts, BlockGroupFlags, Chunk, CompatRo, Cost, CsumType, DevStats, DeviceCounts,
    DeviceItem, DeviceTrust, Filter, Incompat, Key, Kind, KindUsage, Logical, PageStats, Preempt,
    Profile, Refusal, RootBackup, SpaceKind, Stats, Steps, Stripe, Superblock, Usage, Uuid,
    WaitingBytes, WaitsByQueue,
};
use buttress::device::{Class, Content, Error, Extent, Operation, Read, Space, Write};
use buttress::make::Features;
use buttress::{
    BalanceOptions, CreateOptions, Device, DeviceId, ErrorKind, FileOptions, Filesystem, Info,
    Interrupt, MakeOptions, MemoryDevice, NodeKind, OpenOptions, ScrubOptions, SpaceStats,
    TrimOptions,
};

const LEN: u64 = 256 << 20;

/// A device of the program. It counts bytes by class and can fail its flushes.
#[derive(Debug)]
struct Own {
    inner: MemoryDevice,
    data: AtomicU64,
    metadata: AtomicU64,
    discarded: AtomicU64,
    is_broken: AtomicBool,
}

impl Own {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            inner: MemoryDevice::new(LEN),
            data: AtomicU64::new(0),
            metadata: AtomicU64::new(0),
            discarded: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
        })
    }

    fn fails(&self, operation: Operation, offset: u64, len: u64) -> Error {
        let source = std::io::Error::other("broken");
        Error::Io { device: self.name(), operation, offset, len, source }
    }
}

impl Device for Own {
    fn name(&self) -> String {
        "own".to_owned()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.inner.read_at(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        self.inner.read_many(reads)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.inner.write_at(offset, buf)
    }

    fn write_classed_at(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        class: Class,
    ) -> Result<(), Error> {
        let count = match class {
            Class::Data => &self.data,
            Class::Metadata => &self.metadata,
        };
        count.fetch_add(bufs.iter().map(|buf| buf.len() as u64).sum(), Ordering::Relaxed);
        self.inner.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> Result<(), Error> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(self.fails(Operation::Flush, 0, 0));
        }
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.discarded.fetch_add(len, Ordering::Relaxed);
        self.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), Error> {
        self.inner.write_zeroes(offset, len, space)
    }

    fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        Ok(Extent { len: self.inner.extent_at(offset, len)?.len, content: Content::Data })
    }
}

fn volume_on(device: &Arc<Own>) -> Filesystem {
    let options = CreateOptions::new(LEN).with(|make: &mut MakeOptions| {
        make.csum = CsumType::Sha256;
        make.metadata = Some(Profile::Dup);
        make.features = Features::default();
    });
    options.create_on(Arc::clone(device) as Arc<dyn Device>).expect("made")
}

/// The program implements a device, and the device sees which bytes are data.
#[test]
fn own_devices_see_classes_and_fail() {
    let device = Own::new();
    let fs = volume_on(&device);
    fs.write("/file", vec![7; 3 << 20]).expect("written");
    fs.sync().expect("durable");
    assert!(device.data.load(Ordering::Relaxed) >= 3 << 20);
    assert!(device.metadata.load(Ordering::Relaxed) > 0);

    // A request as the engine makes it.
    let bytes = [1; 512];
    let write = Write { offset: 0, bufs: vec![IoSlice::new(&bytes)], class: Class::Metadata };
    device.write_many(&[write]).expect("written");
    let mut found = [0; 512];
    device.read_many(&mut [Read { offset: 0, buf: &mut found }]).expect("read");
    assert_eq!(found, bytes);

    device.is_broken.store(true, Ordering::Relaxed);
    fs.write("/second", "x").expect("in memory");
    let error = fs.sync().expect_err("the flush fails");
    assert!(matches!(error.kind(), ErrorKind::Io | ErrorKind::Aborted), "{error}");
}

/// Balances with a filter, trims and scrubs ranges, and counts what was done.
#[test]
fn upkeep_takes_filters_and_ranges() {
    let device = Own::new();
    let fs = volume_on(&device);
    fs.write("/file", vec![7; 3 << 20]).expect("written");
    fs.sync().expect("durable");
    let admin = fs.admin();

    let none = Filter { vrange: Some((u64::MAX - 1, u64::MAX)), ..Filter::default() };
    let options = BalanceOptions { data: Some(none), ..BalanceOptions::default() };
    let done = admin.balance(&options, &mut |_| true).expect("balanced");
    assert_eq!((done.expected, done.completed), (0, 0));
    let here = Filter { devid: Some(DeviceId(1)), ..Filter::default() };
    let options = BalanceOptions { data: Some(here), ..BalanceOptions::default() };
    let done = admin.balance(&options, &mut |_| true).expect("balanced");
    assert!(done.completed > 0 && done.moved >= 3 << 20, "{done:?}");

    let nothing = TrimOptions { from: Logical(u64::MAX), ..TrimOptions::default() };
    let before = device.discarded.load(Ordering::Relaxed);
    let trimmed = admin.trim(nothing, &mut |_| true).expect("trimmed").trimmed;
    assert_eq!((trimmed, device.discarded.load(Ordering::Relaxed)), (0, before));
    let trimmed = admin.trim(TrimOptions::default(), &mut |_| true).expect("trimmed").trimmed;
    assert_eq!(device.discarded.load(Ordering::Relaxed), before + trimmed);

    let options = ScrubOptions { from: Logical(0), ..ScrubOptions::default() };
    let (found, is_finished) = admin.scrub(options, &mut |_| true).expect("scrubbed");
    let counts: DeviceCounts = found.devices[&DeviceId(1)];
    assert!(is_finished && counts.data_bytes_scrubbed >= 3 << 20, "{found:?}");
}

/// Every type of a public field has a name in this crate.
#[test]
fn results_have_names() {
    let device = Own::new();
    let fs = volume_on(&device);
    fs.write("/file", vec![7; 3 << 20]).expect("written");
    fs.sync().expect("durable");

    let Info { superblock, usage, .. } = fs.admin().info().expect("info");
    let usage: Usage = usage;
    let kinds: &[KindUsage] = &usage.kinds;
    let flags: BlockGroupFlags = kinds[0].flags;
    assert!(!flags.to_string().is_empty() && usage.device_bytes == LEN);
    let superblock: Superblock = superblock;
    let (incompat, compat_ro): (Incompat, CompatRo) = (superblock.incompat, superblock.compat_ro);
    assert!(incompat.has(Incompat::SKINNY_METADATA));
    assert!(compat_ro.has(CompatRo::BLOCK_GROUP_TREE));
    let backups: [RootBackup; 4] = superblock.backups;
    assert!(backups.iter().any(|backup| backup.num_devices == 1));
    let chunks: Vec<(Key, Chunk)> = superblock.sys_chunks;
    let kind: Kind = chunks[0].0.kind;
    let stripe: Stripe = chunks[0].1.stripes[0];
    assert!(kind == Kind::CHUNK_ITEM && stripe.device == DeviceId(1));

    let devices = fs.admin().devices();
    let (item, stats): (DeviceItem, DevStats) = (devices[0].item, devices[0].stats);
    let trust: DeviceTrust = devices[0].trust;
    assert!(item.total_bytes == LEN && stats.counts == [0; 5] && trust == DeviceTrust::Whole);

    let SpaceStats { accounts, waiting_bytes, engine, last_refusal, preempt, pages, .. } =
        fs.admin().space();
    let accounts: Accounts = accounts;
    let (data, cost): (Account, Cost) = (accounts.data, accounts.outstanding);
    let refusal: Option<Refusal> = last_refusal;
    let (preempt, pages): (Preempt, PageStats) = (preempt, pages);
    let engine: Stats = engine;
    let (waits, steps): (WaitsByQueue, Steps) = (engine.waits, engine.walked);
    assert!(data.kind == SpaceKind::Data && data.used >= 3 << 20 && cost.items == 0);
    assert_eq!(waiting_bytes, WaitingBytes::default());
    assert!(refusal.is_none() && preempt.is_on() && engine.commits > 0 && steps.nodes > 0);
    assert!(waits.of_kind(SpaceKind::Data).granted == 0 && pages.bytes <= LEN);
}

/// Devices are added, resized, replaced and removed. The content stays.
#[test]
fn devices_come_and_go() {
    let fs = volume_on(&Own::new());
    fs.write("/file", vec![7; 3 << 20]).expect("written");
    let admin = fs.admin();
    let added = admin.add_device(Arc::new(MemoryDevice::named("second", LEN))).expect("added");
    assert_eq!(added, DeviceId(2));
    admin.resize_device(added, LEN / 2, &mut |_| true).expect("resized");
    assert_eq!(admin.devices()[1].item.total_bytes, LEN / 2);
    let error = admin.resize_device(added, 1 << 20, &mut |_| true).expect_err("too small");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);

    let third = Arc::new(MemoryDevice::named("third", LEN));
    let found = admin.replace_device(DeviceId(1), third, &mut |_| true).expect("replaced");
    assert!(!found.has_errors(), "{found:?}");
    admin.remove_device(added, &mut |_| true).expect("removed");
    let names: Vec<_> = admin.devices().into_iter().map(|device| device.name).collect();
    assert_eq!(names, ["third"]);
    let error = admin.remove_device(DeviceId(1), &mut |_| true).expect_err("the last one");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert_eq!(fs.read("/file").expect("read"), vec![7; 3 << 20]);
}

/// A replacement that a crash interrupted is ended when the program asks for it.
#[test]
fn an_interrupted_replacement_is_ended() {
    let [old, new] = ["old", "new"].map(|name| Arc::new(MemoryDevice::named(name, LEN)));
    let fs = CreateOptions::new(LEN).create_on(old.clone()).expect("made");
    fs.write("/file", vec![7; 24 << 20]).expect("written");
    assert!(fs.admin().resume_replace(&mut |_| true).expect("nothing to do").is_none());
    let mut crashed = None;
    let replaced = fs.admin().replace_device(DeviceId(1), new.clone(), &mut |progress| {
        if progress.moved > 0 {
            crashed.get_or_insert_with(|| [old.fork(), new.fork()]);
        }
        true
    });
    replaced.expect("replaced");

    let devices = crashed.expect("bytes were copied").map(|it| Arc::new(it) as Arc<dyn Device>);
    let fs = OpenOptions::new().open_devices(devices.to_vec()).expect("opened");
    let found = fs.admin().resume_replace(&mut |_| true).expect("the rest");
    assert!(!found.expect("a replacement").has_errors());
    let names: Vec<_> = fs.admin().devices().into_iter().map(|device| device.name).collect();
    assert_eq!(names, ["new"]);
    assert_eq!(fs.read("/file").expect("read"), vec![7; 24 << 20]);
}

/// A snapshot names its source by the uuid.
#[test]
fn subvolumes_have_uuids() {
    let fs = volume_on(&Own::new());
    fs.create_subvolume("/plans").expect("made");
    fs.create_snapshot("/plans", "/monday", true).expect("taken");
    let all = fs.admin().subvolumes().expect("listed");
    let of = |path: &[u8]| all.iter().find(|one| one.path == path).expect("listed");
    let plans: Uuid = of(b"plans").uuid;
    assert_eq!(plans.to_string().len(), 36);
    assert_eq!((of(b"plans").parent_uuid, of(b"monday").parent_uuid), (None, Some(plans)));
    assert_ne!(of(b"monday").uuid, plans);
}

/// A new file has its owner from the options. Pipes, sockets and devices keep their kind, also
/// after the volume is opened again.
#[test]
fn nodes_keep_kind_and_owner() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let fs = CreateOptions::new(128 << 20).create_on(device.clone()).expect("made");
    let options = FileOptions::new().mode(0o4750).owner(1000, 100);
    drop(fs.open_with("/file", &options.clone().write(true).create(true)).expect("made"));
    drop(fs.open_with("/plain", &FileOptions::new().create_new(true)).expect("made"));
    let char_device = NodeKind::CharDevice { major: 1, minor: 3 };
    let block_device = NodeKind::BlockDevice { major: 4095, minor: 0xf_ffff };
    fs.create_node("/fifo", NodeKind::Fifo, &options).expect("made");
    fs.create_node("/socket", NodeKind::Socket, &options).expect("made");
    fs.create_node("/char", char_device, &options).expect("made");
    fs.create_node("/block", block_device, &options).expect("made");
    let taken = fs.create_node("/fifo", NodeKind::Socket, &options).expect_err("there is one");
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    let large = NodeKind::CharDevice { major: 4096, minor: 0 };
    let refused = fs.create_node("/large", large, &options).expect_err("no such number");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    fs.close().expect("closed");

    let fs = OpenOptions::new().open_devices(vec![device]).expect("opened");
    let found = |path: &str| fs.metadata(path).expect(path);
    for path in ["/file", "/fifo", "/socket", "/char", "/block"] {
        let found = found(path);
        assert_eq!((found.owner(), found.mode() & 0o7777), ((1000, 100), 0o4750), "{path}");
    }
    assert_eq!((found("/plain").owner(), found("/plain").mode() & 0o7777), ((0, 0), 0o644));
    assert!(found("/file").is_file() && found("/fifo").is_fifo() && found("/socket").is_socket());
    assert!(found("/char").is_char_device() && found("/block").is_block_device());
    assert_eq!(found("/char").device_number(), (1, 3));
    assert_eq!(found("/block").device_number(), (4095, 0xf_ffff));
    assert!(!fs.exists("/large").expect("looked up"));
}

/// The engine below has names, too, and a call can be cancelled.
#[test]
fn calls_of_the_engine_can_be_cancelled() {
    let device = Own::new();
    let fs = volume_on(&device);
    let engine: &buttress::engine::Filesystem = fs.engine();
    let root: buttress::engine::Inode = engine.root();
    assert_eq!(root.kind(), buttress::FileKind::Directory);
    fs.write("/file", "hello").expect("written");
    let interrupt = Interrupt::new();
    interrupt.raise();
    assert!(interrupt.is_raised());
    let text = interrupt.run(|| fs.read_to_string("/file"));
    assert!(text.map_or_else(|error| error.kind() == ErrorKind::Interrupted, |it| it == "hello"));
}

/// These tests name no other crate of the project.
#[test]
fn these_tests_use_one_crate() {
    assert!(!include_str!("alone.rs").contains(concat!("buttress", "_")));
}
