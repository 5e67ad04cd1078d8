//! Replays a log of fsync in memory: the result is a tree with changes on top of it.
//!
//! # Invariants
//!
//! - **RP1** For all objects in the log, the log overrides the tree. Other objects do not change.
//!   An inode item with generation zero only records that the inode exists.
//! - **RP2** Nothing is made up for what a damaged tree has lost. A replay that needs a lost item
//!   leaves the object as it is.
//!
//! # Order
//!
//! The order is that of a mount: inodes first, with deletions in directories, then entries of
//! directories, then attributes, names and extents. A log is correct only for this order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use buttress_format::{
    DirEntry, FileExtent, FileKind, Generation, Ino, InodeExtref, InodeExtrefs, InodeItem,
    InodeRef, InodeRefs, Key, Kind,
};

use crate::names::{entry_of, inode_key, name_key, parse_refs, ref_keys, span};
use crate::pieces;
use crate::salvage::Salvage;
use crate::tree::{Leaves, Overlay};

/// The items of a log, as they are on the devices.
pub(crate) type Items = BTreeMap<Key, Vec<u8>>;

/// What a log changes in the tree of its subvolume.
pub(crate) fn over(salvage: &Salvage, tree: Leaves, log: &Items) -> Overlay {
    let mut replay = Replay { salvage, tree, log, recount: BTreeSet::new() };
    replay.run();
    Arc::unwrap_or_clone(replay.tree.over)
}

struct Replay<'r> {
    salvage: &'r Salvage,
    /// The tree, with all items that are replayed so far.
    tree: Leaves,
    log: &'r Items,
    /// Inodes with names that must be counted.
    recount: BTreeSet<Ino>,
}

