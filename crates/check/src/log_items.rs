//! Checks the contents of the logs of fsync: what the next mount replays.
//!
//! # Place
//!
//! The module `log` has found the logs, and has read each of their nodes. The checks of single
//! items are those for subvolumes (`leaf`); they run with the log as a tree of the next
//! transaction.
//!
//! # What a log may leave out
//!
//! A log has a part of a subvolume's inodes, and of each inode the part that changed. What it lacks
//! is in the committed trees. So these are no faults:
//!
//! - A directory is not in the log, or has no entries there: a replay makes entries from the names
//!   of inodes. An entry may lead to an inode that exists nowhere; it is skipped.
//! - A name is in a directory that exists nowhere: it is skipped.
//! - An inode has no name: it keeps its committed names, or is removed. If it had no link when it
//!   was logged, all its items are skipped.
//! - Counts of links and bytes, and sizes of directories: a replay computes them.
//!
//! # Invariants
//!
//! - **LI1** A log without a fault can be replayed, and leaves no fault behind. This holds as far
//!   as the items of one inode and of its directories show.

use std::io;

use buttress_format::{
    Body, Compression, DirEntry, Extent, FileExtent, FileKind, Ino, InodeExtrefs, InodeFlags,
    InodeItem, InodeRefs, Key, Kind, Superblock, TreeId, ids, name_hash,
};
use buttress_sorter::{Sorter, Writer};
use buttress_tree::{Cursor, Expect, Node, NodePtr};

use crate::context::{Context, Tree};
use crate::facts::Item;
use crate::inode::Fragment;
use crate::leaf::Leaves;
use crate::log_sums::LogSums;
use crate::report::Findings;
use buttress_issue::Issue;

/// Words of a record of data: its start and its length.
pub(crate) const DATA_WORDS: usize = 2;

/// The kinds of items that a log may have for an inode. Linux copies the items of fs-verity, and
/// does not replay them. It has no entries for look-up any more, and old versions had.
const KINDS: &[Kind] = &[
    Kind::INODE_ITEM,
    Kind::INODE_REF,
    Kind::INODE_EXTREF,
    Kind::XATTR_ITEM,
    Kind::VERITY_DESC_ITEM,
    Kind::VERITY_MERKLE_ITEM,
    Kind::DIR_LOG_ITEM,
    Kind::DIR_LOG_INDEX,
    Kind::DIR_ITEM,
    Kind::DIR_INDEX,
    Kind::EXTENT_DATA,
];

/// What the contents of the logs use.
pub(crate) struct Contents {
    /// The extents of the logs.
    pub(crate) data: Sorter<DATA_WORDS>,
    /// Bytes of data that were verified with checksums of the logs.
    pub(crate) verified_bytes: u64,
}

/// Checks the contents of all logs.
pub(crate) fn check(
    context: &Context<'_>,
    logs: &[(TreeId, NodePtr)],
    trees: &[Tree],
) -> io::Result<Contents> {
    let data = Sorter::new(context.sort_bytes() / 8, 1);
    let mut verified_bytes = 0;
    for &(subvolume, root) in logs {
        let is_it = |tree: &&Tree| tree.id == subvolume && tree.id.is_fs_tree() && !tree.is_dead;
        let Some(committed) = trees.iter().find(is_it) else {
            context.add(Issue::LogUnused { subvolume });
            continue;
        };
        let findings = Findings::new();
        let next = context.superblock.generation.next();
        let superblock = Superblock { generation: next, ..context.superblock.clone() };
        let (options, progress) = (context.options, context.progress);
        let as_new = Context::new(&findings, context.volume, &superblock, options, progress);
        let tree = Tree::new(subvolume, root);
        let mut log = Log {
            context,
            committed,
            root,
            leaves: Leaves::new(&as_new, &tree),
            sums: LogSums::new(context, trees, root),
            data: data.writer(),
        };
        log.run()?;
        verified_bytes += log.sums.verified_bytes;
        log.data.finish();
        drop(as_new);
        for issue in findings.into_issues() {
            context.add(Issue::LogItem { subvolume, why: issue.to_string() });
        }
    }
    Ok(Contents { data, verified_bytes })
}

