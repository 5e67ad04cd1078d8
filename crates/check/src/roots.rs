//! The root tree: the list of all trees, and the relations of subvolumes.
//!
//! # Invariants
//!
//! - **R1** Every subvolume that is not deleted, except the top level, has one reference in both
//!   directions. A directory entry is at the place that the reference names. An entry without a
//!   reference is no error: the snapshot of a directory with subvolumes has such entries.

use std::collections::BTreeMap;

use buttress_format::{
    CompatRo, DirEntry, Generation, Incompat, Ino, Key, Kind, RootItem, RootRef, TreeId, UuidItem,
    ids, name_hash,
};
use buttress_tree::{Cursor, NodePtr, boot};

use crate::context::{Context, Tree};
use crate::walk::each_leaf;
use buttress_issue::{Issue, Name};

/// The content of the root tree.
#[derive(Default)]
pub(crate) struct Roots {
    items: Vec<(Key, RootItem)>,
    /// References from a parent to a child, by (child, parent).
    references: BTreeMap<(TreeId, TreeId), RootRef>,
    back_references: BTreeMap<(TreeId, TreeId), RootRef>,
    orphans: Vec<TreeId>,
    default: Option<TreeId>,
}

/// Reads the root tree.
pub(crate) fn load(context: &Context<'_>) -> Roots {
    let mut roots = Roots::default();
    let tree = Tree::new(TreeId::ROOT, boot::root_tree_root(context.superblock));
    each_leaf(context, &tree, &mut |leaf| {
        for slot in 0..leaf.len() {
            let (key, bytes) = (leaf.key(slot), leaf.item(slot));
            if let Err(error) = roots.item(context, key, bytes) {
                let (tree, logical, why) = (TreeId::ROOT, leaf.logical(), error.to_string());
                context.add(Issue::ItemMalformed { tree, logical, key, why });
            }
        }
    });
    roots.check_complete(context);
    roots
}

impl Roots {
    fn item(
        &mut self,
        context: &Context<'_>,
        key: Key,
        bytes: &[u8],
    ) -> buttress_format::Result<()> {
        match key.kind {
            Kind::ROOT_ITEM => {
                let item = RootItem::parse(bytes)?;
                context.check_generation(TreeId::ROOT, key, item.generation);
                self.items.push((key, item));
            }
            Kind::ROOT_REF => {
                let place = (TreeId(key.offset), TreeId(key.objectid));
                self.references.insert(place, RootRef::parse(bytes)?);
            }
            Kind::ROOT_BACKREF => {
                let place = (TreeId(key.objectid), TreeId(key.offset));
                self.back_references.insert(place, RootRef::parse(bytes)?);
            }
            Kind::ORPHAN_ITEM if key.objectid == ids::ORPHAN => {
                self.orphans.push(TreeId(key.offset));
            }
            Kind::DIR_ITEM if key.objectid == TreeId::ROOT_DIR.0 => {
                let entries = DirEntry::parse_all(bytes)?;
                let default = entries.iter().find(|entry| entry.name == b"default");
                self.default = default.map(|entry| TreeId(entry.location.objectid));
            }
            _ => {}
        }
        Ok(())
    }

    fn check_complete(&self, context: &Context<'_>) {
        let mut needed = vec![TreeId::EXTENT, TreeId::DEV, TreeId::FS, TreeId::CSUM];
        needed.push(TreeId::DATA_RELOC);
        for (flag, tree) in [
            (CompatRo::FREE_SPACE_TREE, TreeId::FREE_SPACE),
            (CompatRo::BLOCK_GROUP_TREE, TreeId::BLOCK_GROUP),
        ] {
            if context.superblock.compat_ro.has(flag) {
                needed.push(tree);
            }
        }
        if context.superblock.incompat.has(Incompat::RAID_STRIPE_TREE) {
            needed.push(TreeId::RAID_STRIPE);
        }
        for tree in needed {
            if self.find(tree).is_none() {
                context.add(Issue::RootMissing { tree });
            }
        }
        if let Some(default) = self.default
            && self.find(default).is_none()
        {
            context.add(Issue::DefaultMissing { why: "it is not there" });
        }
    }

