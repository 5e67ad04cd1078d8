//! The index: the cached blocks of the origin, and the slots of all their versions.
//!
//! # Invariants
//!
//! - **I1** The versions of a block are in the order of their epochs, oldest first.
//! - **I2** A version leaves the index only when its free mark is durable, or if it never had an
//!   entry. So no crash can bring back a version of a block that the index does not have.
//! - **I3** Only the oldest version of a block is written back. So when that version is freed,
//!   recovery cannot find an older one.
//!
//! # Locks
//!
//! Each shard has one lock, of [`Rank::CacheShard`]. A thread holds one such lock at a time, and
//! never across I/O. A shard has whole regions of the origin, so a write of neighbouring blocks
//! takes one lock. A lock is held for a microsecond or two, so a thread that finds the lock taken
//! tries again for a while before it sleeps. A sweep lets waiting requests go first
//! ([`Index::shard_after`]). Otherwise the sweep would retake its lock before the sleeping thread
//! is awake.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use buttress_base::sync::Condvar;
use buttress_base::{CachePadded, Rank, Ranked, RankedGuard};

use crate::units::{Epoch, OriginBlock, Slot};

const SHARDS: u64 = 64;
/// The number of blocks in a leaf: one for each bit of its mask.
const LEAF: u64 = 64;
/// The number of spare vectors of each kind that a shard keeps while no sweep runs.
const SPARE_MAX: usize = 64;
/// How often a foreground request tries a shard's lock before it sleeps, and how many pauses of the
/// processor are between two tries. All tries and pauses together take a few microseconds, which is
/// longer than a thread holds a shard.
const LOOKS: u32 = 24;
const PAUSES: u32 = 12;
/// The maximum number of times that a sweep looks for waiting requests. There is a limit because
/// the thread of a waiting request may not be running.
const COURTESY: u32 = 256;
/// Leaves that are removed under one lock at the end of a sweep.
const PURGE: usize = 32;
/// The number of blocks of a region. The blocks of a region share a lock.
pub(crate) const REGION: u64 = 4096;

/// The state of one version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The data is being written for the first time. The version cannot be read yet.
    Filling,
    /// The version can be read.
    Ready,
    /// The version is being copied to the origin.
    Draining,
    /// The version's entry is marked free in memory, and not yet on the device.
    Dying,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) epoch: Epoch,
    pub(crate) slot: Slot,
    pub(crate) state: State,
}

/// The versions of one block, mostly one.
#[derive(Debug)]
pub(crate) enum Versions {
    One(Version),
    Many(Vec<Version>),
}

impl Versions {
    pub(crate) fn as_slice(&self) -> &[Version] {
        match self {
            Self::One(version) => std::slice::from_ref(version),
            Self::Many(versions) => versions,
        }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [Version] {
        match self {
            Self::One(version) => std::slice::from_mut(version),
            Self::Many(versions) => versions,
        }
    }

    pub(crate) fn newest(&self) -> &Version {
        self.as_slice().last().expect("a block in the index has a version")
    }

    pub(crate) fn oldest_mut(&mut self) -> &mut Version {
        self.as_mut_slice().first_mut().expect("a block in the index has a version")
    }

    /// The newest version that can be read.
    pub(crate) fn readable(&self) -> Option<&Version> {
        self.as_slice().iter().rev().find(|version| version.state != State::Filling)
    }
}

/// The cached blocks among 64 neighbouring blocks.
#[derive(Debug, Default)]
struct Leaf {
    /// One bit for each of the 64 blocks, set if the block is cached.
    mask: u64,
    /// The versions of each cached block, in the order of the bits.
    versions: Vec<Versions>,
}

impl Leaf {
    /// Returns the index of a bit's block in `versions`, or the index at which it would be
    /// inserted.
    fn place(&self, bit: u32) -> usize {
        (self.mask & below(bit)).count_ones() as usize
    }

    fn has(&self, bit: u32) -> bool {
        self.mask >> bit & 1 == 1
    }

