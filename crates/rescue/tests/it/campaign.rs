//! Destroys structures of volumes at random, from seeds, and restores the files.
//!
//! A file must be restored whole if two conditions hold. First, each sector of its data and each of
//! its leaves has a good copy. Second, the inner nodes are whole, or the extent tree is whole,
//! which tells which leaves are in use. No byte may ever be wrong.
//!
//! `BUTTRESS_RESCUE_VOLUMES` is the number of damaged volumes; `BUTTRESS_RESCUE_SEED` is the first
//! seed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{Logical, TreeId, limits::SUPER_OFFSETS};
use buttress_rescue::{
    Condition, Entry, Kind, NoProgress, RestoreOptions, Salvage, SalvageOptions, State, restore,
};

use crate::facts::{Facts, NodeFacts};
use crate::volume::{Made, Shape};

/// A volume that was damaged.
struct Damaged<'d> {
    made: &'d Made,
    facts: &'d Facts,
    devices: Vec<Arc<MemoryDevice>>,
    /// Ranges that were overwritten, by device.
    holes: Vec<(usize, u64, u64)>,
    /// Devices that are left out.
    missing: BTreeSet<usize>,
    what: String,
}

impl<'d> Damaged<'d> {
    fn new(made: &'d Made, facts: &'d Facts) -> Self {
        let devices = made.devices.iter().map(|device| Arc::new(device.fork())).collect();
        let (holes, missing) = (Vec::new(), BTreeSet::new());
        Self { made, facts, devices, holes, missing, what: String::new() }
    }

    fn destroy(&mut self, device: usize, at: u64, len: u64, rng: &mut Rng) {
        let target = &self.devices[device];
        let end = at.saturating_add(len).min(target.len());
        if at >= end {
            return;
        }
        let mut bytes = vec![0; (end - at) as usize];
        if rng.chance(1, 2) {
            rng.fill(&mut bytes);
        }
        target.write_at(at, &bytes).expect("damage");
        self.holes.push((device, at, end));
    }

    fn destroy_node(&mut self, node: &NodeFacts, rng: &mut Rng) {
        let size = u64::from(self.facts.superblock.nodesize);
        for (device, at) in node.copies.clone() {
            self.destroy(device, at, size, rng);
        }
    }

    fn is_lost(&self, place: (usize, u64), len: u64) -> bool {
        let (device, at) = place;
        self.missing.contains(&device)
            || self
                .holes
                .iter()
                .any(|(where_, from, to)| *where_ == device && *from < at + len && at < *to)
    }

    fn is_node_lost(&self, node: &NodeFacts) -> bool {
        let size = u64::from(self.facts.superblock.nodesize);
        node.copies.iter().all(|place| self.is_lost(*place, size))
    }

    /// Whether each sector of a range has a good copy.
    fn has_data(&self, extent: buttress_format::Extent) -> bool {
        (0..extent.len).step_by(4096).all(|within| {
            let places = self.facts.places(Logical(extent.start.0 + within));
            places.iter().any(|place| !self.is_lost(*place, 4096))
        })
    }

    /// Files that must be restored completely.
    fn owed(&self) -> BTreeSet<(u64, u64)> {
        let lost = |node: &&NodeFacts| self.is_node_lost(node);
        let nodes = || self.facts.nodes.values().filter(lost);
        let extents_are_whole = !nodes().any(|node| node.tree == TreeId::EXTENT);
        // If the chunk tree is lost, all chunks are derived from nodes of other trees.
        let map_is_lost = nodes().any(|node| node.tree == TreeId::CHUNK);
        let derives = !nodes()
            .any(|node| matches!(node.tree, TreeId::DEV | TreeId::EXTENT | TreeId::BLOCK_GROUP));
        let inner: BTreeSet<TreeId> = nodes()
            .filter(|node| node.level > 0 || node.tree == TreeId::ROOT)
            .map(|node| node.tree)
            .collect();
        if map_is_lost && !derives {
            return BTreeSet::new();
        }
        let can_find = |tree: TreeId| extents_are_whole || !inner.contains(&tree);
        let is_owed = |((tree, _), file): &(&(u64, u64), &crate::facts::FileFacts)| {
            let leaves = file.leaves.iter().all(|leaf| !lost(&&self.facts.nodes[leaf]));
            let trees = [TreeId(*tree), TreeId::CSUM, TreeId::ROOT];
            leaves
                && trees.into_iter().all(can_find)
                && file.data.iter().all(|at| self.has_data(*at))
        };
        let files = self.facts.files.iter().filter(is_owed).map(|(id, _)| *id);
        files.filter(|id| self.made.contents.contains_key(id)).collect()
    }