/// One log.
struct Log<'l, 'c, 'n> {
    context: &'l Context<'c>,
    /// The subvolume as the last commit has it.
    committed: &'l Tree,
    root: NodePtr,
    leaves: Leaves<'l, 'n>,
    sums: LogSums<'l, 'c>,
    data: Writer<'l, DATA_WORDS>,
}

/// An inode of a log, as far as its items were read.
struct Logged {
    fragment: Fragment,
    /// Whether it has items that a replay puts into the tree.
    has_content: bool,
    /// The first index that no range of lost names before covers.
    lost_before: u64,
    /// The inode after the replay: the item of the log, or the committed item.
    item: Option<InodeItem>,
}

impl Logged {
    /// Whether a replay skips the inode, because it had no name when it was logged.
    fn is_skipped(&self) -> bool {
        self.fragment.item.is_some_and(|item| item.nlink == 0)
    }
}

impl Log<'_, '_, '_> {
    fn run(&mut self) -> io::Result<()> {
        let mut open = None;
        self.walk(&Expect::root(self.root), &mut open)?;
        if let Some(last) = open {
            self.end_inode(&last);
        }
        Ok(())
    }

    /// Looks at every leaf. Each child has a lower level, so the depth is at most eight.
    fn walk(&mut self, expect: &Expect, open: &mut Option<Logged>) -> io::Result<()> {
        // Every node was read before. A node that cannot be read now is reported as damaged.
        let node = match self.context.source.read_quietly(expect, false) {
            Ok(node) => node,
            Err(why) => {
                self.context.add(Issue::LogDamaged { logical: expect.ptr.logical, why });
                return Ok(());
            }
        };
        if node.level() == 0 {
            return self.leaf(&node, open);
        }
        for slot in 0..node.len() {
            self.walk(&node.expect_child_below(slot, expect.below), open)?;
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Node, open: &mut Option<Logged>) -> io::Result<()> {
        for slot in 0..leaf.len() {
            let item = Item { key: leaf.key(slot), bytes: leaf.item(slot), leaf: leaf.logical() };
            let key = item.key;
            if key.kind == Kind::EXTENT_CSUM && key.objectid == ids::EXTENT_CSUM {
                if !self.sums.is_list(&item) {
                    self.fault(format!("{key} is no list of checksums"));
                }
                continue;
            }
            let ino = Ino(key.objectid);
            if !KINDS.contains(&key.kind) || !(Ino::FIRST_FREE..=Ino::LAST_FREE).contains(&ino) {
                self.fault(format!("{key} has no place in a log"));
                continue;
            }
            if open.as_ref().is_none_or(|open| open.fragment.ino != ino) {
                let next = Logged {
                    fragment: Fragment::new(ino),
                    has_content: false,
                    lost_before: 0,
                    item: self.committed_inode(ino),
                };
                if let Some(done) = open.replace(next) {
                    self.end_inode(&done);
                }
            }
            if let Some(open) = open {
                self.item(open, &item)?;
            }
        }
        Ok(())
    }

    fn fault(&self, why: String) {
        self.context.add(Issue::LogItem { subvolume: self.committed.id, why });
    }

    fn item(&mut self, inode: &mut Logged, item: &Item<'_>) -> io::Result<()> {
        let Item { key, bytes, .. } = *item;
        if matches!(key.kind, Kind::DIR_LOG_ITEM | Kind::DIR_LOG_INDEX) {
            self.lost_names(inode, &key, bytes);
            return Ok(());
        }
        inode.has_content |= key.kind != Kind::INODE_ITEM;
        if let Err(error) = self.leaves.file_item(&mut inode.fragment, item) {
            self.fault(format!("{key}: {error}"));
            return Ok(());
        }
        let fragment = &inode.fragment;
        match key.kind {
            // An item of generation zero only says that the inode exists.
            Kind::INODE_ITEM => {
                let logged = fragment.item.filter(|item| item.nlink > 0);
                let is_new = |item: &InodeItem| item.generation.0 != 0 || inode.item.is_none();
                inode.item = logged.filter(is_new).or(inode.item);
            }
            Kind::EXTENT_DATA => self.extent(inode, &key, bytes)?,
            _ if inode.is_skipped() => {}
            Kind::INODE_REF => {
                for found in InodeRefs::parse(bytes).unwrap_or_default() {
                    self.name(fragment.ino, Ino(key.offset), found.index, &found.name);
                }
            }
            Kind::INODE_EXTREF => {
                for found in InodeExtrefs::parse(bytes).unwrap_or_default() {
                    self.name(fragment.ino, found.parent, found.index, &found.name);
                }
            }
            Kind::DIR_INDEX => {
                for entry in DirEntry::parse_all(bytes).unwrap_or_default() {
                    self.entry(fragment.ino, key.offset, &entry);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks a range of indexes in which the directory has lost all entries that the log lacks.
    fn lost_names(&self, inode: &mut Logged, key: &Key, bytes: &[u8]) {
        let last = bytes.first_chunk::<8>().map(|last| u64::from_le_bytes(*last));
        let Some(last) = last.filter(|last| bytes.len() == 8 && *last >= key.offset) else {
            return self.fault(format!("{key} is no range of indexes"));
        };
        let is_dir = inode.item.is_some_and(|item| kind(&item) == FileKind::Directory);
        if inode.item.is_some() && !is_dir {
            return self.fault(format!("{key}: the inode is no directory"));
        }
        if key.kind == Kind::DIR_LOG_ITEM || inode.fragment.item.is_none() || inode.is_skipped() {
            return;
        }
        // Ranges may overlap, and no entry is looked at twice.
        let from = key.offset.max(inode.lost_before);
        inode.lost_before = inode.lost_before.max(last.saturating_add(1));
        // The name of a subvolume is never lost by a log: removing it takes a commit.
        let (source, tree) = (&self.context.source, self.committed);
        let first = Key::new(key.objectid, Kind::DIR_INDEX, from);
        let Ok(mut cursor) = Cursor::seek(source, tree.id, tree.root, &first) else { return };
        let high = Key::new(key.objectid, Kind::DIR_INDEX, last);
        while let Some((at, item)) = cursor.key().zip(cursor.item()).filter(|(at, _)| *at <= high) {
            let entries = DirEntry::parse_all(item).unwrap_or_default();
            if entries.iter().any(is_of_subvolume) && self.logged(&at).is_none() {
                self.fault(format!("{key}: {at} names a subvolume"));
            }
            if cursor.advance().is_err() {
                return;
            }
        }
    }

    /// Checks a name that an inode has in the log.
    fn name(&self, ino: Ino, dir: Ino, index: u64, name: &[u8]) {
        let place = |why: &str| format!("inode {ino}, name at {index} of directory {dir}: {why}");
        if ino == dir {
            return;
        }
        let Some(parent) = self.inode(dir) else { return };
        if kind(&parent) != FileKind::Directory {
            return self.fault(place("the inode is no directory"));
        }
        let by_index = Key::new(dir.0, Kind::DIR_INDEX, index);
        let logged = self.logged(&by_index).map(|item| DirEntry::parse_all(&item));
        let is_it = |entry: &DirEntry| entry.name == name && entry.location.objectid == ino.0;
        if let Some(Ok(entries)) = logged
            && !entries.iter().any(is_it)
        {
            self.fault(place("the log has another entry there"));
        }
        if self.takes_subvolume(dir, index, name) {
            self.fault(place("it takes the name of a subvolume"));
        }
    }

    /// Checks an entry that the log has for a directory.
    fn entry(&self, dir: Ino, index: u64, entry: &DirEntry) {
        let ino = Ino(entry.location.objectid);
        let place = |why: &str| format!("directory {dir}, entry {index} of inode {ino}: {why}");
        // A replay skips the names of subvolumes, and entries of inodes that are not there.
        if is_of_subvolume(entry) {
            return;
        }
        let Some(item) = self.inode(ino) else { return };
        if kind(&item) != entry.kind {
            self.fault(place("the inode is of another type"));
        }
        if self.takes_subvolume(dir, index, &entry.name) {
            self.fault(place("it takes the name of a subvolume"));
        }
        let names = self.logged(&Key::new(ino.0, Kind::INODE_REF, dir.0));
        let names = names.and_then(|item| InodeRefs::parse(&item).ok()).unwrap_or_default();
        if names.iter().any(|found| found.name == entry.name && found.index != index) {
            self.fault(place("the inode has this name at another index"));
        }
    }

    /// Whether the committed directory has the name of a subvolume where a replay puts a name.
    fn takes_subvolume(&self, dir: Ino, index: u64, name: &[u8]) -> bool {
        let entries = |key: Key| {
            let item = self.find(self.committed.root, &key);
            item.and_then(|item| DirEntry::parse_all(&item).ok()).unwrap_or_default()
        };
        let by_name = entries(Key::new(dir.0, Kind::DIR_ITEM, name_hash(name)));
        by_name.iter().any(|entry| entry.name == name && is_of_subvolume(entry))
            || entries(Key::new(dir.0, Kind::DIR_INDEX, index)).iter().any(is_of_subvolume)
    }

    /// Records the space of an extent, and looks for its checksums.
    fn extent(&mut self, inode: &Logged, key: &Key, bytes: &[u8]) -> io::Result<()> {
        let Ok(extent) = FileExtent::parse(bytes) else { return Ok(()) };
        let Some(region) = extent.region().filter(|region| !region.is_hole()) else {
            return Ok(());
        };
        self.data.put([region.disk.0, region.disk_len])?;
        let has_sums = inode.item.is_some_and(|item| item.flags & InodeFlags::NODATASUM == 0);
        if matches!(extent.body, Body::Prealloc(_)) || !has_sums || inode.is_skipped() {
            return Ok(());
        }
        let range = if extent.compression == Compression::None {
            Extent::new(region.disk.end(region.offset), region.len)
        } else {
            region.extent()
        };
        if let Some(at) = self.sums.first_missing(range) {
            let (subvolume, ino) = (self.committed.id, Ino(key.objectid));
            self.context.add(Issue::LogCsumMissing { subvolume, ino, at });
        }
        Ok(())
    }

    fn end_inode(&self, inode: &Logged) {
        let Logged { fragment, has_content, item, .. } = inode;
        let ino = fragment.ino;
        let fault = |why: &str| self.fault(format!("inode {ino}: {why}"));
        if let Some(logged) = fragment.item {
            let key = Key::new(ino.0, Kind::INODE_ITEM, 0);
            for found in [logged.generation, logged.transid] {
                self.leaves.context.check_generation(self.committed.id, key, found);
            }
            if kind(&logged) == FileKind::Unknown || logged.mode & !0o17_7777 != 0 {
                fault("its mode is invalid");
            }
            let before = self.committed_inode(ino);
            if before.is_some_and(|before| kind(&before) != kind(&logged)) && !inode.is_skipped() {
                fault("the committed inode is of another type");
            }
        }
        if inode.is_skipped() {
            return;
        }
        let Some(item) = item else {
            if *has_content {
                fault("it has items, and is neither in the log nor in the subvolume");
            }
            return;
        };
        let is_dir = kind(item) == FileKind::Directory;
        if fragment.has_entries && !is_dir {
            fault("it is no directory and has entries");
        }
        if is_dir && fragment.names > 1 {
            fault("it is a directory with more than one name");
        }
        let holds_data = matches!(kind(item), FileKind::Regular | FileKind::Symlink);
        if fragment.run.is_some() && !holds_data {
            fault("it is no file and has extents");
        }
        if let Some(offset) = fragment.overlap {
            fault(&format!("the extent at {offset} overlaps the one before"));
        }
    }

    fn find(&self, root: NodePtr, key: &Key) -> Option<Vec<u8>> {
        let found = Cursor::find(&self.context.source, self.committed.id, root, key).ok()??;
        Some(found.0.item(found.1).to_vec())
    }

    fn logged(&self, key: &Key) -> Option<Vec<u8>> {
        self.find(self.root, key)
    }

    fn committed_inode(&self, ino: Ino) -> Option<InodeItem> {
        let item = self.find(self.committed.root, &Key::new(ino.0, Kind::INODE_ITEM, 0))?;
        InodeItem::parse(&item).ok()
    }

    /// An inode as a replay has it.
    fn inode(&self, ino: Ino) -> Option<InodeItem> {
        let item = self.logged(&Key::new(ino.0, Kind::INODE_ITEM, 0));
        let logged = item.and_then(|item| InodeItem::parse(&item).ok());
        logged.filter(|item| item.nlink > 0).or_else(|| self.committed_inode(ino))
    }
}

fn kind(item: &InodeItem) -> FileKind {
    FileKind::from_mode(item.mode)
}

fn is_of_subvolume(entry: &DirEntry) -> bool {
    entry.location.kind != Kind::INODE_ITEM
}
