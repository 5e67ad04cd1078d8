//! What all files of a mounted volume share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::{Rank, Ranked};
use buttress_format::{CsumType, Extent};
use buttress_txn::Engine;
use buttress_volume::Volume;

use crate::codec::Codec;
use crate::dirty::Pool;
use crate::error::Error;
use crate::helpers::{Helpers, Reading};
use crate::pages::{Pages, ReadBatch};
use crate::unpacked::Unpacked;

/// How files are laid out; from the superblock and the mount options.
#[derive(Clone, Debug)]
pub struct FilesOptions {
    /// Largest file that lives inside the tree, in bytes.
    pub max_inline: u32,
    /// Whether the volume has no items for holes. If not, each hole has an item.
    pub no_holes: bool,
    /// The codec for files that name none themselves.
    pub compress: Option<Codec>,
    /// Whether to compress also files that are marked as incompressible, and data with a sample
    /// that looks so.
    pub compress_force: bool,
    /// Clean data that is kept in memory, in bytes. Zero if a layer above keeps it already.
    pub page_cache_bytes: u64,
    /// How much of what is missing is read at once.
    pub read_batch: ReadBatch,
    /// Whether a file remembers which extents only it refers to.
    pub nocow_check: NocowCheck,
    /// Whether threads may be started that read ahead.
    pub helpers: bool,
    /// Whether data is read without being compared with its checksums, for volumes that are only
    /// read (`rescue=ignoredatacsums`).
    pub ignore_csums: bool,
}

/// Which writes in place look whether their file alone refers to the extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NocowCheck {
    /// Every one.
    #[cfg(feature = "baselines")]
    Always,
    /// Those to extents for which the file remembers no answer.
    #[default]
    Remembered,
}

impl NocowCheck {
    pub(crate) fn remembers(self) -> bool {
        self == Self::Remembered
    }
}

/// What all files of a mounted volume share: the engine, the volume's parameters, a count of dirty
/// bytes.
#[derive(Debug)]
pub struct Files {
    pub(crate) engine: Arc<Engine>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) sector: u64,
    pub(crate) csum_type: CsumType,
    pub(crate) options: FilesOptions,
    pub(crate) pool: Pool,
    pub(crate) unpacked: Unpacked,
    pub(crate) pages: Pages,
    pub(crate) helpers: Arc<Helpers>,
    pub(crate) reading: Reading,
    dirty_bytes: AtomicU64,
    ordered_bytes: AtomicU64,
    finished_bytes: AtomicU64,
    shortfalls: AtomicU64,
    /// The first loss of any file's data since the last call of [`Files::take_error`].
    lost: Ranked<Option<Error>>,
}

impl Files {
    /// Makes the shared state from its parts.
    #[must_use]
    pub fn new(engine: Arc<Engine>, volume: Arc<Volume>, options: FilesOptions) -> Self {
        let sector = u64::from(volume.sectorsize());
        let csum_type = volume.csum_type();
        let (pool, dirty_bytes) = (Pool::new(), AtomicU64::new(0));
        let lost = Ranked::new(Rank::Leaf, None);
        let unpacked = Unpacked::new();
        let pages = Pages::new(options.page_cache_bytes);
        let helpers = Helpers::new();
        if !options.helpers {
            helpers.stop();
        }
        Self {
            engine,
            volume,
            sector,
            csum_type,
            options,
            pool,
            unpacked,
            pages,
            helpers,
            reading: Reading::default(),
            dirty_bytes,
            ordered_bytes: AtomicU64::new(0),
            finished_bytes: AtomicU64::new(0),
            shortfalls: AtomicU64::new(0),
            lost,
        }
    }

    /// Takes the first failure of background writes of any file. It is reported once here; an fsync
    /// of the file reports it as well.
    pub fn take_error(&self) -> Option<Error> {
        self.lost.lock().take()
    }

    pub(crate) fn keep_error(&self, error: &Error) {
        self.lost.lock().get_or_insert_with(|| error.clone());
    }

    /// The engine below.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Dirty bytes of all files, those on their way to the device included.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Gives memory back that was kept for the next writer. The caller runs this now and then while
    /// there are no writers.
    pub fn trim(&self) {
        self.pool.trim();
        self.unpacked.clear();
    }

    /// Forgets clean data at an extent, which holds other bytes than before.
    pub fn forget_clean(&self, extent: Extent) {
        self.pages.forget(extent);
    }

    /// Dirty bytes that are on their way to the devices.
    #[must_use]
    pub fn ordered_bytes(&self) -> u64 {
        self.ordered_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn count_ordered(&self, bytes: u64) {
        self.ordered_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_finished(&self, bytes: u64) {
        self.ordered_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.finished_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that were written back, ever, or were lost on their way.
    #[must_use]
    pub fn finished_bytes(&self) -> u64 {
        self.finished_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn note_shortfall(&self) {
        self.shortfalls.fetch_add(1, Ordering::Relaxed);
    }

    /// How often finishing an ordered extent needed more metadata than its reservation, ever.
    #[must_use]
    pub fn shortfalls(&self) -> u64 {
        self.shortfalls.load(Ordering::Relaxed)
    }

    pub(crate) fn count_dirty(&self, bytes: u64) {
        self.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_clean(&self, bytes: u64) {
        self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The start of the sector that holds `offset`.
    pub(crate) fn floor(&self, offset: u64) -> u64 {
        offset & !(self.sector - 1)
    }

    /// The first sector boundary at or after `offset`.
    pub(crate) fn ceil(&self, offset: u64) -> u64 {
        offset.saturating_add(self.sector - 1) & !(self.sector - 1)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        self.helpers.stop();
    }
}
