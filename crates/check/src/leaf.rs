//! Checks a leaf item by item. Turns items into records of extents and fragments of inodes, and
//! reports items that do not belong in the tree.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_format::{
    Body, Compression, DirEntry, Error as FormatError, Extent, FileExtent, FileKind, Ino,
    InodeExtrefs, InodeFlags, InodeItem, InodeRefs, Key, Kind, ReplaceItem, RootItem, TreeId,
    extref_hash, ids, name_hash,
};
use buttress_sorter::Writer;
use buttress_tree::{Cursor, Node};

use crate::context::{Context, Tree};
use crate::extent_leaf;
use crate::facts::Item;
use crate::inode::{Fragment, InodeChecker, Run, Span, Sum};
use crate::record::{self, User, WORDS};
use buttress_issue::{Issue, Name};

/// The mode of a file of the old free-space cache.
const CACHE_MODE: u32 = 0o100_600;

/// Looks at leaves of one tree, one after the other.
pub(crate) struct Leaves<'l, 'c> {
    pub(crate) context: &'l Context<'c>,
    pub(crate) tree: &'l Tree,
    pub(crate) checker: InodeChecker<'l, 'c>,
    /// The number and the flags of the inode that was read last.
    flags: Option<(u64, u64)>,
}

impl<'l, 'c> Leaves<'l, 'c> {
    pub(crate) fn new(context: &'l Context<'c>, tree: &'l Tree) -> Self {
        Self { context, tree, checker: InodeChecker::new(context, tree), flags: None }
    }

    /// Forgets the last inode, because leaves are skipped.
    pub(crate) fn forget(&mut self) {
        self.flags = None;
    }

    /// Checks every item. Makes records only for a leaf that is visited for the first time.
    pub(crate) fn leaf(
        &mut self,
        records: &mut Writer<'_, WORDS>,
        node: &Arc<Node>,
        is_new: bool,
    ) -> io::Result<Span> {
        let keys = node.len().checked_sub(1).map(|last| (node.key(0), node.key(last)));
        let mut span = Span::of_keys(keys);
        let mut open: Option<Fragment> = None;
        for slot in 0..node.len() {
            let item = Item { key: node.key(slot), bytes: node.item(slot), leaf: node.logical() };
            if self.tree.id == TreeId::EXTENT {
                extent_leaf::item(self.context, records, &item)?;
                continue;
            }
            if is_new && item.key.kind == Kind::EXTENT_DATA && self.holds_data() {
                self.use_data(records, node, &item)?;
            }
            if !self.tree.has_files() {
                if item.key.kind == Kind::INODE_ITEM && self.wants_sums() {
                    let inode = InodeItem::parse(item.bytes).ok();
                    self.flags = inode.map(|inode| (item.key.objectid, inode.flags));
                }
                self.plain(&item);
                continue;
            }
            if open.as_ref().is_none_or(|open| open.ino.0 != item.key.objectid)
                && let Some(done) = open.replace(Fragment::new(Ino(item.key.objectid)))
            {
                span.push(done, &mut self.checker);
            }
            if let Some(open) = &mut open
                && let Err(error) = self.file_item(open, &item)
            {
                self.malformed(&item, &error);
            }
        }
        if let Some(done) = open {
            span.push(done, &mut self.checker);
        }
        Ok(span)
    }

    fn wants_sums(&self) -> bool {
        self.tree.wants_sums(self.context.rebuilds_sums.load(Ordering::Relaxed))
    }

    /// Whether items of this tree can refer to data.
    fn holds_data(&self) -> bool {
        self.tree.may_share() || self.tree.id == TreeId::ROOT
    }

    fn malformed(&self, item: &Item<'_>, error: &FormatError) {
        let (tree, why) = (self.tree.id, error.to_string());
        self.context.add(Issue::ItemMalformed { tree, logical: item.leaf, key: item.key, why });
    }

    fn unexpected(&self, item: &Item<'_>) {
        let tree = self.tree.id;
        self.context.add(Issue::ItemUnexpected { tree, logical: item.leaf, key: item.key });
    }

