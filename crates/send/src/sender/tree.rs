//! One subvolume, read item by item.
//!
//! # Invariants
//!
//! - **T1** Only committed nodes are read: a subvolume that is sent is read-only, and was committed
//!   before the walk.

use std::collections::BTreeMap;

use buttress_format::{
    Body, DirEntry, FileExtent, Ino, InodeExtrefs, InodeItem, InodeRefs, Key, Kind, RootFlags,
    RootItem, RootRef, TreeId, name_hash,
};
use buttress_tree::{Cursor, NodePtr, Store};
use buttress_txn::View;

use crate::error::{Error, Result};
use crate::stream::Source;

/// One name of an inode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Link {
    pub(super) parent: Ino,
    pub(super) name: Vec<u8>,
}

/// The properties of an inode besides its content.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    pub(super) item: InodeItem,
    /// Sorted. Empty only for the top directory of the subvolume.
    pub(super) links: Vec<Link>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

pub(super) const TYPE: u32 = 0o170_000;
pub(super) const DIRECTORY: u32 = 0o040_000;
pub(super) const REGULAR: u32 = 0o100_000;
pub(super) const SYMLINK: u32 = 0o120_000;

pub(super) fn is_dir(item: &InodeItem) -> bool {
    item.mode & TYPE == DIRECTORY
}

/// Attributes that a new inode inherits from its directory.
const INHERITED: [&[u8]; 2] = [b"btrfs.compression", b"system.posix_acl_default"];

/// Whether inodes that a receiver makes in this directory inherit attributes. The inode that is
/// sent may lack these attributes.
pub(super) fn has_inheritable_xattrs(inode: &Inode) -> bool {
    INHERITED.iter().any(|name| inode.xattrs.contains_key(*name))
}

/// Whether a new inode takes over an attribute of this name from its directory.
pub(super) fn is_inherited(name: &[u8]) -> bool {
    INHERITED.contains(&name)
}

/// A piece of a file: an extent item and the bytes of the file that it stands for.
#[derive(Clone, Debug)]
pub(super) struct Mapping {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) extent: FileExtent,
}

/// A committed subvolume.
pub(crate) struct Tree<'v> {
    view: &'v View,
    pub(super) id: TreeId,
    pub(super) root: NodePtr,
    item: RootItem,
}

impl<'v> Tree<'v> {
    /// Finds a subvolume; it must be read-only.
    pub(crate) fn open(view: &'v View, id: TreeId) -> Result<Self> {
        if !id.is_fs_tree() {
            return Err(Error::NotSubvolume);
        }
        let low = Key::new(id.0, Kind::ROOT_ITEM, 0);
        let high = Key::new(id.0, Kind::ROOT_ITEM, u64::MAX);
        let found = view.at_or_before(TreeId::ROOT, &low, &high)?;
        let (_, bytes) = found.ok_or(Error::NotSubvolume)?;
        let item =
            RootItem::parse(&bytes).map_err(|source| format(TreeId::ROOT, Ino(id.0), source))?;
        if item.flags & RootFlags::READONLY == 0 {
            return Err(Error::NotReadOnly);
        }
        let root = view.committed_root(id)?.ok_or(Error::NotSubvolume)?;
        Ok(Self { view, id, root, item })
    }

    /// Returns the name that sender and receiver share for the subvolume.
    pub(crate) fn source(&self) -> Source {
        let received = self.item.received_uuid != [0; 16];
        let uuid = if received { self.item.received_uuid } else { self.item.uuid };
        Source { uuid, ctransid: self.item.ctransid.0 }
    }

    pub(crate) fn root_item(&self) -> &RootItem {
        &self.item
    }

    /// Returns the name of the subvolume in its directory.
    pub(super) fn name(&self) -> Result<Vec<u8>> {
        let low = Key::new(self.id.0, Kind::ROOT_BACKREF, 0);
        let high = Key::new(self.id.0, Kind::ROOT_BACKREF, u64::MAX);
        let found = self.view.at_or_after(TreeId::ROOT, &low, &high)?;
        let (_, bytes) = found.ok_or(Error::TopLevel)?;
        let place = RootRef::parse(&bytes)
            .map_err(|source| format(TreeId::ROOT, Ino(self.id.0), source))?;
        Ok(place.name)
    }

