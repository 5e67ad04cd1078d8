//! Which blocks of the origin are cached, in which slots, in how many versions.
//!
//! # Invariants
//!
//! - **I1** The versions of a block stand in the order of their epochs, oldest first.
//! - **I2** A version leaves the index only when its free mark is durable (or it never had an entry): who
//!   finds nothing here knows that nothing can come back after a crash.
//! - **I3** Only the oldest version of a block is written back, so no version is freed while an older one
//!   could still be found by a recovery.
//!
//! # Locks
//!
//! One a shard, of [`Rank::CacheShard`]; never two, never across I/O. A shard has whole regions of the
//! origin, so a write of neighbours meets one lock.

use std::collections::BTreeMap;
use std::ops::Range;

use buttress_base::sync::Condvar;
use buttress_base::{Held, Rank, Ranked};

use crate::stripe::Apart;
use crate::units::{Epoch, OriginBlock, Slot};

const SHARDS: u64 = 64;
/// Blocks of a leaf: as many as there are bits.
const LEAF: u64 = 64;
/// Pieces of memory of each kind that a shard keeps.
const SPARE_MAX: usize = 64;
/// Blocks of a region: neighbours that share a lock.
pub(crate) const REGION: u64 = 4096;

/// What is going on with one version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its data is being written for the first time; nobody may read it.
    Filling,
    /// It is there.
    Ready,
    /// It is being copied to the origin.
    Draining,
    /// Its entry is marked free in memory, and not yet on the device.
    Dying,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) epoch: Epoch,
    pub(crate) slot: Slot,
    pub(crate) state: State,
}

/// The versions of one block: mostly one.
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

    /// The newest that can be read.
    pub(crate) fn readable(&self) -> Option<&Version> {
        self.as_slice().iter().rev().find(|version| version.state != State::Filling)
    }
}

/// The cached ones of 64 neighbours.
#[derive(Debug, Default)]
struct Leaf {
    /// Which are there.
    mask: u64,
    /// Theirs, in order: as many as there are bits.
    versions: Vec<Versions>,
}

impl Leaf {
    /// Where the versions of the block of a bit are, or belong.
    fn place(&self, bit: u32) -> usize {
        (self.mask & below(bit)).count_ones() as usize
    }

    fn has(&self, bit: u32) -> bool {
        self.mask >> bit & 1 == 1
    }

    /// Those of its blocks that lie in a range: how many come before them, and their bits.
    fn part(&self, number: u64, from: OriginBlock, end: OriginBlock) -> (usize, Bits) {
        let bit = |block: OriginBlock| block.0.saturating_sub(number * LEAF).min(LEAF) as u32;
        let before = self.mask & below(bit(from));
        (before.count_ones() as usize, Bits(self.mask & below(bit(end)) & !before))
    }
}

/// The bits below one; 64 has all of them below.
fn below(bit: u32) -> u64 {
    1_u64.checked_shl(bit).unwrap_or(0).wrapping_sub(1)
}

/// The numbers of bits that are set, upwards.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let bit = self.0.trailing_zeros();
        self.0 &= self.0.wrapping_sub(1);
        (u64::from(bit) < LEAF).then_some(u64::from(bit))
    }
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    leaves: BTreeMap<u64, Leaf>,
    /// Blocks in them.
    len: u64,
    /// Memory that is handed from those who take versions out to those who put some in: a request in front must
    /// not wait for a sweep in the allocator.
    spare_leaves: Vec<Vec<Versions>>,
    spare_lists: Vec<Vec<Version>>,
}

