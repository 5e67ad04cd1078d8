//! The volume: its devices, their chunk map, and queries of the layers above.
//!
//! # Invariants
//!
//! - **V1** A chunk in the map lies within its devices and is readable with the present devices. A
//!   volume that was opened degraded and has an unreadable chunk is read-only.
//! - **V2** A volume is writable exactly while it has no reason to be read-only and does not count
//!   as opened for reading. [`Volume::begin_writing`] makes the volume no longer count as opened
//!   for reading. A reason to be read-only stays once it is set.
//! - **V3** In a writable volume no two stripes share bytes of a device. The chunks of an existing
//!   volume are checked when they are added. The maker of a new chunk takes only free space.
//!
//! # Locks
//!
//! `repairs` is held for long, across I/O: writers share it, and a repair has it exclusively, so
//! that a repair never puts old bytes over new ones. While `repairs` is held, only locks of the
//! crate `block` are taken. `deferred` is taken without `repairs`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use buttress_base::sync::RwLock;
use buttress_base::{Latch, Rank, Ranked};
use buttress_block::Device;
use buttress_format::{
    BlockGroupFlags, Chunk, CsumType, DeviceId, DeviceItem, Extent, Logical, Superblock,
};

use crate::chunk_map::{ChunkMap, Entry};
use crate::deferred::DeferredRepair;
use crate::device::{DeviceTrust, VolumeDevice};
use crate::error::{Error, Uuid};
use crate::layout::Layout;
use crate::params::{Params, Parity};
use crate::resolver::ChunkResolver;
use crate::seed_ids::SeedIds;
use crate::stats::{Counters, Stats};
use crate::target::Target;

/// Devices as one address space. Shared by all threads.
#[derive(Debug)]
pub struct Volume {
    params: Params,
    devices: ArcSwap<Vec<Arc<VolumeDevice>>>,
    /// Whether devices are allowed to be missing.
    degraded: bool,
    /// Whether the volume is salvaged from a damaged one. In a salvaged volume, chunks may reach
    /// past the end of devices.
    pub(crate) is_salvage: bool,
    /// The seeds that the volume was grown from.
    pub(crate) seeds: SeedIds,
    /// Whether the volume is a new sprout without its first commit.
    pub(crate) is_sprouting: bool,
    /// How chunks with parity are used.
    pub(crate) parity: Parity,
    pub(crate) map: ChunkMap,
    /// Finds chunks that are not in the map yet.
    pub(crate) resolver: ChunkResolver,
    read_only: Latch<String>,
    /// Whether the volume was opened for reading and [`Volume::begin_writing`] was not called yet.
    pub(crate) opened_for_reading: AtomicBool,
    pub(crate) counters: Counters,
    /// Unranked: it is held across I/O.
    pub(crate) repairs: RwLock<()>,
    /// The target of an unfinished replacement (`replace`).
    pub(crate) target: Ranked<Option<Target>>,
    /// Repairs that wait until all chunks are known; `None` from then on.
    pub(crate) deferred: Ranked<Option<Vec<DeferredRepair>>>,
}

impl Volume {
    /// Assembles a volume from devices, with an empty chunk map.
    pub(crate) fn assemble(params: Params, devices: Vec<VolumeDevice>, degraded: bool) -> Self {
        Self {
            params,
            devices: ArcSwap::from_pointee(devices.into_iter().map(Arc::new).collect()),
            degraded,
            is_salvage: false,
            seeds: SeedIds::default(),
            is_sprouting: false,
            parity: Parity::default(),
            map: ChunkMap::new(),
            resolver: ChunkResolver::default(),
            read_only: Latch::new(),
            opened_for_reading: AtomicBool::new(false),
            counters: Counters::default(),
            repairs: RwLock::new(()),
            target: Ranked::new(Rank::Leaf, None),
            deferred: Ranked::new(Rank::Leaf, Some(Vec::new())),
        }
    }

    /// Creates a volume over one device for mkfs; nothing is read from it.
    ///
    /// # Errors
    ///
    /// Those of [`Volume::add_chunk`], for the chunks within the superblock.
    pub fn new_for_make(device: Arc<dyn Device>, superblock: &Superblock) -> Result<Self, Error> {
        let part = VolumeDevice::new(device, superblock.dev_item, DeviceTrust::Whole);
        let volume = Self::assemble(Params::of(superblock), vec![part], false);
        volume
            .add_chunks(superblock.sys_chunks.iter().map(|(_, chunk)| chunk.clone()).collect())?;
        volume.has_all_chunks();
        Ok(volume)
    }

    /// The parameters that never change while the volume is open.
    #[must_use]
    pub fn params(&self) -> &Params {
        &self.params
    }