    /// Restores all files, and compares them.
    #[track_caller]
    fn restore(&self) -> Outcome {
        let folder = tempfile::tempdir().expect("a folder");
        let devices = self.devices.iter().enumerate();
        let devices: Vec<Arc<dyn Device>> = devices
            .filter(|(index, _)| !self.missing.contains(index))
            .map(|(_, device)| Arc::clone(device) as Arc<dyn Device>)
            .collect();
        let what = &self.what;
        let mut entries = Vec::new();
        let opened = Salvage::open(devices, SalvageOptions::default(), Arc::new(NoProgress));
        if let Ok(salvage) = opened
            && let Ok(state) = State::newest(&salvage)
        {
            let mut each = |entry: &Entry| entries.push(entry.clone());
            let options = RestoreOptions::default();
            restore(&salvage, &state, &options, Some(folder.path()), &mut each)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let mut outcome = Outcome::default();
        for entry in &entries {
            if let Some(whole) = self.compare(folder.path(), entry)
                && whole
            {
                outcome.whole.insert((entry.subvolume, entry.inode));
            }
        }
        outcome.owed = self.owed();
        outcome.entries = entries;
        outcome
    }

    /// Compares a restored file with the written content. Returns whether the file is whole; `None`
    /// if the entry is not one of the written files.
    #[track_caller]
    fn compare(&self, folder: &Path, entry: &Entry) -> Option<bool> {
        use std::os::unix::ffi::OsStrExt;
        let what = &self.what;
        let written = self.made.contents.get(&(entry.subvolume, entry.inode))?;
        if !matches!(entry.kind, Kind::File | Kind::Unknown) || entry.condition == Condition::Lost {
            return Some(false);
        }
        let path = folder.join(std::ffi::OsStr::from_bytes(&entry.path));
        let found = std::fs::read(&path)
            .unwrap_or_else(|error| panic!("{what}: {}: {error}: {entry:?}", path.display()));
        let mut same = found.len() == written.len();
        for (at, (byte, right)) in found.iter().zip(written).enumerate() {
            let at = at as u64;
            let is_lost = || {
                entry
                    .lost
                    .iter()
                    .any(|part| (part.offset..part.offset.saturating_add(part.len)).contains(&at))
            };
            if byte != right {
                same = false;
                assert!(*byte == 0 && is_lost(), "{what}: a wrong byte at {at} of {entry:?}");
            }
        }
        let is_whole = entry.condition == Condition::Whole;
        assert!(same || !is_whole, "{what}: it is not whole: {entry:?}");
        Some(same && is_whole)
    }
}

#[derive(Default)]
struct Outcome {
    whole: BTreeSet<(u64, u64)>,
    owed: BTreeSet<(u64, u64)>,
    entries: Vec<Entry>,
}

impl Outcome {
    #[track_caller]
    fn expect_owed(&self, what: &str) {
        let short: Vec<_> = self.owed.difference(&self.whole).collect();
        let Some((tree, ino)) = short.first() else { return };
        let about: Vec<_> = self
            .entries
            .iter()
            .filter(|entry| (entry.subvolume, entry.inode) == (*tree, *ino))
            .collect();
        panic!("{what}: {} of {} files lack: {about:?}", short.len(), self.owed.len());
    }
}

/// Destroys something.
fn damage(damaged: &mut Damaged<'_>, rng: &mut Rng) {
    let nodes: Vec<NodeFacts> = damaged.facts.nodes.values().cloned().collect();
    let count = damaged.devices.len();
    let of = |tree: TreeId, is_inner: bool| -> Vec<NodeFacts> {
        let wanted = |node: &&NodeFacts| node.tree == tree && (node.level > 0) == is_inner;
        nodes.iter().filter(wanted).cloned().collect()
    };
    match rng.below(9) {
        0 => {
            damaged.what = "superblocks but one".to_owned();
            let kept = rng.below(2) as usize;
            for (copy, at) in SUPER_OFFSETS.into_iter().enumerate() {
                for device in 0..count {
                    if copy != kept {
                        damaged.destroy(device, at, 4096, rng);
                    }
                }
            }
        }
        1 => {
            damaged.what = "all superblocks".to_owned();
            for at in SUPER_OFFSETS {
                for device in 0..count {
                    damaged.destroy(device, at, 4096, rng);
                }
            }
        }
        2 => {
            damaged.what = "the chunk tree".to_owned();
            for node in of(TreeId::CHUNK, false) {
                damaged.destroy_node(&node, rng);
            }
        }
        3 => {
            damaged.what = "the root tree's root".to_owned();
            for node in nodes.iter().filter(|node| node.tree == TreeId::ROOT && node.is_root) {
                damaged.destroy_node(node, rng);
            }
        }
        4 => {
            let trees: BTreeSet<TreeId> = nodes.iter().map(|node| node.tree).collect();
            let trees: Vec<TreeId> = trees.into_iter().collect();
            let tree = *rng.choose(&trees).expect("trees");
            damaged.what = format!("a leaf of {tree}");
            if let Some(node) = rng.choose(&of(tree, false)).cloned() {
                damaged.destroy_node(&node, rng);
            }
        }
        5 => {
            let inner: Vec<_> = nodes.iter().filter(|node| node.level > 0).cloned().collect();
            if let Some(node) = rng.choose(&inner).cloned() {
                damaged.what = format!("an inner node of {}", node.tree);
                damaged.destroy_node(&node, rng);
            }
        }
        6 => {
            damaged.what = "the first copy of all".to_owned();
            let size = u64::from(damaged.facts.superblock.nodesize);
            for node in &nodes {
                let (device, at) = node.copies[0];
                damaged.destroy(device, at, size, rng);
            }
        }
        7 if count > 1 => {
            let device = rng.below(count as u64) as usize;
            damaged.what = format!("device {device}");
            damaged.missing.insert(device);
        }
        _ => {
            let device = rng.below(count as u64) as usize;
            let len = 4096 << rng.below(9);
            // Most of a volume is empty, so the damage is near used places.
            let places: Vec<u64> =
                nodes.iter().flat_map(|node| &node.copies).map(|at| at.1).collect();
            let data = damaged.facts.files.values().flat_map(|file| &file.data);
            let data: Vec<u64> =
                data.flat_map(|extent| damaged.facts.places(extent.start)).map(|at| at.1).collect();
            let near = if rng.chance(1, 2) { places } else { data };
            let at = *rng.choose(&near).expect("places") & !4095;
            damaged.what = format!("{len} bytes of device {device} at {at}");
            damaged.destroy(device, at, len, rng);
        }
    }
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Each seed damages one volume. All files that must be whole are restored as a whole, and no byte
/// is wrong.
#[test]
fn restore_brings_back_intact_files_of_damaged_volumes() {
    let volumes: BTreeMap<usize, (Made, Facts)> = Shape::ALL
        .into_iter()
        .enumerate()
        .map(|(at, shape)| {
            let made = shape.make();
            let facts = Facts::of(&made.devices);
            (at, (made, facts))
        })
        .collect();
    let first = number("BUTTRESS_RESCUE_SEED", 1);
    let count = number("BUTTRESS_RESCUE_VOLUMES", 16);
    let (mut owed, mut whole, mut written) = (0, 0, 0);
    for seed in first..first + count {
        let (made, facts) = &volumes[&(seed as usize % volumes.len())];
        let mut rng = Rng::new(seed);
        let mut damaged = Damaged::new(made, facts);
        damage(&mut damaged, &mut rng);
        damaged.what = format!("seed {seed}: {}", damaged.what);
        let outcome = damaged.restore();
        outcome.expect_owed(&damaged.what);
        owed += outcome.owed.len();
        whole += outcome.whole.len();
        written += made.contents.len();
    }
    println!("{count} volumes, {written} files: {owed} owed, {whole} whole");
}

/// Without damage every file is restored completely.
#[test]
fn an_undamaged_volume_comes_back_whole() {
    for shape in Shape::ALL {
        let made = shape.make();
        let facts = Facts::of(&made.devices);
        let damaged = Damaged::new(&made, &facts);
        let outcome = damaged.restore();
        assert_eq!(outcome.owed.len(), made.contents.len(), "{shape:?}");
        outcome.expect_owed("no damage");
        let bad: Vec<_> =
            outcome.entries.iter().filter(|entry| entry.condition != Condition::Whole).collect();
        assert!(bad.is_empty(), "{shape:?}: {bad:?}");
    }
}
