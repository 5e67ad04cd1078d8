//! Finds deleted inodes. Their items are only in old nodes, which no current tree uses any more.
//!
//! # Invariants
//!
//! - **GH1** A deleted inode is restored as it was in one version: the newest leaf in which its
//!   inode item has a link. Newer leaves show the inode during its removal, so their items are
//!   ignored. An older leaf is used only if its tree still had it when that leaf was written. It
//!   gives only keys that no newer leaf covers. So all extents are of one moment.
//! - **GH2** A version in a log of fsync is used if it is newer than the last tree that surely had
//!   the inode. A log has all names and attributes of an inode, and only the new extents. The
//!   others come from a tree only if the commit before the log surely had that version.

use std::collections::{BTreeMap, HashSet};

use buttress_format::{
    Extent, FileExtent, FileKind, Generation, Ino, InodeExtrefs, InodeItem, InodeRefs, Key, Kind,
    TreeId, ids,
};
use buttress_tree::{Expect, Node};

use crate::files::Index;
use crate::inode_items::{FileItem, InodeItems};
use crate::last_use::LastUse;
use crate::names::parse_refs;
use crate::old_logs::Logged;
use crate::pieces;
use crate::salvage::Salvage;
use crate::scan::{self, FoundNode};
use crate::sums::{Life, Sum, Sums, Wanted};
use crate::tree::Leaves;

/// The live files of one subvolume, and its leaves.
pub(crate) struct LiveSubvolume {
    pub(crate) index: Index,
    pub(crate) tree: Leaves,
    /// Leaves that need no second look, since none of their inodes is deleted.
    pub(crate) leaves: HashSet<(u64, Generation)>,
}

/// The items that were found of one inode.
#[derive(Debug, Default)]
struct OldInode {
    /// Indices of the leaves that have items of the inode, newest first.
    leaves: Vec<u32>,
    /// The leaves in which the inode item has a link count above 0, newest first: the last
    /// transaction that changed the inode, and the index of the newest leaf with that item. Of a
    /// deleted inode only the first one.
    versions: Vec<(Generation, u32)>,
}

/// All inodes that exist in old nodes only, and on request the older versions of live files.
pub(crate) struct DeletedInodes {
    leaves: Vec<FoundNode>,
    inodes: BTreeMap<(TreeId, Ino), OldInode>,
    living: BTreeMap<(TreeId, Ino), OldInode>,
}

/// A deleted inode with its collected items.
#[derive(Clone)]
pub(crate) struct DeletedItems {
    pub(crate) parts: InodeItems,
    /// The folders that hold its names, and the names.
    pub(crate) names: Vec<(Ino, Vec<u8>)>,
    /// The last transaction in which the inode surely existed.
    pub(crate) until: Generation,
    /// The transaction that wrote the leaf with its inode item.
    pub(crate) written: Generation,
    /// The last transaction in which its own subvolume surely had this version, or 0.
    pub(crate) seen: Generation,
}

impl DeletedInodes {
    /// Looks through all old leaves. With `versions` also through the present ones, since an older
    /// version of a file may share them.
    pub(crate) fn find(
        salvage: &Salvage,
        living: &BTreeMap<TreeId, LiveSubvolume>,
        versions: bool,
    ) -> Self {
        let all: HashSet<_> = living.values().flat_map(|one| &one.leaves).collect();
        let old = |node: &&FoundNode| {
            node.level == 0
                && node.owner.is_fs_tree()
                && (versions || !all.contains(&(node.logical.0, node.generation)))
        };
        let mut leaves: Vec<FoundNode> = salvage.scan().each().filter(old).copied().collect();
        leaves.sort_by_key(|leaf| std::cmp::Reverse(leaf.generation));
        let mut found =
            Self { leaves: Vec::new(), inodes: BTreeMap::new(), living: BTreeMap::new() };
        for (number, leaf) in (0_u32..).zip(&leaves) {
            let Some(node) = read(salvage, leaf) else { continue };
            let index = living.get(&leaf.owner).map(|one| &one.index);
            for slot in 0..node.len() {
                let key = node.key(slot);
                let ino = Ino(key.objectid);
                let is_inode = (Ino::FIRST_FREE..=Ino::LAST_FREE).contains(&ino);
                let is_alive = is_alive(index, ino);
                if !is_inode || is_alive && !(versions && is_regular(index, ino)) {
                    continue;
                }
                let inodes = if is_alive { &mut found.living } else { &mut found.inodes };
                let inode = inodes.entry((leaf.owner, ino)).or_default();
                if inode.leaves.last() != Some(&number) {
                    inode.leaves.push(number);
                }
                if key.kind == Kind::INODE_ITEM
                    && (is_alive || inode.versions.is_empty())
                    && let Ok(item) = InodeItem::parse(node.item(slot))
                    && item.nlink > 0
                    && inode.versions.last().is_none_or(|(last, _)| *last != item.transid)
                {
                    inode.versions.push((item.transid, number));
                }
            }
        }
        // Without an inode item, no content can be restored under the name.
        found.inodes.retain(|_, inode| !inode.versions.is_empty());
        found.living.retain(|_, inode| !inode.versions.is_empty());
        found.leaves = leaves;
        found
    }