    pub(super) fn store(&self) -> &'v Store {
        self.view.store()
    }

    pub(super) fn sector(&self) -> u64 {
        u64::from(self.store().geometry().sectorsize)
    }

    pub(super) fn damaged(&self, ino: Ino, what: &'static str) -> Error {
        Error::Damaged { tree: self.id, ino, what }
    }

    pub(super) fn format(&self, ino: Ino, source: buttress_format::Error) -> Error {
        format(self.id, ino, source)
    }

    pub(super) fn seek(&self, key: &Key) -> Result<Cursor<'v, Store>> {
        Ok(Cursor::seek(self.store(), self.id, self.root, key)?)
    }

    /// Returns the inode's item, or `None` for an inode without a name, which no path reaches.
    pub(super) fn inode_item(&self, ino: Ino) -> Result<Option<InodeItem>> {
        let key = Key::new(ino.0, Kind::INODE_ITEM, 0);
        let Some((node, slot)) = Cursor::find(self.store(), self.id, self.root, &key)? else {
            return Ok(None);
        };
        let item = InodeItem::parse(node.item(slot)).map_err(|source| self.format(ino, source))?;
        Ok((item.nlink > 0).then_some(item))
    }

    /// Returns all properties of an inode, or `None` for an inode without a name.
    pub(super) fn inode(&self, ino: Ino) -> Result<Option<Inode>> {
        let mut cursor = self.seek(&Key::new(ino.0, Kind::INODE_ITEM, 0))?;
        let mut item = None;
        let mut links = Vec::new();
        let mut xattrs = BTreeMap::new();
        while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
            if key.objectid != ino.0 || key.kind > Kind::XATTR_ITEM {
                break;
            }
            let wrong = |source| self.format(ino, source);
            match key.kind {
                Kind::INODE_ITEM => item = Some(InodeItem::parse(bytes).map_err(wrong)?),
                Kind::INODE_REF if ino != Ino::ROOT_DIR => {
                    let refs = InodeRefs::parse(bytes).map_err(wrong)?;
                    let parent = Ino(key.offset);
                    links.extend(refs.into_iter().map(|found| Link { parent, name: found.name }));
                }
                Kind::INODE_EXTREF => {
                    let refs = InodeExtrefs::parse(bytes).map_err(wrong)?;
                    let link = |found: buttress_format::InodeExtref| Link {
                        parent: found.parent,
                        name: found.name,
                    };
                    links.extend(refs.into_iter().map(link));
                }
                Kind::XATTR_ITEM => {
                    let entries = DirEntry::parse_all(bytes).map_err(wrong)?;
                    xattrs.extend(entries.into_iter().map(|entry| (entry.name, entry.data)));
                }
                _ => {}
            }
            cursor.advance()?;
        }
        let Some(item) = item.filter(|item| item.nlink > 0) else { return Ok(None) };
        if links.is_empty() && ino != Ino::ROOT_DIR {
            return Err(self.damaged(ino, "it has no name and counts one"));
        }
        if is_dir(&item) && links.len() > 1 {
            return Err(self.damaged(ino, "a directory with several names"));
        }
        links.sort();
        Ok(Some(Inode { item, links, xattrs }))
    }

    /// The inode's first name.
    pub(super) fn first_link(&self, ino: Ino) -> Result<Option<Link>> {
        Ok(self.inode(ino)?.and_then(|inode| inode.links.into_iter().next()))
    }

    /// Returns the inode that a name in a directory leads to. Returns `None` for a nested
    /// subvolume, because nested subvolumes are not sent.
    pub(super) fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        let key = Key::new(dir.0, Kind::DIR_ITEM, name_hash(name));
        let Some((node, slot)) = Cursor::find(self.store(), self.id, self.root, &key)? else {
            return Ok(None);
        };
        let entries =
            DirEntry::parse_all(node.item(slot)).map_err(|source| self.format(dir, source))?;
        let entry = entries.into_iter().find(|entry| entry.name == name);
        let inode = entry.filter(|entry| entry.location.kind == Kind::INODE_ITEM);
        Ok(inode.map(|entry| Ino(entry.location.objectid)))
    }

    /// Returns the first mapping that ends after `offset`.
    pub(super) fn mapping(&self, ino: Ino, offset: u64) -> Result<Option<Mapping>> {
        let mut found = None;
        self.mappings(ino, offset, |mapping| {
            found = Some(mapping);
            Ok(false)
        })?;
        Ok(found)
    }

    /// Visits the mappings that end after `offset`, in order, until `visit` returns false. A hole
    /// has a mapping or lies between two mappings.
    pub(super) fn mappings(
        &self,
        ino: Ino,
        offset: u64,
        mut visit: impl FnMut(Mapping) -> Result<bool>,
    ) -> Result<()> {
        let key = Key::new(ino.0, Kind::EXTENT_DATA, offset);
        let mut cursor = Cursor::seek_before(self.store(), self.id, self.root, &key)?;
        let ours = |key: &Key| key.objectid == ino.0 && key.kind == Kind::EXTENT_DATA;
        if cursor.key().is_none_or(|key| !ours(&key)) {
            cursor = self.seek(&key)?;
        }
        let mut last_end = 0;
        while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
            if !ours(&key) {
                break;
            }
            let extent = FileExtent::parse(bytes).map_err(|source| self.format(ino, source))?;
            let len = match &extent.body {
                Body::Inline(_) => extent.ram_bytes.max(1).next_multiple_of(self.sector()),
                Body::Regular(region) | Body::Prealloc(region) => region.len,
            };
            let end = key.offset.checked_add(len).filter(|end| *end <= i64::MAX as u64);
            let end = end.ok_or_else(|| self.damaged(ino, "an extent beyond the largest file"))?;
            if key.offset < last_end {
                return Err(self.damaged(ino, "two extents that overlap"));
            }
            last_end = end;
            if end > offset && !visit(Mapping { start: key.offset, end, extent })? {
                break;
            }
            cursor.advance()?;
        }
        Ok(())
    }
}

fn format(tree: TreeId, ino: Ino, source: buttress_format::Error) -> Error {
    Error::Volume(buttress_fs::Error::Format { tree, ino, source })
}
