//! A damaged volume, assembled from its devices as far as possible.

use std::sync::{Arc, OnceLock};

use buttress_block::Device;
use buttress_format::{Chunk, DeviceItem, Key, Kind, Superblock, TreeId, ids};
use buttress_tree::{Geometry, Store, boot};
use buttress_volume::Volume;

use crate::chunks;
use crate::error::{Error, Result};
use crate::identity::{self, Part};
use crate::progress::Progress;
use crate::scan::Scan;
use crate::striped::{Evidence, Order};
use crate::tree::Leaves;

/// How to join the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SalvageOptions {
    /// Whether nodes with wrong checksums are used if they are otherwise valid.
    pub ignore_meta_csums: bool,
    /// Size of the node cache, in bytes.
    pub node_cache_bytes: u64,
}

impl Default for SalvageOptions {
    fn default() -> Self {
        Self { ignore_meta_csums: false, node_cache_bytes: 64 << 20 }
    }
}

/// A damaged volume, for reading.
pub struct Salvage {
    pub(crate) devices: Vec<Arc<dyn Device>>,
    superblock: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) volume: Arc<Volume>,
    pub(crate) store: Store,
    scan: OnceLock<Scan>,
    progress: Arc<dyn Progress + Send>,
    notes: Vec<String>,
}

impl std::fmt::Debug for Salvage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Salvage").field("volume", &self.volume).finish_non_exhaustive()
    }
}

