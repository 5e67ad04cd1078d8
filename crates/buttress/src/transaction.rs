//! Several files that change together.
//!
//! # What must hold
//!
//! - The content of a transaction is in files without names until all changes are known. Then one
//!   step of the engine changes the names, and a commit makes that step durable. A crash leaves all
//!   changes or none. The next opening removes files without names.
//! - One transaction of a volume runs at a time.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::{self, ThreadId};

use buttress_fs::{
    Error as FsError, FileKind, Filesystem, Inode, InodeId, NameChange, NameDir, NameError,
    Result as FsResult, XattrFlags,
};

use crate::error::{Context, Error, ErrorKind, Result};
use crate::file::read_whole;
use crate::walk::{self, Last};

/// Changes of several files that happen together or not at all.
///
/// [`Filesystem::transaction`](crate::Filesystem::transaction) makes a transaction. Before it ends,
/// only [`Transaction::read`] sees its changes.
#[derive(Debug)]
pub struct Transaction<'f> {
    fs: &'f Filesystem,
    changes: Vec<NameChange>,
    /// The object of each changed name, after the changes so far.
    staged: HashMap<(Dir, Vec<u8>), Staged>,
    /// The directories that this transaction makes, by path, with the index of the change that
    /// makes each.
    made: HashMap<PathBuf, usize>,
    /// For each of these new directories, the nearest directory above it that existed before.
    above: HashMap<usize, Inode>,
}

/// The identity of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Dir {
    There(InodeId),
    Made(usize),
}

/// The object that a name refers to.
#[derive(Clone, Debug)]
enum Staged {
    Inode(Inode),
    NewDir,
    Nothing,
}

/// A name and the directory that it is in.
struct Place {
    dir: NameDir,
    key: (Dir, Vec<u8>),
    /// The directory, or the nearest directory above it that existed before the transaction.
    above: Inode,
}

impl<'f> Transaction<'f> {
    pub(crate) fn new(fs: &'f Filesystem) -> Self {
        let (staged, made, above) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { fs, changes: Vec::new(), staged, made, above }
    }

    /// Writes a whole file: makes it, or replaces it.
    ///
    /// If the file exists, a new file replaces it, with the same mode, owner and extended
    /// attributes. Open [`File`](crate::File)s and other names of the old file keep the old
    /// content. A symbolic link at the end of the path is replaced, not followed.
    ///
    /// # Errors
    ///
    /// `NotFound` for its directory, `IsADirectory`, `StorageFull`, `ReadOnly`.
    pub fn write(&mut self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        self.stage_file(path, content.as_ref()).context("write", path)
    }

    /// Makes a directory with mode 0755 and the owner of its parent directory.
    ///
    /// # Errors
    ///
    /// `NotFound` for its parent, `AlreadyExists`, `StorageFull`, `ReadOnly`.
    pub fn create_dir(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.stage_dir(path).context("create directory", path)
    }

    /// Renames a file or a symbolic link. An object under the new name is replaced.
    ///
    /// # Errors
    ///
    /// `NotFound`; `IsADirectory`, because a transaction cannot rename directories.
    pub fn rename(&mut self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let from = from.as_ref();
        self.stage_move(from, to.as_ref()).context("rename", from)
    }

    /// Removes a file or a symbolic link.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`.
    pub fn remove_file(&mut self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        self.stage_removal(path).context("remove", path)
    }

