//! Writing files anew, in larger pieces or compressed another way.

use std::ops::Range;

use buttress_data::Defragment;

use crate::error::Result;
use crate::inode::Inode;

impl Inode {
    /// Writes those extents of a range anew that are worth it, and answers how many bytes those
    /// were. What was shared with other files is not shared afterwards.
    ///
    /// # Errors
    ///
    /// `NoSpace`, `Io`; the content is what it was. `Invalid` for anything but a regular file.
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
            mount.space.give_all_back()?;
            done = attempt();
        }
        Ok(done?)
    }
}
