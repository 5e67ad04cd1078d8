//! Symbolic links: their target is the content of the inode, inline in the tree.

use buttress_items::{Error, FileKind, NameError, Result, mode};

use super::create::Plan;
use crate::inode::Inode;

impl Inode {
    /// Makes a symbolic link.
    ///
    /// # Errors
    ///
    /// `Exists`, `NoSpace`, `ReadOnly`; `TooLong` for a target that does not fit one item.
    pub fn symlink(&self, name: &[u8], target: &[u8], uid: u32, gid: u32) -> Result<Self> {
        let longest = self.mount().superblock.sectorsize as usize - 1;
        let head = buttress_format::FileExtent::INLINE_HEAD;
        let longest = longest.min(self.mount().ref_limits().item_len_max - head);
        if target.is_empty() || target.contains(&0) {
            return Err(Error::invalid("an empty target, or one with a zero byte"));
        }
        if target.len() > longest {
            return Err(NameError::TooLong.into());
        }
        let mode = mode::SYMLINK | 0o777;
        self.make(name, &Plan { mode, uid, gid, rdev: 0, target: Some(target) })
    }

    /// Reads the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// `Invalid` if the inode is no symbolic link.
    pub fn read_link(&self) -> Result<Vec<u8>> {
        if self.cell.kind != FileKind::Symlink {
            return Err(Error::invalid("not a symbolic link"));
        }
        let size = self.cell.file.size().min(u64::from(u16::MAX));
        let mut target = vec![0; size as usize];
        let len = self.mount().files.reader().read(&self.cell.file, 0, &mut target)?;
        target.truncate(len);
        self.note_access();
        Ok(target)
    }
}