    /// The transaction of the last snapshot of each tree.
    pub(crate) fn last_snapshots(&self) -> BTreeMap<TreeId, Generation> {
        let last = |(key, item): &(Key, RootItem)| (TreeId(key.objectid), item.last_snapshot);
        self.items.iter().map(last).collect()
    }

    /// Where the root of a tree lies.
    pub(crate) fn root_of(&self, tree: TreeId) -> Option<NodePtr> {
        self.find(tree).map(|item| NodePtr {
            logical: item.bytenr,
            generation: item.generation,
            level: item.level,
        })
    }

    fn find(&self, tree: TreeId) -> Option<&RootItem> {
        // The root item of a snapshot has the transaction of its creation as key offset. Other
        // trees have one root item, at offset 0. The exception is the data relocation tree: Linux
        // looks this tree up as a snapshot, and btrfs-convert creates it as a snapshot.
        let has_any_offset = tree == TreeId::DATA_RELOC || tree.is_fs_tree() && tree != TreeId::FS;
        let is_it = |key: &Key| key.objectid == tree.0 && (key.offset == 0 || has_any_offset);
        self.items.iter().find(|(key, _)| is_it(key)).map(|(_, item)| item)
    }

    /// Returns every tree of the volume except the logs, the extent tree first.
    pub(crate) fn trees(&self, context: &Context<'_>) -> Vec<Tree> {
        let superblock = context.superblock;
        let mut trees = vec![
            Tree::new(TreeId::ROOT, boot::root_tree_root(superblock)),
            Tree::new(TreeId::CHUNK, boot::chunk_root(superblock)),
        ];
        trees.extend(self.items.iter().map(|(key, item)| {
            let NodePtr { logical, generation, level } =
                NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
            let id = TreeId(key.objectid);
            let mut tree = Tree::new(id, NodePtr { logical, generation, level });
            tree.is_dead = id.is_fs_tree() && item.refs == 0;
            let progress = item.drop_progress;
            tree.drop =
                (tree.is_dead && progress.objectid != 0).then_some((progress, item.drop_level));
            tree
        }));
        trees.sort_by_key(|tree| u8::from(tree.id != TreeId::EXTENT));
        trees
    }

    /// Returns the bytes of all nodes, according to the root items. A shared node counts in each of
    /// its trees.
    pub(crate) fn tree_bytes(&self) -> u64 {
        self.items.iter().fold(0, |sum, (_, item)| sum.saturating_add(item.bytes_used))
    }

    /// Compares references of subvolumes with each other and with the directories (R1).
    pub(crate) fn check_references(&self, context: &Context<'_>, trees: &[Tree]) {
        for (&(tree, parent), reference) in &self.references {
            match self.back_references.get(&(tree, parent)) {
                None => context.add(Issue::RootRefMismatch {
                    tree,
                    parent,
                    why: "the parent refers to it, and it does not refer back",
                }),
                Some(back) if back != reference => context.add(Issue::RootRefMismatch {
                    tree,
                    parent,
                    why: "its reference and its reference back differ",
                }),
                Some(_) => {}
            }
            if self.find(tree).is_none() {
                context.add(Issue::RootRefDangling { tree, parent });
            }
            if let Some(parent_tree) = trees.iter().find(|known| known.id == parent) {
                check_entry(context, parent_tree, tree, reference);
            } else {
                let why = "the parent is not there";
                context.add(Issue::RootRefMismatch { tree, parent, why });
            }
        }
        for &(tree, parent) in self.back_references.keys() {
            if !self.references.contains_key(&(tree, parent)) {
                let why = "it refers back to a parent that does not refer to it";
                context.add(Issue::RootRefMismatch { tree, parent, why });
            }
        }
        for (key, item) in &self.items {
            let tree = TreeId(key.objectid);
            let has_files = tree.is_fs_tree() || tree == TreeId::DATA_RELOC;
            if has_files && item.refs > 0 && item.root_dirid != Ino::ROOT_DIR {
                context.add(Issue::RootDirectory { tree, ino: item.root_dirid });
            }
            if !tree.is_fs_tree() || tree == TreeId::FS {
                continue;
            }
            let has_reference = |references: &BTreeMap<(TreeId, TreeId), RootRef>| {
                references.range((tree, TreeId(0))..=(tree, TreeId(u64::MAX))).next().is_some()
            };
            let is_orphan = self.orphans.contains(&tree);
            if item.refs == 0 && !is_orphan || item.refs > 0 && !has_reference(&self.references) {
                context.add(Issue::RootUnreferenced { tree });
            }
        }
    }

