//! Finds the changes since a generation, and the names of an inode.

use std::sync::Arc;

use buttress_format::{
    Body, Compression, FileExtent, Ino, InodeExtrefs, InodeRefs, Key, Kind, Logical, TreeId,
};
use buttress_tree::{Node, Result};
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::trees::{Trees, malformed};
use crate::walk::all_of;

/// The most names of a path. A longer path, on a damaged volume, counts as a cycle and is cut at
/// this length.
const DEPTH_MAX: usize = 4096;

/// A part of a file that is as new as the requested generation, or newer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The file.
    pub ino: u64,
    /// Offset of the part in the file, in bytes.
    pub at: u64,
    /// The length of the part, in bytes.
    pub len: u64,
    /// The address of its extent; zero for a hole and for data inside the item.
    pub disk: u64,
    /// Offset of the part in the extent.
    pub offset: u64,
    /// The transaction that wrote the part.
    pub generation: u64,
    /// `COMPRESS`, `PREALLOC` and `INLINE` as they apply.
    pub flags: Vec<String>,
    /// A name of the file, below the top of the subvolume.
    pub path: Vec<u8>,
}

struct Search<'f, 'v> {
    trees: &'f Trees<'v>,
    tree: TreeId,
    since: u64,
    found: Vec<Change>,
    paths: FxHashMap<Ino, Vec<u8>>,
}

/// Returns the parts of files that transaction `since` or a later transaction wrote, by inode and
/// offset. Skips older nodes.
///
/// # Errors
///
/// A tree is damaged.
pub fn find_new(trees: &Trees<'_>, tree: TreeId, since: u64) -> Result<Vec<Change>> {
    let paths = FxHashMap::default();
    let mut search = Search { trees, tree, since, found: Vec::new(), paths };
    if let Some(root) = trees.root(tree)? {
        search.below(&root)?;
    }
    Ok(search.found)
}

/// Returns about how many bytes of data a stream of a subvolume has: those that transaction `since`
/// or a later transaction wrote. With `packed`, the stream has compressed data as it is.
///
/// # Errors
///
/// A tree is damaged.
pub fn written_since(trees: &Trees<'_>, tree: TreeId, since: u64, packed: bool) -> Result<u64> {
    let mut bytes = 0_u64;
    let mut waiting: Vec<Arc<Node>> = trees.root(tree)?.into_iter().collect();
    while let Some(node) = waiting.pop() {
        for slot in 0..node.len() {
            if node.level() > 0 {
                if node.child(slot).generation.0 >= since {
                    waiting.push(trees.child(tree, &node.expect_child(slot))?);
                }
                continue;
            }
            let key = node.key(slot);
            if key.kind != Kind::EXTENT_DATA {
                continue;
            }
            let extent = FileExtent::parse(node.item(slot)).map_err(malformed(tree, key))?;
            let is_empty = matches!(extent.body, Body::Prealloc(_))
                || extent.region().is_some_and(|region| region.is_hole());
            if is_empty || extent.generation.0 < since {
                continue;
            }
            // Lengths of a damaged tree may be anything, and this is only an estimate.
            let len = match extent.region() {
                Some(region) if packed => region.disk_len.min(extent.file_len()),
                _ => extent.file_len(),
            };
            bytes = bytes.saturating_add(len);
        }
    }
    Ok(bytes)
}

impl Search<'_, '_> {
    /// The recursion is at most eight calls deep, because each child must be one level lower than
    /// its parent.
    fn below(&mut self, node: &Node) -> Result<()> {
        for slot in 0..node.len() {
            if node.level() == 0 {
                self.item(&node.key(slot), node.item(slot))?;
            } else if node.child(slot).generation.0 >= self.since {
                let child = self.trees.child(self.tree, &node.expect_child(slot))?;
                self.below(&child)?;
            }
        }
        Ok(())
    }

    fn item(&mut self, key: &Key, bytes: &[u8]) -> Result<()> {
        if key.kind != Kind::EXTENT_DATA {
            return Ok(());
        }
        let extent = FileExtent::parse(bytes).map_err(malformed(self.tree, *key))?;
        if extent.generation.0 < self.since {
            return Ok(());
        }
        let region = extent.region();
        let flags = [
            ("COMPRESS", extent.compression != Compression::None),
            ("PREALLOC", matches!(extent.body, Body::Prealloc(_))),
            ("INLINE", matches!(extent.body, Body::Inline(_))),
        ];
        let flags = flags.into_iter().filter(|(_, is)| *is).map(|(name, _)| name.to_owned());
        let ino = Ino(key.objectid);
        let path = match self.paths.get(&ino) {
            Some(path) => path.clone(),
            None => {
                let first = names(self.trees, self.tree, ino)?.into_iter().next();
                let path = first.unwrap_or_default();
                self.paths.insert(ino, path.clone());
                path
            }
        };
        self.found.push(Change {
            ino: key.objectid,
            at: key.offset,
            len: extent.file_len(),
            disk: region.map_or(Logical(0), |region| region.disk).0,
            offset: region.map_or(0, |region| region.offset),
            generation: extent.generation.0,
            flags: flags.collect(),
            path,
        });
        Ok(())
    }
}

/// Returns all names of an inode, as paths from the top of its subvolume. Empty if the inode has no
/// name or does not exist.
///
/// # Errors
///
/// A tree is damaged.
pub fn names(trees: &Trees<'_>, tree: TreeId, ino: Ino) -> Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for (folder, name) in places(trees, tree, ino)? {
        let mut parts = vec![name];
        let mut at = folder;
        while at != Ino::ROOT_DIR && parts.len() <= DEPTH_MAX {
            let Some((above, name)) = places(trees, tree, at)?.into_iter().next() else { break };
            parts.push(name);
            at = above;
        }
        parts.reverse();
        found.push(parts.join(&b'/'));
    }
    Ok(found)
}

/// Returns the folders in which an inode has a name, each with that name.
fn places(trees: &Trees<'_>, tree: TreeId, ino: Ino) -> Result<Vec<(Ino, Vec<u8>)>> {
    let mut places = Vec::new();
    // The top folder has only the reference to itself.
    if ino == Ino::ROOT_DIR {
        return Ok(places);
    }
    let (from, _) = all_of(ino, Kind::INODE_REF);
    let (_, to) = all_of(ino, Kind::INODE_EXTREF);
    trees.each(tree, (from, to), |key, item| {
        if key.kind == Kind::INODE_REF {
            let refs = InodeRefs::parse(item).map_err(malformed(tree, *key))?;
            places.extend(refs.into_iter().map(|one| (Ino(key.offset), one.name)));
        } else {
            let refs = InodeExtrefs::parse(item).map_err(malformed(tree, *key))?;
            places.extend(refs.into_iter().map(|one| (one.parent, one.name)));
        }
        Ok(())
    })?;
    Ok(places)
}
