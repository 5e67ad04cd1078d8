//! Data that an image shares with the files that it was made from. The image and the files lie on
//! one file system with shared extents, such as btrfs or xfs.
//!
//! # Place
//!
//! The copy announces the part of a file that it is about to write ([`Clones::write`]). The engine
//! writes this part to the device from the same memory, and [`CloningDevice`] recognises the memory
//! by its address. The kernel then shares the file's blocks in place of the write.
//!
//! # Invariants
//!
//! - **C1** The image has the bytes that the engine wrote, also if the file changes meanwhile. The
//!   engine has computed checksums of these bytes. So after the kernel has shared a part, the
//!   device reads the part from the file again. If the part differs from the bytes of the engine,
//!   these bytes are written.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_base::sync::Mutex;
use buttress_block::{Device, Error, Layer};
use buttress_control::exit::{Context, Exit, Failure, Result};
use rustix::fs::{Mode, OFlags};

/// Parts of a file are shared in units of this many bytes. If the file system has larger blocks,
/// the kernel copies a part that does not fill a block.
const BLOCK: usize = 4096;

/// The part of a file that is being written.
#[derive(Debug)]
struct Announced {
    file: OwnedFd,
    /// The offset of the part in the file.
    offset: u64,
    /// The address and the length of the bytes in memory.
    memory: (usize, usize),
}

/// The parts of files that an image shares.
#[derive(Debug)]
pub struct Clones {
    image: File,
    path: PathBuf,
    /// The part that is being written. Unranked: no other lock is taken under it.
    announced: Mutex<Option<Announced>>,
}

/// The device of the image. Writes of an announced part share blocks.
#[derive(Debug)]
struct CloningDevice {
    inner: Arc<dyn Device>,
    clones: Arc<Clones>,
}

impl Clones {
    /// Opens the image once more.
    ///
    /// # Errors
    ///
    /// The image is no file that this process can write.
    pub fn of(image: &Path) -> Result<Arc<Self>> {
        let name = || image.display().to_string();
        let file = File::options().write(true).open(image).context(name)?;
        if !file.metadata().context(name)?.is_file() {
            let what = format!("{}: only an image file shares data with files", image.display());
            return Err(Failure::new(Exit::Usage, what));
        }
        Ok(Arc::new(Self { image: file, path: image.to_owned(), announced: Mutex::default() }))
    }

    /// The image as a device that shares.
    #[must_use]
    pub fn device(self: &Arc<Self>, inner: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(CloningDevice { inner, clones: Arc::clone(self) })
    }

    /// Checks that the image can share the data of a file.
    ///
    /// # Errors
    ///
    /// The file lies on another file system, or the file system cannot share data.
    pub(super) fn expect_shareable(&self, file: impl AsFd, name: &str) -> Result<()> {
        let folder = match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let probe = rustix::fs::open(folder, flags, Mode::RUSR | Mode::WUSR)
            .context(|| folder.display().to_string())?;
        rustix::fs::ioctl_ficlone(probe, file).map_err(|errno| {
            let image = self.path.display();
            let what = format!("{name}: {image} cannot share its data; mkfs without --reflink");
            Failure::with_source(Exit::Failure, what, std::io::Error::from(errno))
        })
    }

    /// Runs `write`, which writes whole blocks of `piece` straight to the device. `piece` has the
    /// bytes at `offset` of a file. Returns what `write` returns.
    pub(super) fn write<T>(
        &self,
        file: &OwnedFd,
        (offset, piece): (u64, &[u8]),
        write: impl FnOnce() -> T,
    ) -> rustix::io::Result<T> {
        let memory = (piece.as_ptr() as usize, piece.len());
        let file = rustix::io::dup(file)?;
        *self.announced.lock() = Some(Announced { file, offset, memory });
        let done = write();
        *self.announced.lock() = None;
        Ok(done)
    }

    /// Shares the blocks of the file instead of writing `buf`, if `buf` is a part of the announced
    /// memory. Returns whether the image has the bytes of `buf` at `offset` now (C1).
    fn share(&self, offset: u64, buf: &[u8]) -> bool {
        let announced = self.announced.lock();
        let Some(Announced { file, offset: from, memory: (start, len) }) = &*announced else {
            return false;
        };
        let Some(within) = (buf.as_ptr() as usize).checked_sub(*start) else { return false };
        if within >= *len || len - within < buf.len() || !buf.len().is_multiple_of(BLOCK) {
            return false;
        }
        let from = from + within as u64;
        let (mut source, mut target) = (from, offset);
        let mut left = buf.len();
        while left > 0 {
            // Within one file system, this call shares blocks if possible.
            match rustix::fs::copy_file_range(
                file,
                Some(&mut source),
                &self.image,
                Some(&mut target),
                left,
            ) {
                Ok(shared) if shared > 0 => left -= shared,
                _ => return false,
            }
        }
        let mut again = vec![0; buf.len()];
        let mut at = 0;
        while at < again.len() {
            match rustix::io::pread(file, &mut again[at..], from + at as u64) {
                Ok(read) if read > 0 => at += read,
                _ => return false,
            }
        }
        again == buf
    }
}

impl Layer for CloningDevice {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.inner
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> std::result::Result<(), Error> {
        if self.clones.share(offset, buf) {
            return Ok(());
        }
        self.inner.write_at(offset, buf)
    }
}
