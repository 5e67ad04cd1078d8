//! Flags of an inode, as `chattr` sets them.
//!
//! # Invariants
//!
//! - **F1** A file that is written in place is never compressed. Whether a file is written in place
//!   can change only while the file is empty.
//! - **F2** Content, names, owner, mode and attributes of an immutable inode do not change, and an
//!   append-only inode only grows. The two flags themselves can always be changed: the front end
//!   decides which callers may change the flags.

use buttress_data::Codec;
use buttress_format::{InodeFlags, InodeItem};
use buttress_items::property::{self, CompressionProperty};
use buttress_items::{Batch, Change, Error, FileKind, NameError, Result, xattr_items};
use buttress_txn::ReserveClass;

use crate::cell::InodeCell;
use crate::inode::Inode;
use buttress_make::clock::now_after;

/// Flags that callers may change. The other flags describe how the content is stored.
const SETTABLE: u64 = InodeFlags::NODATACOW
    | InodeFlags::NOCOMPRESS
    | InodeFlags::COMPRESS
    | InodeFlags::SYNC
    | InodeFlags::IMMUTABLE
    | InodeFlags::APPEND
    | InodeFlags::NODUMP
    | InodeFlags::NOATIME
    | InodeFlags::DIRSYNC;

const PACKING: u64 = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;

impl Inode {
    /// Sets the settable flags of an inode to `flags`: settable flags that are not in `flags` are
    /// cleared. `COMPRESS` also sets a property on the inode, as `chattr +c` does.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`; `Invalid` for flags that exclude one another.
    pub fn set_flags(&self, flags: u64) -> Result<()> {
        let cell = &self.cell;
        cell.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        let _lock = cell.lock.write();
        let old = cell.file.with_item(|item| item.flags);
        let flags = self.settled(old & !SETTABLE | flags & SETTABLE, old)?;
        let mut batch = Batch::new(cell.tree());
        let mut codec = cell.file.codec();
        if (flags ^ old) & PACKING != 0 {
            let wish = if flags & InodeFlags::COMPRESS != 0 {
                CompressionProperty::Packed(mount.options.compress.unwrap_or(Codec::DEFAULT))
            } else {
                CompressionProperty::Nothing
            };
            codec = wish.codec();
            // Metadata was reserved for the dirty data in its old form, so the data is written now.
            mount.files.writeback().write_back(&cell.file, 0..u64::MAX)?;
            let view = mount.engine.view();
            let mut entries = xattr_items::entries(&view, cell.id, property::COMPRESSION)?;
            let there = entries.len();
            entries.retain(|entry| entry.name != property::COMPRESSION);
            let had = entries.len() < there;
            entries.extend(codec.map(property::attribute));
            if had || codec.is_some() {
                let change =
                    if entries.is_empty() { Change::Delete } else { Change::Names(entries) };
                batch.set(xattr_items::key(cell.ino(), property::COMPRESSION), change);
            }
        }
        let reservation = mount.space.reserve(batch.cost(1), ReserveClass::Normal)?;
        let handle = mount.engine.begin(reservation);
        batch.apply(&handle);
        cell.file.set_codec(codec);
        cell.file.update(&handle, |item| {
            item.flags = flags;
            item.ctime = now_after(item.ctime);
        });
        Ok(())
    }

    /// Makes a regular file store no checksums of its data. Linux's `chattr` cannot do this;
    /// Linux's mount option `nodatasum` does it for new files.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`; `Invalid` for a file that has content, and for anything but a regular
    /// file.
    pub fn leave_out_checksums(&self) -> Result<()> {
        let cell = &self.cell;
        cell.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        let _lock = cell.lock.write();
        let is_empty = cell.file.with_item(|item| item.size == 0 && item.nbytes == 0);
        if cell.kind != FileKind::Regular || !is_empty {
            return Err(Error::invalid("checksums are left out of empty files"));
        }
        let cost = Batch::new(cell.tree()).cost(1);
        let handle = mount.engine.begin(mount.space.reserve(cost, ReserveClass::Normal)?);
        cell.file.update(&handle, |item| {
            item.flags |= InodeFlags::NODATASUM;
            item.ctime = now_after(item.ctime);
        });
        Ok(())
    }

    /// The flags that result from the requested `flags` (F1).
    fn settled(&self, flags: u64, old: u64) -> Result<u64> {
        let cell = &self.cell;
        if flags & PACKING == PACKING {
            return Err(Error::invalid("to be compressed and not to be compressed"));
        }
        let (nocow, nosum) = (InodeFlags::NODATACOW, InodeFlags::NODATASUM);
        if flags & nocow != 0 && flags & InodeFlags::COMPRESS != 0 {
            return Err(Error::invalid("what is overwritten in place cannot be compressed"));
        }
        if cell.kind != FileKind::Regular || (flags ^ old) & nocow == 0 {
            return Ok(flags);
        }
        let empty = cell.file.with_item(|item| item.size == 0 && item.nbytes == 0);
        Ok(match (empty, flags & nocow != 0) {
            (false, _) => flags & !nocow | old & nocow,
            (true, true) => flags | nosum,
            (true, false) => flags & !nosum,
        })
    }
}

impl InodeCell {
    fn has(&self, flags: u64) -> bool {
        self.file.with_item(|item: &InodeItem| item.flags & flags != 0)
    }

    /// Returns an error for an immutable inode (F2).
    pub(crate) fn expect_mutable(&self) -> Result<()> {
        let no = self.has(InodeFlags::IMMUTABLE);
        if no { Err(NameError::NotPermitted.into()) } else { Ok(()) }
    }

    /// Returns an error for an append-only or immutable inode. Used before bytes, names or the
    /// inode are removed (F2).
    pub(crate) fn expect_removable(&self) -> Result<()> {
        let no = self.has(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        if no { Err(NameError::NotPermitted.into()) } else { Ok(()) }
    }

    /// Returns an error for an overwrite of an append-only file (F2). The caller holds the lock.
    pub(crate) fn expect_appending(&self, offset: u64) -> Result<()> {
        let no = self.has(InodeFlags::APPEND) && offset < self.file.size();
        if no { Err(NameError::NotPermitted.into()) } else { Ok(()) }
    }
}