impl Salvage {
    /// Assembles the devices. If neither superblocks nor the chunk tree give the map of chunks, the
    /// devices are scanned.
    ///
    /// # Errors
    ///
    /// When there is no superblock and no node of a tree, or devices of two volumes are given.
    pub fn open(
        devices: Vec<Arc<dyn Device>>,
        options: SalvageOptions,
        progress: Arc<dyn Progress + Send>,
    ) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::NoDevices);
        }
        let parts: Vec<Part> =
            devices.iter().map(|device| Part::read(Arc::clone(device))).collect();
        let mut notes = Vec::new();
        for part in parts.iter().filter(|part| part.superblock.is_none()) {
            notes.push(format!("{}: every copy of the superblock is lost", part.device.name()));
        }
        let scan = OnceLock::new();
        let (superblock, geometry) = match identity::newest(&parts)? {
            Some(superblock) => {
                let geometry = Geometry::of(&superblock);
                (superblock, geometry)
            }
            None => {
                let geometry = identity::geometry(&devices)?;
                let found = Scan::run(&devices, &geometry, &*progress);
                let superblock = identity::superblock_from_nodes(&geometry, &found)?;
                let _ = scan.set(found);
                (superblock, geometry)
            }
        };
        let known = parts.iter().zip(&devices).filter_map(|(part, device)| {
            let item = part.superblock.as_ref()?.dev_item;
            Some((Arc::clone(device), item))
        });
        let known: Vec<_> = known.collect();
        let is_whole = known.len() == devices.len();
        let (volume, store) = joined(&superblock, geometry, known, options);
        let mut salvage =
            Self { devices, superblock, geometry, volume, store, scan, progress, notes };
        let sys = salvage.superblock.sys_chunks.iter().map(|(_, chunk)| chunk.clone()).collect();
        let refused = salvage.volume.salvage_chunks(sys);
        let (chunks, is_readable) = salvage.chunk_tree();
        if is_readable && is_whole && refused.is_empty() {
            salvage.add(chunks);
        } else {
            salvage.rebuild_map(&parts, &chunks, options);
        }
        Ok(salvage)
    }

    /// The superblock in use. If no device has a superblock, the superblock is made from the facts
    /// in nodes.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The problems of the volume as a whole.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The number of nodes in the cache.
    #[must_use]
    pub fn cached_nodes(&self) -> usize {
        self.store.cached_nodes()
    }

    /// All nodes on the devices. The first call scans for them.
    pub(crate) fn scan(&self) -> &Scan {
        self.scan.get_or_init(|| Scan::run(&self.devices, &self.geometry, &*self.progress))
    }

    /// The chunk tree's identifier, which all nodes have in their header.
    pub(crate) fn chunk_tree_uuid(&self) -> Option<[u8; 16]> {
        let found = self.scan().nodes.first()?;
        let expect = buttress_tree::Expect::root(found.ptr());
        let node = crate::scan::read_copy(&self.devices, &self.geometry, found, &expect)?;
        Some(node.header().chunk_tree_uuid)
    }

    pub(crate) fn scan_if_done(&self) -> Option<&Scan> {
        self.scan.get()
    }

    pub(crate) fn progress(&self) -> &dyn Progress {
        &*self.progress
    }

    /// The chunks of the chunk tree, and whether all of it could be read.
    fn chunk_tree(&self) -> (Vec<Chunk>, bool) {
        let mut chunks = Vec::new();
        let tree = Leaves::walk(self, TreeId::CHUNK, boot::chunk_root(&self.superblock), None);
        let gaps = tree.all(self, &mut |key, bytes| {
            if let Some(chunk) = chunk(&key, bytes) {
                chunks.push(chunk);
            }
        });
        (chunks, gaps.is_empty())
    }

    fn add(&mut self, chunks: Vec<Chunk>) {
        let is_new = |chunk: &Chunk| self.volume.chunk_at(chunk.logical).is_none();
        let chunks = chunks.into_iter().filter(is_new).collect();
        for (chunk, error) in self.volume.salvage_chunks(chunks) {
            self.notes.push(format!("the chunk at {} is left out: {error}", chunk.logical));
        }
    }

    /// Assembles the devices again, from the results of a scan.
    fn rebuild_map(&mut self, parts: &[Part], known: &[Chunk], options: SalvageOptions) {
        self.notes.push("the map of chunks is taken from nodes that a scan finds".to_owned());
        let superblocks = parts.iter().filter_map(|part| part.superblock.as_ref());
        let items = superblocks.map(|superblock| superblock.dev_item).collect();
        // The superblock has the chunks that hold the chunk tree, and they are the newest.
        let system = self.superblock.sys_chunks.iter().map(|(_, chunk)| chunk.clone());
        let known: Vec<Chunk> = known.iter().cloned().chain(system).collect();
        let facts = chunks::gather(&self.devices, &self.geometry, self.scan(), &known, items);
        let mut joined_devices: Vec<(Arc<dyn Device>, DeviceItem)> = Vec::new();
        let mut numbers = vec![None; parts.len()];
        for (index, part) in parts.iter().enumerate() {
            let item = part.superblock.as_ref().map(|superblock| superblock.dev_item);
            let item = item.or_else(|| {
                let (id, uuid) = chunks::number_of(index as u32, self.scan(), &facts.chunks)
                    .or_else(|| {
                        let is_alone = self.devices.len() == 1 && facts.devices.len() == 1;
                        let only = facts.devices.first().filter(|_| is_alone)?;
                        Some((only.devid, only.uuid))
                    })?;
                Some(identity::item(id, part.device.len(), uuid, self.geometry.fsid))
            });
            numbers[index] = item.map(|item| item.devid);
            match item {
                Some(item) => joined_devices.push((Arc::clone(&part.device), item)),
                None => self.notes.push(format!(
                    "{}: nothing tells which device of the volume it is",
                    part.device.name()
                )),
            }
        }
        (self.volume, self.store) =
            joined(&self.superblock, self.geometry, joined_devices, options);
        self.add(facts.chunks);
        let evidence = Evidence {
            devices: &self.devices,
            numbers,
            geometry: &self.geometry,
            found: self.scan(),
            has_log: self.superblock.log_root.0 != 0,
        };
        let mut ordered = Vec::new();
        let mut notes = Vec::new();
        for (it, outcome) in facts.unordered.iter().zip(evidence.order(&facts.unordered)) {
            let at = it.chunk.logical;
            match outcome {
                Order::Known(chunk) => ordered.push(chunk),
                Order::Partly(chunk) => {
                    notes.push(format!("the chunk at {at}: not every device of it has its place"));
                    ordered.push(chunk);
                }
                Order::Unknown => {
                    notes
                        .push(format!("the chunk at {at}: nothing tells the order of its devices"));
                }
            }
        }
        self.add(ordered);
        self.notes.append(&mut notes);
    }
}

fn chunk(key: &Key, bytes: &[u8]) -> Option<Chunk> {
    let is_chunk = key.kind == Kind::CHUNK_ITEM && key.objectid == ids::FIRST_CHUNK_TREE;
    is_chunk.then(|| Chunk::parse(key, bytes).ok()).flatten()
}

fn joined(
    superblock: &Superblock,
    geometry: Geometry,
    devices: Vec<(Arc<dyn Device>, DeviceItem)>,
    options: SalvageOptions,
) -> (Arc<Volume>, Store) {
    let volume = Arc::new(Volume::salvage(superblock, devices));
    let store = Store::new(Arc::clone(&volume), geometry, options.node_cache_bytes)
        .ignoring_csums(options.ignore_meta_csums);
    (volume, store)
}
