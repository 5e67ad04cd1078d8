//! Which chunk holds a logical address.
//!
//! # Invariants
//!
//! - **M1** Chunks are sorted by address and do not overlap.
//! - **M2** A published map never changes. A change makes a new map that shares all but one path of
//!   the tree with the old one.
//!
//! # Locks
//!
//! Changes take [`Rank::ChunkMap`], so that no change is lost. Lookups take no lock and write no
//! shared memory. A lookup sees the map before a change or after it.

use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use buttress_base::cow_map::FAN;
use buttress_base::{CowMap, Rank, Ranked};
use buttress_format::{Chunk, DeviceId, Extent, Logical, Stripe};

use crate::device::VolumeDevice;
use crate::error::Error;
use crate::layout::{Layout, Piece};

/// The chunks of a volume.
#[derive(Debug)]
pub(crate) struct ChunkMap {
    published: ArcSwap<Chunks>,
    changing: Ranked<()>,
}

/// A chunk, with its layout and devices, which are computed when the chunk is added.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) layout: Layout,
    /// The device of each stripe; `None` if the device is missing.
    pub(crate) devices: Vec<Option<Arc<VolumeDevice>>>,
}

impl Entry {
    pub(crate) fn extent(&self) -> Extent {
        Extent { start: self.chunk.logical, len: self.chunk.len }
    }

    /// The device of a stripe, if the device is present.
    pub(crate) fn device(&self, stripe: usize) -> Option<&Arc<VolumeDevice>> {
        self.devices.get(stripe)?.as_ref()
    }

    /// Finds a stripe with bytes that no device accepted by `has` can provide. `None` if all bytes
    /// are readable with the accepted devices.
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

    /// The piece that begins at `at`. It has at most `len` bytes.
    pub(crate) fn piece(&self, at: Logical, len: u64) -> Piece {
        self.layout.piece(at.distance(self.chunk.logical), len)
    }
}

/// The map as it was at one moment.
pub(crate) struct Snapshot(Guard<Arc<Chunks>>);

/// Chunks by their first address. A copy costs nothing; a change copies one path of the tree.
type Chunks = CowMap<Arc<Entry>>;

impl Snapshot {
    /// Finds the chunk around an address.
    pub(crate) fn find(&self, at: Logical) -> Result<&Arc<Entry>, Error> {
        let before = self.0.floor(at.0).map(|(_, entry)| entry);
        before
            .filter(|entry| at.distance(entry.chunk.logical) < entry.chunk.len)
            .ok_or(Error::NotMapped { logical: at })
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Arc<Entry>> {
        self.0.iter().map(|(_, entry)| entry)
    }

    /// The chunk with the highest address.
    pub(crate) fn last(&self) -> Option<&Arc<Entry>> {
        self.0.last().map(|(_, entry)| entry)
    }

    /// The number of chunks, and the number of nodes that a change of the map copies.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.0.len(), self.0.height())
    }
}

impl ChunkMap {
    pub(crate) fn new() -> Self {
        let changing = Ranked::new(Rank::ChunkMap, ());
        Self { published: ArcSwap::from_pointee(CowMap::default()), changing }
    }

    pub(crate) fn load(&self) -> Snapshot {
        Snapshot(self.published.load())
    }

    /// Adds all chunks, or none if a chunk overlaps another added chunk or an existing one.
    pub(crate) fn add(&self, added: Vec<Entry>) -> Result<(), Error> {
        let _changing = self.changing.lock();
        let mut chunks = Chunks::clone(&self.published.load());
        if added.len() > chunks.len() / FAN {
            chunks = merged(&chunks, added)?;
        } else {
            for entry in added {
                check_overlap(&chunks, &entry)?;
                chunks = chunks.with(entry.chunk.logical.0, Arc::new(entry));
            }
        }
        self.published.store(Arc::new(chunks));
        Ok(())
    }

    /// Moves every stripe of a device to another device with the same number and identifier.
    pub(crate) fn exchange(&self, device: &Arc<VolumeDevice>) {
        self.place_stripes(device.id, Some(device));
    }

    /// Notes that a device is missing.
    pub(crate) fn withdraw(&self, id: DeviceId) {
        self.place_stripes(id, None);
    }

    fn place_stripes(&self, id: DeviceId, device: Option<&Arc<VolumeDevice>>) {
        let _changing = self.changing.lock();
        let chunks = self.published.load();
        let is_its = |stripe: &Stripe| stripe.device == id;
        let exchanged = chunks.iter().map(|(start, entry)| {
            if !entry.chunk.stripes.iter().any(is_its) {
                return (start, Arc::clone(entry));
            }
            let mut devices = entry.devices.clone();
            for (place, stripe) in devices.iter_mut().zip(&entry.chunk.stripes) {
                if is_its(stripe) {
                    *place = device.cloned();
                }
            }
            let (chunk, layout) = (Arc::clone(&entry.chunk), entry.layout);
            (start, Arc::new(Entry { chunk, layout, devices }))
        });
        self.published.store(Arc::new(CowMap::from_sorted(exchanged)));
    }

    /// Removes the chunk that starts at an address, and returns it.
    pub(crate) fn remove(&self, start: Logical) -> Result<Arc<Chunk>, Error> {
        let _changing = self.changing.lock();
        let chunks = self.published.load();
        let (chunks, removed) =
            chunks.without(start.0).ok_or(Error::NotMapped { logical: start })?;
        self.published.store(Arc::new(chunks));
        Ok(Arc::clone(&removed.chunk))
    }
}

/// Merges many chunks into the map in one pass.
fn merged(chunks: &Chunks, added: Vec<Entry>) -> Result<Chunks, Error> {
    let there = chunks.iter().map(|(_, entry)| Arc::clone(entry));
    let mut entries: Vec<_> = there.chain(added.into_iter().map(Arc::new)).collect();
    // Both lists are usually sorted. The sort detects sorted runs and merges them.
    entries.sort_by_key(|entry| entry.chunk.logical);
    for pair in entries.windows(2) {
        let [first, second] = pair else { continue };
        if first.extent().end() > second.chunk.logical {
            return Err(Error::Overlap { chunk: second.extent(), with: first.extent() });
        }
    }
    Ok(CowMap::from_sorted(entries.into_iter().map(|entry| (entry.chunk.logical.0, entry))))
}

/// Fails if a chunk would overlap an existing one. Existing chunks do not overlap, so only the last
/// existing chunk that begins before the new chunk's end can overlap the new one.
fn check_overlap(chunks: &Chunks, added: &Entry) -> Result<(), Error> {
    let extent = added.extent();
    let Some((_, there)) = chunks.floor(extent.end().0 - 1) else { return Ok(()) };
    if there.extent().end() <= extent.start {
        return Ok(());
    }
    let (first, second) = if there.extent().start <= extent.start {
        (there.extent(), extent)
    } else {
        (extent, there.extent())
    };
    Err(Error::Overlap { chunk: second, with: first })
}
