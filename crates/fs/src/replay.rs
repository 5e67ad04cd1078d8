//! Replays a log of fsync when a volume is mounted for writing.
//!
//! # Place
//!
//! `txn` has found the log and claimed its space. This module adds the log's items to the running
//! transaction. The mount commits that transaction before any other operation begins.
//!
//! # Invariants
//!
//! - **P1** One handle holds the whole replay. So either a commit contains all of it, or the log
//!   stays for the next mount.
//! - **P2** For all objects in the log, the log overrides the trees. Other objects do not change.
//!   An inode item with generation zero only records that the inode exists.
//! - **P3** After the replay each touched inode has as many links as names. An inode without names
//!   becomes an orphan.
//!
//! # Order
//!
//! The replay handles inodes first, with deletions in directories. Then come entries of
//! directories, and then attributes, names and extents. Linux uses the same order, and a log is
//! correct only for this order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use buttress_data::{File, Files};
use buttress_format::{
    DirEntry, Extent, Generation, Ino, InodeExtrefs, InodeItem, InodeRef, InodeRefs, Key, Kind,
    Logical, Superblock, TreeId, ids,
};
use buttress_items::inode_refs::RefLimits;
use buttress_items::{
    Batch, Error, FileKind, InodeId, NameError, Result, entry_len, names, orphan, roots,
};
use buttress_tree::Payload;
use buttress_txn::{Cost, Engine, Handle, ReserveClass, SubvolumeLog, View};

use crate::inodes::read_item;

/// The most items that the replay of one log item may change.
const ITEMS_EACH: u64 = 8;

/// Replays the found log into the trees, if there is one.
pub(crate) fn replay(engine: &Engine, files: &Files, superblock: &Superblock) -> Result<()> {
    let Some(logs) = engine.commits().take_log() else { return Ok(()) };
    let items = logs.iter().map(|log| log.items.len() as u64).sum::<u64>() * ITEMS_EACH + 64;
    let bytes: u64 = logs.iter().flat_map(|log| log.items.values()).map(|i| i.len() as u64).sum();
    let clip = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    // A reservation that waits could commit (P1). So if there is too little space at once, the
    // replay goes on without reserved space. A commit that runs out of space fails and leaves the
    // log unchanged.
    let cost = Cost::of(clip(items), clip(bytes * 4));
    let reservation = match engine.reserve_at_once(cost, ReserveClass::Free)? {
        Some(reservation) => reservation,
        None => engine
            .reserve_at_once(Cost::default(), ReserveClass::Free)?
            .ok_or(buttress_txn::Error::NoSpace("replaying the fsync log"))?,
    };
    let handle = engine.begin(reservation);
    for log in &logs {
        let view = engine.view();
        if !log.tree.is_fs_tree() || roots::root_entry(&view, log.tree)?.is_none() {
            tracing::warn!(tree = %log.tree, "the fsync log is about a subvolume that is gone");
            continue;
        }
        drop(view);
        Replay::new((engine, files, superblock), &handle, log).run()?;
    }
    drop(handle);
    engine.commit()?;
    tracing::info!(items = items / ITEMS_EACH, "replayed an fsync log");
    Ok(())
}

/// The replay of one subvolume's log.
struct Replay<'a> {
    engine: &'a Engine,
    files: &'a Files,
    superblock: &'a Superblock,
    handle: &'a Handle<'a>,
    tree: TreeId,
    log: &'a BTreeMap<Key, Payload>,
    open: HashMap<Ino, Rc<File>>,
    /// Inodes with names that must be counted (P3).
    recount: BTreeSet<Ino>,
}

