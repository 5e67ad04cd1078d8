//! From the superblock's few chunks to the whole map: reads the chunk tree.

use buttress_format::{Chunk, DeviceItem, Key, Kind, Superblock, TreeId, ids};

use crate::{Cursor, Error, NodePtr, Result, Store};

/// What the chunk tree says.
#[derive(Clone, Debug, Default)]
pub struct ChunkTree {
    /// Every device item.
    pub devices: Vec<DeviceItem>,
    /// Every chunk, ascending.
    pub chunks: Vec<Chunk>,
}

/// The root of the chunk tree.
#[must_use]
pub fn chunk_root(superblock: &Superblock) -> NodePtr {
    NodePtr {
        logical: superblock.chunk_root,
        generation: superblock.chunk_root_generation,
        level: superblock.chunk_root_level,
    }
}

/// The root of the root tree.
#[must_use]
pub fn root_tree_root(superblock: &Superblock) -> NodePtr {
    NodePtr {
        logical: superblock.root,
        generation: superblock.generation,
        level: superblock.root_level,
    }
}

/// Reads the chunk tree through the chunks that the superblock carries and tells the volume of the
/// rest. The tree itself lives in the superblock's chunks, so one pass is enough. What was bad is put right when all are known.
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
    let volume = store.volume();
    let missing =
        found.chunks.iter().filter(|c| volume.chunk_at(c.logical).is_none()).cloned().collect();
    volume.add_chunks(missing)?;
    volume.has_all_chunks();
    Ok(found)
}
