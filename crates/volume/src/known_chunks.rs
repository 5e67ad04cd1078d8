//! The map of a volume while not all of its chunks are known.
//!
//! # What must hold
//!
//! - The invariants A1 to `resolver::A3`.
//! - All chunks are in the map before the volume stops asking for them.

use std::sync::Weak;

use buttress_format::{Chunk, Extent, Logical};

use crate::chunk_map::Snapshot;
use crate::error::Error;
use crate::resolver::ChunkSource;
use crate::volume::Volume;

impl Volume {
    /// Asks `source` for chunks that the map lacks, until [`Volume::add_all_chunks`] or until the
    /// source is dropped.
    pub fn ask_for_chunks(&self, source: Weak<dyn ChunkSource>) {
        self.resolver.set(source);
    }

    /// Adds all chunks that the map lacks. From now on no source is asked, and deferred repairs are
    /// made.
    ///
    /// # Errors
    ///
    /// As [`Volume::add_chunk`]. After an error the source stays in use.
    pub fn add_all_chunks(&self, chunks: Vec<Chunk>) -> Result<(), Error> {
        let adding = self.resolver.add_alone();
        let map = self.map.load();
        let is_new = |chunk: &Chunk| map.find(chunk.logical).is_err();
        self.add_chunks(chunks.into_iter().filter(is_new).collect())?;
        self.resolver.clear();
        drop(adding);
        self.has_all_chunks();
        Ok(())
    }

    /// The map, which has all existing chunks of a range (`resolver::A1`).
    pub(crate) fn map_of(&self, extent: Extent) -> Snapshot {
        // The order matters: see `ChunkResolver::clear`.
        let asks = self.resolver.has_source();
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

    /// Adds the chunk around an address, if the source has one.
    fn ask(&self, at: Logical) {
        let Some((source, _asking)) = self.resolver.source() else { return };
        let added = match source.chunk_around(at) {
            Ok(Some(chunk)) => self.add_resolved(chunk).map_err(Into::into),
            Ok(None) => return,
            Err(error) => Err(error),
        };
        if let Err(error) = added {
            tracing::error!(logical = %at, %error, "the chunk of an address cannot be had");
        }
    }

    fn add_resolved(&self, chunk: Chunk) -> Result<(), Error> {
        let _adding = self.resolver.add_alone();
        // Another thread added the chunk first (`resolver::A3`).
        if self.map.load().find(chunk.logical).is_ok() {
            return Ok(());
        }
        self.add_chunk(chunk)
    }
}
