//! Reads the chunk map: starts from the few chunks in the superblock, and reads the chunk tree or
//! looks up single chunks in it.
//!
//! # What must hold
//!
//! - A lookup of a chunk never waits for a thread that itself waits for a chunk.

use std::sync::Arc;

use buttress_format::{Chunk, DeviceItem, Key, Kind, Logical, RootBackup, Superblock, TreeId, ids};
use buttress_volume::{ChunkSource, Volume};

use crate::{Cursor, Error, Geometry, NodePtr, Result, Store};

/// The contents of the chunk tree.
#[derive(Clone, Debug, Default)]
pub struct ChunkTree {
    /// Every device item.
    pub devices: Vec<DeviceItem>,
    /// Every chunk, ascending.
    pub chunks: Vec<Chunk>,
}

/// The root of the chunk tree. Costs O(1).
#[must_use]
pub fn chunk_root(superblock: &Superblock) -> NodePtr {
    NodePtr {
        logical: superblock.chunk_root,
        generation: superblock.chunk_root_generation,
        level: superblock.chunk_root_level,
    }
}

/// The root of the root tree. Costs O(1).
#[must_use]
pub fn root_tree_root(superblock: &Superblock) -> NodePtr {
    NodePtr {
        logical: superblock.root,
        generation: superblock.generation,
        level: superblock.root_level,
    }
}

/// The older roots that a superblock names, newest first. Costs O(1), since a superblock has four.
#[must_use]
pub fn backups(superblock: &Superblock) -> Vec<RootBackup> {
    let mut backups = superblock.backups.to_vec();
    backups.retain(|backup| backup.tree_root.0 != 0);
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root_gen));
    backups
}

/// Switches to an older root. If the chunk tree is newer than that root, the backup of the chunk
/// tree is used, too. Otherwise the present chunk tree has not changed since the older root, so it
/// is kept. Costs O(1).
pub fn go_back(superblock: &mut Superblock, backup: &RootBackup) {
    superblock.root = backup.tree_root;
    superblock.root_level = backup.tree_root_level;
    superblock.generation = backup.tree_root_gen;
    superblock.bytes_used = backup.bytes_used;
    superblock.log_root = Logical(0);
    if superblock.chunk_root_generation > backup.tree_root_gen {
        superblock.chunk_root = backup.chunk_root;
        superblock.chunk_root_level = backup.chunk_root_level;
        superblock.chunk_root_generation = backup.chunk_root_gen;
    }
}

/// Reads the chunk tree through the chunks that the superblock carries, and adds all other chunks
/// to the volume. All nodes of the chunk tree lie in the superblock's chunks, so one pass is
/// enough. The volume repairs bad copies once it knows all chunks. Reads each node of the tree
/// once: O(n) for n chunks and devices.
///
/// # Errors
///
/// When the tree is damaged or its chunks are impossible.
pub fn load_chunks(store: &Store, superblock: &Superblock) -> Result<ChunkTree> {
    let mut found = ChunkTree::default();
    let root = chunk_root(superblock);
    let mut cursor = Cursor::seek(store, TreeId::CHUNK, root, &Key::MIN)?;
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        let malformed = |source| Error::Item { tree: TreeId::CHUNK, key, source };
        match key.kind {
            Kind::DEV_ITEM => found.devices.push(DeviceItem::parse(item).map_err(malformed)?),
            Kind::CHUNK_ITEM if key.objectid == ids::FIRST_CHUNK_TREE => {
                found.chunks.push(Chunk::parse(&key, item).map_err(malformed)?);
            }
            _ => {}
        }
        cursor.advance()?;
    }
    store.volume().check_seeds(&found.devices)?;
    store.volume().add_all_chunks(found.chunks.clone())?;
    Ok(found)
}

/// Reads the device items of the chunk tree. The device items come first in the tree, so the cost
/// does not grow with the number of chunks. Costs O(n) for n devices.
///
/// # Errors
///
/// When the tree is damaged.
pub fn load_devices(store: &Store, superblock: &Superblock) -> Result<Vec<DeviceItem>> {
    let mut found = Vec::new();
    let mut cursor = Cursor::seek(store, TreeId::CHUNK, chunk_root(superblock), &Key::MIN)?;
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        match key.kind {
            Kind::DEV_ITEM => {
                let malformed = |source| Error::Item { tree: TreeId::CHUNK, key, source };
                found.push(DeviceItem::parse(item).map_err(malformed)?);
            }
            Kind::CHUNK_ITEM => break,
            _ => {}
        }
        cursor.advance()?;
    }
    store.volume().check_seeds(&found)?;
    Ok(found)
}

/// Looks up single chunks, for a volume of which the chunk tree was not read as a whole. The source
/// has a node cache of its own. So a thread that waits for a node of the chunk tree never depends
/// on a thread that waits for a chunk.
pub struct ChunkTreeSource {
    store: Store,
    root: NodePtr,
}

/// Memory for nodes of the chunk tree, in bytes.
const SOURCE_CACHE_BYTES: u64 = 4 << 20;

impl ChunkTreeSource {
    /// A source over the chunk tree of the last commit. The tree must not change while the source
    /// is used. Costs O(1). A lookup of a chunk costs O(log n) in the chunks.
    #[must_use]
    pub fn new(volume: Arc<Volume>, geometry: Geometry, superblock: &Superblock) -> Self {
        let store = Store::new(volume, geometry, SOURCE_CACHE_BYTES);
        Self { store, root: chunk_root(superblock) }
    }

    fn find(&self, at: Logical) -> Result<Option<Chunk>> {
        let key = Key::new(ids::FIRST_CHUNK_TREE, Kind::CHUNK_ITEM, at.0);
        let cursor = Cursor::seek_before(&self.store, TreeId::CHUNK, self.root, &key)?;
        let of_chunks =
            |key: &Key| key.objectid == ids::FIRST_CHUNK_TREE && key.kind == Kind::CHUNK_ITEM;
        let Some((key, item)) = cursor.key().filter(of_chunks).zip(cursor.item()) else {
            return Ok(None);
        };
        let malformed = |source| Error::Item { tree: TreeId::CHUNK, key, source };
        let chunk = Chunk::parse(&key, item).map_err(malformed)?;
        Ok((at.distance(chunk.logical) < chunk.len).then_some(chunk))
    }
}

impl ChunkSource for ChunkTreeSource {
    fn chunk_around(
        &self,
        at: Logical,
    ) -> std::result::Result<Option<Chunk>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.find(at)?)
    }
}
