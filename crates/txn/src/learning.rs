//! The progress of reading the block groups, and the source of chunks until the groups are known
//! (`learn`).

#[cfg(feature = "baselines")]
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::Latch;
use buttress_base::sync::{Mutex, MutexGuard};
use buttress_format::{Incompat, Superblock};
use buttress_tree::Store;
use buttress_tree::boot::ChunkTreeSource;

/// When block groups are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupsRead {
    /// After the opening if the chunk tree has more than a leaf, else during the opening.
    #[default]
    Auto,
    /// During the opening.
    First,
    /// After the opening, wherever that is possible.
    #[cfg(feature = "baselines")]
    Behind,
}

#[cfg(feature = "baselines")]
impl FromStr for GroupsRead {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "first" => Ok(Self::First),
            "behind" => Ok(Self::Behind),
            _ => Err("is auto, first or behind".to_owned()),
        }
    }
}

/// A chunk tree with at least this many levels above its leaves is not read during the opening. One
/// leaf of 16 KiB holds up to 154 chunks, and is always read.
const TALL: u8 = 1;

/// The progress of reading the block groups.
#[derive(Default)]
pub(crate) struct LazyGroups {
    known: AtomicBool,
    stop: AtomicBool,
    /// Unranked: held across reads.
    turn: Mutex<()>,
    /// Looks up chunks until all are known. Unranked: no lock is taken under it.
    source: Mutex<Option<Arc<ChunkTreeSource>>>,
    /// The reason, found after the opening, why the volume cannot be written.
    unfit: Latch<String>,
}

impl LazyGroups {
    /// The reason, found after the opening, why the volume cannot be written.
    pub(crate) fn unfit(&self) -> Option<&String> {
        self.unfit.cause()
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    pub(crate) fn set_known(&self) {
        self.known.store(true, Ordering::Release);
    }

    /// Takes the lock for reading the groups: one thread reads at a time (`learn::K2`).
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Stops the reading permanently.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Records the reason why the volume cannot be written.
    pub(crate) fn set_unfit(&self, why: String) {
        self.unfit.set(why);
    }

    /// Ends the lookup of single chunks, because all chunks are known.
    pub(crate) fn end_chunk_lookups(&self) {
        *self.source.lock() = None;
    }

    /// Begins to look up chunks one by one.
    pub(crate) fn begin_chunk_lookups(&self, store: &Store, superblock: &Superblock) {
        let volume = Arc::clone(store.volume());
        let source = ChunkTreeSource::new(volume, *store.geometry(), superblock);
        let source = Arc::new(source);
        let weak = Arc::downgrade(&source);
        *self.source.lock() = Some(source);
        store.volume().ask_for_chunks(weak);
    }
}

/// Whether the groups are read after the opening. A replay, a rebuild of the free-space tree, and
/// parity need the groups at once.
pub(crate) fn is_behind(when: GroupsRead, superblock: &Superblock, needed: bool) -> bool {
    let may = !needed && !superblock.incompat.has(Incompat::RAID56);
    may && match when {
        GroupsRead::Auto => superblock.chunk_root_level >= TALL,
        GroupsRead::First => false,
        #[cfg(feature = "baselines")]
        GroupsRead::Behind => true,
    }
}
