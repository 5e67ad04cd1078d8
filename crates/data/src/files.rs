//! The parts that all files of a mounted volume share.
//!
//! Each part is made from the parts that it uses, so two parts never refer to each other.
//! `docs/internals/files.md` has a diagram. Operations that need most parts are methods of
//! [`Files`], each in its own file.

use std::sync::Arc;

use buttress_base::clock;
use buttress_format::Extent;
use buttress_txn::Engine;
use buttress_volume::Volume;

use crate::buffers::BufferPool;
use crate::counters::Counters;
use crate::pages::{PageStats, Pages};
use crate::params::{FilesOptions, Params};
use crate::placement::Placement;
use crate::reader::Reader;
use crate::writeback::Writeback;

/// The parts that all files of a mounted volume share.
#[derive(Debug)]
pub struct Files {
    pub(crate) engine: Arc<Engine>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) params: Arc<Params>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) pool: Arc<BufferPool>,
    pub(crate) pages: Arc<Pages>,
    pub(crate) reader: Reader,
    pub(crate) placement: Arc<Placement>,
    pub(crate) writeback: Writeback,
}

impl Files {
    /// Makes the shared state from its parts.
    #[must_use]
    pub fn new(engine: Arc<Engine>, volume: Arc<Volume>, options: FilesOptions) -> Self {
        let sector = u64::from(volume.sectorsize());
        let pages = Arc::new(Pages::new(options.page_cache_bytes));
        let params = Arc::new(Params { sector, csum_type: volume.csum_type(), options });
        let (counters, pool) = (Arc::new(Counters::new()), Arc::new(BufferPool::new()));
        let reader = Reader::new(
            Arc::clone(&engine),
            Arc::clone(&volume),
            Arc::clone(&params),
            Arc::clone(&pages),
        );
        let placement = Arc::new(Placement::new(
            Arc::clone(&engine),
            Arc::clone(&params),
            Arc::clone(&counters),
        ));
        let writeback = Writeback::new(
            (Arc::clone(&engine), Arc::clone(&volume)),
            Arc::clone(&params),
            Arc::clone(&counters),
            (Arc::clone(&pool), Arc::clone(&pages)),
            Arc::clone(&placement),
        );
        Self { engine, volume, params, counters, pool, pages, reader, placement, writeback }
    }

    /// The engine below.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Bytes of a sector.
    #[must_use]
    pub fn sector(&self) -> u64 {
        self.params.sector
    }

    /// Reads, and the threads that read ahead.
    #[must_use]
    pub fn reader(&self) -> &Reader {
        &self.reader
    }

    /// Writeback of dirty data.
    #[must_use]
    pub fn writeback(&self) -> &Writeback {
        &self.writeback
    }

    /// Counts of dirty and written data, and the first loss.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Frees memory that was kept for writers and that no writer needed lately. The caller runs
    /// this from time to time.
    pub fn trim(&self) {
        self.pool.trim(clock::now());
    }

    /// Frees the unpacked content that is cached for later readers. The caller runs this while the
    /// volume is idle.
    pub fn forget_unpacked(&self) {
        self.reader.forget_unpacked();
    }

    /// Bytes of buffers that were written back and wait for the next writer.
    #[must_use]
    pub fn spare_bytes(&self) -> u64 {
        self.pool.bytes()
    }

    /// The content of the page cache, and how often readers found data in it.
    #[must_use]
    pub fn page_stats(&self) -> PageStats {
        self.pages.stats()
    }

    /// Drops clean data of an extent, because the extent now holds other bytes.
    pub fn forget_clean(&self, extent: Extent) {
        self.pages.forget(extent);
    }
}
