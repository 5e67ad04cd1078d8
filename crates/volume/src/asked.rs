//! Chunks that are asked for one by one, before all are known.
//!
//! # Place
//!
//! A volume of very many chunks can be read long before its chunk tree was read through. Until then an address that is in
//! no chunk of the map is asked about. The volume does not read trees: somebody above does, and is asked here.
//!
//! # Invariants
//!
//! - **A1** A map that misses an address says so only after the one who knows was asked, or when nobody is asked any more.
//! - **A2** What is read to answer is in chunks of the superblock. Where a damaged tree leads elsewhere nobody is asked again
//!   on the way: that read fails, and so does the one that wanted an answer.
//! - **A3** A chunk that was asked for and one that is added with all others are the same one.

use std::cell::Cell;
use std::fmt;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;
use buttress_format::{Chunk, Extent, Logical};

use crate::chunk_map::Snapshot;
use crate::error::Error;
use crate::volume::Volume;

/// Somebody who can look up the chunk around an address.
pub trait ChunkSource: Send + Sync {
    /// The chunk around an address, if there is one.
    ///
    /// # Errors
    ///
    /// What kept it from being looked up.
    fn chunk_around(
        &self,
        at: Logical,
    ) -> Result<Option<Chunk>, Box<dyn std::error::Error + Send + Sync>>;
}

/// Who is asked, for as long as somebody else keeps it.
#[derive(Default)]
pub(crate) struct Asked {
    any: AtomicBool,
    source: Mutex<Option<Weak<dyn ChunkSource>>>,
    /// Held by who adds chunks while some are asked for, not while they are looked up.
    adding: Mutex<()>,
}

impl fmt::Debug for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Asked").field("any", &self.any).finish_non_exhaustive()
    }
}

thread_local! {
    /// This thread is looking a chunk up (A2).
    static ASKING: Cell<bool> = const { Cell::new(false) };
}

/// As long as it lives, this thread asks nobody.
struct Asking;

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

impl Volume {
    /// Has chunks that are not in the map asked for, until [`Volume::add_all_chunks`] or for as long as the one who is
    /// asked lives.
    pub fn ask_for_chunks(&self, source: Weak<dyn ChunkSource>) {
        *self.asked.source.lock() = Some(source);
        self.asked.any.store(true, Ordering::Release);
    }

    /// Adds all chunks that there are, but for those that are in the map. Nobody is asked from now on, and what was found bad
    /// until now is put right.
    ///
    /// # Errors
    ///
    /// As [`Volume::add_chunk`]; whoever was asked before still is.
    pub fn add_all_chunks(&self, chunks: Vec<Chunk>) -> Result<(), Error> {
        let adding = self.asked.adding.lock();
        let map = self.map.load();
        let is_new = |chunk: &Chunk| map.find(chunk.logical).is_err();
        self.add_chunks(chunks.into_iter().filter(is_new).collect())?;
        // Behind the change of the map: who does not ask any more sees it.
        self.asked.any.store(false, Ordering::Release);
        *self.asked.source.lock() = None;
        drop(adding);
        self.has_all_chunks();
        Ok(())
    }

    /// The map, with the chunks of a range in it, as far as there are any (A1).
    pub(crate) fn map_of(&self, extent: Extent) -> Snapshot {
        // In this order: see `add_all_chunks`.
        let asks = self.asked.any.load(Ordering::Acquire);
        let map = self.map.load();
        if asks { self.map_by_asking(extent, map) } else { map }
    }

    #[cold]
    fn map_by_asking(&self, extent: Extent, mut map: Snapshot) -> Snapshot {
        let mut at = extent.start;
        loop {
            let known = map.find(at).map(|entry| entry.extent().end());
            at = match known {
                Ok(end) if end < extent.end() => end,
                Ok(_) => return map,
                Err(_) => {
                    self.ask(at);
                    map = self.map.load();
                    if map.find(at).is_err() {
                        return map;
                    }
                    at
                }
            };
        }
    }

    /// Adds the chunk around an address, if there is one that can be.
    fn ask(&self, at: Logical) {
        let source = self.asked.source.lock().as_ref().and_then(Weak::upgrade);
        let Some((source, _asking)) = source.zip(Asking::begin()) else { return };
        let added = match source.chunk_around(at) {
            Ok(Some(chunk)) => self.add_asked(chunk).map_err(Into::into),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        if let Err(error) = added {
            tracing::error!(logical = %at, %error, "the chunk of an address cannot be had");
        }
    }

    fn add_asked(&self, chunk: Chunk) -> Result<(), Error> {
        let _adding = self.asked.adding.lock();
        // Another was quicker (A3).
        if self.map.load().find(chunk.logical).is_ok() {
            return Ok(());
        }
        self.add_chunk(chunk)
    }
}
