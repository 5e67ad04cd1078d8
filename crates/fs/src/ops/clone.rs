//! Sharing content between files of one volume, and copying with sharing where possible.

use buttress_data::CloneRange;
use buttress_items::{Error, ErrorKind, NameError, Result};

use crate::inode::Inode;
use crate::lock_set::LockSet;

use super::content::{Stamp, changed};

/// Buffer of a copy within the volume, in bytes: the length of one device read.
const COPY_BYTES: usize = 4 << 20;

impl Inode {
    /// Makes `target` share a range of this file, in one step for any length. The files may be in
    /// different subvolumes. A `len` of zero means up to the end of this file. Corresponds to
    /// Linux's `FICLONERANGE`.
    ///
    /// # Errors
    ///
    /// `Invalid` if offsets and length are not whole sectors. The end of this file may be unaligned
    /// if it becomes the target's end. `Invalid` also for overlapping ranges of one file, and if
    /// only one of the files has checksums. `CrossDevice` for files of two volumes; `NotPermitted`,
    /// `NoSpace`.
    pub fn clone_range(
        &self,
        offset: u64,
        target: &Self,
        target_offset: u64,
        len: u64,
    ) -> Result<()> {
        let len = if len == 0 { self.attr().size.saturating_sub(offset) } else { len };
        self.clone_stamped(offset, (target, target_offset), len, changed)
    }

    fn clone_stamped(
        &self,
        offset: u64,
        (target, target_offset): (&Self, u64),
        len: u64,
        stamp: Stamp,
    ) -> Result<()> {
        self.sharing(target, |files| {
            let range = CloneRange {
                source: &self.cell.file,
                offset,
                target: &target.cell.file,
                target_offset,
                len,
            };
            files.clone_range(&range, stamp)
        })
    }

    /// Makes `target` share a range of this file if both files hold the same bytes there. Returns
    /// whether the bytes are the same. Neither content nor times change. Corresponds to Linux's
    /// `FIDEDUPERANGE`.
    ///
    /// # Errors
    ///
    /// As [`Inode::clone_range`]; `Invalid` also for a range that reaches past the target's end.
    pub fn dedupe_range(
        &self,
        offset: u64,
        target: &Self,
        target_offset: u64,
        len: u64,
    ) -> Result<bool> {
        self.sharing(target, |files| {
            files.dedupe_range(&CloneRange {
                source: &self.cell.file,
                offset,
                target: &target.cell.file,
                target_offset,
                len,
            })
        })
    }

    /// Runs `share` on two locked files. If space is short, frees space and runs `share` once more.
    fn sharing<T>(
        &self,
        target: &Self,
        share: impl Fn(&buttress_data::Files) -> Result<T, buttress_data::Error>,
    ) -> Result<T> {
        let (source, cell) = (&self.cell, &target.cell);
        source.expect_regular()?;
        cell.expect_regular()?;
        let mount = self.mount();
        // The volume of the source may be one that is only read. So this comes first.
        if !std::sync::Arc::ptr_eq(mount, target.mount()) {
            return Err(NameError::CrossDevice.into());
        }
        cell.expect_writable(&mount.status)?;
        // Holding both locks keeps snapshots of either subvolume from being made. These locks are
        // taken in the order of the trees.
        let (first, second) =
            if source.tree() <= cell.tree() { (source, cell) } else { (cell, source) };
        let attempt = || {
            let _writes = first.home.writes.read();
            let _more = (first.tree() != second.tree()).then(|| second.home.writes.read());
            let done = {
                let _locks = LockSet::new([Some(source), Some(cell), None, None]);
                cell.expect_removable()?;
                cell.expect_changeable()?;
                share(&mount.files)
            };
            for cell in [source, cell] {
                if cell.file.is_dirty() {
                    mount.writeback.enlist(cell);
                }
            }
            Ok::<_, Error>(done)
        };
        let mut done = attempt()?;
        if done.as_ref().is_err_and(buttress_data::Error::is_no_space) {
            mount.space.free_all_possible()?;
            done = attempt()?;
        }
        Ok(done?)
    }

    /// Copies up to `len` bytes into another file. Returns the number of copied bytes, which is
    /// less than `len` only at the end of this file. If both offsets lie equally far from the start
    /// of a sector, whole sectors are shared instead of copied. Sharing takes no time and no space.
    ///
    /// # Errors
    ///
    /// The errors of reading and writing; `Invalid` for ranges of one file that overlap.
    pub fn copy_range(
        &self,
        offset: u64,
        target: &Self,
        target_offset: u64,
        len: u64,
    ) -> Result<u64> {
        self.copy_range_stamped(offset, (target, target_offset), len, changed)
    }

    pub(super) fn copy_range_stamped(
        &self,
        offset: u64,
        (target, target_offset): (&Self, u64),
        len: u64,
        stamp: Stamp,
    ) -> Result<u64> {
        self.cell.expect_regular()?;
        target.cell.expect_regular()?;
        if self.id() == target.id() && offset.abs_diff(target_offset) < len {
            return Err(Error::invalid("a range copied over itself"));
        }
        let len = len.min(self.attr().size.saturating_sub(offset));
        let sector = u64::from(self.mount().superblock.sectorsize);
        let head = offset.next_multiple_of(sector) - offset;
        let alike = offset % sector == target_offset % sector;
        let shareable = self.shareable(offset + head, (target, target_offset + head), len, head);
        if !alike || shareable == 0 {
            return self.copy_bytes(offset, (target, target_offset), len, stamp);
        }
        let mut done = self.copy_bytes(offset, (target, target_offset), head, stamp)?;
        let to = (target, target_offset + done);
        match self.clone_stamped(offset + done, to, shareable, stamp) {
            Ok(()) => done += shareable,
            // The files are on two volumes, only one file has checksums, or this file has become
            // shorter. The copy below handles all these cases.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Invalid | ErrorKind::Name(NameError::CrossDevice)
                ) => {}
            Err(error) => return Err(error),
        }
        let to = (target, target_offset + done);
        Ok(done + self.copy_bytes(offset + done, to, len - done, stamp)?)
    }

    /// Returns how many bytes of a copy of `len` bytes can be shared, after the first `head` bytes.
    fn shareable(
        &self,
        offset: u64,
        (target, target_offset): (&Self, u64),
        len: u64,
        head: u64,
    ) -> u64 {
        let sector = u64::from(self.mount().superblock.sectorsize);
        let Some(len) = len.checked_sub(head) else { return 0 };
        let (end, target_end) = (offset.saturating_add(len), target_offset.saturating_add(len));
        if end == self.attr().size && target_end >= target.attr().size {
            return len;
        }
        // The range begins on a sector.
        len - len % sector
    }

    fn copy_bytes(
        &self,
        offset: u64,
        (target, target_offset): (&Self, u64),
        len: u64,
        stamp: Stamp,
    ) -> Result<u64> {
        let mut buf = vec![0; usize::try_from(len).unwrap_or(usize::MAX).min(COPY_BYTES)];
        let mut done = 0;
        while done < len {
            let part = usize::try_from(len - done).unwrap_or(usize::MAX).min(buf.len());
            let read = self.read_at(offset + done, &mut buf[..part])?;
            if read == 0 {
                break;
            }
            target.write_stamped(target_offset + done, &buf[..read], stamp)?;
            done += read as u64;
        }
        Ok(done)
    }
}
