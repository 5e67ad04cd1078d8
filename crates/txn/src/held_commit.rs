//! The last commit, kept as it is on the devices for a reader in another process.
//!
//! # Invariants
//!
//! - **H1** As long as a [`HeldCommit`] lives nothing that its superblock reaches is overwritten or
//!   discarded. What later commits free waits, as it does for every view (P1 of `pinned`).

use std::sync::Arc;

use buttress_format::Superblock;
use buttress_tree::Roots;

use crate::{Engine, found_log};

/// The last commit; see the module.
#[derive(Debug)]
pub struct HeldCommit {
    superblock: Superblock,
    /// What the superblock names: space is not given out while these trees are in use.
    _roots: Arc<Roots>,
}

impl HeldCommit {
    /// The superblock of the commit. It names no log that may still grow.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}

impl Engine {
    /// Holds the last commit (H1).
    #[must_use]
    pub fn hold_commit(&self) -> HeldCommit {
        // No commit is published between the two.
        self.between_commits(|superblock| {
            let mut superblock = superblock.clone();
            if self.read_only().is_none() {
                // A log is no part of the commit, and its space is used again behind the next one.
                found_log::without_log(&mut superblock);
            }
            HeldCommit { superblock, _roots: Arc::clone(self.view.load().roots()) }
        })
    }
}
