//! fs-verity: files with content that never changes again. Each read of them is verified.

use std::path::Path;

use buttress_fs::{VerityDescriptor, VerityOptions};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::file::File;
use crate::filesystem::Filesystem;
use crate::walk::{self, Last};

const ENABLE: &str = "enable fs-verity of";

impl Filesystem {
    /// Makes the Merkle tree of a file and returns its descriptor. From then on the content never
    /// changes, and each read compares it with the tree. The result is durable after
    /// [`Filesystem::sync`].
    ///
    /// ```
    /// # fn main() -> buttress::Result<()> {
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let fs = buttress::CreateOptions::new(256 << 20).create(folder.path().join("a.img"))?;
    /// fs.write("/program", "content")?;
    /// let made = fs.enable_verity("/program", &buttress::VerityOptions::default())?;
    /// assert_eq!(made.digest().len(), 32);
    /// assert!(fs.write("/program", "other").is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `NotFound`; `AlreadyExists` if the file has a tree; `InvalidInput` for wrong options and for
    /// anything but a file; `PermissionDenied`, `StorageFull`, `ReadOnly`, `Corrupt`, `Io`.
    pub fn enable_verity(
        &self,
        path: impl AsRef<Path>,
        options: &VerityOptions,
    ) -> Result<VerityDescriptor> {
        let path = path.as_ref();
        let made = walk::find(self.engine(), path, Last::Follow)
            .and_then(|inode| inode.enable_verity(options));
        made.context(ENABLE, path)
    }

    /// The descriptor of a file's Merkle tree; `None` if the file has none. Its
    /// [`digest`](VerityDescriptor::digest) names the content, as `fsverity measure` shows it.
    ///
    /// # Errors
    ///
    /// `NotFound`; `Io` if the descriptor is damaged.
    pub fn verity(&self, path: impl AsRef<Path>) -> Result<Option<VerityDescriptor>> {
        let path = path.as_ref();
        let found = walk::find(self.engine(), path, Last::Follow);
        found.and_then(|inode| inode.verity()).context("measure", path)
    }
}

impl File {
    /// As [`Filesystem::enable_verity`], for an open file.
    ///
    /// # Errors
    ///
    /// As [`Filesystem::enable_verity`]; `Busy` if this file was opened for writing.
    pub fn enable_verity(&self, options: &VerityOptions) -> Result<VerityDescriptor> {
        if self.is_for_writing() {
            let what = "the file is open for writing";
            return Err(Error::new(ErrorKind::Busy, ENABLE, Some(self.path()), what));
        }
        self.inode().enable_verity(options).context(ENABLE, self.path())
    }

    /// As [`Filesystem::verity`], for an open file.
    ///
    /// # Errors
    ///
    /// `Io` if the descriptor is damaged.
    pub fn verity(&self) -> Result<Option<VerityDescriptor>> {
        self.inode().verity().context("measure", self.path())
    }
}
