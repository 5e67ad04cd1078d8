//! Checks, before anything is sent, that no path is too long for a stream.
//!
//! # Invariants
//!
//! - **F1** For each inode that the stream names, all names that differ are checked. If no name
//!   differs, one name is checked.
//! - **F2** This module does not know temporary names that the sender gives between two steps. The
//!   paths of these names are checked when the command is written.

use std::collections::{HashMap, HashSet};

use buttress_format::{Ino, InodeExtrefs, InodeRefs, Kind};

use super::diff::{Diff, Difference};
use super::paths::{DEPTH_MAX, KEPT_MAX};
use super::tree::{Link, Tree};
use crate::error::{Error, Result};
use crate::stream::PATH_BYTES_MAX;

/// Reads the differences of two trees once, and checks the length of each path.
///
/// # Errors
///
/// [`Error::PathTooLong`] with the first path that does not fit.
pub(super) fn check<'t, 'v>(old: Option<&'t Tree<'v>>, new: &'t Tree<'v>) -> Result<()> {
    let mut before = old.map(Lengths::new);
    let mut after = Lengths::new(new);
    let mut diff = Diff::new(old, new)?;
    // The current inode, and whether a name of it in the new tree was checked.
    let mut at = (Ino::ROOT_DIR, true);
    while let Some(found) = diff.item()? {
        let ino = Ino(found.key.objectid);
        if ino != at.0 {
            after.one_name(at)?;
            at = (ino, ino == Ino::ROOT_DIR);
        }
        at.1 |= after.names(&found, true)?;
        if let Some(before) = &mut before {
            before.names(&found, false)?;
        }
    }
    after.one_name(at)
}

/// Lengths of paths in one tree, in bytes.
struct Lengths<'t, 'v> {
    tree: &'t Tree<'v>,
    dirs: HashMap<Ino, usize>,
}

impl<'t, 'v> Lengths<'t, 'v> {
    fn new(tree: &'t Tree<'v>) -> Self {
        Self { tree, dirs: HashMap::from([(Ino::ROOT_DIR, 0)]) }
    }

    /// Checks the names in an item. Returns whether the item holds names.
    fn names(&mut self, found: &Difference, is_new: bool) -> Result<bool> {
        let ino = Ino(found.key.objectid);
        let side = if is_new { &found.new } else { &found.old };
        let Some((node, slot)) = side.as_ref().filter(|_| ino != Ino::ROOT_DIR) else {
            return Ok(false);
        };
        let bytes = node.item(*slot);
        let wrong = |source| self.tree.format(ino, source);
        match found.key.kind {
            Kind::INODE_REF => {
                let parent = Ino(found.key.offset);
                for entry in InodeRefs::parse(bytes).map_err(wrong)? {
                    self.check(&Link { parent, name: entry.name })?;
                }
            }
            Kind::INODE_EXTREF => {
                for entry in InodeExtrefs::parse(bytes).map_err(wrong)? {
                    self.check(&Link { parent: entry.parent, name: entry.name })?;
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks one name of an inode, unless a differing name of it was checked already (F1).
    fn one_name(&mut self, (ino, is_known): (Ino, bool)) -> Result<()> {
        if is_known {
            return Ok(());
        }
        self.tree.first_link(ino)?.map_or(Ok(()), |link| self.check(&link))
    }

    fn check(&mut self, link: &Link) -> Result<()> {
        let dir = self.of_dir(link.parent)?;
        let len = if dir == 0 { link.name.len() } else { dir + 1 + link.name.len() };
        if len > PATH_BYTES_MAX { Err(self.too_long(link)?) } else { Ok(()) }
    }

    /// Returns the length of a directory's path. For a path that does not end, returns a length
    /// above the limit.
    fn of_dir(&mut self, ino: Ino) -> Result<usize> {
        if let Some(len) = self.dirs.get(&ino) {
            return Ok(*len);
        }
        if self.dirs.len() > KEPT_MAX {
            self.dirs.retain(|ino, _| *ino == Ino::ROOT_DIR);
        }
        let mut chain = Vec::new();
        let mut at = ino;
        while !self.dirs.contains_key(&at) {
            // An inode without a name is not sent, and its descendants are not sent either.
            let Some(link) = self.tree.first_link(at)? else { return Ok(0) };
            chain.push((at, link.name.len()));
            at = link.parent;
            if chain.len() > DEPTH_MAX {
                return Ok(PATH_BYTES_MAX + 1);
            }
        }
        let mut len = self.dirs[&at];
        while let Some((child, name)) = chain.pop() {
            len = if len == 0 { name } else { len.saturating_add(1 + name) };
            self.dirs.insert(child, len);
        }
        Ok(len)
    }

    /// Returns the error for a path that is too long. A loop of directories is reported as damage.
    fn too_long(&self, link: &Link) -> Result<Error> {
        let mut names = vec![link.name.clone()];
        let mut seen = HashSet::new();
        let mut at = link.parent;
        while at != Ino::ROOT_DIR {
            if !seen.insert(at) {
                return Ok(self.tree.damaged(at, "the way up from it does not end"));
            }
            let Some(link) = self.tree.first_link(at)? else { break };
            names.push(link.name);
            at = link.parent;
        }
        names.reverse();
        Ok(Error::path_too_long(&names.join(&b'/')))
    }
}
