//! Parity that does not match its data is found, and no other parity is.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use buttress_base::seeded;
use buttress_block::{Device, MemoryDevice};
use buttress_check::{Issue, NoProgress, Options, Progress, Report, Step, check_devices};
use buttress_format::{BlockGroupFlags, Chunk, Key, Kind, Logical, Profile, RootItem, TreeId};
use buttress_fs::make::make_on;
use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode};
use buttress_tree::{Cursor, Geometry, NodePtr, Store, boot};
use buttress_volume::{OpenOptions, Volume};

/// A volume with whole rows of data and of nodes.
struct Striped {
    devices: Vec<MemoryDevice>,
    parity: usize,
}

fn parts(devices: &[MemoryDevice]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::new(device.fork()) as Arc<dyn Device>).collect()
}

fn check(devices: &[MemoryDevice], options: &Options) -> Report {
    check_devices(parts(devices), options, &NoProgress).expect("a check")
}

impl Striped {
    fn new(profile: Profile, count: usize, parity: usize) -> Self {
        Self::of_nodes(16384, profile, count, parity, |fs| {
            for number in 0..4_u64 {
                let name = format!("file {number}");
                let file =
                    fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
                let mut bytes = vec![0; 1 << 20];
                buttress_base::Rng::new(number).fill(&mut bytes);
                file.write_at(0, &bytes).expect("a write");
            }
        })
    }

    fn of_nodes(
        nodesize: u32,
        profile: Profile,
        count: usize,
        parity: usize,
        fill: impl FnOnce(&Filesystem),
    ) -> Self {
        let devices: Vec<_> = (0..count).map(|_| MemoryDevice::new(512 << 20)).collect();
        let all: Vec<_> = devices.iter().map(|device| device as &dyn Device).collect();
        let options = MakeOptions {
            metadata: Some(profile),
            data: Some(profile),
            nodesize,
            seed: Some(7),
            ..MakeOptions::default()
        };
        make_on(&all, &options).expect("a volume");
        let kept: Vec<Arc<dyn Device>> = parts(&devices);
        let options = MountOptions::parse("rw,commit=3000").expect("options");
        let fs = Filesystem::open(kept.clone(), options).expect("a mount");
        fill(&fs);
        fs.close().expect("an unmount");
        // The forks have the content.
        for (device, fork) in devices.iter().zip(&kept) {
            let mut part = vec![0; 1 << 20];
            for at in (0..device.len()).step_by(part.len()) {
                fork.read_at(at, &mut part).expect("a read");
                if part.iter().any(|byte| *byte != 0) {
                    device.write_at(at, &part).expect("a write");
                }
            }
        }
        Self { devices, parity }
    }

    /// A reader of the trees.
    fn store(&self) -> (Store, buttress_format::Superblock) {
        let (volume, superblock) =
            Volume::open(parts(&self.devices), OpenOptions::default()).expect("a volume");
        let store = Store::new(Arc::new(volume), Geometry::of(&superblock), 0);
        boot::load_chunks(&store, &superblock).expect("chunks");
        (store, superblock)
    }

    /// The chunk around an address, and how far from the beginning of each stripe of it the address
    /// lies.
    fn within(&self, at: Logical) -> (Arc<Chunk>, u64) {
        let (store, _) = self.store();
        let volume = store.volume();
        let chunk = volume.chunk_at(at).expect("a chunk");
        let row = volume.row_bytes(at).expect("a row");
        let within = at.distance(chunk.logical);
        (Arc::clone(&chunk), within / row * chunk.stripe_len + within % chunk.stripe_len)
    }

    /// A chunk with a row in use, and how far from the beginning of each unit's device a sector of
    /// this row lies.
    fn place(&self, kind: BlockGroupFlags) -> (Arc<Chunk>, u64) {
        let (store, superblock) = self.store();
        if kind == BlockGroupFlags::DATA {
            let chunks = store.volume().chunks();
            let chunk = chunks.iter().find(|chunk| chunk.flags.has(kind));
            return (chunk.cloned().expect("a chunk"), 3 * 4096);
        }
        self.within(boot::root_tree_root(&superblock).logical)
    }

    /// The leaves of the extent tree.
    fn extent_leaves(&self) -> Vec<Logical> {
        let (store, superblock) = self.store();
        let key = Key::new(TreeId::EXTENT.0, Kind::ROOT_ITEM, 0);
        let root = boot::root_tree_root(&superblock);
        let item = Cursor::find(&store, TreeId::ROOT, root, &key).expect("a tree");
        let (node, slot) = item.expect("a root item");
        let item = RootItem::parse(node.item(slot)).expect("a root item");
        let root = NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
        let mut cursor =
            Cursor::seek(&store, TreeId::EXTENT, root, &Key::MIN).expect("an extent tree");
        let mut leaves = Vec::new();
        while let Some((leaf, _)) = cursor.current() {
            leaves.push(leaf.logical());
            cursor.advance().expect("a leaf");
        }
        leaves.dedup();
        leaves
    }

