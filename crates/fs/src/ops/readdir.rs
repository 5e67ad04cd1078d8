//! Listing a directory.

use std::ops::ControlFlow;

use buttress_format::{Key, Kind};
use buttress_items::names::{self, Target};
use buttress_items::{FileKind, InodeId, Result};

use crate::inode::{DirEntry, Inode};
use crate::trees;

impl Inode {
    /// The cookie of the last name in this directory. A listing that stops after this cookie is
    /// finite, even if names are added or renamed meanwhile. Such a listing has each name that
    /// exists during the whole listing.
    ///
    /// # Errors
    ///
    /// `NotDir`, or an error from reading the tree.
    pub fn last_cookie(&self) -> Result<u64> {
        self.cell.expect_dir()?;
        self.cell.last_index(&self.mount().engine.view())
    }

    /// Lists the names after `cookie` (0 for all) in the order of their creation, until `visit`
    /// breaks.
    ///
    /// A name that exists from the first call to the last is listed once, even if other names are
    /// added or removed. The call holds no lock, so `visit` may call anything.
    ///
    /// # Errors
    ///
    /// `NotDir`, or an error from reading the tree.
    pub fn read_dir(
        &self,
        cookie: u64,
        visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.cell.expect_dir()?;
        self.list(cookie, visit)?;
        self.note_access();
        Ok(())
    }

    fn list(
        &self,
        cookie: u64,
        mut visit: impl FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let Some(first) = cookie.checked_add(1) else { return Ok(()) };
        let view = self.mount().engine.view();
        let id = self.id();
        let low = Key::new(id.ino.0, Kind::DIR_INDEX, first);
        let high = Key::new(id.ino.0, Kind::DIR_INDEX, u64::MAX);
        for found in view.range(id.tree, low, high) {
            let (key, item) = found?;
            for entry in names::parse(id.tree, id.ino, &item)? {
                let (target, kind) = match names::target(&view, id, &entry)? {
                    Target::Inode(target) => (target, names::kind(&entry)),
                    Target::Subvolume(tree) => {
                        let Ok(info) = self.mount().inodes.tree_info(&view, tree) else { continue };
                        (InodeId { tree, ino: info.root_dir }, Some(FileKind::Directory))
                    }
                    Target::Stub => {
                        (InodeId { tree: id.tree, ino: trees::STUB }, Some(FileKind::Directory))
                    }
                };
                let Some(kind) = kind else { continue };
                let entry = DirEntry { name: &entry.name, id: target, kind, cookie: key.offset };
                if visit(entry).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