    /// Returns the number of the leaf's cached blocks before a range, and the bits of its cached
    /// blocks in the range.
    fn part(&self, number: u64, from: OriginBlock, end: OriginBlock) -> (usize, Bits) {
        let bit = |block: OriginBlock| block.0.saturating_sub(number * LEAF).min(LEAF) as u32;
        let before = self.mask & below(bit(from));
        (before.count_ones() as usize, Bits(self.mask & below(bit(end)) & !before))
    }
}

/// Returns a mask of all bits below `bit`. For 64, all bits are set.
fn below(bit: u32) -> u64 {
    1_u64.checked_shl(bit).unwrap_or(0).wrapping_sub(1)
}

/// Iterates over the numbers of the set bits, in ascending order.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (u64::from(bit) < LEAF).then_some(u64::from(bit))
    }
}

/// The treatment of leaves that have become empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// Emptied leaves are removed at once.
    Remove,
    /// Emptied leaves stay until the end of the running sweep.
    Keep,
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    leaves: BTreeMap<u64, Leaf>,
    /// The number of cached blocks in the leaves.
    len: u64,
    /// Leaves that a sweep emptied and left in the map.
    emptied: Vec<u64>,
    /// Vectors of removed versions, kept for new versions. A foreground request must not wait while
    /// the allocator frees or merges memory for a sweep. So a sweep frees no memory. The vectors
    /// take no more memory than the versions took at the start of the sweep.
    spare_leaves: Vec<Vec<Versions>>,
    spare_lists: Vec<Vec<Version>>,
}

/// Keeps emptied memory for later use, up to a bound.
fn keep<T>(spare: &mut Vec<Vec<T>>, max: usize, mut list: Vec<T>) {
    if spare.len() < max {
        list.clear();
        spare.push(list);
    }
}

impl Shard {
    pub(crate) fn find(&self, block: OriginBlock) -> Option<&Versions> {
        let (number, bit) = leaf_of(block);
        let leaf = self.leaves.get(&number).filter(|leaf| leaf.has(bit))?;
        Some(&leaf.versions[leaf.place(bit)])
    }

    pub(crate) fn find_mut(&mut self, block: OriginBlock) -> Option<&mut Versions> {
        let (number, bit) = leaf_of(block);
        let leaf = self.leaves.get_mut(&number).filter(|leaf| leaf.has(bit))?;
        let place = leaf.place(bit);
        Some(&mut leaf.versions[place])
    }

    pub(crate) fn range(
        &self,
        from: OriginBlock,
        end: OriginBlock,
    ) -> impl Iterator<Item = (OriginBlock, &Versions)> {
        self.leaves.range(leaves_of(from, end)).flat_map(move |(&number, leaf)| {
            let (before, bits) = leaf.part(number, from, end);
            let block = move |bit| OriginBlock(number * LEAF + bit);
            bits.map(block).zip(&leaf.versions[before..])
        })
    }

    pub(crate) fn range_mut(
        &mut self,
        from: OriginBlock,
        end: OriginBlock,
    ) -> impl Iterator<Item = (OriginBlock, &mut Versions)> {
        self.leaves.range_mut(leaves_of(from, end)).flat_map(move |(&number, leaf)| {
            let (before, bits) = leaf.part(number, from, end);
            let block = move |bit| OriginBlock(number * LEAF + bit);
            bits.map(block).zip(&mut leaf.versions[before..])
        })
    }

    /// Adds the newest version of a block.
    pub(crate) fn push(&mut self, block: OriginBlock, version: Version) {
        let (number, bit) = leaf_of(block);
        let leaf = self.leaves.entry(number).or_default();
        let place = leaf.place(bit);
        if !leaf.has(bit) {
            leaf.mask |= 1 << bit;
            if leaf.versions.capacity() == 0 {
                // A leaf of a single block gets capacity for one block: more would often be wasted.
                leaf.versions = self.spare_leaves.pop().unwrap_or_else(|| Vec::with_capacity(1));
            }
            leaf.versions.insert(place, Versions::One(version));
            self.len += 1;
            return;
        }
        let versions = &mut leaf.versions[place];
        assert!(versions.newest().epoch <= version.epoch, "I1");
        match versions {
            Versions::One(first) => {
                let mut list = self.spare_lists.pop().unwrap_or_default();
                list.extend([*first, version]);
                *versions = Versions::Many(list);
            }
            Versions::Many(list) => list.push(version),
        }
    }

