//! Every loop of maintenance, on volumes that share extents and nodes at random. The steps of each
//! loop stay within a bound that follows from the volume.
//!
//! Each loop checks its own bound, and fails when it is reached. Here the steps are compared with
//! bounds of a volume that no other thread changes. These bounds are closer. A loop that visits a
//! shared part once for each tree exceeds them.
//!
//! `BUTTRESS_SEED=n` runs seed `n` alone; `BUTTRESS_SEEDS=first..last` runs several seeds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::{Rng, thread};
use buttress_block::{Device, MemoryDevice};
use buttress_format::DeviceId;
use buttress_fs::{
    BalanceOptions, FallocateMode, Filesystem, Inode, Key, Kind, LoopSteps, MakeOptions,
    MountOptions, NewInode, ScrubOptions, TreeId, TrimOptions, XattrFlags,
};
use buttress_sim::campaign;

use crate::checker::{check, find_faults_of};

const SECTOR: u64 = 4096;
const MIB: u64 = 1 << 20;
const NAMES: u64 = 24;
const SIZE: u64 = 1024 * MIB;
/// The bytes of extents that a step lists, and the most bytes that one discard covers.
const STEP: u64 = 64 * MIB;

/// The amounts that bound the loops.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts {
    chunks: u64,
    chunk_bytes: u64,
    /// Nodes. A node that several trees share counts once.
    nodes: u64,
    /// Extents of data.
    extents: u64,
    /// The uses of extents by files. Each tree counts its shared items.
    uses: u64,
    trees: u64,
}

fn each_item(fs: &Filesystem, tree: TreeId, mut see: impl FnMut(Key, &[u8])) {
    for entry in fs.view().range(tree, Key::MIN, Key::MAX) {
        let (key, bytes) = entry.expect("an item");
        see(key, &bytes);
    }
}

fn amounts(fs: &Filesystem) -> Amounts {
    let mut found = Amounts::default();
    let mut trees = vec![TreeId::ROOT, TreeId::CHUNK];
    each_item(fs, TreeId::ROOT, |key, _| {
        if key.kind == Kind::ROOT_ITEM {
            trees.push(TreeId(key.objectid));
        }
    });
    for tree in trees {
        found.trees += u64::from(tree.is_fs_tree());
        each_item(fs, tree, |key, bytes| match key.kind {
            Kind::CHUNK_ITEM => {
                found.chunks += 1;
                let len = bytes[..8].try_into().expect("a chunk");
                found.chunk_bytes += u64::from_le_bytes(len);
            }
            Kind::EXTENT_ITEM => found.extents += 1,
            Kind::METADATA_ITEM => found.nodes += 1,
            Kind::EXTENT_DATA => found.uses += 1,
            _ => {}
        });
    }
    found
}

/// A volume with its subvolumes, by name.
struct Shared {
    fs: Filesystem,
    rng: Rng,
    snapshots: Vec<Vec<u8>>,
    made: u64,
}

impl Shared {
    /// The top of any subvolume.
    fn top(&mut self) -> Inode {
        let at = self.rng.below(self.snapshots.len() as u64 + 1) as usize;
        match self.snapshots.get(at) {
            Some(name) => self.fs.root().lookup(name).expect("a snapshot"),
            None => self.fs.root(),
        }
    }

    fn file(&mut self) -> Inode {
        let top = self.top();
        let name = format!("f{}", self.rng.below(NAMES));
        top.lookup(name.as_bytes())
            .unwrap_or_else(|_| top.create(name.as_bytes(), NewInode::file(0o644)).expect("a file"))
    }

    fn sectors(&mut self, most: u64) -> u64 {
        (1 + self.rng.below(most)) * SECTOR
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..40 => {
                let (file, offset, len) = (self.file(), self.sectors(64), self.sectors(8));
                let mut bytes = vec![0; len as usize];
                self.rng.fill(&mut bytes);
                file.write_at(offset, &bytes).expect("room");
            }
            40..65 => {
                let (from, to) = (self.file(), self.file());
                let len = self.sectors(16).min(from.attr().size / SECTOR * SECTOR);
                let offset = self.sectors(64);
                if len > 0 && from.id() != to.id() {
                    from.clone_range(0, &to, offset, len).expect("a clone");
                }
            }
            65..72 => {
                let (top, at) = (self.top(), self.rng.below(NAMES));
                let name = format!("f{at}");
                if let Ok(file) = top.lookup(name.as_bytes()) {
                    self.made += 1;
                    let other = format!("link-{}", self.made);
                    top.link(&file, other.as_bytes()).expect("a name more");
                }
            }
            72..82 => {
                let from = self.top().id().tree;
                self.made += 1;
                let name = format!("s{}", self.made).into_bytes();
                drop(self.fs.root().snapshot(&name, from, false).expect("a snapshot"));
                self.snapshots.push(name);
            }
            82..85 if !self.snapshots.is_empty() => {
                let at = self.rng.below(self.snapshots.len() as u64) as usize;
                let name = self.snapshots.swap_remove(at);
                self.fs.root().delete_subvolume(&name).expect("a deletion");
            }
            85..90 => {
                let (file, offset, len) = (self.file(), self.sectors(64), self.sectors(8));
                file.fallocate(offset, len, FallocateMode::PunchHole).expect("a hole");
            }
            90..95 => {
                let (file, number) = (self.file(), self.rng.below(50));
                let name = format!("user.x{number}");
                file.set_xattr(name.as_bytes(), &[1; 100], XattrFlags::default()).expect("room");
            }
            _ => self.fs.sync().expect("a commit"),
        }
    }
}