    pub(crate) fn inodes(&self) -> impl Iterator<Item = (TreeId, Ino)> + '_ {
        self.inodes.keys().copied()
    }

    /// Live files of which older leaves have items.
    pub(crate) fn living(&self) -> impl Iterator<Item = (TreeId, Ino)> + '_ {
        self.living.keys().copied()
    }

    /// Collects the items of a deleted inode.
    pub(crate) fn body(
        &self,
        salvage: &Salvage,
        last_use: &LastUse,
        at: (TreeId, Ino),
    ) -> Option<DeletedItems> {
        let inode = self.inodes.get(&at)?;
        self.version(salvage, last_use, at.1, inode, inode.versions.first()?.1)
    }

    /// The versions of a live file, the newest first: the last transaction that changed each, and
    /// its items.
    pub(crate) fn versions<'v>(
        &'v self,
        salvage: &'v Salvage,
        last_use: &'v LastUse,
        at: (TreeId, Ino),
    ) -> impl Iterator<Item = (Generation, DeletedItems)> + 'v {
        let inode = self.living.get(&at);
        let all =
            inode.into_iter().flat_map(|inode| inode.versions.iter().map(move |v| (inode, v)));
        all.filter_map(move |(inode, (changed, number))| {
            Some((*changed, self.version(salvage, last_use, at.1, inode, *number)?))
        })
    }

    /// Collects the items of an inode as they were when a leaf was in use (GH1).
    fn version(
        &self,
        salvage: &Salvage,
        last_use: &LastUse,
        ino: Ino,
        inode: &OldInode,
        version: u32,
    ) -> Option<DeletedItems> {
        let newest = self.leaves.get(version as usize)?;
        let mut body = DeletedItems {
            parts: InodeItems::default(),
            names: Vec::new(),
            until: last_use.until(&newest.ptr()),
            written: newest.generation,
            seen: last_use.until_in_own_tree(&newest.ptr()).unwrap_or_default(),
        };
        // Names of leaves that may be of another moment.
        let mut former: Vec<(Ino, Vec<u8>)> = Vec::new();
        let mut covered: Vec<(Key, Key)> = Vec::new();
        // Other leaves of the same transaction may come before that leaf.
        let others = inode.leaves.iter().filter(|number| **number != version);
        for number in std::iter::once(&version).chain(others) {
            let Some(leaf) = self.leaves.get(*number as usize) else { continue };
            if leaf.generation > newest.generation {
                continue;
            }
            let Some(node) = read(salvage, leaf) else { continue };
            let until = last_use.until(&leaf.ptr());
            let seen = last_use.until_in_own_tree(&leaf.ptr());
            let is_of_then = *number == version || seen >= Some(newest.generation);
            for slot in 0..node.len() {
                let key = node.key(slot);
                let is_new = covered.iter().all(|(low, high)| key < *low || key > *high);
                if key.objectid != ino.0 || !is_new {
                    continue;
                }
                if is_of_then {
                    take_names(&key, node.item(slot), &mut body.names);
                    body.parts.take(&key, node.item(slot), until);
                } else if former.is_empty() {
                    take_names(&key, node.item(slot), &mut former);
                }
            }
            if is_of_then {
                covered.push((leaf.first, leaf.last));
            }
        }
        // A former name is better than none.
        if body.names.is_empty() {
            body.names = former;
        }
        body.parts.pieces.sort_by_key(|piece| piece.offset);
        body.note_gaps();
        Some(body)
    }

    /// For a deleted inode that is a folder: the folder above, and the name in that folder.
    pub(crate) fn name_of(&self, salvage: &Salvage, at: (TreeId, Ino)) -> Option<(Ino, Vec<u8>)> {
        let inode = self.inodes.get(&at)?;
        let version = inode.versions.first()?.1;
        let mut names = Vec::new();
        for number in inode.leaves.iter().filter(|number| **number >= version) {
            let node = read(salvage, self.leaves.get(*number as usize)?)?;
            for slot in (0..node.len()).filter(|slot| node.key(*slot).objectid == at.1.0) {
                take_names(&node.key(slot), node.item(slot), &mut names);
            }
            if let Some(first) = names.pop() {
                return Some(first);
            }
        }
        None
    }
}

