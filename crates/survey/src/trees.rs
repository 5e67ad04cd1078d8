//! The trees of one commit.

use std::sync::Arc;

use buttress_format::{Key, Kind, TreeId};
use buttress_tree::{Cursor, Error, Expect, Node, NodeSource, Result, Store, View};

/// The trees of one commit (SV1).
#[derive(Clone, Copy, Debug)]
pub struct Trees<'v> {
    view: &'v View,
}

impl<'v> Trees<'v> {
    /// The committed trees of a view. Changes that were not committed when the view was taken are
    /// not in them.
    #[must_use]
    pub fn of(view: &'v View) -> Self {
        Self { view }
    }

    /// The committed state.
    #[must_use]
    pub fn view(&self) -> &'v View {
        self.view
    }

    fn store(&self) -> &'v Store {
        self.view.store()
    }

    /// A cursor at the first item at or after a key; `None` if there is no such tree.
    pub(crate) fn seek(&self, tree: TreeId, key: &Key) -> Result<Option<Cursor<'v, Store>>> {
        let Some(root) = self.view.committed_root(tree)? else { return Ok(None) };
        Cursor::seek(self.store(), tree, root, key).map(Some)
    }

    /// Shows the items of a tree in `from..=to`, in order.
    pub(crate) fn each(
        &self,
        tree: TreeId,
        (from, to): (Key, Key),
        mut visit: impl FnMut(&Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(mut cursor) = self.seek(tree, &from)? else { return Ok(()) };
        while let Some((key, item)) = cursor.key().zip(cursor.item()) {
            if key > to {
                break;
            }
            visit(&key, item)?;
            cursor.advance()?;
        }
        Ok(())
    }

    /// The length of the extent that a key of the extent tree describes, or `None` for other keys.
    pub(crate) fn extent_len(&self, key: &Key) -> Option<u64> {
        match key.kind {
            Kind::EXTENT_ITEM => Some(key.offset),
            Kind::METADATA_ITEM => Some(u64::from(self.store().geometry().nodesize)),
            _ => None,
        }
    }

    /// The root node of a tree; `None` if there is no such tree.
    pub(crate) fn root(&self, tree: TreeId) -> Result<Option<Arc<Node>>> {
        let Some(root) = self.view.committed_root(tree)? else { return Ok(None) };
        self.store().root(tree, root).map(Some)
    }

    /// A node below another.
    pub(crate) fn child(&self, tree: TreeId, expect: &Expect) -> Result<Arc<Node>> {
        self.store().node(tree, expect)
    }
}

/// Makes the error that names the item of a tree that could not be read.
pub(crate) fn malformed(tree: TreeId, key: Key) -> impl FnOnce(buttress_format::Error) -> Error {
    move |source| Error::Item { tree, key, source }
}
