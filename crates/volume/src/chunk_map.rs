//! Which chunk holds a logical address.
//!
//! # Invariants
//!
//! - **M1** Chunks are sorted by address and do not overlap.
//! - **M2** A map, once published, never changes: a change makes a new one.
//!
//! # Locks
//!
//! Changes take [`Rank::ChunkMap`], so that none is lost. Lookups take nothing and write nothing that
//! is shared: they see the map before a change or after it.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use buttress_base::{Rank, Ranked};
use buttress_format::{Chunk, Extent, Logical, Stripe};

use crate::device::VolumeDevice;
use crate::error::Error;
use crate::layout::{Layout, Piece};

/// The chunks of a volume.
#[derive(Debug)]
pub(crate) struct ChunkMap {
    published: ArcSwap<Vec<Arc<Entry>>>,
    changing: Ranked<()>,
}

/// A chunk with what was worked out when it was added.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) layout: Layout,
    /// For each stripe its device; none for one that is missing.
    pub(crate) devices: Vec<Option<Arc<VolumeDevice>>>,
}

impl Entry {
    pub(crate) fn extent(&self) -> Extent {
        Extent { start: self.chunk.logical, len: self.chunk.len }
    }

    /// The device of a stripe, if it is here.
    pub(crate) fn device(&self, stripe: usize) -> Option<&Arc<VolumeDevice>> {
        self.devices.get(stripe)?.as_ref()
    }

    /// A stripe whose bytes would be gone if only the devices that `has` says were there.
    pub(crate) fn lacks(&self, has: impl Fn(&VolumeDevice) -> bool) -> Option<&Stripe> {
        let present =
            |stripe: &Option<Arc<VolumeDevice>>| stripe.as_ref().is_some_and(|device| has(device));
        if self.layout.has_parity() {
            let missing = self.devices.iter().filter(|stripe| !present(stripe)).count();
            let first = self.devices.iter().position(|stripe| !present(stripe))?;
            return (missing > self.layout.parity()).then(|| &self.chunk.stripes[first]);
        }
        let copies = self.layout.copies();
        let columns = self.devices.chunks(copies).zip(self.chunk.stripes.chunks(copies));
        columns
            .into_iter()
            .find(|(devices, _)| !devices.iter().any(present))
            .and_then(|(_, stripes)| stripes.first())
    }

    /// Finds the first bytes of `at..at + len`: as many as lie in one piece.
    pub(crate) fn piece(&self, at: Logical, len: u64) -> Piece {
        self.layout.piece(at.distance(self.chunk.logical), len)
    }
}

/// The map as it was at one moment.
pub(crate) struct Snapshot(Guard<Arc<Vec<Arc<Entry>>>>);

impl Snapshot {
    /// Finds the chunk around an address.
    pub(crate) fn find(&self, at: Logical) -> Result<&Arc<Entry>, Error> {
        let after = self.0.partition_point(|entry| entry.chunk.logical <= at);
        let entry = after.checked_sub(1).and_then(|index| self.0.get(index));
        entry
            .filter(|entry| at.distance(entry.chunk.logical) < entry.chunk.len)
            .ok_or(Error::NotMapped { logical: at })
    }

    pub(crate) fn entries(&self) -> &[Arc<Entry>] {
        &self.0
    }
}

impl ChunkMap {
    pub(crate) fn new() -> Self {
        let changing = Ranked::new(Rank::ChunkMap, ());
        Self { published: ArcSwap::from_pointee(Vec::new()), changing }
    }

    pub(crate) fn load(&self) -> Snapshot {
        Snapshot(self.published.load())
    }

    /// Adds chunks: all of them, or, if one overlaps another or one that is there, none.
    pub(crate) fn add(&self, added: Vec<Entry>) -> Result<(), Error> {
        let _changing = self.changing.lock();
        let mut entries = Vec::clone(&self.published.load());
        entries.extend(added.into_iter().map(Arc::new));
        // Sorted but for the tail: the sort sees the runs and merges them.
        entries.sort_by_key(|entry| entry.chunk.logical);
        for pair in entries.windows(2) {
            let [first, second] = pair else { continue };
            if first.extent().end() > second.chunk.logical {
                return Err(Error::Overlap { chunk: second.extent(), with: first.extent() });
            }
        }
        self.published.store(Arc::new(entries));
        Ok(())
    }

    /// Has every stripe of a device lie on another one, which has its number and identifier.
    pub(crate) fn exchange(&self, device: &Arc<VolumeDevice>) {
        let _changing = self.changing.lock();
        let mut entries = Vec::clone(&self.published.load());
        for entry in &mut entries {
            let is_its = |stripe: &Stripe| stripe.device == device.id;
            if !entry.chunk.stripes.iter().any(is_its) {
                continue;
            }
            let mut devices = entry.devices.clone();
            for (place, stripe) in devices.iter_mut().zip(&entry.chunk.stripes) {
                if is_its(stripe) {
                    *place = Some(Arc::clone(device));
                }
            }
            let (chunk, layout) = (Arc::clone(&entry.chunk), entry.layout);
            *entry = Arc::new(Entry { chunk, layout, devices });
        }
        self.published.store(Arc::new(entries));
    }

    /// Removes the chunk that starts at an address, and returns it.
    pub(crate) fn remove(&self, start: Logical) -> Result<Arc<Chunk>, Error> {
        let _changing = self.changing.lock();
        let mut entries = Vec::clone(&self.published.load());
        let index = entries
            .binary_search_by_key(&start, |entry| entry.chunk.logical)
            .map_err(|_| Error::NotMapped { logical: start })?;
        let removed = entries.remove(index);
        self.published.store(Arc::new(entries));
        Ok(Arc::clone(&removed.chunk))
    }
}