impl<'r> Replay<'r> {
    fn run(&mut self) {
        // An inode that had no name when it was logged cannot be found, so it is left out.
        let mut nameless = BTreeSet::new();
        for (key, item) in self.of_kind(Kind::INODE_ITEM) {
            let Ok(item) = InodeItem::parse(item) else { continue };
            if item.nlink == 0 {
                nameless.insert(Ino(key.objectid));
            } else {
                self.inode(Ino(key.objectid), &item);
            }
        }
        let is_left_out = |key: &Key| nameless.contains(&Ino(key.objectid));
        for (key, item) in self.of_kind(Kind::DIR_INDEX).filter(|(key, _)| !is_left_out(key)) {
            self.entries(Ino(key.objectid), key.offset, item);
        }
        let mut inodes = BTreeSet::new();
        for (key, item) in self.log.iter().filter(|(key, _)| !is_left_out(key)) {
            match key.kind {
                Kind::XATTR_ITEM => self.put(*key, Some(item.clone())),
                Kind::INODE_REF | Kind::INODE_EXTREF => self.refs(*key, item),
                Kind::INODE_ITEM | Kind::EXTENT_DATA => {
                    inodes.insert(Ino(key.objectid));
                }
                _ => {}
            }
        }
        for ino in inodes {
            self.extents(ino);
        }
        self.count_links();
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&'r Key, &'r Vec<u8>)> + use<'r> {
        let log = self.log;
        log.iter().filter(move |(key, _)| key.kind == kind)
    }

    fn put(&mut self, key: Key, item: Option<Vec<u8>>) {
        Arc::make_mut(&mut self.tree.over).items.insert(key, item);
    }

    fn put_entries(&mut self, key: Key, entries: &[DirEntry]) {
        self.put(key, (!entries.is_empty()).then(|| DirEntry::encode_all(entries)));
    }

    /// The items of a range, and whether some may be lost.
    fn range(&self, keys: RangeInclusive<Key>) -> (Vec<(Key, Vec<u8>)>, bool) {
        let mut items = Vec::new();
        let (from, to) = keys.into_inner();
        let gaps = self.tree.items(self.salvage, &from, to.next().as_ref(), &mut |key, bytes| {
            items.push((key, bytes.to_vec()));
        });
        (items, !gaps.is_empty())
    }

    fn get(&self, key: Key) -> Option<Vec<u8>> {
        self.range(key..=key).0.pop().map(|(_, item)| item)
    }

    fn names_at(&self, key: Key) -> Vec<DirEntry> {
        self.get(key).and_then(|item| DirEntry::parse_all(&item).ok()).unwrap_or_default()
    }

    fn item(&self, ino: Ino) -> Option<InodeItem> {
        InodeItem::parse(&self.get(inode_key(ino))?).ok()
    }

    fn inode(&mut self, ino: Ino, logged: &InodeItem) {
        let kind = FileKind::from_mode(logged.mode);
        let (there, may_be_lost) = self.range(inode_key(ino)..=inode_key(ino));
        let there = there.first().and_then(|(_, item)| InodeItem::parse(item).ok());
        if there.is_some_and(|there| FileKind::from_mode(there.mode) != kind) {
            return;
        }
        self.drop_attributes(ino);
        if kind == FileKind::Directory {
            for (from, to) in self.deleted_ranges(ino) {
                self.drop_entries(ino, from..=to, false);
            }
        }
        let is_known = logged.generation == Generation(0);
        let item = match there {
            // The item says neither size nor owner, and the tree has lost them (RP2).
            None if is_known && may_be_lost => return,
            None => *logged,
            Some(there) if is_known => {
                let grown = kind == FileKind::Regular && logged.size != 0;
                InodeItem { size: if grown { logged.size } else { there.size }, ..there }
            }
            Some(_) => *logged,
        };
        self.put(inode_key(ino), Some(item.to_bytes()));
        if !is_known {
            Arc::make_mut(&mut self.tree.over).whole.insert(ino);
        }
        self.recount.insert(ino);
    }

    /// Removes attributes that the log does not have. A log has all attributes of its inodes.
    fn drop_attributes(&mut self, ino: Ino) {
        for (key, item) in self.range(span(ino, Kind::XATTR_ITEM)).0 {
            let Ok(mut entries) = DirEntry::parse_all(&item) else { continue };
            let logged = self.logged_names(&key);
            entries.retain(|entry| logged.iter().any(|other| other.name == entry.name));
            self.put_entries(key, &entries);
        }
    }

    fn logged_names(&self, key: &Key) -> Vec<DirEntry> {
        let item = self.log.get(key).map_or(&[][..], Vec::as_slice);
        DirEntry::parse_all(item).unwrap_or_default()
    }

    /// Index ranges of a directory for which the log has every entry.
    fn deleted_ranges(&self, dir: Ino) -> Vec<(u64, u64)> {
        let ranges = self.log.range(span(dir, Kind::DIR_LOG_INDEX));
        let last = |item: &Vec<u8>| item.first_chunk().map(|last| u64::from_le_bytes(*last));
        ranges.filter_map(|(key, item)| Some((key.offset, last(item)?))).collect()
    }

    /// Removes the entries of a range that the log does not have, or all.
    fn drop_entries(&mut self, dir: Ino, range: RangeInclusive<u64>, all: bool) {
        let (from, to) = range.into_inner();
        if from > to {
            return;
        }
        let key = |index| Key::new(dir.0, Kind::DIR_INDEX, index);
        for (key, item) in self.range(key(from)..=key(to)).0 {
            let logged = if all { Vec::new() } else { self.logged_names(&key) };
            for entry in DirEntry::parse_all(&item).unwrap_or_default() {
                if !logged.iter().any(|other| other.name == entry.name) {
                    self.unlink(dir, key.offset, &entry);
                }
            }
        }
    }

    /// Removes an entry from a directory, and its reference from the inode.
    fn unlink(&mut self, dir: Ino, index: u64, entry: &DirEntry) {
        if entry.location.kind != Kind::INODE_ITEM {
            return;
        }
        let key = name_key(dir, &entry.name);
        let mut entries = self.names_at(key);
        let before = entries.len();
        entries.retain(|other| other.name != entry.name || other.location != entry.location);
        if entries.len() < before {
            self.put_entries(key, &entries);
        }
        self.put(Key::new(dir.0, Kind::DIR_INDEX, index), None);
        let ino = Ino(entry.location.objectid);
        self.forget_ref(ino, dir, &entry.name);
        self.recount.insert(ino);
    }

    /// Removes a name from an inode's references, plain or extended.
    fn forget_ref(&mut self, ino: Ino, dir: Ino, name: &[u8]) {
        for key in ref_keys(ino, dir, name) {
            let mut refs = self.current_refs(key);
            let before = refs.len();
            refs.retain(|(to, found)| *to != dir || found.name != name);
            if refs.len() < before {
                self.put_refs(key, refs);
                return;
            }
        }
    }

    fn put_refs(&mut self, key: Key, refs: Vec<(Ino, InodeRef)>) {
        let item = if key.kind == Kind::INODE_REF {
            let refs: Vec<InodeRef> = refs.into_iter().map(|(_, found)| found).collect();
            (!refs.is_empty()).then(|| InodeRefs::encode(&refs))
        } else {
            let extended = |(parent, InodeRef { index, name })| InodeExtref { parent, index, name };
            let refs: Vec<InodeExtref> = refs.into_iter().map(extended).collect();
            (!refs.is_empty()).then(|| InodeExtrefs::encode(&refs))
        };
        self.put(key, item);
    }

    fn current_refs(&self, key: Key) -> Vec<(Ino, InodeRef)> {
        self.get(key).map(|item| parse_refs(key, &item)).unwrap_or_default()
    }

    /// Replays one reference item of the log: adds its names, and removes names that only the old
    /// item has.
    fn refs(&mut self, key: Key, item: &[u8]) {
        let ino = Ino(key.objectid);
        let logged = parse_refs(key, item);
        let Some(inode) = self.item(ino) else { return };
        if logged.iter().any(|(dir, _)| self.item(*dir).is_none()) {
            return;
        }
        for (dir, old) in self.current_refs(key) {
            if !logged.iter().any(|(to, new)| *to == dir && new.name == old.name) {
                self.unlink(dir, old.index, &entry_of(ino, &inode, &old.name));
            }
        }
        for (dir, new) in &logged {
            // The reference of a subvolume's top directory has a name that is in no directory.
            if ino != *dir {
                self.name(*dir, new.index, &entry_of(ino, &inode, &new.name));
            }
        }
        self.put(key, Some(item.to_vec()));
        self.recount.insert(ino);
    }

    /// Ensures that a directory has this entry at this index. Entries with the same name or index
    /// lose their name.
    fn name(&mut self, dir: Ino, index: u64, entry: &DirEntry) {
        let there = self.entry_at(dir, index);
        let named = self.named(dir, &entry.name);
        let is_it = |other: &Option<DirEntry>| {
            other.as_ref().is_some_and(|o| o.name == entry.name && o.location == entry.location)
        };
        if is_it(&there) && is_it(&named) {
            return;
        }
        if let Some(there) = there {
            self.unlink(dir, index, &there);
        }
        if let Some(named) = self.named(dir, &entry.name) {
            let index = self.index_of(dir, &named).unwrap_or(index);
            self.unlink(dir, index, &named);
        }
        let key = name_key(dir, &entry.name);
        let mut entries = self.names_at(key);
        entries.push(entry.clone());
        self.put_entries(key, &entries);
        self.put(Key::new(dir.0, Kind::DIR_INDEX, index), Some(entry.to_bytes()));
    }

    fn entry_at(&self, dir: Ino, index: u64) -> Option<DirEntry> {
        self.names_at(Key::new(dir.0, Kind::DIR_INDEX, index)).into_iter().next()
    }

    fn named(&self, dir: Ino, name: &[u8]) -> Option<DirEntry> {
        self.names_at(name_key(dir, name)).into_iter().find(|entry| entry.name == name)
    }

    /// The index of an entry, from the reference of its inode, plain or extended.
    fn index_of(&self, dir: Ino, entry: &DirEntry) -> Option<u64> {
        let keys = ref_keys(Ino(entry.location.objectid), dir, &entry.name);
        let refs = keys.into_iter().flat_map(|key| self.current_refs(key));
        let mut is_it = refs.filter(|(to, found)| *to == dir && found.name == entry.name);
        is_it.next().map(|(_, found)| found.index)
    }

    /// Replays the entries of a directory that was logged with all its entries.
    fn entries(&mut self, dir: Ino, index: u64, item: &[u8]) {
        for entry in DirEntry::parse_all(item).unwrap_or_default() {
            let ino = Ino(entry.location.objectid);
            // References in the log add their names later.
            let is_later = ref_keys(ino, dir, &entry.name).into_iter().any(|key| {
                let refs = self.log.get(&key).map(|item| parse_refs(key, item));
                refs.is_some_and(|refs| {
                    refs.iter().any(|(to, found)| *to == dir && found.name == entry.name)
                })
            });
            let is_inode = entry.location.kind == Kind::INODE_ITEM;
            let is_there = is_inode && self.item(dir).is_some() && self.item(ino).is_some();
            if !is_there || is_later {
                continue;
            }
            self.name(dir, index, &entry);
            if self.index_of(dir, &entry).is_none() {
                let key = ref_keys(ino, dir, &entry.name)[0];
                let mut refs = self.current_refs(key);
                refs.push((dir, InodeRef { index, name: entry.name.clone() }));
                self.put_refs(key, refs);
            }
            self.recount.insert(ino);
        }
    }

    /// Replays the length and the extents of one inode.
    fn extents(&mut self, ino: Ino) {
        let Some(inode) = self.item(ino) else { return };
        let sector = u64::from(self.salvage.superblock().sectorsize);
        let parsed = |(key, item): (&Key, &Vec<u8>)| {
            FileExtent::parse(item).ok().map(|extent| (key.offset, extent))
        };
        let (old, _) = self.range(span(ino, Kind::EXTENT_DATA));
        let old: BTreeMap<u64, FileExtent> =
            old.iter().filter_map(|(key, item)| parsed((key, item))).collect();
        let mut new = old.clone();
        let is_regular = FileKind::from_mode(inode.mode) == FileKind::Regular;
        if is_regular && self.log.contains_key(&inode_key(ino)) {
            pieces::cut(&mut new, pieces::ceil(inode.size, sector)..u64::MAX, sector);
        }
        for (offset, extent) in self.log.range(span(ino, Kind::EXTENT_DATA)).filter_map(parsed) {
            pieces::cut(&mut new, offset..pieces::end(offset, &extent, sector), sector);
            new.insert(offset, extent);
        }
        let key = |offset| Key::new(ino.0, Kind::EXTENT_DATA, offset);
        for offset in old.keys().filter(|offset| !new.contains_key(offset)) {
            self.put(key(*offset), None);
        }
        for (offset, extent) in &new {
            if old.get(offset) != Some(extent) {
                self.put(key(*offset), Some(extent.to_bytes()));
            }
        }
    }

    /// Counts the names of the touched inodes. A directory without names loses its entries.
    fn count_links(&mut self) {
        while let Some(ino) = self.recount.pop_first() {
            let Some(inode) = self.item(ino) else { continue };
            let mut names = 0;
            let mut may_lack = false;
            for kind in [Kind::INODE_REF, Kind::INODE_EXTREF] {
                let (items, is_lost) = self.range(span(ino, kind));
                may_lack |= is_lost;
                names +=
                    items.iter().map(|(key, item)| parse_refs(*key, item).len()).sum::<usize>();
            }
            if may_lack {
                continue;
            }
            let nlink = u32::try_from(names).unwrap_or(u32::MAX);
            if inode.nlink != nlink {
                self.put(inode_key(ino), Some(InodeItem { nlink, ..inode }.to_bytes()));
            }
            if nlink == 0 && FileKind::from_mode(inode.mode) == FileKind::Directory {
                self.drop_entries(ino, 0..=u64::MAX, true);
            }
        }
    }
}
