//! The state that all steps of a check share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::{Rank, Ranked, SectorSet, thread};
use buttress_format::{
    BlockGroupItem, CompatRo, Extent, Generation, Key, Logical, Superblock, TreeId, ids,
};
use buttress_tree::{Geometry, Node, NodePtr};
use buttress_volume::Volume;

use crate::facts::{Group, OwnedBytes};
use crate::owned_nodes::OwnedNodes;
use crate::report::Findings;
use crate::source::Source;
use crate::{Options, Progress};
use buttress_issue::Issue;

/// The largest number of threads. More threads would mostly wait for the device.
const THREADS_MAX: usize = 8;

/// One check in progress.
pub(crate) struct Context<'c> {
    pub(crate) superblock: &'c Superblock,
    pub(crate) volume: &'c Volume,
    pub(crate) findings: &'c Findings,
    pub(crate) options: &'c Options,
    pub(crate) progress: &'c dyn Progress,
    pub(crate) source: Source<'c>,
    /// Threads that walk trees.
    pub(crate) threads: usize,
    /// Block groups met so far.
    pub(crate) groups: Ranked<Vec<Group>>,
    /// Nodes met so far.
    pub(crate) visited_nodes: SectorSet,
    /// Nodes that refer to their children by their own address, according to the extent tree.
    pub(crate) full_backrefs: SectorSet,
    /// In a rebuild: the nodes that are still reached by the tree that they were written for. If
    /// this field is set, it is used instead of the extent tree.
    pub(crate) owned_nodes: std::sync::OnceLock<OwnedNodes>,
    /// In a rebuild: whether the walk also records the data that needs checksums.
    pub(crate) rebuilds_sums: AtomicBool,
    /// Nodes with more than one reference, as the extent tree says.
    pub(crate) shared: SectorSet,
    /// Bytes that each subvolume owns, if simple quotas count them.
    pub(crate) owned: std::sync::OnceLock<OwnedBytes>,
    /// Whether there are trees of an unfinished balance. A node may still be in such a tree,
    /// although the tree for which it was written does not use the node any more.
    pub(crate) has_leftovers: AtomicBool,
}

impl<'c> Context<'c> {
    pub(crate) fn new(
        findings: &'c Findings,
        volume: &'c Volume,
        superblock: &'c Superblock,
        options: &'c Options,
        progress: &'c dyn Progress,
    ) -> Self {
        let geometry = Geometry { seeds: volume.seed_ids(), ..Geometry::of(superblock) };
        let threads = options.threads.unwrap_or_else(thread::parallelism).clamp(1, THREADS_MAX);
        Self {
            superblock,
            volume,
            findings,
            options,
            progress,
            source: Source::new(volume, geometry, findings, options.check_data_csum),
            threads,
            groups: Ranked::new(Rank::Leaf, Vec::new()),
            visited_nodes: SectorSet::default(),
            full_backrefs: SectorSet::default(),
            owned_nodes: std::sync::OnceLock::new(),
            rebuilds_sums: AtomicBool::new(false),
            shared: SectorSet::default(),
            owned: std::sync::OnceLock::new(),
            has_leftovers: AtomicBool::new(false),
        }
    }
}

