//! Queries about subvolumes and trees by number.
//!
//! # Invariants
//!
//! - **IN1** A search shows items of one commit. Its view keeps the nodes of that commit as long as
//!   the search lives.
//! - **IN2** A search descends one level at each step, so it ends even on a damaged volume.

use buttress_format::{Generation, Ino, InodeRefs, Key, Kind, RootRef, Superblock, TreeId};
use buttress_items::{Error, ErrorKind, InodeId, NameError, Result, roots};
use buttress_tree::{Expect, Node, NodeSource, Store};

use crate::filesystem::Filesystem;
use crate::inode::DEPTH_MAX;

/// An item of a committed tree.
#[derive(Clone, Copy, Debug)]
pub struct TreeItem<'a> {
    /// Its key.
    pub key: Key,
    /// The transaction that wrote its leaf.
    pub generation: Generation,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// The items that a search shows.
#[derive(Clone, Copy, Debug)]
pub struct Searched {
    /// The tree.
    pub tree: TreeId,
    /// The first and the last key.
    pub keys: (Key, Key),
    /// The first and the last transaction. The search shows items of leaves that a transaction in
    /// this range wrote.
    pub generations: (Generation, Generation),
}

impl Filesystem {
    /// The superblock of the last commit. The call does not wait for a commit that is being
    /// written.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        (*self.mount().engine.commits().superblock()).clone()
    }

    /// As [`Filesystem::commit`], for a caller that then reads the committed trees. If a failed
    /// commit made the mount read-only, the caller reads the last successful commit.
    ///
    /// # Errors
    ///
    /// `Io`, `NoSpace`.
    pub fn commit_or_keep_last(&self) -> Result<()> {
        match self.commit() {
            Err(error) if error.kind() == ErrorKind::Aborted => {
                tracing::warn!(%error, "the last commit is used, without what was written since");
                Ok(())
            }
            done => done,
        }
    }

    /// The last durable transaction.
    #[must_use]
    pub fn committed(&self) -> Generation {
        self.mount().engine.commits().published()
    }

    /// The running transaction: changes made now are part of it.
    #[must_use]
    pub fn running(&self) -> Generation {
        self.mount().engine.view().generation()
    }

    /// Whether the volume counts space by quota groups.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn has_quotas(&self) -> Result<bool> {
        Ok(self.mount().engine.view().committed_root(TreeId::QUOTA)?.is_some())
    }

    /// The directory that has the name of a subvolume, and the name. `None` for the top level.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn subvolume_place(&self, tree: TreeId) -> Result<Option<(InodeId, Vec<u8>)>> {
        roots::place(&self.mount().engine.view(), tree)
    }

    /// Up to `most` subvolumes with names within another subvolume, each with the directory that
    /// has the name. The subvolumes are sorted by number, from `from` on.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn subvolumes_within(
        &self,
        tree: TreeId,
        from: TreeId,
        most: usize,
    ) -> Result<Vec<(TreeId, Ino)>> {
        let view = self.mount().engine.view();
        let low = Key::new(tree.0, Kind::ROOT_REF, from.0);
        let high = Key::new(tree.0, Kind::ROOT_REF, u64::MAX);
        let found = view.range(TreeId::ROOT, low, high).take(most);
        let parsed = found.map(|found| {
            let (key, item) = found?;
            let place = RootRef::parse(&item).map_err(|source| Error::Format {
                tree: TreeId::ROOT,
                ino: Ino(key.objectid),
                source,
            })?;
            Ok((TreeId(key.offset), place.dirid))
        });
        parsed.collect()
    }

    /// The directory with the highest number that has a name of this inode, and the inode's first
    /// name there. `None` for an inode without a name, such as the top of a subvolume.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such subvolume. An error from reading the tree.
    pub fn last_name(&self, id: InodeId) -> Result<Option<(Ino, Vec<u8>)>> {
        let view = self.mount().engine.view();
        roots::root_item(&view, id.tree)?.ok_or(NameError::NotFound)?;
        let low = Key::new(id.ino.0, Kind::INODE_REF, 0);
        let high = Key::new(id.ino.0, Kind::INODE_REF, u64::MAX);
        let Some((key, item)) = view.at_or_before(id.tree, &low, &high)? else { return Ok(None) };
        let (tree, ino) = (id.tree, id.ino);
        let refs = InodeRefs::parse(&item).map_err(|source| Error::Format { tree, ino, source })?;
        Ok(refs.into_iter().next().map(|found| (Ino(key.offset), found.name)))
    }

    /// The names from the top of a subvolume down to an inode.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such subvolume or inode. An error from reading the tree.
    pub fn way_to(&self, id: InodeId) -> Result<Vec<Vec<u8>>> {
        let mut way = Vec::new();
        let mut at = id;
        while at.ino != Ino::ROOT_DIR {
            let (dir, name) = self.last_name(at)?.ok_or(NameError::NotFound)?;
            way.push(name);
            at.ino = dir;
            if way.len() > DEPTH_MAX {
                let what = "the way up from it does not end";
                return Err(Error::Item { tree: id.tree, ino: id.ino, what });
            }
        }
        way.reverse();
        Ok(way)
    }

    /// Shows items of the last commit to `visit`, in order, until `visit` returns `false`. Changes
    /// since that commit are not shown, so call [`Filesystem::commit`] first. Nodes older than the
    /// first wanted transaction are not read.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such tree, or the subvolume was deleted. An error from reading the
    /// tree.
    pub fn search(
        &self,
        searched: Searched,
        visit: &mut dyn FnMut(TreeItem<'_>) -> bool,
    ) -> Result<()> {
        let view = self.mount().engine.view();
        let tree = searched.tree;
        if tree.is_fs_tree() {
            roots::root_item(&view, tree)?.ok_or(NameError::NotFound)?;
        }
        let root = view.committed_root(tree)?.ok_or(NameError::NotFound)?;
        let store: &Store = view.store();
        if root.generation >= searched.generations.0 {
            let node = store.root(tree, root)?;
            Search { store, searched, visit }.below(&node)?;
        }
        Ok(())
    }
}

struct Search<'s> {
    store: &'s Store,
    searched: Searched,
    visit: &'s mut dyn FnMut(TreeItem<'_>) -> bool,
}

impl Search<'_> {
    /// Shows the items below a node; returns whether to go on. The recursion is at most eight deep,
    /// because each step down must reach a level that is lower by one (IN2).
    fn below(&mut self, node: &Node) -> Result<bool> {
        let Searched { tree, keys: (from, to), generations } = self.searched;
        if node.level() == 0 {
            return Ok(self.leaf(node));
        }
        for slot in node.child_slot(&from)..node.len() {
            if node.key(slot) > to {
                return Ok(false);
            }
            if node.child(slot).generation < generations.0 {
                continue;
            }
            let expect: Expect = node.expect_child(slot);
            let child = self.store.node(tree, &expect)?;
            if !self.below(&child)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn leaf(&mut self, leaf: &Node) -> bool {
        let Searched { keys: (from, to), generations: (_, last), .. } = self.searched;
        let generation = leaf.ptr().generation;
        if generation > last {
            return true;
        }
        for slot in leaf.search(&from).unwrap_or_else(|slot| slot)..leaf.len() {
            let key = leaf.key(slot);
            if key > to || !(self.visit)(TreeItem { key, generation, bytes: leaf.item(slot) }) {
                return false;
            }
        }
        true
    }
}
