//! Paths of directories in the tree that is being sent.
//!
//! # Place
//!
//! These paths are for commands about content, which come after every directory is at its final
//! place. Before that, `names` knows the places of directories.

use std::collections::HashMap;

use buttress_format::Ino;

use super::tree::{Link, Tree};
use crate::error::{Error, Result, shortened};
use crate::stream::{PATH_BYTES_MAX, StreamPath};

/// The maximum depth of a path. A deeper path is a loop, which only damage can make.
pub(super) const DEPTH_MAX: usize = 4096;

/// The number of remembered paths above which all are forgotten.
pub(super) const KEPT_MAX: usize = 64 << 10;

pub(super) struct Paths<'t, 'v> {
    tree: &'t Tree<'v>,
    known: HashMap<Ino, Vec<u8>>,
}

impl<'t, 'v> Paths<'t, 'v> {
    pub(super) fn new(tree: &'t Tree<'v>) -> Self {
        Self { tree, known: HashMap::from([(Ino::ROOT_DIR, Vec::new())]) }
    }

    /// The path of a directory.
    pub(super) fn of_dir(&mut self, ino: Ino) -> Result<&[u8]> {
        if self.known.len() > KEPT_MAX {
            self.known.retain(|ino, _| *ino == Ino::ROOT_DIR);
        }
        let mut chain = Vec::new();
        let mut at = ino;
        while !self.known.contains_key(&at) {
            let link = self.tree.first_link(at)?;
            let link = link
                .ok_or_else(|| self.tree.damaged(at, "a name in a directory that is not there"))?;
            let parent = link.parent;
            chain.push((at, link.name));
            at = parent;
            if chain.len() > DEPTH_MAX {
                return Err(self.tree.damaged(ino, "the way up from it does not end"));
            }
        }
        while let Some((child, name)) = chain.pop() {
            let path = join(&self.known[&at], &name);
            self.known.insert(child, path);
            at = child;
        }
        Ok(&self.known[&ino])
    }

    /// The path of a name.
    pub(super) fn of(&mut self, link: &Link) -> Result<Vec<u8>> {
        Ok(join(self.of_dir(link.parent)?, &link.name))
    }
}

/// A path and a name below it.
pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() {
        return name.to_vec();
    }
    let mut joined = Vec::with_capacity(path.len() + 1 + name.len());
    joined.extend_from_slice(path);
    joined.push(b'/');
    joined.extend_from_slice(name);
    joined
}

/// Checks a path that was joined from names on the volume.
///
/// # Errors
///
/// [`Error::PathTooLong`], or [`Error::Path`] for any other path that a stream cannot hold.
pub(super) fn path(bytes: &[u8]) -> Result<StreamPath<'_>> {
    StreamPath::new(bytes).map_err(|problem| match bytes.len() {
        len if len > PATH_BYTES_MAX => Error::path_too_long(bytes),
        _ => Error::Path { path: shortened(bytes), problem },
    })
}
