//! Extents and their references.
//!
//! # On disk
//!
//! ```text
//! extent item   refs 8 | generation 8 | flags 8
//!               [ first key 17 | level 1 ]        tree blocks without skinny metadata
//!               inline references, ordered by type, within a type by descending hash or address
//! inline        type 1 | root, parent or owner 8                        (tree blocks, owner)
//!               type 1 | root 8 | inode 8 | offset 8 | count 4          (data)
//!               type 1 | parent 8 | count 4                             (shared data)
//! ```

use std::cmp::Reverse;

use crate::{
    Generation, Ino, Key, Kind, Logical, Result, TreeId,
    bytes::{Reader, Writer},
    extent_data_ref_hash,
};

/// Flags of an extent item.
pub struct ExtentFlags;

impl ExtentFlags {
    /// The extent holds file data.
    pub const DATA: u64 = 1;
    /// The extent holds a tree node.
    pub const TREE_BLOCK: u64 = 2;
    /// The reference items of this node's children name the node's address as their parent. The
    /// items do not name the tree of the node.
    pub const FULL_BACKREF: u64 = 256;
}

/// A reference to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackRef {
    /// A reference from a tree. The item does not say which parent node: a search of the tree for
    /// the node's first key finds it.
    TreeBlock {
        /// The tree.
        root: TreeId,
    },
    /// A reference from one parent node, named by its address.
    SharedBlock {
        /// The parent's address.
        parent: Logical,
    },
    /// References from a file.
    Data {
        /// The file's subvolume.
        root: TreeId,
        /// The file's inode number.
        ino: Ino,
        /// The file offset of the file extent item, minus the item's offset within the extent.
        offset: u64,
        /// The number of references.
        count: u32,
    },
    /// References from one leaf, by its address.
    SharedData {
        /// The leaf's address.
        parent: Logical,
        /// The number of references.
        count: u32,
    },
    /// The subvolume that created the extent (simple quotas); not a reference.
    Owner {
        /// The subvolume.
        root: TreeId,
    },
}

