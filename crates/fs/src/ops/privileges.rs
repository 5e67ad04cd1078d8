//! Removes privileges of program files.
//!
//! # Invariants
//!
//! - **P1** Flags of the inode do not prevent the removal. An append-only file loses its privileges
//!   with the first appended bytes. The write that causes the removal checks the flags itself.

use buttress_items::{ErrorKind, NameError, Result, mode};
use buttress_txn::ReserveClass;

use crate::inode::Inode;
use buttress_make::clock::now_after;

/// The attribute that holds file capabilities.
const CAPABILITY: &[u8] = b"security.capability";

impl Inode {
    /// Removes the set-id bits that are set in `bits` (P1). The front end decides which bits to
    /// remove.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`.
    pub fn clear_suid_sgid(&self, bits: u32) -> Result<()> {
        let lost = bits & (mode::SETUID | mode::SETGID);
        self.cell.expect_writable(&self.mount().status)?;
        let _lock = self.cell.lock.write();
        if self.cell.file.with_item(|item| item.mode) & lost == 0 {
            return Ok(());
        }
        self.mount().space.put_item(&self.cell, ReserveClass::Normal, |item| {
            item.mode &= !lost;
            item.ctime = now_after(item.ctime);
        })
    }

    /// Removes file capabilities, if there are any (P1).
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`, `Io`.
    pub fn drop_capability(&self) -> Result<()> {
        match self.remove_xattr_unasked(CAPABILITY) {
            Err(error) if error.kind() == ErrorKind::Name(NameError::NoAttribute) => Ok(()),
            done => done,
        }
    }
}
