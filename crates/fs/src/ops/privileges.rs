//! Taking privileges of a program file away.
//!
//! # Invariants
//!
//! - **P1** Flags of the inode do not stop this: what only grows loses its privileges with the
//!   first bytes that are appended. The change that takes them away asks for the flags itself.

use buttress_txn::Urgency;

use crate::attr::mode;
use crate::clock::now;
use crate::error::{ErrorKind, NameError, Result};
use crate::inode::Inode;

/// The attribute that holds file capabilities.
const CAPABILITY: &[u8] = b"security.capability";

impl Inode {
    /// Takes those of the set-id bits away that `bits` has (P1). The front end decides which they
    /// are.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`.
    pub fn drop_set_id(&self, bits: u32) -> Result<()> {
        let lost = bits & (mode::SETUID | mode::SETGID);
        self.cell.expect_writable(&self.mount().status)?;
        let _lock = self.cell.lock.write();
        if self.cell.file.with_item(|item| item.mode) & lost == 0 {
            return Ok(());
        }
        self.mount().space.put_item(&self.cell, Urgency::Normal, |item| {
            item.mode &= !lost;
            item.ctime = now();
        })
    }

    /// Takes file capabilities away, where there are any (P1).
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
