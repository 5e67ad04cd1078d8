//! Rewrites files, in larger extents or with another compression.

use std::ops::Range;

use buttress_data::Defragment;
use buttress_items::Result;

use crate::inode::Inode;

impl Inode {
    /// Rewrites the extents of a range for which a rewrite pays. Returns the number of rewritten
    /// bytes. Rewritten extents are no longer shared with other files.
    ///
    /// # Errors
    ///
    /// `NoSpace`, `Io`, with unchanged content. `Invalid` for anything but a regular file.
    pub fn defragment(&self, range: Range<u64>, how: &Defragment) -> Result<u64> {
        let cell = &self.cell;
        cell.expect_regular()?;
        cell.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        let attempt = || {
            let _lock = cell.lock.write();
            mount.files.defragment(&cell.file, range.clone(), how)
        };
        let mut done = attempt();
        if done.as_ref().is_err_and(buttress_data::Error::is_no_space) {
            mount.space.free_all_possible()?;
            done = attempt();
        }
        Ok(done?)
    }
}
