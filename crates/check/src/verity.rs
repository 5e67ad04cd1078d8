//! fs-verity of one file: its descriptor, and its Merkle tree from the root hash down.
//!
//! # Place
//!
//! The check of an inode calls this when it has seen all items of the inode. The items are read
//! again, because leaves are checked side by side, and a tree is compared in order: its blocks are
//! stored from the top level on. The content of the file is not compared; each read of it is.

use buttress_format::{
    CompatRo, Ino, InodeItem, Key, Kind, MerkleHasher, TreeShape, VERITY_DESCRIPTOR_MAX,
    VerityDescriptor, VerityItem, ids, join_pieces,
};
use buttress_tree::Cursor;

use crate::context::{Context, Tree};
use crate::source::Source;

/// The fault of a file that has the flag of fs-verity, or `None` if it has none. A node that cannot
/// be read is reported elsewhere.
pub(crate) fn fault(
    context: &Context<'_>,
    tree: &Tree,
    ino: Ino,
    item: &InodeItem,
) -> Option<&'static str> {
    if !context.superblock.compat_ro.has(CompatRo::VERITY) {
        return Some("the superblock does not name the feature");
    }
    let first = Key::new(ino.0, Kind::VERITY_DESC_ITEM, 0);
    let mut cursor = Cursor::seek(&context.source, tree.id, tree.root, &first).ok()?;
    let descriptor = match descriptor(&mut cursor, ino)? {
        Ok(descriptor) => descriptor,
        Err(why) => return Some(why),
    };
    if descriptor.data_size != item.size {
        return Some("its descriptor is of a file of another length");
    }
    let mut tree = MerkleWalk::new(&descriptor);
    while let Some(key) = cursor.key().filter(|key| key.objectid == ino.0) {
        if key.kind != Kind::VERITY_MERKLE_ITEM {
            break;
        }
        if let Err(why) = tree.add(key.offset, cursor.item()?) {
            return Some(why);
        }
        cursor.advance().ok()?;
    }
    tree.finish().err()
}

/// Whether an orphan item makes the next mount remove what is left of an inode.
pub(crate) fn has_orphan(context: &Context<'_>, tree: &Tree, ino: Ino) -> bool {
    let key = Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, ino.0);
    matches!(Cursor::find(&context.source, tree.id, tree.root, &key), Ok(Some(_)))
}

/// Reads the items of the descriptor. `None` if a node cannot be read.
fn descriptor(
    cursor: &mut Cursor<'_, Source<'_>>,
    ino: Ino,
) -> Option<Result<VerityDescriptor, &'static str>> {
    let (mut head, mut bytes) = (None, Vec::new());
    while let Some(key) = cursor.key().filter(|key| key.objectid == ino.0) {
        if key.kind != Kind::VERITY_DESC_ITEM {
            break;
        }
        let item = cursor.item()?;
        let is_whole = match key.offset.checked_sub(1) {
            None => VerityItem::parse(item).map(|item| head = Some(item)).is_ok(),
            Some(at) => {
                join_pieces(&mut bytes, at, item).is_ok() && bytes.len() <= VERITY_DESCRIPTOR_MAX
            }
        };
        if !is_whole {
            return Some(Err("an item of its descriptor is damaged"));
        }
        cursor.advance().ok()?;
    }
    let Some(head) = head else { return Some(Err("its descriptor is missing")) };
    if head.size != bytes.len() as u64 {
        return Some(Err("a part of its descriptor is missing"));
    }
    Some(VerityDescriptor::parse(&bytes).map_err(|_| "its descriptor is damaged"))
}

/// Compares a tree while its bytes come in the order of the disk.
struct MerkleWalk {
    hasher: MerkleHasher,
    shape: TreeShape,
    block_size: usize,
    /// Bytes that came so far.
    at: u64,
    /// The block that is not whole yet.
    block: Vec<u8>,
    /// The level of that block, counted from the root hash, and its index.
    level: usize,
    index: u64,
    /// The hashes that the blocks of this level must have, and the hashes for the next level.
    hashes: Vec<u8>,
    below: Vec<u8>,
}

impl MerkleWalk {
    fn new(descriptor: &VerityDescriptor) -> Self {
        let shape = descriptor.shape();
        Self {
            hasher: descriptor.hasher(),
            block_size: descriptor.block_size(),
            at: 0,
            block: Vec::new(),
            level: shape.levels(),
            shape,
            index: 0,
            hashes: descriptor.root_hash().to_vec(),
            below: Vec::new(),
        }
    }

    fn add(&mut self, offset: u64, mut bytes: &[u8]) -> Result<(), &'static str> {
        if offset != self.at || bytes.is_empty() {
            return Err("a part of its Merkle tree is missing");
        }
        self.at += bytes.len() as u64;
        if self.at > self.shape.bytes() {
            return Err("there are items after the end of its Merkle tree");
        }
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(self.block_size - self.block.len()));
            self.block.extend_from_slice(part);
            bytes = rest;
            if self.block.len() == self.block_size {
                self.close()?;
            }
        }
        Ok(())
    }

    /// Compares a whole block.
    fn close(&mut self) -> Result<(), &'static str> {
        let hash = self.hasher.block(&self.block);
        let at = usize::try_from(self.index).unwrap_or(usize::MAX).saturating_mul(hash.len());
        if self.hashes.get(at..at.saturating_add(hash.len())) != Some(&hash[..]) {
            return Err("a block of its Merkle tree does not match the hash above it");
        }
        let level = self.level.saturating_sub(1);
        if level > 0 {
            self.below.extend_from_slice(&self.block);
        }
        self.block.clear();
        self.index += 1;
        if self.shape.block_at(level, self.index).is_none() {
            self.hashes = std::mem::take(&mut self.below);
            (self.level, self.index) = (level, 0);
        }
        Ok(())
    }

    fn finish(&self) -> Result<(), &'static str> {
        let is_whole = self.at == self.shape.bytes();
        if is_whole { Ok(()) } else { Err("a part of its Merkle tree is missing") }
    }
}