    /// Calls `look` for the versions that `which` names by block and slot. Neighbouring blocks
    /// share one lookup of their leaf. Returns whether all versions were found.
    pub(crate) fn each_mut(
        &mut self,
        which: &[(OriginBlock, Slot)],
        mut look: impl FnMut(&mut Version),
    ) -> bool {
        let mut are_found = true;
        for part in which.chunk_by(are_in_one_leaf) {
            let Some(leaf) = self.leaves.get_mut(&leaf_of(part[0].0).0) else { return false };
            for &(block, slot) in part {
                let (_, bit) = leaf_of(block);
                let place = leaf.place(bit);
                let versions = leaf.versions.get_mut(place).filter(|_| leaf.mask >> bit & 1 == 1);
                let found = versions.and_then(|versions| {
                    versions.as_mut_slice().iter_mut().find(|version| version.slot == slot)
                });
                are_found &= found.map(&mut look).is_some();
            }
        }
        are_found
    }

    /// Removes the version in `slot` (I2); returns whether it was there.
    pub(crate) fn remove(&mut self, block: OriginBlock, slot: Slot) -> bool {
        self.remove_all(&[(block, slot)], Emptied::Remove, |_| true)
    }

    /// Removes the versions that `which` names by block and slot (I2), if `may` returns true for
    /// the version. Neighbouring blocks share one lookup of their leaf. Returns whether all named
    /// versions were found and removed.
    pub(crate) fn remove_all(
        &mut self,
        which: &[(OriginBlock, Slot)],
        emptied: Emptied,
        may: impl Fn(&Version) -> bool,
    ) -> bool {
        let mut are_found = true;
        for part in which.chunk_by(are_in_one_leaf) {
            let (number, _) = leaf_of(part[0].0);
            let Some(leaf) = self.leaves.get_mut(&number) else { return false };
            // The last version is removed first, so that the remaining ones need not move.
            for &(block, slot) in part.iter().rev() {
                let (_, bit) = leaf_of(block);
                if !leaf.has(bit) {
                    are_found = false;
                    continue;
                }
                let place = leaf.place(bit);
                are_found &= match &mut leaf.versions[place] {
                    Versions::One(only) if only.slot == slot && may(only) => {
                        leaf.versions.remove(place);
                        leaf.mask &= !(1 << bit);
                        self.len -= 1;
                        true
                    }
                    Versions::One(_) => false,
                    Versions::Many(list) => {
                        let found = list.iter().position(|version| version.slot == slot);
                        let found = found.filter(|&found| may(&list[found]));
                        found.map(|found| list.remove(found));
                        if let [only] = list[..] {
                            keep(&mut self.spare_lists, SPARE_MAX, std::mem::take(list));
                            leaf.versions[place] = Versions::One(only);
                        }
                        found.is_some()
                    }
                };
            }
            if leaf.mask != 0 {
                continue;
            }
            let versions = std::mem::take(&mut leaf.versions);
            match emptied {
                Emptied::Remove => {
                    self.leaves.remove(&number);
                    keep(&mut self.spare_leaves, SPARE_MAX, versions);
                }
                Emptied::Keep => {
                    self.emptied.push(number);
                    keep(&mut self.spare_leaves, usize::MAX, versions);
                }
            }
        }
        are_found
    }

    /// Removes a few emptied leaves. Returns memory for the caller to free, and whether emptied
    /// leaves are left.
    fn purge(&mut self) -> (Vec<Vec<Versions>>, bool) {
        for _ in 0..PURGE {
            let Some(number) = self.emptied.pop() else { break };
            if self.leaves.get(&number).is_some_and(|leaf| leaf.mask == 0) {
                self.leaves.remove(&number);
            }
        }
        let from = self.spare_leaves.len().saturating_sub(PURGE).max(SPARE_MAX);
        let rest = self.spare_leaves.len().min(from);
        let spare = self.spare_leaves.split_off(rest);
        let is_more = !self.emptied.is_empty() || self.spare_leaves.len() > SPARE_MAX;
        if !is_more {
            self.emptied = Vec::new();
            self.spare_leaves.shrink_to(SPARE_MAX);
        }
        (spare, is_more)
    }
}

