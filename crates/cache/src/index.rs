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
use std::collections::btree_map::Entry;
use std::ops::Bound;

use buttress_base::{Held, Rank, Ranked};
use parking_lot::Condvar;

use crate::stripe::Apart;
use crate::units::{Epoch, OriginBlock, Slot};

const SHARDS: u64 = 64;
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

    fn push(&mut self, version: Version) {
        assert!(self.newest().epoch <= version.epoch, "I1");
        match self {
            Self::One(first) => *self = Self::Many(vec![*first, version]),
            Self::Many(versions) => versions.push(version),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Shard {
    blocks: BTreeMap<OriginBlock, Versions>,
}

impl Shard {
    pub(crate) fn find(&self, block: OriginBlock) -> Option<&Versions> {
        self.blocks.get(&block)
    }

    pub(crate) fn find_mut(&mut self, block: OriginBlock) -> Option<&mut Versions> {
        self.blocks.get_mut(&block)
    }

    pub(crate) fn range(
        &self,
        from: OriginBlock,
        end: OriginBlock,
    ) -> impl Iterator<Item = (OriginBlock, &Versions)> {
        self.blocks.range(from..end.max(from)).map(|(&block, versions)| (block, versions))
    }

    pub(crate) fn range_mut(
        &mut self,
        from: OriginBlock,
        end: OriginBlock,
    ) -> impl Iterator<Item = (OriginBlock, &mut Versions)> {
        self.blocks.range_mut(from..end.max(from)).map(|(&block, versions)| (block, versions))
    }

    /// Adds the newest version of a block.
    pub(crate) fn push(&mut self, block: OriginBlock, version: Version) {
        match self.blocks.entry(block) {
            Entry::Vacant(place) => {
                place.insert(Versions::One(version));
            }
            Entry::Occupied(mut found) => found.get_mut().push(version),
        }
    }

    /// Takes the version in `slot` out (I2); returns whether it was there.
    pub(crate) fn remove(&mut self, block: OriginBlock, slot: Slot) -> bool {
        let Entry::Occupied(mut found) = self.blocks.entry(block) else { return false };
        match found.get_mut() {
            Versions::One(only) if only.slot == slot => {
                found.remove();
                true
            }
            Versions::One(_) => false,
            Versions::Many(versions) => {
                let before = versions.len();
                versions.retain(|version| version.slot != slot);
                let is_found = versions.len() < before;
                if let [only] = versions[..] {
                    *found.get_mut() = Versions::One(only);
                }
                is_found
            }
        }
    }
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
        let range = (Bound::Included(from), Bound::Unbounded);
        let first = |shard: &Ranked<Shard>| {
            shard.lock().blocks.range(range).next().map(|(&block, _)| block)
        };
        self.shards().filter_map(first).min()
    }

    /// How many blocks there are.
    pub(crate) fn len(&self) -> u64 {
        self.shards().map(|shard| shard.lock().blocks.len() as u64).sum()
    }
}

/// Where the region of a block ends.
pub(crate) fn region_end(block: OriginBlock) -> OriginBlock {
    OriginBlock((block.0 / REGION + 1) * REGION)
}