fn device() -> Arc<dyn Device> {
    Arc::new(MemoryDevice::new(SIZE))
}

fn shared(seed: u64, device: &Arc<dyn Device>) -> Shared {
    let mut rng = Rng::new(seed);
    let nodesize = *rng.choose(&[4096, 16384]).expect("a size");
    let make = MakeOptions { nodesize, seed: Some(seed), ..MakeOptions::default() };
    Filesystem::make(&**device, &make).expect("a volume");
    let options = MountOptions::parse("rw,noatime,commit=3600").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(device)], options).expect("a mount");
    let mut shared = Shared { fs, rng, snapshots: Vec::new(), made: 0 };
    if seed % 2 == 1 {
        // There are several groups, and some take several steps to list.
        let mode = FallocateMode::Allocate { keep_size: false };
        (0..2).for_each(|_| shared.file().fallocate(90 * MIB, 90 * MIB, mode).expect("room"));
    }
    for _ in 0..600 + shared.rng.below(600) {
        shared.step();
    }
    wait_for_the_cleaner(&shared.fs);
    shared
}

fn wait_for_the_cleaner(fs: &Filesystem) {
    fs.sync().expect("a commit");
    for _ in 0..1000 {
        if fs.dying_subvolumes().expect("a list").is_empty() {
            return fs.sync().expect("a commit");
        }
        thread::sleep(Duration::from_millis(20));
    }
    panic!("a subvolume is not dropped");
}

/// What a call of maintenance did.
struct Done {
    before: Amounts,
    loops: BTreeMap<&'static str, LoopSteps>,
    /// Nodes and keys that were visited.
    visited: u64,
}

impl Done {
    /// The runs and the steps of a loop.
    fn of(&self, name: &str) -> (u64, u64) {
        self.loops.get(name).map_or((0, 0), |found| (found.runs, found.steps))
    }

    #[track_caller]
    fn expect(&self, name: &str, most: u64) {
        let (_, steps) = self.of(name);
        assert!(steps <= most, "{name}: {steps} steps, and at most {most}: {:?}", self.before);
    }
}

/// Runs a call of maintenance, and counts its steps.
fn counted(fs: &Filesystem, work: impl FnOnce(&Filesystem)) -> Done {
    let before = amounts(fs);
    let store = Arc::clone(fs.view().store());
    let (loops, steps) = (fs.loop_steps(), store.steps());
    work(fs);
    let steps = store.steps().since(&steps);
    let mut done = fs.loop_steps();
    for (name, sum) in &mut done {
        if let Some(old) = loops.get(name) {
            *sum = LoopSteps {
                runs: sum.runs - old.runs,
                steps: sum.steps - old.steps,
                most: sum.most - old.most,
            };
        }
        assert!(sum.steps <= sum.most, "{name}: {sum:?}");
    }
    Done { before, loops: done, visited: steps.nodes + steps.keys }
}

/// The bounds of a call that empties all block groups, or all of a device.
fn expect_moves(done: &Done, what: &str) {
    let Amounts { chunks, chunk_bytes, nodes, extents, uses, trees } = done.before;
    done.expect("moving the chosen block groups", chunks);
    // The second round finds the group empty.
    let (groups, rounds) = done.of("emptying a block group");
    assert!(groups <= chunks && rounds <= 2 * groups, "{what}: {rounds} rounds of {groups} groups");
    done.expect("listing a block group", 2 * (chunk_bytes / STEP + chunks));
    done.expect("making room for a move", 2 * chunks + 4);
    // A search in each tree for each extent exceeds this.
    let parts = [(20, uses), (80, nodes), (20, extents), (40, trees * chunks), (1, 2000)];
    let most: u64 = parts.iter().map(|(times, count)| times * count).sum();
    assert!(done.visited <= most, "{what}: {} of {most} visits: {:?}", done.visited, done.before);
}