impl BackRef {
    /// The item kind of a keyed reference of this variant. An inline reference has the same number
    /// as its type byte.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::TreeBlock { .. } => Kind::TREE_BLOCK_REF,
            Self::SharedBlock { .. } => Kind::SHARED_BLOCK_REF,
            Self::Data { .. } => Kind::EXTENT_DATA_REF,
            Self::SharedData { .. } => Kind::SHARED_DATA_REF,
            Self::Owner { .. } => Kind::EXTENT_OWNER_REF,
        }
    }

    /// The value by which references of one kind are ordered. For a keyed reference it is the key
    /// offset.
    #[must_use]
    pub fn hash(&self) -> u64 {
        match *self {
            Self::TreeBlock { root } | Self::Owner { root } => root.0,
            Self::SharedBlock { parent } | Self::SharedData { parent, .. } => parent.0,
            Self::Data { root, ino, offset, .. } => extent_data_ref_hash(root, ino, offset),
        }
    }

    /// The number of references that this entry counts.
    #[must_use]
    pub fn count(&self) -> u32 {
        match *self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => 1,
            Self::Data { count, .. } | Self::SharedData { count, .. } => count,
            Self::Owner { .. } => 0,
        }
    }

    /// Bytes of this reference inline.
    #[must_use]
    pub fn inline_len(&self) -> usize {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } | Self::Owner { .. } => 9,
            Self::Data { .. } => 29,
            Self::SharedData { .. } => 13,
        }
    }

    fn write_inline(&self, w: &mut Writer) {
        w.u8(self.kind().0);
        match *self {
            Self::TreeBlock { root } | Self::Owner { root } => w.u64(root.0),
            Self::SharedBlock { parent } => w.u64(parent.0),
            Self::Data { root, ino, offset, count } => {
                w.u64(root.0).u64(ino.0).u64(offset).u32(count)
            }
            Self::SharedData { parent, count } => w.u64(parent.0).u32(count),
        };
    }

    fn read_inline(r: &mut Reader<'_>) -> Result<Self> {
        let kind = r.u8()?;
        Ok(match Kind(kind) {
            Kind::TREE_BLOCK_REF => Self::TreeBlock { root: TreeId(r.u64()?) },
            Kind::SHARED_BLOCK_REF => Self::SharedBlock { parent: Logical(r.u64()?) },
            Kind::EXTENT_OWNER_REF => Self::Owner { root: TreeId(r.u64()?) },
            Kind::EXTENT_DATA_REF => Self::read_data(r)?,
            Kind::SHARED_DATA_REF => {
                Self::SharedData { parent: Logical(r.u64()?), count: r.u32()? }
            }
            _ => return Err(r.field("inline reference type", kind.into())),
        })
    }

    /// The payload of a data reference, which is the same inline and keyed.
    fn read_data(r: &mut Reader<'_>) -> Result<Self> {
        let (root, ino) = (TreeId(r.u64()?), Ino(r.u64()?));
        Ok(Self::Data { root, ino, offset: r.u64()?, count: r.u32()? })
    }

    /// Reads a keyed reference.
    ///
    /// # Errors
    ///
    /// If the key's kind is not that of a reference, or the payload has the wrong length.
    pub fn keyed_parse(key: &Key, bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("keyed reference", bytes);
        let found = match key.kind {
            Kind::TREE_BLOCK_REF => Self::TreeBlock { root: TreeId(key.offset) },
            Kind::SHARED_BLOCK_REF => Self::SharedBlock { parent: Logical(key.offset) },
            Kind::EXTENT_DATA_REF => Self::read_data(&mut r)?,
            Kind::SHARED_DATA_REF => {
                Self::SharedData { parent: Logical(key.offset), count: r.u32()? }
            }
            other => return Err(r.field("kind", other.0.into())),
        };
        r.end()?;
        Ok(found)
    }

    /// Key and payload of this reference as a separate item.
    #[must_use]
    pub fn keyed(&self, bytenr: Logical) -> (Key, Vec<u8>) {
        let mut w = Writer::default();
        match *self {
            Self::Data { root, ino, offset, count } => {
                w.u64(root.0).u64(ino.0).u64(offset).u32(count);
            }
            Self::SharedData { count, .. } => {
                w.u32(count);
            }
            _ => {}
        }
        (Key::new(bytenr.0, self.kind(), self.hash()), w.0)
    }
}

/// An extent's item: key (address, EXTENT_ITEM, length) or (address, METADATA_ITEM, level).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentItem {
    /// Number of references, inline and keyed together.
    pub refs: u64,
    /// Transaction that allocated the extent.
    pub generation: Generation,
    /// [`ExtentFlags`].
    pub flags: u64,
    /// First key and level of a tree block of a volume without skinny metadata.
    pub tree_block: Option<(Key, u8)>,
    /// The inline references.
    pub inline: Vec<BackRef>,
}

impl ExtentItem {
    /// Bytes without inline references.
    pub const HEAD_LEN: usize = 24;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// If the item is cut short or has a reference of an unknown kind.
    pub fn parse(key: &Key, bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("extent item", bytes);
        let (refs, generation, flags) = (r.u64()?, Generation(r.u64()?), r.u64()?);
        let tree_block = if flags & ExtentFlags::TREE_BLOCK != 0 && key.kind == Kind::EXTENT_ITEM {
            Some((Key::parse(r.take(Key::LEN)?)?, r.u8()?))
        } else {
            None
        };
        let mut inline = Vec::new();
        while r.left() > 0 {
            inline.push(BackRef::read_inline(&mut r)?);
        }
        Ok(Self { refs, generation, flags, tree_block, inline })
    }

    /// Bytes that the item takes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        Self::HEAD_LEN
            + if self.tree_block.is_some() { 18 } else { 0 }
            + self.inline.iter().map(BackRef::inline_len).sum::<usize>()
    }

    /// The item's bytes, references in the order that the format demands.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(self.byte_len());
        w.u64(self.refs).u64(self.generation.0).u64(self.flags);
        if let Some((key, level)) = &self.tree_block {
            w.bytes(&key.to_bytes()).u8(*level);
        }
        let mut ordered = self.inline.clone();
        ordered.sort_by_key(|r| (r.kind(), Reverse(r.hash())));
        for entry in ordered {
            entry.write_inline(&mut w);
        }
        w.0
    }
}
