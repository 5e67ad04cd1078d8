//! Removes names.

use buttress_format::{DirEntry, Key, Kind};
use buttress_items::names::{self, Target};
use buttress_items::{Batch, Change, Error, FileKind, InodeId, NameError, Result, orphan};
use buttress_txn::{ReserveClass, View};

use crate::cell::InodeCell;
use crate::inode::Inode;
use crate::lock_set::LockSet;
use buttress_make::clock::now;

impl Inode {
    /// Removes a name of any inode except a directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsDir`.
    pub fn unlink(&self, name: &[u8]) -> Result<()> {
        self.remove(name, false)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotDir`, `NotEmpty`.
    pub fn rmdir(&self, name: &[u8]) -> Result<()> {
        self.remove(name, true)
    }

    fn remove(&self, name: &[u8], directory: bool) -> Result<()> {
        let dir = &self.cell;
        dir.expect_dir()?;
        dir.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        loop {
            let found = names::find(&mount.engine.view(), dir.id, name)?;
            let entry = found.ok_or(NameError::NotFound)?;
            if directory && entry.location.kind == Kind::ROOT_ITEM {
                return self.remove_subvolume(name, &entry);
            }
            // This value is a separate user of the inode. The value is dropped after the locks,
            // because it may be the last user.
            let inode = match self.entry_inode(&entry, directory) {
                Err(Error::Name(NameError::NotFound)) if self.is_moved_on(&entry)? => continue,
                found => found?,
            };
            let cell = &inode.cell;
            let _locks = LockSet::new([Some(dir), Some(cell), None, None]);
            if self.is_moved_on(&entry)? {
                // The name was renamed or replaced before this thread got the locks.
                continue;
            }
            dir.expect_removable()?;
            cell.expect_removable()?;
            let view = mount.engine.view();
            if directory && !is_empty(&view, cell)? {
                return Err(NameError::NotEmpty.into());
            }
            let mut batch = Batch::new(dir.tree());
            let index = batch.remove_ref(&view, cell.ino(), dir.ino(), name)?;
            batch.remove_name(&view, dir.ino(), index, name)?;
            let last = orphan_if_last_name(cell, &mut batch);
            let stamp = now();
            drop(view);
            let reservation = mount.space.reserve(batch.cost(2), ReserveClass::Free)?;
            let handle = mount.engine.begin(reservation);
            batch.apply(&handle);
            cell.file.update(&handle, |item| {
                item.nlink = if last { 0 } else { item.nlink.saturating_sub(1) };
                item.ctime = stamp;
            });
            dir.file.update(&handle, |item| {
                item.size = item.size.saturating_sub(names::size_of(name));
                item.mtime = stamp;
                item.ctime = stamp;
            });
            return Ok(());
        }
    }

    /// Removes an empty subvolume, or the stub of a missing subvolume.
    fn remove_subvolume(&self, name: &[u8], entry: &DirEntry) -> Result<()> {
        match names::target(&self.mount().engine.view(), self.id(), entry)? {
            Target::Subvolume(tree) => {
                let view = self.mount().engine.view();
                let ino = self.mount().inodes.tree_info(&view, tree)?.root_dir;
                let top = self.mount().inodes.cell(InodeId { tree, ino })?;
                // Linux also checks only once. Names that are made later are removed with the
                // subvolume.
                if !is_empty(&view, &top)? {
                    return Err(NameError::NotEmpty.into());
                }
                drop(view);
                self.delete_subvolume(name)
            }
            Target::Stub => self.remove_stub(name),
            Target::Inode(_) => Err(NameError::NotFound.into()),
        }
    }

    /// The inode of an entry that will be removed.
    fn entry_inode(&self, entry: &DirEntry, directory: bool) -> Result<Self> {
        let id = match names::target(&self.mount().engine.view(), self.id(), entry)? {
            Target::Inode(id) => id,
            Target::Subvolume(_) | Target::Stub => return Err(NameError::IsDir.into()),
        };
        let inode = Self::of(self.mount(), id)?;
        match (inode.kind() == FileKind::Directory, directory) {
            (true, false) => Err(NameError::IsDir.into()),
            (false, true) => Err(NameError::NotDir.into()),
            _ => Ok(inode),
        }
    }
}

/// Whether a directory has no names. The caller holds its lock.
pub(super) fn is_empty(view: &View, cell: &InodeCell) -> Result<bool> {
    let low = Key::new(cell.ino().0, Kind::DIR_INDEX, 0);
    let high = Key::new(cell.ino().0, Kind::DIR_INDEX, u64::MAX);
    Ok(view.at_or_after(cell.tree(), &low, &high)?.is_none())
}

/// If the inode is about to lose its last name, collects its orphan item and returns true.
pub(super) fn orphan_if_last_name(cell: &InodeCell, batch: &mut Batch) -> bool {
    let last = cell.kind == FileKind::Directory || cell.nlink() <= 1;
    if last {
        batch.set(orphan::key(cell.ino()), Change::Bytes(Vec::new()));
    }
    last
}