    /// Records the use of an extent, and whether its bytes need checksums.
    fn use_data(
        &mut self,
        records: &mut Writer<'_, WORDS>,
        node: &Node,
        item: &Item<'_>,
    ) -> io::Result<()> {
        let Ok(extent) = FileExtent::parse(item.bytes) else { return Ok(()) };
        let Some(region) = extent.region().filter(|region| !region.is_hole()) else {
            return Ok(());
        };
        let (tree, ino, at) = (self.tree.id, Ino(item.key.objectid), item.key.offset);
        let user = if self.context.refers_by_address(node) {
            User::Leaf(node.logical())
        } else {
            // If the extent would begin before offset 0 of the file, the difference wraps, as in
            // Linux.
            User::File(node.owner(), ino, at.wrapping_sub(region.offset))
        };
        let mut used = record::met(region.disk, user, region.disk_len);
        if self.context.owned_nodes.get().is_some() {
            record::set_generation(&mut used, extent.generation);
        }
        records.put(used)?;
        if !self.wants_sums() {
            return Ok(());
        }
        // If the inode item is missing, the flags are unknown. The missing item is reported
        // elsewhere.
        let Some(flags) = self.flags_of(ino) else { return Ok(()) };
        let prealloc = matches!(extent.body, Body::Prealloc(_));
        let wanted = !prealloc && flags & InodeFlags::NODATASUM == 0;
        let range = if extent.compression == Compression::None {
            Extent::new(region.disk.end(region.offset), region.len)
        } else {
            region.extent()
        };
        records.put(record::sums(range, (wanted, !prealloc), tree, ino, at))
    }

    /// Returns the flags of an inode. Its item may lie in an earlier leaf.
    fn flags_of(&mut self, ino: Ino) -> Option<u64> {
        if let Some((known, flags)) = self.flags
            && known == ino.0
        {
            return Some(flags);
        }
        let key = Key::new(ino.0, Kind::INODE_ITEM, 0);
        let found = Cursor::find(&self.context.source, self.tree.id, self.tree.root, &key);
        let item =
            found.ok().flatten().and_then(|(node, slot)| InodeItem::parse(node.item(slot)).ok());
        self.flags = item.map(|item| (ino.0, item.flags));
        item.map(|item| item.flags)
    }

    /// Adds an item to the fragment of its inode.
    pub(crate) fn file_item(
        &mut self,
        inode: &mut Fragment,
        item: &Item<'_>,
    ) -> Result<(), FormatError> {
        let Item { key, bytes, .. } = *item;
        match key.kind {
            Kind::INODE_ITEM => {
                let parsed = InodeItem::parse(bytes)?;
                self.flags = Some((key.objectid, parsed.flags));
                inode.item = Some(parsed);
            }
            Kind::INODE_REF => {
                for name in InodeRefs::parse(bytes)? {
                    self.reference(inode, key.offset, name.index, &name.name);
                }
            }
            Kind::INODE_EXTREF => {
                for name in InodeExtrefs::parse(bytes)? {
                    self.hashed(&key, extref_hash(name.parent, &name.name), &name.name);
                    self.reference(inode, name.parent.0, name.index, &name.name);
                }
            }
            Kind::DIR_ITEM => {
                let entries = DirEntry::parse_all(bytes)?;
                for (index, entry) in entries.iter().enumerate() {
                    self.hashed(&key, name_hash(&entry.name), &entry.name);
                    self.once(&key, &entries[..index], entry);
                    self.entry_kind(item, entry);
                    inode.has_entries = true;
                    inode.looked_up.add(entry_sum(entry));
                }
            }
            Kind::DIR_INDEX => {
                let entries = DirEntry::parse_all(bytes)?;
                if entries.len() != 1 {
                    self.unexpected(item);
                }
                for entry in entries {
                    self.entry_kind(item, &entry);
                    inode.has_entries = true;
                    inode.listed.add(entry_sum(&entry));
                    inode.name_bytes += entry.name.len() as u64;
                    if entry.location.kind == Kind::INODE_ITEM {
                        let words = [key.objectid, key.offset, entry.location.objectid, 0];
                        inode.entries.add(Sum::of(words, &entry.name).mixed_with_kind(entry.kind));
                    }
                }
            }
            Kind::XATTR_ITEM => {
                for entry in DirEntry::parse_all(bytes)? {
                    self.hashed(&key, name_hash(&entry.name), &entry.name);
                    if entry.kind != FileKind::Xattr {
                        self.unexpected(item);
                    }
                }
            }
            Kind::EXTENT_DATA => self.file_extent(inode, &key, &FileExtent::parse(bytes)?),
            Kind::ORPHAN_ITEM if key.objectid == ids::ORPHAN => {
                inode.orphans.add(Sum::of([key.offset, 0, 0, 0], b""));
            }
            Kind::VERITY_DESC_ITEM | Kind::VERITY_MERKLE_ITEM => inode.has_verity_items = true,
            // The inode numbers that old kernels remembered as free.
            _ if key.objectid == ids::FREE_INO => {}
            // The header of an old kernel's cache of free inode numbers.
            Kind(0) if key.objectid == ids::FREE_SPACE_V1 => {
                self.context.add(Issue::InodeCache { tree: self.tree.id, key });
            }
            _ => self.unexpected(item),
        }
        Ok(())
    }

