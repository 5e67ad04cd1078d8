//! Changing attributes, the length among them.

use buttress_format::{InodeFlags, InodeItem};
use buttress_txn::Urgency;

use crate::attr::{Attr, FileKind, SetAttr, mode};
use crate::clock::now;
use crate::error::{Error, Result};
use crate::inode::Inode;

/// Inode flags that callers may change; the others say how content is stored, and follow it.
const SETTABLE: u64 = InodeFlags::NODATACOW
    | InodeFlags::NOCOMPRESS
    | InodeFlags::COMPRESS
    | InodeFlags::SYNC
    | InodeFlags::IMMUTABLE
    | InodeFlags::APPEND
    | InodeFlags::NODUMP
    | InodeFlags::NOATIME
    | InodeFlags::DIRSYNC;

impl Inode {
    /// Changes attributes, all of them or none, and answers the new ones.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`, `FileTooBig`; `Invalid` for a length of anything but a regular file.
    pub fn set_attr(&self, set: &SetAttr) -> Result<Attr> {
        let cell = &self.cell;
        cell.expect_writable()?;
        if set.size.is_some() {
            cell.expect_regular()?;
        }
        if *set == SetAttr::default() {
            return Ok(cell.attr());
        }
        let lock = cell.lock.write();
        let change = |item: &mut InodeItem| apply(item, set, cell.kind);
        match set.size {
            Some(size) => {
                let truncate = || self.shared().files.truncate(&cell.file, size, change);
                let mut done = truncate();
                if done.as_ref().is_err_and(buttress_data::Error::is_no_space) {
                    self.shared().write_all();
                    done = truncate();
                }
                done?;
                if cell.file.is_dirty() {
                    self.shared().background.enlist(cell);
                }
            }
            None => self.shared().put_item(cell, Urgency::Normal, change)?,
        }
        drop(lock);
        Ok(cell.attr())
    }

    /// Refuses content changes of an inode that must not change.
    pub(super) fn expect_mutable(&self) -> Result<()> {
        let immutable = self.cell.file.with_item(|item| item.flags & InodeFlags::IMMUTABLE != 0);
        if immutable { Err(Error::from(crate::NameError::NotPermitted)) } else { Ok(()) }
    }
}

fn apply(item: &mut InodeItem, set: &SetAttr, kind: FileKind) {
    let stamp = now();
    if let Some(bits) = set.mode {
        item.mode = item.mode & mode::TYPE | bits & mode::PERMISSIONS;
    }
    item.uid = set.uid.unwrap_or(item.uid);
    item.gid = set.gid.unwrap_or(item.gid);
    item.atime = set.atime.unwrap_or(item.atime);
    if set.size.is_some() {
        item.mtime = stamp;
    }
    item.mtime = set.mtime.unwrap_or(item.mtime);
    item.ctime = set.ctime.unwrap_or(stamp);
    if let Some(flags) = set.flags {
        let mut flags = item.flags & !SETTABLE | flags & SETTABLE;
        // How data is stored can change only while there is none.
        if kind == FileKind::Regular && (flags ^ item.flags) & InodeFlags::NODATACOW != 0 {
            if item.size > 0 || item.nbytes > 0 {
                flags = flags & !InodeFlags::NODATACOW | item.flags & InodeFlags::NODATACOW;
            } else if flags & InodeFlags::NODATACOW != 0 {
                flags |= InodeFlags::NODATASUM;
            } else {
                flags &= !InodeFlags::NODATASUM;
            }
        }
        item.flags = flags;
    }
}