    /// Reads a whole file, as this transaction leaves it so far.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`, `Corrupt`, `Io`.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let read = || {
            let place = self.place(path)?;
            let inode = match self.staged.get(&place.key) {
                Some(Staged::Inode(inode)) if inode.kind() != FileKind::Symlink => inode.clone(),
                Some(Staged::NewDir) => return Err(NameError::IsDir.into()),
                Some(Staged::Nothing) => return Err(NameError::NotFound.into()),
                _ => walk::find(self.fs, path, Last::Follow)?,
            };
            read_whole(&inode)
        };
        read().context("read", path)
    }

    /// Changes all names in one step, and commits.
    pub(crate) fn finish(self) -> Result<()> {
        let Some(top) = self.changes.first().map(|change| match change {
            NameChange::Put { inode, .. } => inode.clone(),
            NameChange::MakeDir { like, .. } => like.clone(),
            NameChange::Move { from: (dir, _), .. } | NameChange::Remove { dir, .. } => match dir {
                NameDir::There(dir) => dir.clone(),
                NameDir::Made(_) => self.fs.root(),
            },
        }) else {
            return Ok(());
        };
        top.change_names(&self.changes).context("commit", Path::new("/"))?;
        self.fs.sync().context("commit", Path::new("/"))
    }

    fn stage_file(&mut self, path: &Path, content: &[u8]) -> FsResult<()> {
        let place = self.place(path)?;
        let old = match self.lookup(&place)? {
            Staged::NewDir => return Err(NameError::IsDir.into()),
            Staged::Inode(old) if old.kind() == FileKind::Directory => {
                return Err(NameError::IsDir.into());
            }
            Staged::Inode(old) if old.kind() == FileKind::Regular => Some(old),
            Staged::Inode(_) | Staged::Nothing => None,
        };
        let attr = old.as_ref().map(Inode::attr);
        let (mode, uid, gid) = attr.map_or((0o644, 0, 0), |attr| (attr.mode, attr.uid, attr.gid));
        let inode = place.above.tmpfile(mode & 0o7777, uid, gid)?;
        let mut done = 0;
        while done < content.len() {
            done += inode.write_at(done as u64, &content[done..])?;
        }
        if let Some(old) = old {
            for name in old.list_xattrs()? {
                inode.set_xattr(&name, &old.xattr(&name)?, XattrFlags::default())?;
            }
        }
        // The content must be in the trees before its name. Otherwise a commit could have the name
        // without the content.
        inode.flush_data()?;
        let Place { dir, key, .. } = place;
        self.changes.push(NameChange::Put { dir, name: key.1.clone(), inode: inode.clone() });
        self.staged.insert(key, Staged::Inode(inode));
        Ok(())
    }

    fn stage_dir(&mut self, path: &Path) -> FsResult<()> {
        let place = self.place(path)?;
        if !matches!(self.lookup(&place)?, Staged::Nothing) {
            return Err(NameError::Exists.into());
        }
        let Place { dir, key, above } = place;
        let change = self.changes.len();
        let (name, like) = (key.1.clone(), above.clone());
        self.changes.push(NameChange::MakeDir { dir, name, like, mode: 0o755 });
        self.staged.insert(key, Staged::NewDir);
        self.made.insert(plain(path), change);
        self.above.insert(change, above);
        Ok(())
    }

    fn stage_move(&mut self, from: &Path, to: &Path) -> FsResult<()> {
        let (source, target) = (self.place(from)?, self.place(to)?);
        let moved = self.file_at(&source)?;
        match self.lookup(&target)? {
            Staged::NewDir => return Err(NameError::IsDir.into()),
            Staged::Inode(old) if old.kind() == FileKind::Directory => {
                return Err(NameError::IsDir.into());
            }
            Staged::Inode(old) if old.id() == moved.id() => return Ok(()),
            Staged::Inode(_) | Staged::Nothing => {}
        }
        self.changes.push(NameChange::Move {
            from: (source.dir, source.key.1.clone()),
            to: (target.dir, target.key.1.clone()),
        });
        self.staged.insert(source.key, Staged::Nothing);
        self.staged.insert(target.key, Staged::Inode(moved));
        Ok(())
    }

    fn stage_removal(&mut self, path: &Path) -> FsResult<()> {
        let place = self.place(path)?;
        self.file_at(&place)?;
        self.changes.push(NameChange::Remove { dir: place.dir, name: place.key.1.clone() });
        self.staged.insert(place.key, Staged::Nothing);
        Ok(())
    }

    /// Returns the object under a name. Fails for a directory.
    fn file_at(&self, place: &Place) -> FsResult<Inode> {
        match self.lookup(place)? {
            Staged::NewDir => Err(NameError::IsDir.into()),
            Staged::Nothing => Err(NameError::NotFound.into()),
            Staged::Inode(inode) if inode.kind() == FileKind::Directory => {
                Err(NameError::IsDir.into())
            }
            Staged::Inode(inode) => Ok(inode),
        }
    }

    fn lookup(&self, place: &Place) -> FsResult<Staged> {
        if let Some(staged) = self.staged.get(&place.key) {
            return Ok(staged.clone());
        }
        let NameDir::There(dir) = &place.dir else { return Ok(Staged::Nothing) };
        match dir.lookup(&place.key.1) {
            Ok(inode) => Ok(Staged::Inode(inode)),
            Err(FsError::Name(NameError::NotFound)) => Ok(Staged::Nothing),
            Err(error) => Err(error),
        }
    }

    fn place(&self, path: &Path) -> FsResult<Place> {
        use std::os::unix::ffi::OsStrExt;
        let parent = path.parent().unwrap_or(Path::new(""));
        if let (Some(&made), Some(Component::Normal(name))) =
            (self.made.get(&plain(parent)), path.components().next_back())
        {
            let key = (Dir::Made(made), name.as_bytes().to_vec());
            let above = self.above.get(&made).ok_or(NameError::NotFound)?.clone();
            return Ok(Place { dir: NameDir::Made(made), key, above });
        }
        let (dir, name) = walk::find_parent(self.fs, path)?;
        let key = (Dir::There(dir.id()), name.to_vec());
        Ok(Place { dir: NameDir::There(dir.clone()), key, above: dir })
    }
}

/// Returns a path without the components that do not change its target.
fn plain(path: &Path) -> PathBuf {
    let named = |part: &Component<'_>| matches!(part, Component::Normal(_) | Component::ParentDir);
    path.components().filter(named).collect()
}

/// Lets one transaction run at a time.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The thread that runs a transaction. Unranked: no other lock is taken under this lock.
    taken: Mutex<Option<ThreadId>>,
    free: Condvar,
}

/// The right of one transaction to run. Dropping this value lets the next transaction run.
pub(crate) struct Taken<'t>(&'t Turn);

impl Turn {
    /// Waits until no other transaction runs.
    pub(crate) fn take(&self) -> Result<Taken<'_>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(holder) = *taken {
            if holder == thread::current().id() {
                let what = "this thread is within a transaction of the volume";
                return Err(Error::new(ErrorKind::InvalidInput, "begin", None, what));
            }
            taken = self.free.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = Some(thread::current().id());
        Ok(Taken(self))
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.free.notify_one();
    }
}