    /// Reports an entry with a name that an entry before it has.
    fn once(&self, key: &Key, before: &[DirEntry], entry: &DirEntry) {
        let mut same = before.iter().filter(|other| other.name == entry.name).peekable();
        if same.peek().is_none() {
            return;
        }
        let (tree, dir, name) = (self.tree.id, Ino(key.objectid), Name(entry.name.clone()));
        self.context.add(match same.any(|other| other.location == entry.location) {
            true => Issue::DirItemDoubled { tree, dir, name },
            false => Issue::NameDoubled { tree, dir, ino: Ino(entry.location.objectid), name },
        });
    }

    fn hashed(&self, key: &Key, hash: u64, name: &[u8]) {
        if key.offset != hash {
            let name = Name(name.to_vec());
            self.context.add(Issue::NameHash { tree: self.tree.id, key: *key, name });
        }
    }

    fn entry_kind(&self, item: &Item<'_>, entry: &DirEntry) {
        let leads_somewhere = match entry.location.kind {
            Kind::INODE_ITEM => entry.location.offset == 0,
            Kind::ROOT_ITEM => entry.kind == FileKind::Directory,
            _ => false,
        };
        let has_kind = !matches!(entry.kind, FileKind::Unknown | FileKind::Xattr);
        if !leads_somewhere || !has_kind || !entry.data.is_empty() {
            self.unexpected(item);
        }
    }

    fn reference(&self, inode: &mut Fragment, dir: u64, index: u64, name: &[u8]) {
        inode.names += 1;
        // The ".." of the root directory is in no directory's list.
        let is_top =
            inode.ino == Ino::ROOT_DIR && dir == inode.ino.0 && index == 0 && name == b"..";
        if !is_top {
            inode.references.add(Sum::of([dir, index, inode.ino.0, 0], name));
        }
    }

    fn file_extent(&self, inode: &mut Fragment, key: &Key, extent: &FileExtent) {
        let (tree, ino, offset) = (self.tree.id, inode.ino, key.offset);
        let invalid = |why| {
            self.context.add(Issue::FileExtentInvalid { tree, ino, offset, why });
        };
        self.context.check_generation(tree, *key, extent.generation);
        let aligned = |number| self.context.is_aligned(number);
        let len = extent.file_len();
        let mut run_len = len;
        match &extent.body {
            Body::Inline(data) => {
                if offset != 0 {
                    invalid("it is inline and not at the front of its file");
                }
                if extent.compression == Compression::None && data.len() as u64 != len {
                    invalid("its inline data has another length than it says");
                }
                let sector = self.context.sectorsize();
                run_len = len.checked_next_multiple_of(sector).unwrap_or(u64::MAX);
            }
            Body::Regular(region) | Body::Prealloc(region) => {
                let numbers = [offset, region.disk.0, region.disk_len, region.offset, region.len];
                if !numbers.into_iter().all(aligned) {
                    invalid("it is not aligned to sectors");
                }
                let is_prealloc = matches!(extent.body, Body::Prealloc(_));
                if is_prealloc && (region.is_hole() || extent.compression != Compression::None) {
                    invalid("it is allocated ahead and a hole, or compressed");
                }
                if region.is_hole() && region.disk_len != 0 {
                    invalid("it is a hole with a length on the device");
                }
            }
        }
        let Some(end) = offset.checked_add(run_len) else {
            invalid("it ends past the end of all files");
            return;
        };
        let is_hole = extent.region().is_some_and(buttress_format::Region::is_hole);
        if !is_hole {
            inode.bytes = inode.bytes.saturating_add(len);
        }
        let written = !is_hole && !matches!(extent.body, Body::Prealloc(_));
        let written_end = if written { end } else { 0 };
        inode.add_extent(Run { start: offset, end, hole: None, written_end });
    }