fn maintain(seed: u64) {
    let (first, second, third) = (device(), device(), device());
    let Shared { fs, snapshots, .. } = shared(seed, &first);

    let done = counted(&fs, |fs| {
        let (found, is_done) = fs.scrub(ScrubOptions::default(), &mut |_| true).expect("a scrub");
        assert!(is_done && !found.has_errors(), "{found:?}");
    });
    let Amounts { chunks, chunk_bytes, nodes, extents, .. } = done.before;
    done.expect("scrubbing a chunk", chunk_bytes / STEP + chunks);
    let most = 8 * (nodes + extents) + 500;
    assert!(done.visited <= most, "scrub: {} of {most} visits: {:?}", done.visited, done.before);

    let done = counted(&fs, |fs| {
        fs.trim(TrimOptions::default(), &mut |_| true).expect("a trim");
    });
    // A discard covers at most half or an eighth of the free space of its kind.
    done.expect("trimming a block group", nodes + extents + 20 * chunks);
    done.expect("trimming a device", SIZE / STEP + 2 * chunks + 8);

    let done = counted(&fs, |fs| {
        let done = fs.balance(&BalanceOptions::full(), &mut |_| true).expect("a balance");
        assert_eq!(done.completed, done.expected);
    });
    expect_moves(&done, "balance");

    let done = counted(&fs, |fs| {
        fs.resize_device(DeviceId(1), SIZE * 3 / 4, &mut |_| true).expect("a smaller device");
    });
    expect_moves(&done, "resize");

    let added = fs.add_device(second).expect("a device more");
    let done = counted(&fs, |fs| {
        fs.remove_device(DeviceId(1), &mut |_| true).expect("room on the other device");
    });
    expect_moves(&done, "remove");

    let done = counted(&fs, |fs| {
        fs.replace_device(added, Arc::clone(&third), &mut |_| true).expect("a copy");
    });
    // Each chunk has at most two stripes on a device, and a copy takes a MiB at a time.
    let Amounts { chunks, chunk_bytes, .. } = done.before;
    done.expect("copying a device", 2 * (chunk_bytes / MIB + chunks));
    done.expect("scrubbing a chunk", chunk_bytes / STEP + chunks);

    let count = snapshots.len() as u64;
    let done = counted(&fs, |fs| {
        for name in &snapshots {
            fs.root().delete_subvolume(name).expect("a deletion");
        }
        wait_for_the_cleaner(fs);
    });
    // Each step of a subvolume drops a node, or hands one over.
    let (runs, steps) = done.of("dropping a subvolume");
    let most = 2 * count;
    assert!(runs == count && steps <= most, "{runs} of {count} dropped in {steps} of {most} steps");

    fs.close().expect("an unmount");
    find_faults_of(vec![Arc::clone(&third)]).unwrap_or_else(|what| panic!("{what}"));
    if seed == 0 {
        check(&third);
    }
}

#[test]
fn loops_of_maintenance_stay_within_their_bounds() {
    for seed in campaign::seeds_or(0..6) {
        let told = std::panic::catch_unwind(|| maintain(seed));
        told.unwrap_or_else(|panic| {
            eprintln!("again: BUTTRESS_SEED={seed} cargo test -p buttress-fs --test it bounds");
            std::panic::resume_unwind(panic)
        });
    }
}

/// A subvolume with more references than one step changes takes several steps. Their number
/// follows from its size.
#[test]
fn a_large_subvolume_goes_in_few_steps() {
    const FILES: u64 = 12_000;
    let device = device();
    let make = MakeOptions { nodesize: 4096, ..MakeOptions::default() };
    Filesystem::make(&*device, &make).expect("a volume");
    let options = MountOptions::parse("rw,noatime,commit=3600").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(&device)], options).expect("a mount");
    let top = fs.root().create_subvolume(b"large", 0o755, 0, 0).expect("a subvolume");
    for at in 0..FILES {
        drop(top.create(format!("{at:0>40}").as_bytes(), NewInode::file(0o644)).expect("a file"));
    }
    let mut items = 0;
    each_item(&fs, top.id().tree, |_, _| items += 1);
    drop(top);
    let done = counted(&fs, |fs| {
        fs.root().delete_subvolume(b"large").expect("a deletion");
        wait_for_the_cleaner(fs);
    });
    let (runs, steps) = done.of("dropping a subvolume");
    // A step changes 32,768 references, less those of one node.
    let most = items / 32_000 + 1;
    assert_eq!(runs, 1);
    assert!((2..=most).contains(&steps), "{steps} steps for {items} items, and at most {most}");
    fs.close().expect("an unmount");
    check(&device);
}