fn are_in_one_leaf(one: &(OriginBlock, Slot), next: &(OriginBlock, Slot)) -> bool {
    leaf_of(one.0).0 == leaf_of(next.0).0
}

/// The leaf of a block, and the bit of the block in the leaf.
fn leaf_of(block: OriginBlock) -> (u64, u32) {
    (block.0 / LEAF, (block.0 % LEAF) as u32)
}

/// The leaves that may hold blocks of a range.
fn leaves_of(from: OriginBlock, end: OriginBlock) -> Range<u64> {
    from.0 / LEAF..end.0.max(from.0).div_ceil(LEAF)
}

/// A shard, and the number of foreground requests that wait for it.
#[derive(Debug)]
struct Place {
    shard: Ranked<Shard>,
    waiting: AtomicU32,
}

#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[CachePadded<Place>]>,
    /// A condition variable for each shard. It is notified when a version in the shard has been
    /// filled or withdrawn, or when a write that bypasses the cache has ended.
    filled: Box<[Condvar]>,
    /// Whether a sweep is under way.
    is_swept: AtomicBool,
}

impl Index {
    pub(crate) fn new() -> Self {
        let shard = |_| {
            let shard = Ranked::new(Rank::CacheShard, Shard::default());
            CachePadded::new(Place { shard, waiting: AtomicU32::new(0) })
        };
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            filled: (0..SHARDS).map(|_| Condvar::new()).collect(),
            is_swept: AtomicBool::new(false),
        }
    }

    fn number(block: OriginBlock) -> usize {
        (block.0 / REGION % SHARDS) as usize
    }

    /// Locks the shard of a block.
    pub(crate) fn shard(&self, block: OriginBlock) -> RankedGuard<'_, Shard> {
        let place = &*self.shards[Self::number(block)];
        let soon = || {
            // `try_lock` is exempt from the check of the lock order, so debug builds do not use it.
            if cfg!(debug_assertions) { None } else { place.shard.try_lock() }
        };
        if let Some(held) = soon() {
            return held;
        }
        place.waiting.fetch_add(1, Ordering::Relaxed);
        let look = |_| {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            soon()
        };
        let held = (0..LOOKS).find_map(look).unwrap_or_else(|| place.shard.lock());
        place.waiting.fetch_sub(1, Ordering::Relaxed);
        held
    }

    /// Locks the shard of a block for background work. Foreground requests that wait for the lock
    /// now get it first.
    pub(crate) fn shard_after(&self, block: OriginBlock) -> RankedGuard<'_, Shard> {
        let place = &*self.shards[Self::number(block)];
        for look in 0..COURTESY {
            if place.waiting.load(Ordering::Relaxed) == 0 {
                break;
            }
            // The threads of the waiting requests may need this processor.
            if look < COURTESY / 2 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        place.shard.lock()
    }

    /// Marks the start of a sweep: emptied leaves stay until [`Index::end_sweep`].
    pub(crate) fn begin_sweep(&self) {
        self.is_swept.store(true, Ordering::Relaxed);
    }

    /// Frees the memory of leaves that were emptied since the sweep began, a few at a time.
    pub(crate) fn end_sweep(&self) {
        self.is_swept.store(false, Ordering::Relaxed);
        for shard in 0..SHARDS {
            loop {
                let (spare, is_more) = self.shard_after(OriginBlock(shard * REGION)).purge();
                // The memory is freed without the lock.
                drop(spare);
                if !is_more {
                    break;
                }
            }
        }
    }

    /// Returns the treatment of leaves that become empty now.
    pub(crate) fn emptied(&self) -> Emptied {
        if self.is_swept.load(Ordering::Relaxed) { Emptied::Keep } else { Emptied::Remove }
    }

    /// All shards, to be locked one by one.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Ranked<Shard>> {
        self.shards.iter().map(|place| &place.shard)
    }

    /// The condition variable on which threads wait until a block of the shard is filled or
    /// written.
    pub(crate) fn signal(&self, block: OriginBlock) -> &Condvar {
        &self.filled[Self::number(block)]
    }

    /// Returns the first cached block at or after `from`, in any state.
    pub(crate) fn next(&self, from: OriginBlock) -> Option<OriginBlock> {
        // The next block is mostly in the same region. In that case one lock is enough.
        let near = self.shard(from).range(from, region_end(from)).next().map(|(block, _)| block);
        if near.is_some() {
            return near;
        }
        let end = OriginBlock(u64::MAX);
        let first =
            |shard: &Ranked<Shard>| shard.lock().range(from, end).next().map(|(block, _)| block);
        self.shards().filter_map(first).min()
    }

    /// The end of the run of blocks that begins at `from`, within its region.
    pub(crate) fn run(&self, from: OriginBlock) -> OriginBlock {
        let shard = self.shard(from);
        let run = (from.0..).zip(shard.range(from, region_end(from)));
        let last = run.take_while(|(expected, (block, _))| block.0 == *expected).last();
        last.map_or(from, |(number, _)| OriginBlock(number + 1))
    }

    /// Returns the number of cached blocks.
    pub(crate) fn len(&self) -> u64 {
        self.shards().map(|shard| shard.lock().len).sum()
    }
}

