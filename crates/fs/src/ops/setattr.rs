//! Changes attributes of an inode, including its length.

use buttress_format::InodeItem;
use buttress_items::{Attr, Result, SetAttr, mode};
use buttress_txn::ReserveClass;

use crate::inode::Inode;
use buttress_make::clock::now;

impl Inode {
    /// Changes attributes, all of them or none. Flags are an exception, because they are set before
    /// the other attributes. Returns the new attributes.
    ///
    /// The length that a file already has changes no times, as in Linux. Space past the end goes.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`, `FileTooBig`. `Invalid` for a length of anything but a regular file.
    /// `NotPermitted` for an immutable or append-only inode, and for the length of a file with
    /// fs-verity.
    pub fn set_attr(&self, set: &SetAttr) -> Result<Attr> {
        let cell = &self.cell;
        cell.expect_writable(&self.mount().status)?;
        if set.size.is_some() {
            cell.expect_regular()?;
        }
        if *set == SetAttr::default() {
            return Ok(cell.attr(&self.mount().files));
        }
        if let Some(flags) = set.flags {
            self.set_flags(flags)?;
            let rest = SetAttr { flags: None, ..set.clone() };
            return self.set_attr(&rest);
        }
        // A snapshot, or a subvolume that becomes read-only, puts listed times under the other side
        // of this lock. Times that are listed without it would be missing there.
        let is_late = set.size.is_some() || is_of_times(set);
        let writes = is_late.then(|| cell.home.writes.read());
        cell.expect_writable(&self.mount().status)?;
        let lock = cell.lock.write();
        if set.mode.is_some() || set.uid.is_some() || set.gid.is_some() || set.size.is_some() {
            cell.expect_removable()?;
        }
        if set.size.is_some() {
            cell.expect_changeable()?;
        }
        let same_size = set.size == Some(cell.file.size());
        let change = |item: &mut InodeItem| apply(item, set, same_size);
        match set.size {
            Some(size) => {
                let truncate = || self.mount().files.truncate(&cell.file, size, change);
                let mut done = truncate();
                if done.as_ref().is_err_and(buttress_data::Error::is_no_space) {
                    self.mount().writeback.write_all();
                    done = truncate();
                }
                done?;
                if cell.file.is_dirty() {
                    self.mount().writeback.enlist(cell);
                }
            }
            // A nameless inode is removed with its last user, or put as a whole when it gets a name
            // again. The kernel sets times for every file that is removed, so no item is put here.
            None if cell.nlink() == 0 => cell.file.touch(change),
            None if is_of_times(set) => self.set_times(change)?,
            None => self.mount().space.put_item(cell, ReserveClass::Normal, change)?,
        }
        drop(lock);
        drop(writes);
        Ok(cell.attr(&self.mount().files))
    }

    /// Changes times alone. Programs do so for each file that they unpack or copy, so this begins
    /// no handle: the times are put with the file's data, or before the next commit.
    fn set_times(&self, change: impl FnOnce(&mut InodeItem)) -> Result<()> {
        let mount = self.mount();
        mount.space.set_times(&self.cell, change)?;
        if !mount.options.background && mount.times.is_due() {
            mount.times.put_all();
        }
        Ok(())
    }
}

/// Whether nothing but times changes.
fn is_of_times(set: &SetAttr) -> bool {
    let SetAttr { mode, uid, gid, size, flags, atime: _, mtime: _, ctime: _ } = set;
    mode.is_none() && uid.is_none() && gid.is_none() && size.is_none() && flags.is_none()
}

/// `same_size` says that the file already has the length. The kernel's write-back cache then sends
/// no times, and shows the old ones.
fn apply(item: &mut InodeItem, set: &SetAttr, same_size: bool) {
    let stamp = now();
    if let Some(bits) = set.mode {
        item.mode = item.mode & mode::TYPE | bits & mode::PERMISSIONS;
    }
    item.uid = set.uid.unwrap_or(item.uid);
    item.gid = set.gid.unwrap_or(item.gid);
    item.atime = set.atime.unwrap_or(item.atime);
    if set.size.is_some() && !same_size {
        item.mtime = stamp;
    }
    item.mtime = set.mtime.unwrap_or(item.mtime);
    let changes_nothing = same_size && SetAttr { size: None, ..set.clone() } == SetAttr::default();
    if !changes_nothing {
        item.ctime = set.ctime.unwrap_or(stamp);
    }
}
