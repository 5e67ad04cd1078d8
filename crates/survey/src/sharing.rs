//! The extents and nodes that have several users.
//!
//! # What must hold
//!
//! - An extent that is not listed here has at most one reference.

use buttress_format::{BackRef, ExtentFlags, ExtentItem, Key, Kind, Logical, RootItem, TreeId};
use buttress_tree::{Node, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::progress::{Reports, Watch, share_of};
use crate::trees::{Trees, malformed};

/// How an extent of data is used.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// Items of files that refer to the extent, as its extent item counts them. An item in a shared
    /// leaf counts once.
    refs: u64,
    /// Records of references in the extent tree. There is one for each place in a file that uses
    /// the extent, or one for each shared leaf.
    records: u32,
}

/// The extents and nodes with more than one reference in the extent tree.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    extents: FxHashMap<Logical, Used>,
    nodes: FxHashSet<Logical>,
}

impl Sharing {
    /// Reads the extent tree once. `used` is the number of bytes that its extents have in all.
    ///
    /// # Errors
    ///
    /// When the extent tree is damaged, or `watch` does not go on.
    pub fn of(trees: &Trees<'_>, used: u64, watch: Watch<'_>) -> Result<Self> {
        let mut found = Self::default();
        let mut reports = Reports::to(watch);
        trees.each(TreeId::EXTENT, (Key::MIN, Key::MAX), |key, item| {
            found.add(key, item)?;
            match trees.extent_len(key) {
                Some(len) => reports.add(share_of(len, used)),
                None => Ok(()),
            }
        })?;
        reports.end()?;
        Ok(found)
    }

    fn add(&mut self, key: &Key, item: &[u8]) -> Result<()> {
        let start = Logical(key.objectid);
        match key.kind {
            Kind::EXTENT_ITEM | Kind::METADATA_ITEM if refs(item) > 1 => {
                let parsed = ExtentItem::parse(key, item);
                let parsed = parsed.map_err(malformed(TreeId::EXTENT, *key))?;
                if parsed.flags & ExtentFlags::DATA == 0 {
                    self.nodes.insert(start);
                } else {
                    let is_user = |one: &&BackRef| !matches!(one, BackRef::Owner { .. });
                    let records = parsed.inline.iter().filter(is_user).count() as u32;
                    self.extents.insert(start, Used { refs: parsed.refs, records });
                }
            }
            // These items follow the item of their extent.
            Kind::EXTENT_DATA_REF | Kind::SHARED_DATA_REF => {
                if let Some(used) = self.extents.get_mut(&start) {
                    used.records += 1;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The number of items of files that refer to an extent. An item in a shared leaf counts once.
    #[must_use]
    pub fn refs(&self, extent: Logical) -> u64 {
        self.extents.get(&extent).map_or(1, |used| used.refs)
    }

    /// Whether an extent is used by several files, or at several places of one file.
    #[must_use]
    pub fn has_several_users(&self, extent: Logical) -> bool {
        self.extents.get(&extent).is_some_and(|used| used.records > 1)
    }

    /// For each shared leaf, returns the number of subvolumes that have it. Reads the inner nodes
    /// of all subvolumes.
    pub(crate) fn users_of_leaves(&self, trees: &Trees<'_>) -> Result<FxHashMap<Logical, u32>> {
        let mut users = FxHashMap::default();
        if self.nodes.is_empty() {
            return Ok(users);
        }
        let mut subvolumes = Vec::new();
        trees.each(TreeId::ROOT, (Key::MIN, Key::MAX), |key, item| {
            let tree = TreeId(key.objectid);
            if key.kind == Kind::ROOT_ITEM && tree.is_fs_tree() {
                let root = RootItem::parse(item).map_err(malformed(TreeId::ROOT, *key))?;
                // A subvolume that is being deleted is left out, because parts of its tree are
                // gone.
                if root.refs > 0 {
                    subvolumes.push(tree);
                }
            }
            Ok(())
        })?;
        for tree in subvolumes {
            for leaf in self.leaves(trees, tree)?.shared {
                *users.entry(leaf).or_insert(0) += 1;
            }
        }
        Ok(users)
    }

    /// Returns the leaves of a tree that other trees have, too.
    pub(crate) fn leaves(&self, trees: &Trees<'_>, tree: TreeId) -> Result<Leaves> {
        let mut leaves = Leaves::default();
        if let Some(root) = trees.root(tree)?.filter(|_| !self.nodes.is_empty()) {
            let is_shared = self.nodes.contains(&root.logical());
            self.below(trees, tree, &root, is_shared, &mut leaves)?;
        }
        Ok(leaves)
    }

    /// The recursion is at most eight calls deep, because each child must be one level lower than
    /// its parent.
    fn below(
        &self,
        trees: &Trees<'_>,
        tree: TreeId,
        node: &Node,
        is_shared: bool,
        leaves: &mut Leaves,
    ) -> Result<()> {
        if node.level() == 0 {
            if is_shared {
                leaves.shared.insert(node.logical());
            }
            return Ok(());
        }
        for slot in 0..node.len() {
            let at = node.child(slot).logical;
            let is_shared = is_shared || self.nodes.contains(&at);
            if node.level() > 1 {
                let child = trees.child(tree, &node.expect_child(slot))?;
                self.below(trees, tree, &child, is_shared, leaves)?;
            } else if is_shared {
                leaves.shared.insert(at);
            }
        }
        Ok(())
    }
}

/// The leaves of one tree that other trees have, too.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaves {
    shared: FxHashSet<Logical>,
}

impl Leaves {
    pub(crate) fn has(&self, leaf: Logical) -> bool {
        self.shared.contains(&leaf)
    }
}

/// Returns the reference count, which is the first field of an extent item.
fn refs(item: &[u8]) -> u64 {
    item.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
