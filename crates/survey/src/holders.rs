//! Finds the files that hold the bytes at an address of the volume.
//!
//! # What must hold
//!
//! - Trees of one snapshot family share nodes. If no file below a node holds the address, the node
//!   is read only once, for all these trees.

use buttress_format::{Compression, FileExtent, Ino, Key, Kind, Logical, RootItem, TreeId};
use buttress_tree::{Node, Result};
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use crate::find::names;
use crate::trees::{Trees, malformed};

/// A part of a file. Its content lies at the address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The subvolume.
    pub tree: u64,
    /// The file.
    pub ino: u64,
    /// The offset of the address in the file, in bytes. With `any_part`, or in a compressed extent,
    /// this is the start of the part.
    pub at: u64,
    /// All names of the file, as paths below the top of its subvolume.
    pub paths: Vec<Vec<u8>>,
}

struct Search<'f, 'v> {
    trees: &'f Trees<'v>,
    address: u64,
    any_part: bool,
    without: FxHashSet<Logical>,
    found: Vec<Holder>,
}

/// Returns the files that hold the byte at an address, by subvolume and inode. With `any_part`,
/// also files that hold only other parts of its extent.
///
/// # Errors
///
/// A tree is damaged.
pub fn holders(trees: &Trees<'_>, address: u64, any_part: bool) -> Result<Vec<Holder>> {
    let mut subvolumes = Vec::new();
    let all = (Key::MIN, Key::MAX);
    trees.each(TreeId::ROOT, all, |key, item| {
        let tree = TreeId(key.objectid);
        if key.kind == Kind::ROOT_ITEM && tree.is_fs_tree() {
            // A deleted subvolume may already be dropped in part, and other trees may use its
            // former nodes.
            let is_deleted = RootItem::parse(item).is_ok_and(|root| root.refs == 0);
            subvolumes.extend((!is_deleted).then_some(tree));
        }
        Ok(())
    })?;
    let (without, found) = (FxHashSet::default(), Vec::new());
    let mut search = Search { trees, address, any_part, without, found };
    for tree in subvolumes {
        if let Some(root) = trees.root(tree)? {
            search.below(tree, &root)?;
        }
    }
    let mut found = search.found;
    for holder in &mut found {
        holder.paths = names(trees, TreeId(holder.tree), Ino(holder.ino))?;
    }
    Ok(found)
}

impl Search<'_, '_> {
    /// The recursion is at most eight calls deep, because each child must be one level lower than
    /// its parent.
    fn below(&mut self, tree: TreeId, node: &Node) -> Result<()> {
        if self.without.contains(&node.logical()) {
            return Ok(());
        }
        let before = self.found.len();
        for slot in 0..node.len() {
            if node.level() == 0 {
                self.item(tree, &node.key(slot), node.item(slot))?;
            } else {
                let child = self.trees.child(tree, &node.expect_child(slot))?;
                self.below(tree, &child)?;
            }
        }
        if self.found.len() == before {
            self.without.insert(node.logical());
        }
        Ok(())
    }

    fn item(&mut self, tree: TreeId, key: &Key, bytes: &[u8]) -> Result<()> {
        if key.kind != Kind::EXTENT_DATA {
            return Ok(());
        }
        let extent = FileExtent::parse(bytes).map_err(malformed(tree, *key))?;
        let Some(region) = extent.region().filter(|region| !region.is_hole()) else {
            return Ok(());
        };
        let Some(within) = self.address.checked_sub(region.disk.0) else { return Ok(()) };
        if within >= region.disk_len {
            return Ok(());
        }
        let is_plain = extent.compression == Compression::None;
        let part = within.checked_sub(region.offset).filter(|part| *part < region.len);
        let at = match part {
            _ if self.any_part || !is_plain => key.offset,
            Some(part) => key.offset + part,
            None => return Ok(()),
        };
        let (tree, ino) = (tree.0, key.objectid);
        self.found.push(Holder { tree, ino, at, paths: Vec::new() });
        Ok(())
    }
}