impl Context<'_> {
    pub(crate) fn add(&self, issue: Issue) {
        self.findings.add(issue);
    }

    /// Reports a generation that is newer than the superblock allows.
    pub(crate) fn check_generation(&self, tree: TreeId, key: Key, found: Generation) {
        let newest = self.newest();
        if found > newest {
            self.add(Issue::ItemGeneration { tree, key, found, newest });
        }
    }

    /// Records a block group that the check has found.
    pub(crate) fn add_group(&self, tree: TreeId, key: Key, bytes: &[u8], logical: Logical) {
        match BlockGroupItem::parse(bytes) {
            Ok(item) => {
                let extent = Extent::new(Logical(key.objectid), key.offset);
                if item.chunk_objectid != ids::FIRST_CHUNK_TREE {
                    let (found, expected) = (item.chunk_objectid, 256);
                    let field = "chunk object";
                    let group = extent.start;
                    self.add(Issue::BlockGroupMismatch { group, field, found, expected });
                }
                self.groups.lock().push(Group { extent, flags: item.flags, used: item.used });
            }
            Err(error) => {
                let why = error.to_string();
                self.add(Issue::ItemMalformed { tree, logical, key, why });
            }
        }
    }

    /// Whether block groups have a tree of their own.
    pub(crate) fn has_group_tree(&self) -> bool {
        self.superblock.compat_ro.has(CompatRo::BLOCK_GROUP_TREE)
    }

    pub(crate) fn sectorsize(&self) -> u64 {
        u64::from(self.superblock.sectorsize)
    }

    pub(crate) fn nodesize(&self) -> u64 {
        u64::from(self.superblock.nodesize)
    }

    pub(crate) fn is_aligned(&self, number: u64) -> bool {
        number.is_multiple_of(self.sectorsize())
    }

    /// Returns the newest transaction that an item may have. Only log trees are newer, by one
    /// transaction. The other trees do not refer to a log before its replay, so they must be
    /// correct without the log.
    pub(crate) fn newest(&self) -> Generation {
        self.superblock.generation
    }

    /// The most bytes that sorting may hold.
    pub(crate) fn sort_bytes(&self) -> u64 {
        self.options.memory_bytes
    }

    /// Returns whether a node refers to its children and extents by its own address.
    pub(crate) fn refers_by_address(&self, node: &Node) -> bool {
        match self.owned_nodes.get() {
            Some(owned) => !owned.has(node),
            None => self.full_backrefs.contains(node.logical().0),
        }
    }

    /// Returns whether the root of an unfinished balance's tree is recorded by its own address.
    pub(crate) fn is_own_parent(&self, root: Logical) -> bool {
        self.owned_nodes.get().is_some() || self.full_backrefs.contains(root.0)
    }
}

/// A tree to walk.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    pub(crate) id: TreeId,
    pub(crate) root: NodePtr,
    /// Whether the tree is a subvolume in deletion. Its files belong to no directory any more.
    pub(crate) is_dead: bool,
    /// The progress of the deletion: everything before this key, at this level, is deleted.
    pub(crate) drop: Option<(Key, u8)>,
    /// Whether the walk only looks at uses of extents. A rebuild checks no files.
    is_for_extents: bool,
    /// Set when a part of the tree could not be read. If so, a missing item is no error.
    cut: Arc<AtomicBool>,
}

impl Tree {
    pub(crate) fn new(id: TreeId, root: NodePtr) -> Self {
        Self { id, root, is_dead: false, drop: None, is_for_extents: false, cut: Arc::default() }
    }

    /// The tree for a walk that looks only at uses of extents.
    pub(crate) fn for_extents(self) -> Self {
        Self { is_for_extents: true, ..self }
    }

    /// Records that a part of the tree cannot be read.
    pub(crate) fn cut(&self) {
        self.cut.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    /// Returns whether nodes of this tree may be parts of other trees, too.
    pub(crate) fn may_share(&self) -> bool {
        self.id.is_fs_tree() || self.id == TreeId::TREE_RELOC || self.id == TreeId::DATA_RELOC
    }

    /// Returns whether the walk records which data of the tree's files needs checksums.
    pub(crate) fn wants_sums(&self, rebuilds_sums: bool) -> bool {
        let is_asked = !self.is_for_extents || rebuilds_sums;
        self.id.is_fs_tree() && !self.is_dead && is_asked
    }

    /// Returns whether the tree has files to check. The data relocation tree has files, too:
    /// orphans without names. Such an orphan has checksums if the data that it copies has
    /// checksums.
    pub(crate) fn has_files(&self) -> bool {
        let is_of_files = self.id.is_fs_tree() || self.id == TreeId::DATA_RELOC;
        is_of_files && !self.is_dead && !self.is_for_extents
    }
}
