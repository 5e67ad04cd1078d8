//! Reads the log of fsync that a crash left.
//!
//! # Invariants
//!
//! - **LO1** The log of a subvolume is used as a whole or not at all. A part of it would take names
//!   away that the lost part gives again.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_format::{Extent, Key, Kind, RootItem, TreeId, ids};
use buttress_tree::NodePtr;

use crate::replay::{self, Items};
use crate::salvage::Salvage;
use crate::tree::{Leaves, Overlay};

/// Bytes of data that one item of checksums may cover: a node of 64 KiB that has 4 bytes for each
/// sector of 64 KiB.
const SUMS_MAX: u64 = 1 << 30;

/// What a log changes.
#[derive(Debug, Default)]
pub(crate) struct Log {
    overlays: BTreeMap<TreeId, Arc<Overlay>>,
    sums: Items,
    pub(crate) notes: Vec<String>,
}

impl Log {
    /// Reads the log that the superblock names, and replays it over subvolumes. `walk` gives the
    /// tree of a subvolume.
    pub(crate) fn read(salvage: &Salvage, walk: &dyn Fn(TreeId) -> Option<Leaves>) -> Self {
        let mut log = Self::default();
        let superblock = salvage.superblock();
        let root = NodePtr {
            logical: superblock.log_root,
            generation: superblock.generation.next(),
            level: superblock.log_root_level,
        };
        let mut roots = BTreeMap::new();
        let top = Leaves::walk(salvage, TreeId::TREE_LOG, root, None);
        let gaps = top.all(salvage, &mut |key, bytes| {
            if key.objectid == TreeId::TREE_LOG.0
                && key.kind == Kind::ROOT_ITEM
                && let Ok(item) = RootItem::parse(bytes)
            {
                let root = NodePtr {
                    logical: item.bytenr,
                    generation: item.generation,
                    level: item.level,
                };
                roots.insert(TreeId(key.offset), root);
            }
        });
        for gap in gaps {
            log.notes.push(format!("the log of fsync is lost, or a part of it: {}", gap.why));
        }
        for (id, root) in roots {
            log.subvolume(salvage, walk(id), id, root);
        }
        log
    }

    fn subvolume(&mut self, salvage: &Salvage, tree: Option<Leaves>, id: TreeId, root: NodePtr) {
        let mut items = Items::new();
        let leaves = Leaves::walk(salvage, TreeId::TREE_LOG, root, None);
        let gaps = leaves.all(salvage, &mut |key, bytes| {
            items.insert(key, bytes.to_vec());
        });
        if let Some(gap) = gaps.first() {
            let why = &gap.why;
            self.notes.push(format!("the log of fsync for subvolume {id} is left out: {why}"));
            return;
        }
        let Some(tree) = tree else {
            self.notes.push(format!("subvolume {id} has a log of fsync, but is gone"));
            return;
        };
        let is_sum = |key: &Key| key.objectid == ids::EXTENT_CSUM && key.kind == Kind::EXTENT_CSUM;
        for (key, sums) in items.iter().filter(|(key, _)| is_sum(key)) {
            // Logs of two subvolumes may have checksums of one extent.
            let known = self.sums.entry(*key).or_default();
            if known.len() < sums.len() {
                known.clone_from(sums);
            }
        }
        items.retain(|key, _| !is_sum(key));
        let inodes = items.keys().filter(|key| key.kind == Kind::INODE_ITEM).count();
        self.notes.push(format!("the log of fsync has {inodes} inodes of subvolume {id}"));
        self.overlays.insert(id, Arc::new(replay::over(salvage, tree, &items)));
    }

    /// The changes to the tree of a subvolume.
    pub(crate) fn over(&self, id: TreeId) -> Arc<Overlay> {
        self.overlays.get(&id).map(Arc::clone).unwrap_or_default()
    }

    /// The items with checksums of an extent.
    pub(crate) fn sums(&self, extent: Extent) -> impl Iterator<Item = (&Key, &Vec<u8>)> {
        let key = |at: u64| Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at);
        let from = key(extent.start.0.saturating_sub(SUMS_MAX));
        self.sums.range(from..key(extent.end().0))
    }
}