impl DeletedItems {
    /// Says that extents may be lost, unless they add up.
    fn note_gaps(&mut self) {
        self.parts.unknown.clear();
        if !self.parts.has_all_bytes() {
            let why = "nodes with its extents were overwritten".to_owned();
            self.parts.unknown.push((0..u64::MAX, why));
        }
    }

    /// The inode as a log of fsync has it. Extents that the log does not have come from the tree
    /// of an earlier commit (GH2).
    pub(crate) fn of_log(older: Option<Self>, logged: &Logged, sector: u64) -> Option<Self> {
        let is_inode = |key: &Key| key.kind == Kind::INODE_ITEM;
        let found = logged.items.iter().find(|(key, _)| is_inode(key));
        let item = found.and_then(|(_, bytes)| InodeItem::parse(bytes).ok())?;
        let until = logged.generation;
        let mut parts = InodeItems::default();
        let mut names = Vec::new();
        for (key, bytes) in &logged.items {
            if matches!(key.kind, Kind::INODE_REF | Kind::INODE_EXTREF) {
                names.extend(parse_refs(*key, bytes).into_iter().map(|(dir, one)| (dir, one.name)));
            }
            parts.take(key, bytes, until);
        }
        let older = older.filter(|older| {
            older.parts.item.is_some_and(|before| before.generation == item.generation)
        });
        if let Some(older) = older {
            if names.is_empty() {
                names.clone_from(&older.names);
            }
            // Between an earlier commit and the log the file may have changed.
            let is_below = older.seen.0.saturating_add(1) >= until.0;
            // A lost leaf of the log may have other content for any range.
            if is_below && !logged.is_cut {
                parts.pieces = joined(&older.parts.pieces, parts.pieces, item.size, sector);
            }
        }
        if logged.is_cut {
            parts.may_lack = Some(("a leaf of its log was overwritten".to_owned(), false));
        }
        let mut body = Self { parts, names, until, written: until, seen: until };
        body.note_gaps();
        Some(body)
    }

    /// An earlier version with all its extents, if this one lacks some. It does not count as whole.
    pub(crate) fn or_whole(self, older: Option<Self>) -> Self {
        let is_better = |older: &Self| {
            let ages = [&older.parts, &self.parts].map(|parts| parts.item.map(|i| i.generation));
            let is_same = ages[0].is_some() && ages[0] == ages[1];
            is_same && older.parts.has_all_bytes() && older.parts.bytes() > self.parts.bytes()
        };
        match older.filter(|older| !self.parts.has_all_bytes() && is_better(older)) {
            Some(mut older) => {
                let why = "it is an earlier version, and a later one lacks parts".to_owned();
                older.parts.may_lack = Some((why, true));
                older
            }
            None => self,
        }
    }
}

/// The extents of a file: those of a tree, and over them those of a later log. Each keeps the time
/// in which it was provably in use.
fn joined(older: &[FileItem], logged: Vec<FileItem>, size: u64, sector: u64) -> Vec<FileItem> {
    let parsed = |one: &FileItem| Some((one.offset, (one.extent.as_ref().ok()?.clone(), one.life)));
    let mut all: BTreeMap<u64, (FileExtent, Life)> = older.iter().filter_map(parsed).collect();
    pieces::cut(&mut all, pieces::ceil(size, sector)..u64::MAX, sector);
    for (offset, one) in logged.iter().filter_map(parsed) {
        pieces::cut(&mut all, offset..pieces::end(offset, &one.0, sector), sector);
        all.insert(offset, one);
    }
    let all = all.into_iter();
    all.map(|(offset, (extent, life))| FileItem { offset, extent: Ok(extent), life }).collect()
}

