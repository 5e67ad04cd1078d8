//! Paths of a stream, walked from the top of a subvolume (`receiver::R1`).

use std::collections::HashMap;

use buttress_fs::{FileKind, Inode, NameError};

use crate::error::{Error, Result};
use crate::stream::StreamPath;

/// The maximum number of remembered directories. Above this number, all are forgotten.
const KEPT_MAX: usize = 4096;

/// One subvolume, and directories of it that were found.
pub(super) struct Walk {
    top: Inode,
    dirs: HashMap<Vec<u8>, Inode>,
    /// The file that was found last. Its data comes in many commands, so it is looked up only once.
    file: Option<(Vec<u8>, Inode)>,
}

impl Walk {
    pub(super) fn new(top: Inode) -> Self {
        Self { top, dirs: HashMap::new(), file: None }
    }

    /// Forgets everything: names have changed.
    pub(super) fn forget(&mut self) {
        self.dirs.clear();
        self.file = None;
    }

    /// Forgets the file, because its name may lead to another inode now.
    pub(super) fn forget_file(&mut self) {
        self.file = None;
    }

    /// Finds the inode of a path.
    pub(super) fn find(&mut self, path: StreamPath<'_>) -> Result<Inode> {
        if let Some((known, inode)) = &self.file
            && known == path.as_bytes()
        {
            return Ok(inode.clone());
        }
        let Some((dir, name)) = path.split() else { return Ok(self.top.clone()) };
        let inode = self.step(&self.dir(dir)?, name)?;
        if inode.kind() == FileKind::Regular {
            self.file = Some((path.as_bytes().to_vec(), inode.clone()));
        }
        Ok(inode)
    }

    /// Returns the directory of a path's last name, and that name.
    pub(super) fn parent<'p>(&mut self, path: StreamPath<'p>) -> Result<(Inode, &'p [u8])> {
        let (dir, name) = path.split().ok_or(Error::Refused("the top has no name"))?;
        let inode = self.dir(dir)?;
        if !dir.is_top() {
            if self.dirs.len() >= KEPT_MAX {
                self.dirs.clear();
            }
            self.dirs.insert(dir.as_bytes().to_vec(), inode.clone());
        }
        Ok((inode, name))
    }

    fn dir(&self, path: StreamPath<'_>) -> Result<Inode> {
        if path.is_top() {
            return Ok(self.top.clone());
        }
        if let Some(known) = self.dirs.get(path.as_bytes()) {
            return Ok(known.clone());
        }
        let mut at = self.top.clone();
        for name in path.names() {
            at = self.step(&at, name)?;
            if at.kind() != FileKind::Directory {
                return Err(buttress_fs::Error::from(NameError::NotDir).into());
            }
        }
        Ok(at)
    }

    fn step(&self, dir: &Inode, name: &[u8]) -> Result<Inode> {
        let found = dir.lookup(name)?;
        if found.id().tree != self.top.id().tree {
            return Err(Error::Refused("the path leads into another subvolume"));
        }
        Ok(found)
    }
}