/// Keeps emptied memory for the next, up to a bound.
fn keep<T>(spare: &mut Vec<Vec<T>>, mut list: Vec<T>) {
    if spare.len() < SPARE_MAX {
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
        let leaf = self.leaves.entry(number).or_insert_with(|| {
            // Where blocks lie alone, there is no room to waste.
            let versions = self.spare_leaves.pop().unwrap_or_else(|| Vec::with_capacity(1));
            Leaf { mask: 0, versions }
        });
        let place = leaf.place(bit);
        if !leaf.has(bit) {
            leaf.mask |= 1 << bit;
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

    /// Takes the version in `slot` out (I2); returns whether it was there.
    pub(crate) fn remove(&mut self, block: OriginBlock, slot: Slot) -> bool {
        let (number, bit) = leaf_of(block);
        let Some(leaf) = self.leaves.get_mut(&number).filter(|leaf| leaf.has(bit)) else {
            return false;
        };
        let place = leaf.place(bit);
        match &mut leaf.versions[place] {
            Versions::One(only) if only.slot == slot => {
                leaf.versions.remove(place);
                leaf.mask &= !(1 << bit);
                self.len -= 1;
                if leaf.mask == 0
                    && let Some(leaf) = self.leaves.remove(&number)
                {
                    keep(&mut self.spare_leaves, leaf.versions);
                }
                true
            }
            Versions::One(_) => false,
            Versions::Many(list) => {
                let before = list.len();
                list.retain(|version| version.slot != slot);
                let is_found = list.len() < before;
                if let [only] = list[..] {
                    keep(&mut self.spare_lists, std::mem::take(list));
                    leaf.versions[place] = Versions::One(only);
                }
                is_found
            }
        }
    }
}

/// The leaf of a block, and its bit there.
fn leaf_of(block: OriginBlock) -> (u64, u32) {
    (block.0 / LEAF, (block.0 % LEAF) as u32)
}

/// The leaves that blocks of a range may be in.
fn leaves_of(from: OriginBlock, end: OriginBlock) -> Range<u64> {
    from.0 / LEAF..end.0.max(from.0).div_ceil(LEAF)
}

#[derive(Debug)]
pub(crate) struct Index {
    shards: Box<[Apart<Ranked<Shard>>]>,
    /// One a shard: a version was filled.
    filled: Box<[Condvar]>,
}

impl Index {
    pub(crate) fn new() -> Self {
        let shard = |_| Apart(Ranked::new(Rank::CacheShard, Shard::default()));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            filled: (0..SHARDS).map(|_| Condvar::new()).collect(),
        }
    }

    fn number(block: OriginBlock) -> usize {
        (block.0 / REGION % SHARDS) as usize
    }

    /// Locks the shard of a block.
    pub(crate) fn shard(&self, block: OriginBlock) -> Held<'_, Shard> {
        self.shards[Self::number(block)].0.lock()
    }

    /// All shards, to be locked one by one.
    pub(crate) fn shards(&self) -> impl Iterator<Item = &Ranked<Shard>> {
        self.shards.iter().map(|shard| &shard.0)
    }

    /// Signals those who wait for a version in the shard of `block`.
    pub(crate) fn signal(&self, block: OriginBlock) -> &Condvar {
        &self.filled[Self::number(block)]
    }

    /// The first block that begins at `from` or after it, whatever its state.
    pub(crate) fn next(&self, from: OriginBlock) -> Option<OriginBlock> {
        // Mostly it is near, and one lock is enough.
        let near = self.shard(from).range(from, region_end(from)).next().map(|(block, _)| block);
        if near.is_some() {
            return near;
        }
        let end = OriginBlock(u64::MAX);
        let first =
            |shard: &Ranked<Shard>| shard.lock().range(from, end).next().map(|(block, _)| block);
        self.shards().filter_map(first).min()
    }

    /// Where a run of blocks ends that begins at `from`, as far as its region goes.
    pub(crate) fn run(&self, from: OriginBlock) -> OriginBlock {
        let shard = self.shard(from);
        let run = (from.0..).zip(shard.range(from, region_end(from)));
        let last = run.take_while(|(expected, (block, _))| block.0 == *expected).last();
        last.map_or(from, |(number, _)| OriginBlock(number + 1))
    }

    /// How many blocks there are.
    pub(crate) fn len(&self) -> u64 {
        self.shards().map(|shard| shard.lock().len).sum()
    }
}

/// Where the region of a block ends.
pub(crate) fn region_end(block: OriginBlock) -> OriginBlock {
    OriginBlock((block.0 / REGION + 1) * REGION)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// What a shard answers is what a map of lists answers, for any sequence of additions and removals.
    #[test]
    fn a_shard_agrees_with_a_map() {
        let mut rng = buttress_base::Rng::new(1);
        let mut shard = Shard::default();
        let mut model: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for number in 0..20_000 {
            // Close together, and far apart.
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
                assert!(shard.remove(OriginBlock(block), Slot(slot)));
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
    }
}
