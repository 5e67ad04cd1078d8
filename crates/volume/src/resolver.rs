//! Finds chunks that the map does not have yet.
//!
//! # Place
//!
//! A volume with very many chunks is readable long before its chunk tree was read. Until then the
//! volume asks a [`ChunkSource`] for the chunk around an address that the map lacks. The volume
//! reads no trees itself: the crate that opened it owns the source.
//!
//! # Invariants
//!
//! - **A1** A lookup reports a missing address only after the source was asked, or when all chunks
//!   were added.
//! - **A2** A source reads only addresses in the superblock's chunks. If a damaged tree leads to
//!   another address, the read at that address asks no source and fails. The lookup then fails,
//!   too.
//! - **A3** A chunk from the source and the same chunk from the full list are one entry.

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use buttress_base::sync::{Mutex, MutexGuard};
use buttress_base::{Rank, Ranked};
use buttress_format::{Chunk, Logical};

/// Looks up the chunk around an address.
pub trait ChunkSource: Send + Sync {
    /// The chunk around an address, if there is one.
    ///
    /// # Errors
    ///
    /// The failure of the lookup.
    fn chunk_around(
        &self,
        at: Logical,
    ) -> Result<Option<Chunk>, Box<dyn std::error::Error + Send + Sync>>;
}

/// Asks the source of chunks, until the owner of the source drops it.
pub(crate) struct ChunkResolver {
    has_source: AtomicBool,
    source: Ranked<Option<Weak<dyn ChunkSource>>>,
    /// Held while chunks are added to the map, never during a lookup. Unranked: adding chunks takes
    /// the map's lock, which has a rank, while this lock is held.
    adding: Mutex<()>,
}

impl Default for ChunkResolver {
    fn default() -> Self {
        Self {
            has_source: AtomicBool::new(false),
            source: Ranked::new(Rank::Leaf, None),
            adding: Mutex::new(()),
        }
    }
}

impl fmt::Debug for ChunkResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkResolver")
            .field("has_source", &self.has_source)
            .finish_non_exhaustive()
    }
}

thread_local! {
    /// Whether this thread is looking a chunk up (A2).
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// While this value exists, the thread asks no source.
pub(crate) struct Asking;

impl Asking {
    fn begin() -> Option<Self> {
        (!ASKING.replace(true)).then_some(Self)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        ASKING.set(false);
    }
}

impl ChunkResolver {
    /// Sets the source that is asked from now on.
    pub(crate) fn set(&self, source: Weak<dyn ChunkSource>) {
        *self.source.lock() = Some(source);
        self.has_source.store(true, Ordering::Release);
    }

    /// Removes the source. The caller has added all chunks before, so a thread that sees no source
    /// sees all chunks.
    pub(crate) fn clear(&self) {
        self.has_source.store(false, Ordering::Release);
        *self.source.lock() = None;
    }

    /// Whether a source is asked. Load this before the map: see [`ChunkResolver::clear`].
    pub(crate) fn has_source(&self) -> bool {
        self.has_source.load(Ordering::Acquire)
    }

    /// The source, unless it was dropped or this thread is already asking it.
    pub(crate) fn source(&self) -> Option<(Arc<dyn ChunkSource>, Asking)> {
        let source = self.source.lock().as_ref().and_then(Weak::upgrade)?;
        Some((source, Asking::begin()?))
    }

    /// Keeps other threads from adding chunks.
    pub(crate) fn add_alone(&self) -> MutexGuard<'_, ()> {
        self.adding.lock()
    }
}