/// Returns the end of the region of a block.
pub(crate) fn region_end(block: OriginBlock) -> OriginBlock {
    OriginBlock((block.0 / REGION + 1) * REGION)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A shard agrees with a map of lists, for any sequence of additions and removals.
    #[test]
    fn a_shard_agrees_with_a_map() {
        let mut rng = buttress_base::Rng::new(1);
        let mut shard = Shard::default();
        let mut model: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        let mut is_swept = false;
        for number in 0..20_000 {
            // Some blocks are close together, and some far apart.
            let block = rng.below(200) * if rng.chance(1, 4) { 1001 } else { 1 };
            let slots = model.entry(block).or_default();
            if rng.chance(1, 2) {
                slots.push(number);
                let version = Version { epoch: Epoch(1), slot: Slot(number), state: State::Ready };
                shard.push(OriginBlock(block), version);
            } else if slots.is_empty() {
                assert!(!shard.remove(OriginBlock(block), Slot(number)));
            } else {
                let slot = slots.remove(rng.below(slots.len() as u64) as usize);
                assert!(!shard.remove(OriginBlock(block), Slot(number)));
                let emptied = if is_swept { Emptied::Keep } else { Emptied::Remove };
                assert!(shard.remove_all(&[(OriginBlock(block), Slot(slot))], emptied, |_| true));
            }
            is_swept ^= rng.chance(1, 500);
            if !is_swept && rng.chance(1, 50) {
                shard.purge();
            }
            if slots.is_empty() {
                model.remove(&block);
            }
            let slots_of = |versions: &Versions| -> Vec<u32> {
                versions.as_slice().iter().map(|version| version.slot.0).collect()
            };
            let at = rng.below(250);
            assert_eq!(shard.find(OriginBlock(at)).map(slots_of), model.get(&at).cloned());
            let range = at..at + rng.below(300);
            let (from, end) = (OriginBlock(range.start), OriginBlock(range.end));
            let found: Vec<_> =
                shard.range(from, end).map(|(block, found)| (block.0, slots_of(found))).collect();
            let found_mut: Vec<_> = shard
                .range_mut(from, end)
                .map(|(block, found)| (block.0, slots_of(found)))
                .collect();
            let expected: Vec<_> =
                model.range(range).map(|(&block, slots)| (block, slots.clone())).collect();
            assert_eq!((&found, &found_mut), (&expected, &expected));
            assert_eq!(shard.len, model.len() as u64);
        }
        while shard.purge().1 {}
        assert!(shard.leaves.values().all(|leaf| leaf.mask != 0), "an empty leaf was left");
    }
}