    /// Checks an inode of the root tree: its directory, or a file of the old free-space cache.
    fn root_inode(&self, ino: Ino, inode: &InodeItem) {
        let is_right = match ino.0 == TreeId::ROOT_DIR.0 {
            true => FileKind::from_mode(inode.mode) == FileKind::Directory,
            false => inode.mode == CACHE_MODE,
        };
        if !is_right {
            self.context.add(Issue::InodeMode { tree: self.tree.id, ino, mode: inode.mode });
        }
    }

    /// Checks an item of a tree that another step checks in detail. Here the item only needs to
    /// belong in the tree and to parse.
    fn plain(&self, item: &Item<'_>) {
        let Item { key, bytes, .. } = *item;
        let outcome = match (self.tree.id, key.kind) {
            (TreeId::ROOT, Kind::ROOT_ITEM) => RootItem::parse(bytes).map(|_| ()),
            (id, Kind::EXTENT_DATA) if id == TreeId::ROOT || self.tree.may_share() => {
                FileExtent::parse(bytes).map(|_| ())
            }
            (TreeId::ROOT, Kind::INODE_ITEM) => {
                InodeItem::parse(bytes).map(|inode| self.root_inode(Ino(key.objectid), &inode))
            }
            (TreeId::DEV, Kind::DEV_REPLACE) => ReplaceItem::parse(bytes).map(|_| ()),
            (id, _) if self.tree.may_share() => {
                let _ = id;
                Ok(())
            }
            (id, kind) if has_place(id, kind) => Ok(()),
            _ => {
                self.unexpected(item);
                Ok(())
            }
        };
        if let Err(error) = outcome {
            self.malformed(item, &error);
        }
    }
}

/// Returns whether a tree of the volume itself may hold items of a kind.
fn has_place(tree: TreeId, kind: Kind) -> bool {
    let kinds: &[Kind] = match tree {
        TreeId::ROOT => &[
            Kind::INODE_ITEM,
            Kind::INODE_REF,
            Kind::DIR_ITEM,
            Kind::DIR_INDEX,
            Kind::XATTR_ITEM,
            Kind::EXTENT_DATA,
            Kind::ORPHAN_ITEM,
            Kind::ROOT_ITEM,
            Kind::ROOT_REF,
            Kind::ROOT_BACKREF,
            Kind::TEMPORARY_ITEM,
            Kind::PERSISTENT_ITEM,
            // The header of the version 1 free space cache.
            Kind(0),
        ],
        TreeId::CHUNK => &[Kind::DEV_ITEM, Kind::CHUNK_ITEM],
        TreeId::DEV => {
            &[Kind::DEV_EXTENT, Kind::PERSISTENT_ITEM, Kind::TEMPORARY_ITEM, Kind::DEV_REPLACE]
        }
        TreeId::CSUM => &[Kind::EXTENT_CSUM],
        TreeId::QUOTA => {
            &[Kind::QGROUP_STATUS, Kind::QGROUP_INFO, Kind::QGROUP_LIMIT, Kind::QGROUP_RELATION]
        }
        TreeId::UUID => &[
            Kind::UUID_KEY_SUBVOL,
            Kind::UUID_KEY_RECEIVED_SUBVOL,
            // Early versions of mkfs.btrfs put a root directory into this tree.
            Kind::INODE_ITEM,
            Kind::INODE_REF,
        ],
        TreeId::FREE_SPACE => {
            &[Kind::FREE_SPACE_INFO, Kind::FREE_SPACE_EXTENT, Kind::FREE_SPACE_BITMAP]
        }
        TreeId::BLOCK_GROUP => &[Kind::BLOCK_GROUP_ITEM],
        TreeId::RAID_STRIPE => &[Kind::RAID_STRIPE],
        _ => return true,
    };
    kinds.contains(&kind)
}

fn entry_sum(entry: &DirEntry) -> Sum {
    let location = entry.location;
    let words = [
        location.objectid,
        u64::from(location.kind.0),
        location.offset,
        u64::from(entry.kind as u8),
    ];
    Sum::of(words, &entry.name)
}