pub(crate) fn is_alive(index: Option<&Index>, ino: Ino) -> bool {
    let known = index.and_then(|index| index.inodes.get(&ino));
    known.is_some_and(|known| known.item.is_none_or(|item| item.nlink > 0))
}

fn is_regular(index: Option<&Index>, ino: Ino) -> bool {
    index.and_then(|index| index.kind(ino)) == Some(FileKind::Regular)
}

fn read(salvage: &Salvage, leaf: &FoundNode) -> Option<Node> {
    scan::read_copy(&salvage.devices, &salvage.geometry, leaf, &Expect::root(leaf.ptr()))
}

fn take_names(key: &Key, bytes: &[u8], names: &mut Vec<(Ino, Vec<u8>)>) {
    match key.kind {
        Kind::INODE_REF if key.offset != key.objectid => {
            let found = InodeRefs::parse(bytes).unwrap_or_default();
            names.extend(found.into_iter().map(|one| (Ino(key.offset), one.name)));
        }
        Kind::INODE_EXTREF => {
            let found = InodeExtrefs::parse(bytes).unwrap_or_default();
            names.extend(found.into_iter().map(|one| (one.parent, one.name)));
        }
        _ => {}
    }
}

/// Checksums from leaves of any age, also from those of logs of fsync. For an extent, only leaves
/// are used that were written while the extent was in use. Other leaves may hold checksums of
/// another extent at the same address.
pub(crate) struct OldSums {
    /// Leaves, and the first address that each describes. Sorted by that address.
    leaves: Vec<(u64, FoundNode)>,
    /// For each leaf, an upper bound of the addresses that this leaf and all leaves before it
    /// describe.
    ends: Vec<u64>,
}

impl OldSums {
    pub(crate) fn new(salvage: &Salvage) -> Self {
        let first = |leaf: &FoundNode| match leaf.owner {
            TreeId::CSUM => Some(leaf.first.offset),
            // The checksums are the last items of a log.
            TreeId::TREE_LOG if leaf.last.objectid == ids::EXTENT_CSUM => {
                let node = read(salvage, leaf)?;
                let mut keys = (0..node.len()).map(|slot| node.key(slot));
                keys.find(|key| key.objectid == ids::EXTENT_CSUM).map(|key| key.offset)
            }
            _ => None,
        };
        let leaves = salvage.scan().each().filter(|node| node.level == 0);
        let mut leaves: Vec<(u64, FoundNode)> =
            leaves.filter_map(|leaf| Some((first(leaf)?, *leaf))).collect();
        leaves.sort_by_key(|(first, _)| *first);
        let geometry = &salvage.geometry;
        let sums = u64::from(geometry.nodesize) / geometry.csum.size() as u64;
        let most = sums * u64::from(geometry.sectorsize);
        let mut ends = Vec::with_capacity(leaves.len());
        let mut end = 0;
        for (_, leaf) in &leaves {
            end = end.max(leaf.last.offset.saturating_add(most));
            ends.push(end);
        }
        Self { leaves, ends }
    }
}

impl Sums for OldSums {
    fn of(&self, salvage: &Salvage, extent: Extent, life: Life) -> Vec<Option<Sum>> {
        let mut wanted = Wanted::new(salvage, extent);
        let stop = self.leaves.partition_point(|(first, _)| *first < extent.end().0);
        for at in (0..stop).rev() {
            if self.ends[at] <= extent.start.0 || wanted.is_whole() {
                break;
            }
            let (_, leaf) = &self.leaves[at];
            if leaf.generation < life.from || leaf.generation > life.until {
                continue;
            }
            let Some(node) = read(salvage, leaf) else { continue };
            for slot in 0..node.len() {
                wanted.take(&node.key(slot), node.item(slot));
            }
        }
        wanted.sums
    }
}