    /// The findings with one byte changed on a device.
    fn changed(&self, device: usize, at: u64, options: &Options) -> Report {
        let forks: Vec<_> = self.devices.iter().map(MemoryDevice::fork).collect();
        let mut byte = [0];
        forks[device].read_at(at, &mut byte).expect("a read");
        forks[device].write_at(at, &[byte[0] ^ 4]).expect("a write");
        check(&forks, options)
    }
}

fn of_parity(report: &Report) -> Vec<(u64, u64, u64)> {
    let found = report.issues.iter().filter_map(|issue| match issue {
        Issue::ParityMismatch { device, offset, bytes, .. } => Some((device.0, *offset, *bytes)),
        _ => None,
    });
    found.collect()
}

/// A byte of each unit of a row is changed. If the unit has parity, exactly this parity is found.
fn each_unit(striped: &Striped) {
    let whole = check(&striped.devices, &Options::thorough());
    assert!(whole.is_clean(), "{}", whole.to_text());
    let nodes_only = check(&striped.devices, &Options::default());
    assert!(nodes_only.is_clean(), "{}", nodes_only.to_text());
    let (some, all) = (nodes_only.totals.parity_bytes, whole.totals.parity_bytes);
    assert!(some > 0 && all >= some + (1 << 20), "{some} and {all} bytes of parity");

    for (kind, unit) in [(BlockGroupFlags::DATA, 4096), (BlockGroupFlags::METADATA, 16384)] {
        let (chunk, offset) = striped.place(kind);
        let is_data = kind == BlockGroupFlags::DATA;
        let mut found = BTreeSet::new();
        for stripe in &chunk.stripes {
            let index = stripe.device.0 as usize - 1;
            let at = stripe.offset + offset + 17;
            let report = striped.changed(index, at, &Options::thorough());
            let parity = of_parity(&report);
            let own = (stripe.device.0, at - 17, unit);
            if !parity.contains(&own) {
                // It has data. Parity beside data that nothing uses does not match any more.
                let is_unused = parity.len() == striped.parity;
                assert!(parity.is_empty() || !is_data && is_unused, "{}", report.to_text());
                assert!(!is_data || report.has("data-damaged"), "{}", report.to_text());
                continue;
            }
            assert_eq!(parity, [own], "{}", report.to_text());
            assert_eq!(report.errors(), 1, "{}", report.to_text());
            found.insert(stripe.device.0);
            let quick = striped.changed(index, at, &Options::default());
            assert_eq!(quick.has("parity-mismatch"), !is_data, "{}", quick.to_text());
        }
        assert_eq!(found.len(), striped.parity, "{kind:?}");
    }
}

#[test]
fn one_parity() {
    each_unit(&Striped::new(Profile::Raid5, 3, 1));
}

#[test]
fn two_parities() {
    each_unit(&Striped::new(Profile::Raid6, 4, 2));
}

/// Without a device, what is left of a row is compared, and nothing is said of the rest.
#[test]
fn a_device_is_missing() {
    let mut striped = Striped::new(Profile::Raid6, 4, 2);
    striped.devices.remove(2);
    let report = check(&striped.devices, &Options::thorough());
    assert!(!report.has("parity-mismatch"), "{}", report.to_text());
}

/// The report does not depend on the number of threads.
#[test]
fn issues_come_in_the_order_of_rows() {
    let striped = Striped::new(Profile::Raid5, 3, 1);
    let (chunk, _) = striped.place(BlockGroupFlags::DATA);
    let stripe = &chunk.stripes[0];
    let device = &striped.devices[stripe.device.0 as usize - 1];
    // This device has the parity of every third row.
    for row in 0..30 {
        let at = stripe.offset + row * chunk.stripe_len + 5 * 4096;
        device.write_at(at, &[0; 4096]).expect("a write");
    }
    let report = |threads| {
        let options = Options { threads: Some(threads), ..Options::thorough() };
        let report = check(&striped.devices, &options);
        let rows = report.issues.iter().filter_map(|issue| match issue {
            Issue::ParityMismatch { row, device, offset, .. } => Some((*row, *device, *offset)),
            _ => None,
        });
        (rows.collect::<Vec<_>>(), report.totals)
    };
    let alone = report(1);
    assert!(alone.0.len() == 10 && alone.0.is_sorted(), "{:?}", alone.0);
    for threads in [2, 7] {
        assert_eq!(report(threads), alone);
    }
}

