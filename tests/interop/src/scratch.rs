//! A temporary place for images, in memory if enough memory is free.

use std::path::{Path, PathBuf};

/// A folder that is deleted on drop.
#[derive(Debug)]
pub struct Scratch {
    folder: tempfile::TempDir,
}

/// If this variable is set, nothing is deleted, so that the images can be examined.
const KEEP: &str = "BUTTRESS_KEEP";

/// Below this much free memory the images go to the ordinary temporary folder.
const MEMORY_MIN: u64 = 6 << 30;

impl Scratch {
    /// Makes a new, empty folder.
    ///
    /// # Panics
    ///
    /// If the folder cannot be made.
    #[must_use]
    pub fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let room = rustix::fs::statvfs(memory).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
        let mut builder = tempfile::Builder::new();
        builder.prefix("buttress-");
        builder.disable_cleanup(std::env::var_os(KEEP).is_some());
        let folder =
            if room >= MEMORY_MIN { builder.tempdir_in(memory) } else { builder.tempdir() };
        Self { folder: folder.expect("a folder for images") }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// A path in the folder.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}
