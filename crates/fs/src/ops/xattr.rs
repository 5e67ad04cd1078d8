//! Extended attributes: names and values that belong to an inode.
//!
//! # On disk
//!
//! `(ino, XATTR_ITEM, hash of the name)` holds every attribute with a name of that hash, in the
//! layout of directory entries; name and value together must fit one item.

use buttress_format::{DirEntry, Key, Kind, limits};
use buttress_items::property::{self, CompressionProperty};
use buttress_items::xattr_items::{attribute, entries, key, read};
use buttress_items::{Batch, Change, Error, NameError, Result, acl, entry_len, names};
use buttress_txn::ReserveClass;

use crate::cell::{DefaultAcl, InodeCell};
use crate::inode::{Inode, XattrFlags};
use buttress_make::clock::now_after;

fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > limits::NAME_MAX {
        return Err(NameError::TooLong.into());
    }
    if name.is_empty() || name.contains(&0) {
        return Err(Error::invalid("an empty attribute name, or one with a zero byte"));
    }
    Ok(())
}

impl Inode {
    /// Reads an extended attribute by its full name (`user.colour`).
    ///
    /// # Errors
    ///
    /// `NoAttribute`.
    pub fn xattr(&self, name: &[u8]) -> Result<Vec<u8>> {
        check_name(name)?;
        let view = self.mount().engine.view();
        Ok(read(&view, self.id(), name)?.ok_or(NameError::NoAttribute)?)
    }

    /// Sets an extended attribute. `btrfs.compression` is a property: it selects the compression of
    /// the inode, and of new inodes in a directory. An empty value removes the property.
    ///
    /// # Errors
    ///
    /// `Exists` or `NoAttribute`, according to `flags`; `TooBig`, `NoSpace`; `NotPermitted` for an
    /// immutable inode.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<()> {
        check_name(name)?;
        if property::is_property(name) && value.is_empty() {
            return self.remove_xattr(name);
        }
        let may = || self.cell.expect_removable();
        self.change_xattr(name, value, may, |entries| {
            let there = entries.iter().position(|entry| entry.name == name);
            match there {
                Some(_) if flags.create => return Err(NameError::Exists.into()),
                None if flags.replace => return Err(NameError::NoAttribute.into()),
                Some(there) => entries[there] = attribute(name, value),
                None => entries.push(attribute(name, value)),
            }
            Ok(())
        })
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    ///
    /// `NoAttribute`.
    pub fn remove_xattr(&self, name: &[u8]) -> Result<()> {
        check_name(name)?;
        self.remove_xattr_if(name, || self.cell.expect_removable())
    }

    /// As [`Inode::remove_xattr`], without checking the flags of the inode.
    pub(super) fn remove_xattr_unasked(&self, name: &[u8]) -> Result<()> {
        self.remove_xattr_if(name, || Ok(()))
    }

    fn remove_xattr_if(&self, name: &[u8], may: impl FnOnce() -> Result<()>) -> Result<()> {
        self.change_xattr(name, &[], may, |entries| {
            let there = entries.iter().position(|entry| entry.name == name);
            entries.remove(there.ok_or(NameError::NoAttribute)?);
            Ok(())
        })
    }

    /// Changes the attributes under the hash of a name. Calls `may` with the lock held.
    fn change_xattr(
        &self,
        name: &[u8],
        value: &[u8],
        may: impl FnOnce() -> Result<()>,
        change: impl FnOnce(&mut Vec<DirEntry>) -> Result<()>,
    ) -> Result<()> {
        let cell = &self.cell;
        cell.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        let _lock = cell.lock.write();
        may()?;
        let wish = if property::is_property(name) {
            if name != property::COMPRESSION {
                return Err(Error::unsupported("properties other than btrfs.compression"));
            }
            let flags = cell.file.with_item(|item| item.flags);
            let wish = CompressionProperty::wanted(value, cell.kind, flags)?;
            // The metadata of the dirty data was reserved for the old compression, so the data is
            // written now.
            mount.files.writeback().write_back(&cell.file, 0..u64::MAX)?;
            Some(wish)
        } else {
            None
        };
        let view = mount.engine.view();
        let mut entries = entries(&view, cell.id, name)?;
        change(&mut entries)?;
        let len: usize = entries.iter().map(entry_len).sum();
        if len > mount.ref_limits().item_len_max {
            return Err(NameError::TooBig.into());
        }
        let present = entries.iter().any(|entry| entry.name == name);
        let mut batch = Batch::new(cell.tree());
        let rest = if entries.is_empty() { Change::Delete } else { Change::Names(entries) };
        batch.set(key(cell.ino(), name), rest);
        let class = if present { ReserveClass::Normal } else { ReserveClass::Free };
        drop(view);
        let reservation = mount.space.reserve(batch.cost(1), class)?;
        let handle = mount.engine.begin(reservation);
        batch.apply(&handle);
        if let Some(wish) = wish {
            cell.file.set_codec(wish.codec());
        }
        cell.file.update(&handle, |item| {
            item.ctime = now_after(item.ctime);
            item.flags = wish.map_or(item.flags, |wish| wish.flags(item.flags));
        });
        note_acl(cell, name, present);
        Ok(())
    }

    /// The full names of all extended attributes.
    ///
    /// # Errors
    ///
    /// An error from reading the tree.
    pub fn list_xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let view = self.mount().engine.view();
        let id = self.id();
        let low = Key::new(id.ino.0, Kind::XATTR_ITEM, 0);
        let high = Key::new(id.ino.0, Kind::XATTR_ITEM, u64::MAX);
        let mut found = Vec::new();
        for item in view.range(id.tree, low, high) {
            let entries = names::parse(id.tree, id.ino, &item?.1)?;
            found.extend(entries.into_iter().map(|entry| entry.name));
        }
        Ok(found)
    }
}

/// Records in the directory's cell whether it has a default list, so that creating files need not
/// search for the list.
fn note_acl(cell: &InodeCell, name: &[u8], present: bool) {
    if name == acl::DEFAULT {
        cell.set_default_acl(if present { DefaultAcl::Present } else { DefaultAcl::Absent });
    }
}
