//! The name of a volume.
//!
//! # Invariants
//!
//! - **LB1** A label changes between two commits: the superblock on disk is the superblock of the
//!   last commit, with another label.

use buttress_items::{Error, Result};

use crate::filesystem::Filesystem;

/// Longest label in bytes: the field has 256 bytes, and the last one is zero.
const LABEL_MAX: usize = 255;

impl Filesystem {
    /// The label, padded with zeros. The call does not wait for a commit that is being written.
    #[must_use]
    pub fn label(&self) -> [u8; 256] {
        self.mount().engine.commits().superblock().label
    }

    /// Gives the volume another label, of at most 255 bytes, and makes the new label durable. An
    /// empty label removes the present one.
    ///
    /// # Errors
    ///
    /// A label that is longer, or that has a line break or a zero byte; a volume that is read-only;
    /// a device that fails.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        let mount = self.mount();
        mount.status.expect_writable()?;
        if label.len() > LABEL_MAX {
            return Err(Error::invalid("a label of more than 255 bytes"));
        }
        if label.iter().any(|byte| matches!(byte, b'\n' | 0)) {
            return Err(Error::invalid("a label with a line break or a zero byte"));
        }
        let mut turn = mount.engine.commits().commit_turn();
        let mut superblock = turn.superblock().clone();
        superblock.label = [0; 256];
        superblock.label[..label.len()].copy_from_slice(label);
        let volume = mount.engine.volume();
        // The first copy on each device is written before the other copies. After a power cut, each
        // copy has the old label or the new one.
        volume.flush_and_commit(&superblock)?;
        turn.set_superblock(superblock.clone());
        volume.write_other_superblocks(&superblock)?;
        Ok(())
    }
}
