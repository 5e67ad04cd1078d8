//! Rebuilds the free-space tree in a commit. There are three reasons: the volume marks its tree as
//! invalid, the volume has no tree, or the user does not trust the tree.
//!
//! # Invariants
//!
//! - **F1** The new tree gets the gaps between the extents of the last commit. The commit then
//!   changes the new tree as every commit changes its tree. No thread reads the old tree until the
//!   commit is published.

use std::sync::atomic::Ordering;

use buttress_format::{Extent, Ino, Key, Kind, RootItem, TreeId};
use buttress_tree::Cursor;

use super::settle::{Changes, Settle};
use crate::{Commits, Result, Storage, free_space_tree};

impl Settle<'_> {
    /// Empties or creates the tree; the first round fills it.
    pub(super) fn rebuild_free_space(&mut self) -> Result<()> {
        let groups: Vec<Extent> = self.groups.extents().collect();
        for group in groups {
            let free = free_space_tree::gaps(self.owners.storage.store(), &self.roots, group)?;
            self.groups.record_anew(group, &free);
        }
        match self.roots.find(TreeId::FREE_SPACE) {
            Some(root) => {
                let mut gone = Changes::new();
                let mut cursor = Cursor::seek(
                    &**self.owners.storage.store(),
                    TreeId::FREE_SPACE,
                    root,
                    &Key::MIN,
                )?;
                while let Some(key) = cursor.key() {
                    gone.insert(key, None);
                    cursor.advance()?;
                }
                self.merge(TreeId::FREE_SPACE, gone)
            }
            None => {
                let key = Key::new(TreeId::FREE_SPACE.0, Kind::ROOT_ITEM, 0);
                let item = RootItem { refs: 1, root_dirid: Ino(0), ..RootItem::default() };
                self.merge(TreeId::ROOT, Changes::from([(key, Some(item.to_bytes().into()))]))?;
                // A tree without items is one empty leaf. Adding and removing an item makes this
                // leaf.
                let any = Key::MIN;
                self.merge(TreeId::FREE_SPACE, Changes::from([(any, Some(Vec::new().into()))]))?;
                self.merge(TreeId::FREE_SPACE, Changes::from([(any, None)]))
            }
        }
    }
}

impl Storage {
    /// Makes the next commit record all free space again. From now on the old tree is not trusted.
    pub(crate) fn rebuild_free_space(&self, commits: &Commits) {
        tracing::info!("rebuilding the free-space tree");
        self.groups().trust_free_space(false);
        commits.peek().running().rebuild.store(true, Ordering::Relaxed);
    }
}