/// The steps, each with the bytes that were announced and the bytes that came.
#[derive(Default)]
struct Steps(Mutex<Vec<(Step, u64, u64)>>);

impl Progress for Steps {
    fn step(&self, step: Step, total_bytes: u64) {
        self.0.lock().expect("no panic").push((step, total_bytes, 0));
    }

    fn advance(&self, bytes: u64) {
        self.0.lock().expect("no panic").last_mut().expect("a step").2 += bytes;
    }
}

#[test]
fn progress_counts_parity() {
    let striped = Striped::new(Profile::Raid5, 3, 1);
    let bytes = |options: &Options| {
        let steps = Steps::default();
        check_devices(parts(&striped.devices), options, &steps).expect("a check");
        let steps = steps.0.into_inner().expect("no panic");
        let (_, total, done) = *steps.iter().find(|step| step.0 == Step::Csums).expect("the step");
        assert_eq!(done, total);
        total
    };
    let nodes = bytes(&Options::default());
    assert!(nodes > 0);
    // All data is verified, and compared with its parity.
    assert_eq!(bytes(&Options::thorough()), nodes + 2 * (4 << 20));
}

/// A leaf of the extent tree cannot be read. Nothing is known of the extents in it, and the rows
/// behind them are left out. The check ends with the errors named.
#[test]
fn a_leaf_of_the_extent_tree_is_lost() {
    let fill = |fs: &Filesystem| {
        let file = fs.root().create(b"holes", NewInode::file(0o644)).expect("a file");
        for number in 0..400 {
            file.write_at(number * 8192, &[7; 4096]).expect("a write");
        }
    };
    let striped = Striped::of_nodes(4096, Profile::Raid5, 3, 1, fill);
    let whole = check(&striped.devices, &Options::thorough());
    assert!(whole.is_clean(), "{}", whole.to_text());
    let leaves = striped.extent_leaves();
    assert!(leaves.len() > 4, "{leaves:?}");
    let mut has_left_out = false;
    for leaf in leaves {
        let (chunk, offset) = striped.within(leaf);
        let damage = |one: usize, other: usize| {
            let forks: Vec<_> = striped.devices.iter().map(MemoryDevice::fork).collect();
            for stripe in [&chunk.stripes[one], &chunk.stripes[other]] {
                let device = &forks[stripe.device.0 as usize - 1];
                let (at, mut byte) = (stripe.offset + offset + 200, [0]);
                device.read_at(at, &mut byte).expect("a read");
                device.write_at(at, &[byte[0] ^ 4]).expect("a write");
            }
            check(&forks, &Options::thorough())
        };
        // The same change of the leaf and of its parity leaves no good copy. The other pairs change
        // the node beside the leaf.
        let damaged = |report: &Report| -> BTreeSet<(TreeId, Logical)> {
            let nodes = report.issues.iter().filter_map(|issue| match issue {
                Issue::NodeDamaged { tree, logical, .. } => Some((*tree, *logical)),
                _ => None,
            });
            nodes.collect()
        };
        let reports = [(0, 1), (0, 2), (1, 2)].map(|(one, other)| damage(one, other));
        let lost = BTreeSet::from([(TreeId::EXTENT, leaf)]);
        let report = reports.iter().find(|report| damaged(report) == lost);
        let report = report.unwrap_or_else(|| panic!("{leaf} in {}", reports[0].to_text()));
        assert!(report.has("extent-missing"), "{}", report.to_text());
        assert!(!report.has("parity-mismatch"), "{}", report.to_text());
        let (left, all) = (report.totals.parity_bytes, whole.totals.parity_bytes);
        assert!(left <= all, "{left} of {all} bytes of parity");
        has_left_out |= left < all;
    }
    assert!(has_left_out, "rows behind some leaf are not known");
}

/// The threads of a check are threads of a seeded run, so the seed decides the course of a check.
/// A thread outside of the run could hold a lock for which a thread of the run waits in vain.
#[test]
fn checks_are_seeded_with_all_their_threads() {
    let striped = Arc::new(Striped::new(Profile::Raid5, 3, 1));
    for seed in 1..=3 {
        let course = || {
            let striped = Arc::clone(&striped);
            let options = Options { threads: Some(3), ..Options::thorough() };
            let work = move || check(&striped.devices, &options).to_text();
            let (text, report) =
                seeded::run(seed, seeded::Options::default(), work).expect("it goes on");
            (text, report.digest, report.threads)
        };
        let first = course();
        assert!(first.2 > 3, "{} threads", first.2);
        assert_eq!(first, course(), "seed {seed}");
    }
}