    /// Compares the tree of UUIDs with the subvolumes.
    pub(crate) fn check_uuids(&self, context: &Context<'_>, tree: &Tree) {
        let mut named: BTreeMap<(TreeId, [u8; 16]), ()> = BTreeMap::new();
        each_leaf(context, tree, &mut |leaf| {
            for slot in 0..leaf.len() {
                let key = leaf.key(slot);
                // Early versions of mkfs.btrfs gave this tree a root directory.
                if matches!(key.kind, Kind::INODE_ITEM | Kind::INODE_REF) {
                    continue;
                }
                let Ok(item) = UuidItem::parse(leaf.item(slot)) else {
                    let (tree, logical) = (TreeId::UUID, leaf.logical());
                    let why = "its length is not a multiple of eight".to_owned();
                    context.add(Issue::ItemMalformed { tree, logical, key, why });
                    continue;
                };
                let mut uuid = [0; 16];
                uuid[..8].copy_from_slice(&key.objectid.to_le_bytes());
                uuid[8..].copy_from_slice(&key.offset.to_le_bytes());
                for subvolume in item.0 {
                    let found = self.find(subvolume);
                    let is_right = found.is_some_and(|item| match key.kind {
                        Kind::UUID_KEY_SUBVOL => item.uuid == uuid,
                        _ => item.received_uuid == uuid,
                    });
                    if is_right && key.kind == Kind::UUID_KEY_SUBVOL {
                        named.insert((subvolume, uuid), ());
                    } else if !is_right {
                        context.add(Issue::UuidStale { tree: subvolume, key });
                    }
                }
            }
        });
        for (key, item) in &self.items {
            let tree = TreeId(key.objectid);
            let wants = tree.is_fs_tree() && item.refs > 0 && item.uuid != [0; 16];
            if wants && !named.contains_key(&(tree, item.uuid)) {
                context.add(Issue::UuidMissing { tree });
            }
        }
    }
}

/// Looks for both entries of a subvolume in the directory that its reference names.
fn check_entry(context: &Context<'_>, parent: &Tree, tree: TreeId, reference: &RootRef) {
    let dir = reference.dirid;
    let has_entry = |key: Key| {
        let found = Cursor::find(&context.source, parent.id, parent.root, &key).ok().flatten();
        let entries = found.and_then(|(node, slot)| DirEntry::parse_all(node.item(slot)).ok());
        entries.is_some_and(|entries| {
            entries.iter().any(|entry| {
                entry.name == reference.name
                    && entry.location.kind == Kind::ROOT_ITEM
                    && entry.location.objectid == tree.0
            })
        })
    };
    let listed = has_entry(Key::new(dir.0, Kind::DIR_INDEX, reference.sequence));
    let looked_up = has_entry(Key::new(dir.0, Kind::DIR_ITEM, name_hash(&reference.name)));
    if !listed || !looked_up {
        let name = Name(reference.name.clone());
        let parent = parent.id;
        context.add(Issue::RootEntryMissing { tree, parent, dir: Ino(dir.0), name });
    }
}
