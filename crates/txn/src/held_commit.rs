//! The last commit, kept as it is on the devices for a reader in another process.
//!
//! # Invariants
//!
//! - **H1** While a [`HeldCommit`] lives, nothing that its superblock reaches is overwritten or
//!   discarded. Space that later commits free stays pinned, as for every view (`pinned::P1`).

use std::sync::Arc;

use buttress_format::Superblock;
use buttress_tree::Roots;

use crate::{Commits, Storage, found_log};

/// The last commit (H1).
#[derive(Debug)]
pub struct HeldCommit {
    superblock: Superblock,
    /// The committed roots. As long as the roots are referenced, the space of their trees is not
    /// allocated again.
    _roots: Arc<Roots>,
}

impl HeldCommit {
    /// The superblock of the commit. It names no log that may still grow.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }
}

impl Commits {
    /// Holds the last commit (H1).
    #[must_use]
    pub fn hold_commit(&self, storage: &Storage) -> HeldCommit {
        // No commit is published between the reads of the superblock and of the roots.
        self.between_commits(|superblock| {
            let mut superblock = superblock.clone();
            if self.read_only(storage).is_none() {
                // A log is not part of the commit, and its space is used again after the next
                // commit.
                found_log::without_log(&mut superblock);
            }
            HeldCommit { superblock, _roots: Arc::clone(self.peek().roots()) }
        })
    }
}
