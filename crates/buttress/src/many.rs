//! Creates and removes nested directories, with one lookup for each level.
//!
//! # What must hold
//!
//! - No path is resolved again for each level or name, and no tree is walked by recursion.
//! - Removal never follows a symbolic link.

use std::ops::ControlFlow;

use buttress_fs::{DirEntry, FileKind, Ino, Inode, NameError, Result as FsResult};

/// How many names are listed in one step while a directory is emptied.
const LISTED: usize = 256;

/// Makes a directory, or finds the directory if it exists already.
pub(crate) fn make_or_find(parent: &Inode, name: &[u8]) -> FsResult<Inode> {
    match parent.mkdir(name, 0o755, 0, 0) {
        Err(error) if is_taken(&error) => parent.lookup(name),
        made => made,
    }
}

/// Whether a name was refused because it exists.
pub(crate) fn is_taken(error: &buttress_fs::Error) -> bool {
    error.kind() == buttress_fs::ErrorKind::Name(NameError::Exists)
}

/// A directory that is being emptied.
struct Level {
    dir: Inode,
    /// Its name in the level above.
    name: Vec<u8>,
    /// Directories in it that are still to be emptied.
    dirs: Vec<Vec<u8>>,
}

impl Level {
    fn new(parent: &Inode, name: Vec<u8>) -> FsResult<Self> {
        let dir = parent.lookup(&name)?;
        if dir.kind() != FileKind::Directory {
            return Err(NameError::NotDir.into());
        }
        Ok(Self { dir, name, dirs: Vec::new() })
    }

    /// Removes files from the start of the directory and notes its directories. Says whether the
    /// directory is empty.
    fn remove_some(&mut self) -> FsResult<bool> {
        let mut names = Vec::new();
        self.dir.read_dir(0, |entry: DirEntry<'_>| {
            names.push((entry.name.to_vec(), entry.kind));
            if names.len() == LISTED { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let is_empty = names.is_empty();
        for (name, kind) in names {
            if kind == FileKind::Directory {
                self.dirs.push(name);
            } else {
                self.dir.unlink(&name)?;
            }
        }
        Ok(is_empty)
    }
}

/// Removes the directory `name` of `parent` and everything in it. Subvolumes in it are deleted.
pub(crate) fn remove_dir_all(parent: &Inode, name: &[u8]) -> FsResult<()> {
    let mut levels = vec![Level::new(parent, name.to_vec())?];
    while let Some(level) = levels.last_mut() {
        if let Some(name) = level.dirs.pop() {
            let below = Level::new(&level.dir, name)?;
            if below.dir.id().ino == Ino::ROOT_DIR {
                level.dir.delete_subvolume(&below.name)?;
            } else {
                levels.push(below);
            }
        } else if level.remove_some()? {
            let Some(done) = levels.pop() else { break };
            let above = levels.last().map_or(parent, |level| &level.dir);
            drop(done.dir);
            above.rmdir(&done.name)?;
        }
    }
    Ok(())
}
