//! Giving an inode one more name.

use buttress_items::{Batch, Change, FileKind, NameError, Result, names, orphan};
use buttress_txn::ReserveClass;

use crate::inode::Inode;
use crate::lock_set::LockSet;
use buttress_make::clock::now;

/// The most names that an inode can have.
const LINKS_MAX: u32 = 65_535;

impl Inode {
    /// Gives `inode` one more name, in this directory.
    ///
    /// # Errors
    ///
    /// `Exists`, `TooManyLinks`, `CrossDevice`, `IsDir`.
    pub fn link(&self, inode: &Self, name: &[u8]) -> Result<()> {
        names::check_name(name)?;
        let (dir, cell) = (&self.cell, &inode.cell);
        dir.expect_dir()?;
        dir.expect_writable(&self.mount().status)?;
        if cell.kind == FileKind::Directory {
            return Err(NameError::IsDir.into());
        }
        if dir.tree() != cell.tree() {
            return Err(NameError::CrossDevice.into());
        }
        let mount = self.mount();
        let _locks = LockSet::new([Some(dir), Some(cell), None, None]);
        dir.expect_linked()?;
        dir.expect_mutable()?;
        cell.expect_removable()?;
        if cell.nlink() >= LINKS_MAX {
            return Err(NameError::TooManyLinks.into());
        }
        let view = mount.engine.view();
        let mut batch = Batch::new(dir.tree());
        let limits = mount.ref_limits();
        let index = dir.next_index(&view)?;
        let entry = names::entry(name, cell.ino(), cell.kind);
        batch.add_name(&view, dir.ino(), index, entry, limits.item_len_max)?;
        batch.add_ref(&view, cell.ino(), dir.ino(), index, name, limits)?;
        if cell.nlink() == 0 {
            batch.set(orphan::key(cell.ino()), Change::Delete);
        }
        let stamp = now();
        drop(view);
        let reservation = mount.space.reserve(batch.cost(2), ReserveClass::Normal)?;
        let handle = mount.engine.begin(reservation);
        batch.apply(&handle);
        cell.file.update(&handle, |item| {
            item.nlink += 1;
            item.ctime = stamp;
        });
        dir.file.update(&handle, |item| {
            item.size += names::size_of(name);
            item.mtime = stamp;
            item.ctime = stamp;
        });
        Ok(())
    }
}
