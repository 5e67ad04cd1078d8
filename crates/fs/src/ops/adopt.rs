//! Makes files from content that lies on the device already.

use buttress_data::Piece;
use buttress_items::Result;

use crate::inode::Inode;

impl Inode {
    /// Gives an empty file a content that lies on the device already. The extents of `pieces` lie
    /// in free space, or an earlier call gave them to another file. Pieces are ascending, with
    /// holes between them. The content is not written. If the file has checksums, the content is
    /// read to compute them.
    ///
    /// This is for a volume that is made around existing content. If other threads write data
    /// meanwhile, they may allocate the space of an extent first.
    ///
    /// # Errors
    ///
    /// `Invalid` for a file with content, and for extents that are in use; `NoSpace`, `ReadOnly`,
    /// `Io`.
    pub fn adopt(&self, pieces: &[Piece], size: u64) -> Result<()> {
        let cell = &self.cell;
        cell.expect_regular()?;
        cell.expect_writable(&self.mount().status)?;
        let _writes = cell.home.writes.read();
        let _lock = cell.lock.write();
        cell.expect_changeable()?;
        Ok(self.mount().files.adopt(&cell.file, pieces, size)?)
    }
}
