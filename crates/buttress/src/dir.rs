//! Listing a directory.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use buttress_fs::{FileKind, Inode, InodeId};

use crate::error::{Context, Result};

/// The number of entries that one read of the directory fetches.
const BATCH: usize = 256;

/// One name of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    name: OsString,
    folder: PathBuf,
    id: InodeId,
    kind: FileKind,
}

impl DirEntry {
    /// The name.
    #[must_use]
    pub fn file_name(&self) -> &OsStr {
        &self.name
    }

    /// The path of the listed directory, joined with the name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.name)
    }

    /// The file type of the entry; a directory for a subvolume.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Subvolume and inode number of the object that the name refers to.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.id
    }
}

/// The entries of a directory, in the order of their creation, without `.` and `..`.
///
/// A name that exists during the whole listing is listed once, even if other names are made or
/// removed.
#[derive(Debug)]
pub struct ReadDir {
    dir: Inode,
    folder: PathBuf,
    cookie: u64,
    batch: VecDeque<DirEntry>,
    is_done: bool,
}

impl ReadDir {
    pub(crate) fn new(dir: Inode, folder: &Path) -> Self {
        let folder = folder.to_path_buf();
        Self { dir, folder, cookie: 0, batch: VecDeque::new(), is_done: false }
    }

    fn fill(&mut self) -> Result<()> {
        let Self { dir, folder, cookie, batch, .. } = self;
        dir.read_dir(*cookie, |entry| {
            *cookie = entry.cookie;
            batch.push_back(DirEntry {
                name: OsString::from_vec(entry.name.to_vec()),
                folder: folder.clone(),
                id: entry.id,
                kind: entry.kind,
            });
            if batch.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .context("list", &self.folder)?;
        self.is_done = self.batch.len() < BATCH;
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.is_empty()
            && !self.is_done
            && let Err(error) = self.fill()
        {
            self.is_done = true;
            return Some(Err(error));
        }
        self.batch.pop_front().map(Ok)
    }
}
