//! The volume through the library, without any mount.

use std::path::{Path, PathBuf};

use buttress_fs::{Filesystem, Inode, MountOptions, NewInode, RenameFlags};

use super::access::Access;
use crate::exit::{Context, Exit, Failure, Result};

/// An opened volume.
pub(super) struct Library {
    image: PathBuf,
    /// `None` only while the volume is being reopened.
    fs: Option<Filesystem>,
}

impl Library {
    pub(super) fn open(image: &Path) -> Result<Self> {
        let fs = open(image)?;
        Ok(Self { image: image.to_owned(), fs: Some(fs) })
    }

    fn fs(&self) -> Result<&Filesystem> {
        self.fs.as_ref().ok_or_else(|| Failure::new(Exit::Failure, "the volume is closed"))
    }

    fn inode(&self, path: &str) -> Result<Inode> {
        self.fs()?.resolve(path).context(|| path)
    }

    fn parent<'a>(&self, path: &'a str) -> Result<(Inode, &'a [u8])> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.inode(dir)?, name.as_bytes()))
    }
}

fn open(image: &Path) -> Result<Filesystem> {
    let device = super::open_image(image)?;
    Filesystem::open(vec![device], MountOptions::default()).context(|| image.display().to_string())
}

impl Access for Library {
    fn mkdir(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let (uid, gid) = crate::transfer::caller();
        dir.mkdir(name, 0o755, uid, gid).context(|| path)?;
        Ok(())
    }

    fn write(&mut self, path: &str, content: &[u8]) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        let (uid, gid) = crate::transfer::caller();
        let inode = dir.create(name, NewInode::file(0o644).owner(uid, gid)).context(|| path)?;
        inode.write_at(0, content).context(|| path)?;
        Ok(())
    }

    fn append(&mut self, path: &str, offset: u64, content: &[u8]) -> Result<()> {
        self.inode(path)?.write_at(offset, content).context(|| path)?;
        Ok(())
    }

    fn read(&mut self, path: &str, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.inode(path)?.read_at(offset, buffer).context(|| path)
    }

    fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        let (old_dir, old) = self.parent(from)?;
        let (new_dir, new) = self.parent(to)?;
        old_dir.rename(old, &new_dir, new, RenameFlags::default()).context(|| from)
    }

    fn remove(&mut self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path)?;
        dir.unlink(name).context(|| path)
    }

    fn count(&mut self, path: &str) -> Result<usize> {
        let mut count = 0;
        self.inode(path)?
            .read_dir(0, |_| {
                count += 1;
                std::ops::ControlFlow::Continue(())
            })
            .context(|| path)?;
        Ok(count)
    }

    fn sync(&mut self) -> Result<()> {
        self.fs()?.sync().context(|| "syncing the volume")
    }

    fn reopen(&mut self) -> Result<()> {
        if let Some(fs) = self.fs.take() {
            fs.close().context(|| "closing the volume")?;
        }
        self.fs = Some(open(&self.image)?);
        Ok(())
    }

    fn keep(&mut self) -> bool {
        false
    }

    fn close(mut self: Box<Self>) -> Result<()> {
        match self.fs.take() {
            Some(fs) => fs.close().context(|| "closing the volume"),
            None => Ok(()),
        }
    }
}