impl<'a> Replay<'a> {
    fn new(
        (engine, files, superblock): (&'a Engine, &'a Files, &'a Superblock),
        handle: &'a Handle<'a>,
        log: &'a SubvolumeLog,
    ) -> Self {
        let (open, recount) = (HashMap::new(), BTreeSet::new());
        Self { engine, files, superblock, handle, tree: log.tree, log: &log.items, open, recount }
    }

    fn run(mut self) -> Result<()> {
        // An inode that had no name when it was logged cannot be found, so it is left out.
        let mut nameless = BTreeSet::new();
        for (key, item) in self.of_kind(Kind::INODE_ITEM) {
            let ino = Ino(key.objectid);
            let item = InodeItem::parse(item).map_err(|source| self.format(ino, source))?;
            if item.nlink == 0 {
                nameless.insert(ino);
            } else {
                self.inode(ino, &item)?;
            }
        }
        for (key, item) in self.of_kind(Kind::DIR_INDEX) {
            if !nameless.contains(&Ino(key.objectid)) {
                self.entry(Ino(key.objectid), key.offset, item)?;
            }
        }
        let log = self.log;
        for (key, item) in log.iter().filter(|(key, _)| !nameless.contains(&Ino(key.objectid))) {
            match key.kind {
                Kind::XATTR_ITEM => self.handle.put(self.tree, *key, item),
                Kind::INODE_REF | Kind::INODE_EXTREF => self.refs(*key, item)?,
                Kind::EXTENT_DATA => self.extent(*key, item)?,
                _ => {}
            }
        }
        self.count_links()
    }

    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&'a Key, &'a Payload)> + use<'a> {
        let log = self.log;
        log.iter().filter(move |(key, _)| key.kind == kind)
    }

    fn format(&self, ino: Ino, source: buttress_format::Error) -> Error {
        Error::Format { tree: self.tree, ino, source }
    }

    fn damaged<T>(&self, ino: Ino, what: &'static str) -> Result<T> {
        Err(Error::Item { tree: self.tree, ino, what })
    }

    /// The present trees, with all items that are replayed so far.
    fn view(&self) -> Arc<View> {
        self.engine.view()
    }

    fn file(&mut self, ino: Ino) -> Result<Option<Rc<File>>> {
        if let Some(file) = self.open.get(&ino) {
            return Ok(Some(Rc::clone(file)));
        }
        let item = read_item(&self.view(), InodeId { tree: self.tree, ino })?;
        Ok(item.map(|item| self.keep(ino, item)))
    }

    fn keep(&mut self, ino: Ino, item: InodeItem) -> Rc<File> {
        let file = Rc::new(File::new(self.tree, ino, item));
        self.open.insert(ino, Rc::clone(&file));
        file
    }

    fn put_inode(&mut self, ino: Ino, item: InodeItem) -> Rc<File> {
        let file = self.keep(ino, item);
        file.update(self.handle, |_| ());
        file
    }

    fn inode(&mut self, ino: Ino, logged: &InodeItem) -> Result<()> {
        let kind = FileKind::from_mode(logged.mode);
        let Some(kind) = kind else { return self.damaged(ino, "the log has it without a type") };
        let is_dir = kind == FileKind::Directory;
        let there = self.file(ino)?;
        self.drop_attributes(ino)?;
        if is_dir && there.is_some() {
            for range in self.deleted_ranges(ino)? {
                self.drop_entries(ino, range, false)?;
            }
        }
        let there = there.map(|file| file.item());
        if there.is_some_and(|there| FileKind::from_mode(there.mode) != Some(kind)) {
            return self.damaged(ino, "the log has it as another type of file");
        }
        let file = match there {
            None => {
                // `nbytes` and the size of a directory grow again when the replay adds extents and
                // entries.
                let size = if is_dir { 0 } else { logged.size };
                let mut item = InodeItem { nbytes: 0, size, ..*logged };
                if item.generation == Generation(0) {
                    item.generation = self.handle.generation();
                }
                self.put_inode(ino, item)
            }
            Some(there) if logged.generation == Generation(0) => {
                let grown = kind == FileKind::Regular && logged.size != 0;
                let size = if grown { logged.size } else { there.size };
                self.put_inode(ino, InodeItem { size, ..there })
            }
            Some(there) => {
                let size = if is_dir { there.size } else { logged.size };
                self.put_inode(ino, InodeItem { nbytes: there.nbytes, size, ..*logged })
            }
        };
        if kind == FileKind::Regular {
            self.files.replay_length(self.handle, &file)?;
        }
        self.recount.insert(ino);
        Ok(())
    }

    /// Removes attributes that the log does not have. A log has all attributes of its inodes.
    fn drop_attributes(&mut self, ino: Ino) -> Result<()> {
        let view = self.view();
        let (low, high) = span(ino, Kind::XATTR_ITEM);
        let items: Vec<_> = view.range(self.tree, low, high).collect::<Result<_, _>>()?;
        drop(view);
        for (key, item) in items {
            let logged = match self.log.get(&key) {
                Some(logged) => names::parse(self.tree, ino, logged)?,
                None => Vec::new(),
            };
            let mut entries = names::parse(self.tree, ino, &item)?;
            entries.retain(|entry| logged.iter().any(|other| other.name == entry.name));
            self.put_entries(key, &entries);
        }
        Ok(())
    }

    fn put_entries(&self, key: Key, entries: &[DirEntry]) {
        if entries.is_empty() {
            self.handle.delete(self.tree, key);
        } else {
            self.handle.put(self.tree, key, DirEntry::encode_all(entries));
        }
    }

    /// Index ranges of a directory for which the log has every entry.
    fn deleted_ranges(&self, dir: Ino) -> Result<Vec<(u64, u64)>> {
        let (low, high) = span(dir, Kind::DIR_LOG_INDEX);
        let mut ranges = Vec::new();
        for (key, item) in self.log.range(low..=high) {
            let Some(last) = item.first_chunk::<8>() else {
                return self.damaged(dir, "a range of deleted names in the log is cut short");
            };
            ranges.push((key.offset, u64::from_le_bytes(*last)));
        }
        Ok(ranges)
    }

    /// Removes the entries of a range that the log does not have.
    fn drop_entries(&mut self, dir: Ino, range: (u64, u64), all: bool) -> Result<()> {
        let key = |index| Key::new(dir.0, Kind::DIR_INDEX, index);
        let view = self.view();
        let items = view.range(self.tree, key(range.0), key(range.1));
        let items: Vec<_> = items.collect::<Result<_, _>>()?;
        drop(view);
        for (key, item) in items {
            let logged = self.log.get(&key).filter(|_| !all);
            let logged = match logged {
                Some(logged) => names::parse(self.tree, dir, logged)?,
                None => Vec::new(),
            };
            for entry in names::parse(self.tree, dir, &item)? {
                if !logged.iter().any(|other| other.name == entry.name) {
                    self.unlink(dir, key.offset, &entry)?;
                }
            }
        }
        Ok(())
    }

    /// Removes an entry from a directory, and its reference from the inode.
    fn unlink(&mut self, dir: Ino, index: u64, entry: &DirEntry) -> Result<()> {
        if entry.location.kind != Kind::INODE_ITEM {
            return self.damaged(dir, "the log takes the name of a subvolume");
        }
        let view = self.view();
        let key = names::item_key(dir, &entry.name);
        if let Some(item) = view.get(self.tree, &key)? {
            let mut entries = names::parse(self.tree, dir, &item)?;
            let before = entries.len();
            entries.retain(|other| other.name != entry.name || other.location != entry.location);
            if entries.len() < before {
                self.put_entries(key, &entries);
            }
        }
        drop(view);
        self.handle.delete(self.tree, Key::new(dir.0, Kind::DIR_INDEX, index));
        let ino = Ino(entry.location.objectid);
        self.forget_ref(ino, dir, &entry.name)?;
        self.resize(dir, |size| size.saturating_sub(names::size_of(&entry.name)))?;
        self.recount.insert(ino);
        Ok(())
    }

    fn resize(&mut self, dir: Ino, change: impl FnOnce(u64) -> u64) -> Result<()> {
        if let Some(file) = self.file(dir)? {
            file.update(self.handle, |item| item.size = change(item.size));
        }
        Ok(())
    }

    /// Removes a name from an inode's references, plain or extended.
    fn forget_ref(&mut self, ino: Ino, dir: Ino, name: &[u8]) -> Result<()> {
        let view = self.view();
        let mut batch = Batch::new(self.tree);
        match batch.remove_ref(&view, ino, dir, name) {
            Ok(_) => {
                drop(view);
                batch.apply(self.handle);
            }
            // The inode has no such reference: the directory had a superfluous entry, which the
            // replay has removed.
            Err(Error::Item { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The names in one reference item of an inode.
    fn parse_refs(&self, key: Key, item: &[u8]) -> Result<Vec<(Ino, InodeRef)>> {
        let ino = Ino(key.objectid);
        let fail = |source| self.format(ino, source);
        if key.kind == Kind::INODE_REF {
            let refs = InodeRefs::parse(item).map_err(fail)?;
            return Ok(refs.into_iter().map(|found| (Ino(key.offset), found)).collect());
        }
        let refs = InodeExtrefs::parse(item).map_err(fail)?;
        let plain = refs
            .into_iter()
            .map(|found| (found.parent, InodeRef { index: found.index, name: found.name }));
        Ok(plain.collect())
    }

    fn current_refs(&self, key: Key) -> Result<Vec<(Ino, InodeRef)>> {
        match self.view().get(self.tree, &key)? {
            Some(item) => self.parse_refs(key, &item),
            None => Ok(Vec::new()),
        }
    }

    /// Replays one reference item of the log: adds its names, and removes names that only the old
    /// item has.
    fn refs(&mut self, key: Key, item: &[u8]) -> Result<()> {
        let ino = Ino(key.objectid);
        let logged = self.parse_refs(key, item)?;
        let Some(file) = self.file(ino)? else { return Ok(()) };
        for (dir, _) in &logged {
            if self.file(*dir)?.is_none() {
                return Ok(());
            }
        }
        for (dir, old) in self.current_refs(key)? {
            let stays = |(to, new): &(Ino, InodeRef)| *to == dir && new.name == old.name;
            if !logged.iter().any(stays) {
                self.unlink(dir, old.index, &entry_of(&file, &old.name))?;
            }
        }
        for (dir, new) in &logged {
            // The reference of a subvolume's top directory has a name that is in no directory.
            if ino != *dir {
                self.name(*dir, new.index, &entry_of(&file, &new.name))?;
            }
        }
        self.handle.put(self.tree, key, item);
        self.recount.insert(ino);
        Ok(())
    }

    /// Ensures that a directory has this entry at this index. Entries with the same name or index
    /// lose their name.
    fn name(&mut self, dir: Ino, index: u64, entry: &DirEntry) -> Result<()> {
        let there = self.entry_at(dir, index)?;
        let named = names::find(&self.view(), self.id(dir), &entry.name)?;
        let is_it = |other: &Option<DirEntry>| {
            let same = |o: &DirEntry| o.name == entry.name && o.location == entry.location;
            other.as_ref().is_some_and(same)
        };
        if is_it(&there) && is_it(&named) {
            return Ok(());
        }
        if let Some(there) = there {
            self.unlink(dir, index, &there)?;
        }
        if let Some(named) = names::find(&self.view(), self.id(dir), &entry.name)? {
            let index = self.index_of(dir, &named)?.unwrap_or(index);
            self.unlink(dir, index, &named)?;
        }
        self.add_entry(dir, index, entry)
    }

    fn id(&self, ino: Ino) -> InodeId {
        InodeId { tree: self.tree, ino }
    }

    fn entry_at(&self, dir: Ino, index: u64) -> Result<Option<DirEntry>> {
        let key = Key::new(dir.0, Kind::DIR_INDEX, index);
        let Some(item) = self.view().get(self.tree, &key)? else { return Ok(None) };
        Ok(names::parse(self.tree, dir, &item)?.into_iter().next())
    }

    /// The index of an entry, from the reference of its inode. Without a reference, searches the
    /// directory.
    fn index_of(&self, dir: Ino, entry: &DirEntry) -> Result<Option<u64>> {
        let key = Key::new(entry.location.objectid, Kind::INODE_REF, dir.0);
        let refs = self.current_refs(key)?;
        match refs.into_iter().find(|(_, found)| found.name == entry.name) {
            Some((_, found)) => Ok(Some(found.index)),
            None => names::index_of(&self.view(), self.id(dir), &entry.name),
        }
    }

    fn add_entry(&mut self, dir: Ino, index: u64, entry: &DirEntry) -> Result<()> {
        let key = names::item_key(dir, &entry.name);
        let mut entries = match self.view().get(self.tree, &key)? {
            Some(item) => names::parse(self.tree, dir, &item)?,
            None => Vec::new(),
        };
        let mut entry = entry.clone();
        entry.transid = self.handle.generation();
        let len: usize = entries.iter().map(entry_len).sum();
        if len + entry_len(&entry) > RefLimits::of(self.superblock).item_len_max {
            return Err(NameError::TooBig.into());
        }
        self.handle.put(self.tree, Key::new(dir.0, Kind::DIR_INDEX, index), entry.to_bytes());
        entries.push(entry);
        self.put_entries(key, &entries);
        let name = entries.last().map(|entry| names::size_of(&entry.name)).unwrap_or_default();
        self.resize(dir, |size| size.saturating_add(name))
    }

    /// Replays an entry of a directory that was logged with all its entries.
    fn entry(&mut self, dir: Ino, index: u64, item: &[u8]) -> Result<()> {
        for entry in names::parse(self.tree, dir, item)? {
            if entry.location.kind != Kind::INODE_ITEM || self.file(dir)?.is_none() {
                continue;
            }
            let ino = Ino(entry.location.objectid);
            let exists = self.file(ino)?.is_some();
            let same = |other: &Option<DirEntry>| {
                other.as_ref().is_some_and(|other| {
                    other.name == entry.name && other.location == entry.location
                })
            };
            let there = self.entry_at(dir, index)?;
            let named = names::find(&self.view(), self.id(dir), &entry.name)?;
            // Skip entries that exist already, entries that the logged references of their inode
            // will add later, and entries of missing inodes.
            if same(&there) && same(&named) || !exists || self.log_names(ino, dir, &entry.name)? {
                continue;
            }
            self.name(dir, index, &entry)?;
            let view = self.view();
            let mut batch = Batch::new(self.tree);
            let limits = RefLimits::of(self.superblock);
            batch.add_ref(&view, ino, dir, index, &entry.name, limits)?;
            drop(view);
            batch.apply(self.handle);
            self.recount.insert(ino);
        }
        Ok(())
    }

    /// Whether the log has this name in the references of an inode.
    fn log_names(&self, ino: Ino, dir: Ino, name: &[u8]) -> Result<bool> {
        let keys = [
            Key::new(ino.0, Kind::INODE_REF, dir.0),
            Key::new(ino.0, Kind::INODE_EXTREF, buttress_format::extref_hash(dir, name)),
        ];
        for key in keys {
            if let Some(item) = self.log.get(&key) {
                let refs = self.parse_refs(key, item)?;
                if refs.iter().any(|(to, found)| *to == dir && found.name == name) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    fn extent(&mut self, key: Key, item: &[u8]) -> Result<()> {
        let Some(file) = self.file(Ino(key.objectid))? else { return Ok(()) };
        match self.files.replay_extent(self.handle, &file, key, item)? {
            Some(range) => {
                self.handle.note_written(range);
                self.sums(range)
            }
            None => Ok(()),
        }
    }

    /// Adds checksums of the log for sectors that have none in the trees.
    fn sums(&self, range: Extent) -> Result<()> {
        let sector = u64::from(self.superblock.sectorsize);
        let size = self.superblock.csum_type.size();
        let known = self.engine.read_csums(&self.view(), range)?;
        let mut run: Option<(Logical, Vec<u8>)> = None;
        for index in 0..=known.sectors() {
            let at = range.start.end(index as u64 * sector);
            let wanted = index < known.sectors() && known.sector(index).is_none();
            match (self.logged_sum(at, sector, size).filter(|_| wanted), &mut run) {
                (Some(sum), Some((_, sums))) => sums.extend_from_slice(sum),
                (Some(sum), none) => *none = Some((at, sum.to_vec())),
                (None, some) => {
                    if let Some((start, sums)) = some.take() {
                        self.handle.insert_csums(Extent::new(start, at.distance(start)), sums);
                    }
                }
            }
        }
        Ok(())
    }

    fn logged_sum(&self, at: Logical, sector: u64, size: usize) -> Option<&'a [u8]> {
        let key = |at: u64| Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at);
        let (start, sums) = self.log.range(key(0)..=key(at.0)).next_back()?;
        let index = ((at.0 - start.offset) / sector) as usize;
        sums.get(index * size..(index + 1) * size)
    }

    /// Counts the names of the touched inodes (P3).
    fn count_links(&mut self) -> Result<()> {
        while let Some(ino) = self.recount.pop_first() {
            let Some(file) = self.file(ino)? else { continue };
            let mut names = 0;
            for kind in [Kind::INODE_REF, Kind::INODE_EXTREF] {
                let (low, high) = span(ino, kind);
                for found in self.view().range(self.tree, low, high) {
                    let (key, item) = found?;
                    names += self.parse_refs(key, &item)?.len() as u32;
                }
            }
            if file.with_item(|item| item.nlink) != names {
                file.update(self.handle, |item| item.nlink = names);
            }
            let orphan = orphan::key(ino);
            if names > 0 {
                if self.view().get(self.tree, &orphan)?.is_some() {
                    self.handle.delete(self.tree, orphan);
                }
                continue;
            }
            if FileKind::from_mode(file.with_item(|i| i.mode)) == Some(FileKind::Directory) {
                self.drop_entries(ino, (0, u64::MAX), true)?;
            }
            self.handle.put(self.tree, orphan, Vec::new());
        }
        Ok(())
    }
}

/// The keys of one kind that an inode can have.
fn span(ino: Ino, kind: Kind) -> (Key, Key) {
    (Key::new(ino.0, kind, 0), Key::new(ino.0, kind, u64::MAX))
}

fn entry_of(file: &File, name: &[u8]) -> DirEntry {
    let mode = file.with_item(|item| item.mode);
    DirEntry {
        location: Key::new(file.ino().0, Kind::INODE_ITEM, 0),
        transid: Generation(0),
        kind: buttress_format::FileKind::from_mode(mode),
        name: name.to_vec(),
        data: Vec::new(),
    }
}
