//! The Merkle tree of one file with fs-verity, and what it proves.
//!
//! # Invariants
//!
//! - **V2** A block of the tree is used only after its own hash was compared, up to the root hash
//!   in the descriptor. It is then remembered with the file, because the items of a tree never
//!   change while the file has the flag.

use std::collections::HashMap;
use std::sync::Arc;

use buttress_base::{Rank, Ranked};
use buttress_format::{
    Ino, Key, Kind, MerkleHasher, TreeId, TreeShape, VerityDescriptor, VerityItem, join_pieces,
};
use buttress_txn::View;

use crate::error::{Error, Result};

/// The most bytes of its tree that one file remembers. With SHA-256 and blocks of 4 KiB, the lowest
/// level then covers 64 MiB of content.
const KNOWN_BYTES_MAX: usize = 512 << 10;

/// Level and index of a block of a tree.
type Place = (usize, u64);

/// The Merkle tree of one file, as far as it was read.
#[derive(Debug)]
pub struct VerityTree {
    tree: TreeId,
    ino: Ino,
    descriptor: VerityDescriptor,
    shape: TreeShape,
    hasher: MerkleHasher,
    /// Blocks that match the root hash (V2).
    known: Ranked<HashMap<Place, Arc<Vec<u8>>>>,
}

impl VerityTree {
    /// Reads the descriptor of a file of `len` bytes.
    pub(crate) fn load(view: &View, (tree, ino): (TreeId, Ino), len: u64) -> Result<Self> {
        let damaged = |what| Error::Verity { tree, ino, offset: 0, what };
        let kind = Kind::VERITY_DESC_ITEM;
        let item = view.get(tree, &Key::new(ino.0, kind, 0))?;
        let item = item.ok_or_else(|| damaged("its descriptor is missing"))?;
        let size = VerityItem::parse(&item).map_err(|_| damaged("its descriptor is damaged"))?.size;
        // The size was bounded when the item was parsed.
        let bytes = read_pieces(view, (tree, ino, kind), 1, 0, size as usize)?;
        let bytes = bytes.ok_or_else(|| damaged("a part of its descriptor is missing"))?;
        let descriptor = VerityDescriptor::parse(&bytes);
        let descriptor = descriptor.map_err(|_| damaged("its descriptor is damaged"))?;
        if descriptor.data_size != len {
            return Err(damaged("its descriptor is of a file of another length"));
        }
        let (shape, hasher) = (descriptor.shape(), descriptor.hasher());
        let known = Ranked::new(Rank::Leaf, HashMap::new());
        Ok(Self { tree, ino, descriptor, shape, hasher, known })
    }

    /// The descriptor of the file.
    #[must_use]
    pub fn descriptor(&self) -> &VerityDescriptor {
        &self.descriptor
    }

    /// The error for a read at an offset of the file.
    pub(crate) fn damaged(&self, offset: u64, what: &'static str) -> Error {
        Error::Verity { tree: self.tree, ino: self.ino, offset, what }
    }

    /// Compares blocks of content with the tree. `offset` is at the start of a block, and the
    /// bytes end at the end of a block or of the file.
    pub(crate) fn verify(&self, view: &View, offset: u64, bytes: &[u8]) -> Result<()> {
        let size = self.descriptor.block_size();
        let first = offset / size as u64;
        for (index, block) in (first..).zip(bytes.chunks(size)) {
            self.expect(view, 0, index, &self.hasher.block(block), index * size as u64)?;
        }
        Ok(())
    }

    /// Compares the hash of a block, which lies below `level`, with the hash that the tree has for
    /// it. `offset` is the place in the file that is read.
    fn expect(
        &self,
        view: &View,
        level: usize,
        index: u64,
        hash: &[u8],
        offset: u64,
    ) -> Result<()> {
        if level == self.shape.levels() {
            if index == 0 && hash == self.descriptor.root_hash() {
                return Ok(());
            }
            return Err(self.damaged(offset, "its hash is not the root hash"));
        }
        let (above, place) = self.shape.hash_at(index);
        let block = self.block(view, (level, above), offset)?;
        if block.get(place..place + hash.len()) == Some(hash) {
            return Ok(());
        }
        Err(self.damaged(offset, "the Merkle tree has another hash"))
    }

    /// A block of the tree that matches the root hash (V2).
    fn block(&self, view: &View, place: Place, offset: u64) -> Result<Arc<Vec<u8>>> {
        if let Some(known) = self.known.lock().get(&place) {
            return Ok(Arc::clone(known));
        }
        let (level, index) = place;
        let short = || self.damaged(offset, "a part of the Merkle tree is missing");
        let at = self.shape.block_at(level, index).ok_or_else(short)?;
        let kind = Kind::VERITY_MERKLE_ITEM;
        let len = self.descriptor.block_size();
        let block = read_pieces(view, (self.tree, self.ino, kind), 0, at, len)?;
        let block = Arc::new(block.ok_or_else(short)?);
        self.expect(view, level + 1, index, &self.hasher.block(&block), offset)?;
        let mut known = self.known.lock();
        let known_max = (KNOWN_BYTES_MAX / len).max(8);
        if known.len() >= known_max {
            // The few blocks of higher levels stay: each of them leads to many others.
            known.retain(|(level, _), _| *level > 0);
            if known.len() >= known_max {
                known.clear();
            }
        }
        known.insert(place, Arc::clone(&block));
        Ok(block)
    }
}

/// Reads `len` bytes at `at` from the items of one kind; the first item has the offset `base`.
/// `None` when items are missing.
fn read_pieces(
    view: &View,
    (tree, ino, kind): (TreeId, Ino, Kind),
    base: u64,
    at: u64,
    len: usize,
) -> Result<Option<Vec<u8>>> {
    let key = |offset: u64| Key::new(ino.0, kind, base.saturating_add(offset));
    let end = at.saturating_add(len as u64);
    let first = match view.at_or_before(tree, &key(0), &key(at))? {
        Some((first, _)) => first,
        None => return Ok(None),
    };
    let skip = at - (first.offset - base);
    let mut bytes = Vec::with_capacity(len);
    for found in view.range(tree, first, key(end.saturating_sub(1))) {
        let (key, item) = found?;
        let start = key.offset - first.offset;
        if join_pieces(&mut bytes, start, &item).is_err() {
            return Ok(None);
        }
    }
    let skip = usize::try_from(skip).unwrap_or(usize::MAX);
    let part = skip.checked_add(len).and_then(|end| bytes.get(skip..end));
    Ok(part.map(<[u8]>::to_vec))
}