    /// The identifier of the filesystem.
    #[must_use]
    pub fn fsid(&self) -> [u8; 16] {
        self.params.fsid
    }

    /// The identifier in tree nodes.
    #[must_use]
    pub fn tree_fsid(&self) -> [u8; 16] {
        self.params.tree_fsid
    }

    /// The checksum algorithm.
    #[must_use]
    pub fn csum_type(&self) -> CsumType {
        self.params.csum_type
    }

    /// Bytes of a tree node.
    #[must_use]
    pub fn nodesize(&self) -> u32 {
        self.params.nodesize
    }

    /// Bytes of a sector, the smallest piece of data.
    #[must_use]
    pub fn sectorsize(&self) -> u32 {
        self.params.sectorsize
    }

    /// The devices that are here, by number.
    #[must_use]
    pub fn devices(&self) -> Arc<Vec<Arc<VolumeDevice>>> {
        self.devices.load_full()
    }

    /// Whether a batch of writes costs one wait instead of several.
    #[must_use]
    pub fn writes_at_once(&self) -> bool {
        self.devices.load().iter().all(|device| device.device.writes_at_once())
    }

    /// Finds a device by its number.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<Arc<VolumeDevice>> {
        self.devices.load().iter().find(|device| device.id == id).cloned()
    }

    /// Whether devices were allowed to be missing at open.
    #[must_use]
    pub fn is_degraded(&self) -> bool {
        self.degraded
    }

    /// Adds a device. The device is empty until a chunk is added on it.
    pub fn add_device(&self, device: Arc<dyn Device>, item: DeviceItem) {
        let added = Arc::new(VolumeDevice::new(device, item, DeviceTrust::Whole));
        added.set_current_item(item);
        self.devices.rcu(|devices| {
            let mut devices = Vec::clone(devices);
            devices.push(Arc::clone(&added));
            devices.sort_by_key(|device| device.id);
            devices
        });
    }

    /// Replaces a device, present or missing; the new device takes over its item. Until the new
    /// device is healed, it counts as a device that missed everything, and its superblocks are not
    /// written. Returns the old device.
    pub fn exchange_device(
        &self,
        device: Arc<dyn Device>,
        item: DeviceItem,
    ) -> Option<Arc<VolumeDevice>> {
        let _alone = self.repairs.write();
        let before = self.device(item.devid);
        let added = Arc::new(VolumeDevice::new(device, item, DeviceTrust::Stale));
        added.set_current_item(item);
        self.exchange_held(added);
        before
    }

    /// Puts a device in the place of the device with the same number. The caller holds `repairs`
    /// exclusively.
    pub(crate) fn exchange_held(&self, added: Arc<VolumeDevice>) {
        self.devices.rcu(|devices| {
            let mut devices = Vec::clone(devices);
            devices.retain(|device| device.id != added.id);
            devices.push(Arc::clone(&added));
            devices.sort_by_key(|device| device.id);
            devices
        });
        self.map.exchange(&added);
    }

    /// Takes a device out of the volume again, so that it is missing: undoes
    /// [`Volume::exchange_device`] for a missing device.
    pub fn withdraw_device(&self, id: DeviceId) {
        let _alone = self.repairs.write();
        self.remove_device(id);
        self.map.withdraw(id);
    }

    /// Removes a device that holds no chunk, and returns it.
    pub fn remove_device(&self, id: DeviceId) -> Option<Arc<VolumeDevice>> {
        let removed = self.device(id)?;
        self.devices.rcu(|devices| {
            let mut devices = Vec::clone(devices);
            devices.retain(|device| device.id != id);
            devices
        });
        Some(removed)
    }

    /// Handles a failed write or flush of a device. If every byte has a copy elsewhere, the volume
    /// continues without the device; otherwise the failure is returned.
    pub(crate) fn lose_device(&self, device: &VolumeDevice, error: Error) -> Result<(), Error> {
        let map = self.map.load();
        let is_needed = map
            .entries()
            .any(|entry| entry.lacks(|other| other.id != device.id && !other.is_lost()).is_some());
        if is_needed || device.is_lost() {
            return if device.is_lost() { Ok(()) } else { Err(error) };
        }
        tracing::error!(
            device = device.device.name(),
            id = device.id.0,
            %error,
            "a device fails; going on without it"
        );
        device.lose();
        Ok(())
    }

    /// Sets the item that one device's superblock has from now on.
    ///
    /// Without this call, each superblock keeps the item from the opening. There is one exception:
    /// the superblock given to [`Volume::write_superblocks`] has the item of one device, and that
    /// device gets this item.
    pub fn update_device(&self, item: DeviceItem) {
        if let Some(device) = self.device(item.devid) {
            device.set_current_item(item);
        }
    }

    /// The reason why the volume can only be read, if there is one (V2). A volume that may begin
    /// writing has no reason.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        self.read_only.get()
    }

    /// Says whether the volume may be written.
    #[must_use]
    pub fn writable(&self) -> bool {
        !self.read_only.is_set() && !self.opened_for_reading.load(Ordering::Acquire)
    }

    /// Allows writes to a volume that was opened with [`crate::OpenOptions::may_begin_writing`] and
    /// has no reason to be read-only. `last` is the superblock of the opening. If a device has a
    /// newer superblock, another program has written since, and the volume stays read-only.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], also for a device that cannot be written; the errors of
    /// [`Volume::read_superblock`]. After an error nothing may be written.
    pub fn begin_writing(&self, last: &Superblock) -> Result<(), Error> {
        self.read_only.check().map_err(|why| Error::ReadOnly { why })?;
        for device in self.devices().iter().filter(|device| !device.is_seed()) {
            let refused = |error: buttress_block::Error| Error::ReadOnly { why: error.to_string() };
            device.device.begin_writing().map_err(refused)?;
            let found = Self::read_superblock(&*device.device)?;
            let is_newer = found.generation > last.generation
                || found.generation == last.generation && found.log_root != last.log_root;
            if is_newer {
                let name = device.device.name();
                let why = format!("another program has written {name} since it was opened");
                self.forbid_writes(why.clone());
                return Err(Error::ReadOnly { why });
            }
        }
        self.opened_for_reading.store(false, Ordering::Release);
        Ok(())
    }

    pub(crate) fn forbid_writes(&self, why: String) {
        self.read_only.set(why);
    }

    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        self.read_only.check().map_err(|why| Error::ReadOnly { why })?;
        if self.opened_for_reading.load(Ordering::Acquire) {
            return Err(Error::ReadOnly { why: "it was opened for reading".to_owned() });
        }
        Ok(())
    }

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counters.snapshot()
    }

    /// Adds a chunk to the map. The chunk is durable only when its item is in the chunk tree.
    ///
    /// # Errors
    ///
    /// [`Error::Overlap`], [`Error::Layout`] and [`Error::ChunkPastEnd`] when the chunk is
    /// impossible; [`Error::MissingStripe`] when the present devices cannot read the chunk, and the
    /// volume was not opened degraded (V1).
    pub fn add_chunk(&self, chunk: Chunk) -> Result<(), Error> {
        // The new chunk's stripes are not compared with the stripes of other chunks, because this
        // would cost a step for each chunk (V3).
        self.add_entries(vec![self.resolve(chunk)?])
    }

    /// Adds all chunks, or none. This call is faster for many chunks, and is required for chunks
    /// that were read from a device. Where stripes share bytes of a device, the volume becomes
    /// read-only.
    ///
    /// # Errors
    ///
    /// As [`Volume::add_chunk`].
    pub fn add_chunks(&self, chunks: Vec<Chunk>) -> Result<(), Error> {
        let entries = chunks.into_iter().map(|chunk| self.resolve(chunk));
        self.add_entries(entries.collect::<Result<_, _>>()?)?;
        if let Some(why) = shared_place(self.map.load().entries().map(|entry| &**entry)) {
            self.forbid_writes(why);
        }
        Ok(())
    }

    fn add_entries(&self, entries: Vec<Entry>) -> Result<(), Error> {
        let obstacle = entries.iter().find_map(|entry| self.parity_obstacle(entry));
        let lacking = entries.iter().find_map(|entry| Some((entry, entry.lacks(|_| true)?)));
        let lacking = lacking.map(|(entry, stripe)| (entry.chunk.logical, stripe.device));
        if let (Some((logical, device)), false) = (lacking, self.degraded) {
            return Err(Error::MissingStripe { logical, device, fsid: Uuid(self.params.fsid) });
        }
        self.map.add(entries)?;
        if let Some((logical, device)) = lacking {
            self.forbid_writes(format!("chunk {logical} needs device {device}, which is missing"));
        }
        if let Some(why) = obstacle {
            self.forbid_writes(why);
        }
        Ok(())
    }

    /// Removes the chunk that starts at an address, and returns it.
    ///
    /// # Errors
    ///
    /// [`Error::NotMapped`] if no chunk starts there.
    pub fn remove_chunk(&self, start: Logical) -> Result<Arc<Chunk>, Error> {
        self.map.remove(start)
    }

    /// The reason why this chunk makes the volume read-only, if there is one.
    fn parity_obstacle(&self, entry: &Entry) -> Option<String> {
        let at = entry.chunk.logical;
        let is_mixed =
            entry.chunk.flags.kind() == BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA);
        match self.parity {
            _ if !entry.layout.has_parity() => None,
            Parity::ReadOnly => Some(format!(
                "chunk {at} is RAID5 or RAID6, and raid56=ro was asked for; raid56=stripe writes whole rows there"
            )),
            Parity::Rows if is_mixed => Some(format!(
                "chunk {at} holds data and metadata with parity, which is only read; with raid56=mirror what \
                 comes is mirrored"
            )),
            Parity::Mirror | Parity::Rows => None,
        }
    }

    /// How chunks with parity are used.
    #[must_use]
    pub fn parity(&self) -> Parity {
        self.parity
    }

    /// Whether a chunk of nodes has parity. Then a node cannot be overwritten where it lies.
    #[must_use]
    pub fn has_nodes_with_parity(&self) -> bool {
        let holds_nodes = |entry: &Entry| entry.chunk.flags.kind() != BlockGroupFlags::DATA;
        self.map.load().entries().any(|entry| entry.layout.has_parity() && holds_nodes(entry))
    }

    /// Whether an address lies in a chunk with parity, where nothing is written in place.
    #[must_use]
    pub fn has_parity(&self, at: Logical) -> bool {
        self.row_bytes(at).is_some()
    }

    /// The data bytes of a row, if an address lies in a chunk with parity. Rows are counted from
    /// the start of the chunk.
    #[must_use]
    pub fn row_bytes(&self, at: Logical) -> Option<u64> {
        self.map_of(Extent::new(at, 1)).find(at).ok()?.layout.row_bytes()
    }

    /// The number of chunks, and the number of nodes of the map that are copied when a chunk is
    /// added.
    #[must_use]
    pub fn map_size(&self) -> (usize, usize) {
        self.map.load().size()
    }

    /// Finds the chunk with the highest address.
    #[must_use]
    pub fn last_chunk(&self) -> Option<Arc<Chunk>> {
        self.map.load().last().map(|entry| Arc::clone(&entry.chunk))
    }

    /// Lists the chunks by address. The call costs a step for each chunk, so it is not for frequent
    /// use.
    #[must_use]
    pub fn chunks(&self) -> Arc<[Arc<Chunk>]> {
        self.map.load().entries().map(|entry| Arc::clone(&entry.chunk)).collect()
    }

    /// Finds the chunk around an address.
    #[must_use]
    pub fn chunk_at(&self, at: Logical) -> Option<Arc<Chunk>> {
        self.map_of(Extent::new(at, 1)).find(at).ok().map(|entry| Arc::clone(&entry.chunk))
    }

    /// The number of copies of an address; zero if no chunk has the address.
    #[must_use]
    pub fn mirrors(&self, at: Logical) -> u32 {
        self.map_of(Extent::new(at, 1)).find(at).map_or(0, |entry| entry.layout.copies() as u32)
    }

    /// Finds the devices of a chunk and checks V1.
    fn resolve(&self, chunk: Chunk) -> Result<Entry, Error> {
        let logical = chunk.logical;
        let layout = Layout::of(&chunk).map_err(|why| Error::Layout { logical, why })?;
        let mut devices = Vec::with_capacity(chunk.stripes.len());
        let here = self.devices.load();
        for stripe in &chunk.stripes {
            let device = here
                .iter()
                .find(|device| device.id == stripe.device && device.uuid == stripe.dev_uuid);
            if let Some(device) = device {
                let device_len = device.device.len();
                // The sum cannot overflow: the check of the layout computed it, too.
                let end = stripe.offset.saturating_add(layout.stripe_len());
                if end > device_len && !self.is_salvage {
                    let device = stripe.device;
                    return Err(Error::ChunkPastEnd { logical, device, end, device_len });
                }
            }
            devices.push(device.cloned());
        }
        Ok(Entry { chunk: Arc::new(chunk), layout, devices })
    }
}

/// Why these chunks make the volume read-only: two stripes, of two chunks or of one, use the same
/// bytes of a device (V3). A write to one of the stripes, or a repair of its copy, would overwrite
/// the other stripe.
fn shared_place<'e>(entries: impl Iterator<Item = &'e Entry>) -> Option<String> {
    let places = entries.flat_map(|entry| {
        let (logical, len) = (entry.chunk.logical, entry.layout.stripe_len());
        entry.chunk.stripes.iter().map(move |at| (at.device, at.offset, len, logical))
    });
    let mut places: Vec<(DeviceId, u64, u64, Logical)> = places.collect();
    places.sort_unstable();
    // If any two ranges overlap, some range overlaps its successor in the sorted list. The sum
    // cannot overflow: the check of the layout computed it, too.
    places.windows(2).find_map(|pair| {
        let [(device, offset, len, first), (next, at, _, second)] = *pair else { return None };
        (device == next && at < offset.saturating_add(len)).then(|| {
            format!("chunks {first} and {second} claim the same bytes of device {device}, at {at}")
        })
    })
}
