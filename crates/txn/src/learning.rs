//! Whether block groups are known, and what answers about chunks until then (`learn`).

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
    /// Behind the opening where the chunk tree has more than a leaf, else before its end.
    #[default]
    Auto,
    /// Before the end of the opening.
    First,
    /// Behind it, wherever that can be.
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

/// A chunk tree of so many levels above its leaves is not read through first. One leaf of 16 KiB
/// has up to 154 chunks, and is read in any case.
const TALL: u8 = 1;

/// How far the groups are known.
#[derive(Default)]
pub(crate) struct Learning {
    known: AtomicBool,
    stop: AtomicBool,
    /// Unranked: held across reads.
    turn: Mutex<()>,
    /// Answers about chunks meanwhile. Unranked: nothing is taken under it.
    source: Mutex<Option<Arc<ChunkTreeSource>>>,
    /// Why nothing can be written, as it turned out.
    unfit: Latch<String>,
}

impl Learning {
    /// Why nothing can be written, as it turned out behind the opening.
    pub(crate) fn unfit(&self) -> Option<&String> {
        self.unfit.cause()
    }

    pub(crate) fn is_known(&self) -> bool {
        self.known.load(Ordering::Acquire)
    }

    pub(crate) fn set_known(&self) {
        self.known.store(true, Ordering::Release);
    }

    /// Takes the turn to learn: one thread at a time (`learn::K2`).
    pub(crate) fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Ends the learning, for good.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Says why nothing can be written.
    pub(crate) fn set_unfit(&self, why: String) {
        self.unfit.set(why);
    }

    /// All chunks are known: none is looked up one by one any more.
    pub(crate) fn end_asking(&self) {
        *self.source.lock() = None;
    }

    /// Has chunks asked for from now on.
    pub(crate) fn ask(&self, store: &Store, superblock: &Superblock) {
        let volume = Arc::clone(store.volume());
        let source = ChunkTreeSource::new(volume, *store.geometry(), superblock);
        let source = Arc::new(source);
        let weak = Arc::downgrade(&source);
        *self.source.lock() = Some(source);
        store.volume().ask_for_chunks(weak);
    }
}

/// Whether the groups are read behind the opening. What is replayed, recorded anew or moved at
/// once needs them then.
pub(crate) fn is_behind(when: GroupsRead, superblock: &Superblock, needed: bool) -> bool {
    let may = !needed && !superblock.incompat.has(Incompat::RAID56);
    may && match when {
        GroupsRead::Auto => superblock.chunk_root_level >= TALL,
        GroupsRead::First => false,
        #[cfg(feature = "baselines")]
        GroupsRead::Behind => true,
    }
}
