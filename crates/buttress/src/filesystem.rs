//! One open volume: files by path.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use buttress_fs::{
    FileKind, Inode, InodeId, NameError, NewInode, RenameFlags, SetAttr, XattrFlags,
};

use crate::admin::Admin;
use crate::dir::ReadDir;
use crate::error::{Context, Error, ErrorKind, Result};
use crate::file::{File, FileOptions};
use crate::look;
use crate::many;
use crate::metadata::Metadata;
use crate::place::Named;
use crate::snapshot::Snapshot;
use crate::transaction::{Transaction, Turn};
use crate::walk::{self, Last};

/// An open volume. Cheap to clone. Many threads may use it at once; every call blocks until its
/// work is done.
///
/// Paths begin at the mounted subvolume, with or without a leading `/`. The library checks no
/// permissions: the program owns the volume. Changes are durable after [`Filesystem::sync`] or
/// [`File::sync_all`], and when the volume is closed.
#[derive(Clone, Debug)]
pub struct Filesystem {
    fs: buttress_fs::Filesystem,
    turns: Arc<Turns>,
    /// The devices that were opened by name.
    named: Arc<[Named]>,
}

/// Locks of operations that run one at a time.
#[derive(Debug, Default)]
struct Turns {
    transaction: Turn,
    /// Held while a snapshot has its temporary name. Unranked: this is the outermost lock, and no
    /// other lock is held together with it.
    snapshot: Mutex<()>,
}

/// The temporary name that [`Filesystem::snapshot`] uses. After a crash, the next opening removes a
/// snapshot of this name.
const SNAPSHOT_NAME: &[u8] = b".buttress-snapshot";

impl Filesystem {
    /// Takes over an opened volume. Removes the snapshot that a crash may have left under the
    /// temporary name.
    pub(crate) fn new(fs: buttress_fs::Filesystem) -> Self {
        if fs.read_only_reason().is_none() {
            remove_left(&fs.root());
        }
        Self { fs, turns: Arc::default(), named: Arc::default() }
    }

    /// The same volume, which releases these devices when it is closed.
    pub(crate) fn with_named(self, named: Vec<Named>) -> Self {
        Self { named: named.into(), ..self }
    }

    /// Changes several files together: all changes that `work` makes happen, or none.
    ///
    /// The changes happen when `work` returns `Ok`, and are durable when this call returns. After a
    /// crash, the volume has all of the changes or none. Other threads see none of the changes
    /// before `work` returns, and all of them afterwards. One transaction of a volume runs at a
    /// time. Other calls do not wait for it, so they can still change files that `work` has read.
    /// All changed names lie in one subvolume.
    ///
    /// ```
    /// # fn main() -> buttress::Result<()> {
    /// # let folder = tempfile::tempdir().expect("a folder");
    /// # let fs = buttress::CreateOptions::new(256 << 20).create(folder.path().join("a.img"))?;
    /// fs.write("/account-a", "100")?;
    /// fs.write("/account-b", "0")?;
    /// fs.transaction(|tx| {
    ///     tx.write("/account-a", "70")?;
    ///     tx.write("/account-b", "30")
    /// })?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// In all these cases nothing has changed:
    ///
    /// - The error that `work` returned. [`Error::other`] wraps a failure of the calling program.
    /// - `NotFound`, `IsADirectory` and the like if other calls changed the same names meanwhile.
    /// - `CrossesSubvolumes`, `StorageFull`, `ReadOnly`.
    /// - `InvalidInput` if this thread is already within a transaction of the volume.
    ///
    /// `Aborted` and `Io` if the commit failed. The volume is then read-only, and the device has
    /// the state of the last successful commit.
    pub fn transaction<T>(
        &self,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T>,
    ) -> Result<T> {
        let _turn = self.turns.transaction.take()?;
        let mut transaction = Transaction::new(&self.fs);
        let value = work(&mut transaction)?;
        transaction.finish()?;
        Ok(value)
    }

    /// Returns the present state of the volume for reading. Later changes do not affect its files.
    ///
    /// The call commits. While the snapshot is held, it takes space only for later changes. If the
    /// volume is read-only, no snapshot is made: the result reads the volume itself.
    ///
    /// # Errors
    ///
    /// `StorageFull`, `Io`, `Aborted`.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let root = self.fs.root();
        if self.fs.read_only_reason().is_some() {
            return Ok(Snapshot::new(root));
        }
        let _turn = self.turns.snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        remove_left(&root);
        let made = root.snapshot(SNAPSHOT_NAME, root.id().tree, true);
        let top = made.context("snapshot", Path::new("/"))?;
        root.unname_subvolume(SNAPSHOT_NAME).context("snapshot", Path::new("/"))?;
        Ok(Snapshot::new(top))
    }

    /// The engine's handle, for calls that this type does not offer.
    #[must_use]
    pub fn engine(&self) -> &buttress_fs::Filesystem {
        &self.fs
    }

    /// Administration: devices, space, scrub, balance.
    #[must_use]
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(&self.fs)
    }

    /// Makes everything that was done before this call durable.
    ///
    /// # Errors
    ///
    /// `Io`, `StorageFull`, `Aborted`.
    pub fn sync(&self) -> Result<()> {
        self.fs.sync().context("sync", Path::new("/"))
    }

    /// Moves to the newest commit of a volume that another machine writes. All clones of this
    /// handle show that commit afterwards. Open files and snapshots keep their commit. Returns
    /// whether there was a newer commit.
    ///
    /// # Errors
    ///
    /// `Io`. `Corrupt` or `Unsupported` if the newer commit is damaged or uses features that this
    /// program lacks. After an error the handle shows the same commit as before.
    pub fn renew(&self) -> Result<bool> {
        self.fs.renew().context("renew", Path::new("/"))
    }

    /// Commits and closes the volume. Dropping the last clone also commits and closes, but cannot
    /// report a failure.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::sync`]. For a volume in a store also `ReadOnly` if another
    /// writer took the volume.
    pub fn close(self) -> Result<()> {
        let closed = self.fs.close().context("close", Path::new("/"));
        let released = self.named.iter().map(Named::release).fold(Ok(()), Result::and);
        closed.and(released)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`.
    pub fn open_file(&self, path: impl AsRef<Path>) -> Result<File> {
        look::open_file(&self.fs.root(), path.as_ref())
    }

    /// Opens a file for writing. Creates the file, or truncates it to length zero.
    ///
    /// # Errors
    ///
    /// `NotFound` for its directory, `IsADirectory`, `StorageFull`, `ReadOnly`.
    pub fn create_file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, &FileOptions::new().read(true).write(true).create(true).truncate(true))
    }

    /// Opens a file with `options`.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::open_file`] and [`Filesystem::create_file`]; `AlreadyExists` if
    /// `create_new` is set and the name is taken.
    pub fn open_with(&self, path: impl AsRef<Path>, options: &FileOptions) -> Result<File> {
        let path = path.as_ref();
        let inode = self.find_or_make(path, options).context("open", path)?;
        walk::expect_file(&inode).context("open", path)?;
        let for_writing = options.write || options.append || options.truncate;
        walk::expect_openable(&inode, for_writing).context("open", path)?;
        if options.truncate && inode.attr().size > 0 {
            let set = SetAttr { size: Some(0), ..SetAttr::default() };
            inode.set_attr(&set).context("open", path)?;
        }
        Ok(File::new(inode, path, options))
    }

    fn find_or_make(&self, path: &Path, options: &FileOptions) -> buttress_fs::Result<Inode> {
        let new = options.new_inode(NewInode::file);
        if options.create_new {
            let (dir, name) = walk::find_parent(&self.fs, path)?;
            return dir.create(name, new);
        }
        match walk::find(&self.fs, path, Last::Follow) {
            Err(error) if options.create && is_not_found(&error) => {
                let (dir, name) = walk::find_parent(&self.fs, path)?;
                match dir.create(name, new) {
                    // Another thread has made the file in the meantime.
                    Err(error) if many::is_taken(&error) => {
                        walk::find(&self.fs, path, Last::Follow)
                    }
                    made => made,
                }
            }
            found => found,
        }
    }

    /// Reads a whole file.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`, `Corrupt`, `Io`.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        look::read(&self.fs.root(), path.as_ref())
    }

    /// Reads a whole file as UTF-8.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::read`]; `InvalidInput` for other bytes.
    pub fn read_to_string(&self, path: impl AsRef<Path>) -> Result<String> {
        look::read_to_string(&self.fs.root(), path.as_ref())
    }

    /// Writes a whole file. Creates the file, or replaces its content.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::create_file`].
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> Result<()> {
        self.create_file(path)?.write_all_at(content.as_ref(), 0)
    }

    /// Copies the content of a file and returns its length in bytes. A new target gets the mode of
    /// the source; an existing target is overwritten and keeps its mode. The target shares whole
    /// blocks with the source, and such blocks take no further space.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::open_file`] and [`Filesystem::create_file`].
    pub fn copy(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<u64> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let source = self.open_file(from)?;
        let attr = source.inode().attr();
        let options = FileOptions::new().write(true).create(true).truncate(true).mode(attr.mode);
        let target = self.open_with(to, &options)?;
        source.inode().copy_range(0, target.inode(), 0, attr.size).context("copy", from)
    }

    /// Whether the path leads to something; symbolic links are followed.
    ///
    /// # Errors
    ///
    /// Errors of the lookup other than `NotFound`.
    pub fn exists(&self, path: impl AsRef<Path>) -> Result<bool> {
        look::exists(&self.fs.root(), path.as_ref())
    }

    /// The metadata of a file; symbolic links are followed.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        look::metadata(&self.fs.root(), path.as_ref(), Last::Follow)
    }

    /// The metadata of a file; a symbolic link at the end is not followed.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Metadata> {
        look::metadata(&self.fs.root(), path.as_ref(), Last::Keep)
    }

    /// Lists a directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`.
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir> {
        look::read_dir(&self.fs.root(), path.as_ref())
    }

    /// Makes a directory with mode 0755.
    ///
    /// # Errors
    ///
    /// `NotFound` for its parent, `AlreadyExists`, `StorageFull`, `ReadOnly`.
    pub fn create_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let made = walk::find_parent(&self.fs, path)
            .and_then(|(parent, name)| parent.mkdir(name, 0o755, 0, 0));
        made.context("create directory", path).map(drop)
    }

    /// Makes a directory and all missing directories above it.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::create_dir`], but `AlreadyExists` only if the path is no
    /// directory.
    pub fn create_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let made = walk::find_or(&self.fs.root(), path, Last::Follow, many::make_or_find);
        let is_dir = made.context("create directory", path)?.kind() == FileKind::Directory;
        let is_dir = if is_dir { Ok(()) } else { Err(NameError::NotDir.into()) };
        is_dir.context("create directory", path)
    }

    /// Removes a file, a symbolic link or another object that is no directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `IsADirectory`, `ReadOnly`, `PermissionDenied`.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        walk::find_parent(&self.fs, path)
            .and_then(|(parent, name)| parent.unlink(name))
            .context("remove", path)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// `NotFound`, `NotADirectory`, `DirectoryNotEmpty`, `ReadOnly`.
    pub fn remove_dir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        walk::find_parent(&self.fs, path)
            .and_then(|(parent, name)| parent.rmdir(name))
            .context("remove directory", path)
    }

    /// Removes a directory and everything in it. Subvolumes in it are deleted.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::remove_dir`]. Entries that were removed before the error stay
    /// removed.
    pub fn remove_dir_all(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        walk::find_parent(&self.fs, path)
            .and_then(|(parent, name)| many::remove_dir_all(&parent, name))
            .context("remove directory", path)
    }

    /// Renames a file or a directory. An object that has the new name is replaced.
    ///
    /// # Errors
    ///
    /// `NotFound`, `CrossesSubvolumes`, `DirectoryNotEmpty`, `IsADirectory`, `NotADirectory`,
    /// `ReadOnly`.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let renamed = (|| {
            let (old_dir, old) = walk::find_parent(&self.fs, from)?;
            let (new_dir, new) = walk::find_parent(&self.fs, to)?;
            old_dir.rename(old, &new_dir, new, RenameFlags::default())
        })();
        renamed.context("rename", from)
    }

    /// Makes a symbolic link at `link` that points to `target`.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`, `NotFound` for the directory, `StorageFull`, `ReadOnly`.
    pub fn symlink(&self, target: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (target, link) = (target.as_ref(), link.as_ref());
        let made = walk::find_parent(&self.fs, link)
            .and_then(|(parent, name)| parent.symlink(name, target.as_os_str().as_bytes(), 0, 0));
        made.context("create link", link).map(drop)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    ///
    /// `NotFound`; `InvalidInput` where the path is no link.
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        look::read_link(&self.fs.root(), path.as_ref())
    }

    /// Gives an object one more name. The object must not be a directory.
    ///
    /// # Errors
    ///
    /// `AlreadyExists`, `NotFound`, `CrossesSubvolumes`, `ReadOnly`.
    pub fn hard_link(&self, original: impl AsRef<Path>, link: impl AsRef<Path>) -> Result<()> {
        let (original, link) = (original.as_ref(), link.as_ref());
        let made = (|| {
            let inode = walk::find(&self.fs, original, Last::Keep)?;
            let (parent, name) = walk::find_parent(&self.fs, link)?;
            parent.link(&inode, name)
        })();
        made.context("create link", link)
    }

    /// Changes attributes: mode, owner, length, times.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ReadOnly`, `PermissionDenied`.
    pub fn set_attributes(&self, path: impl AsRef<Path>, set: &SetAttr) -> Result<()> {
        let path = path.as_ref();
        let changed =
            walk::find(&self.fs, path, Last::Follow).and_then(|inode| inode.set_attr(set));
        changed.context("set attributes of", path).map(drop)
    }

    /// Reads an extended attribute.
    ///
    /// # Errors
    ///
    /// `NotFound` for the path or the attribute.
    pub fn xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let inode = walk::find(&self.fs, path, Last::Follow);
        inode.and_then(|inode| inode.xattr(name.as_bytes())).context("read attribute of", path)
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    ///
    /// `NotFound`, `InvalidInput` where the value is too long, `ReadOnly`.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        value: impl AsRef<[u8]>,
    ) -> Result<()> {
        let path = path.as_ref();
        let set = walk::find(&self.fs, path, Last::Follow).and_then(|inode| {
            inode.set_xattr(name.as_bytes(), value.as_ref(), XattrFlags::default())
        });
        set.context("set attribute of", path)
    }

    /// Makes an empty subvolume.
    ///
    /// # Errors
    ///
    /// The errors of [`Filesystem::create_dir`].
    pub fn create_subvolume(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let made = walk::find_parent(&self.fs, path)
            .and_then(|(parent, name)| parent.create_subvolume(name, 0o755, 0, 0));
        made.context("create subvolume", path).map(drop)
    }

    /// Makes a snapshot of the subvolume at `source` under the path `target`. The snapshot is
    /// durable when this call returns, and shares all content with the source.
    ///
    /// # Errors
    ///
    /// `NotFound`; `InvalidInput` where `source` is no subvolume; `AlreadyExists`, `StorageFull`.
    pub fn create_snapshot(
        &self,
        source: impl AsRef<Path>,
        target: impl AsRef<Path>,
        read_only: bool,
    ) -> Result<()> {
        let (source, target) = (source.as_ref(), target.as_ref());
        let found = walk::find(&self.fs, source, Last::Follow).context("snapshot", source)?;
        if !is_subvolume(found.id()) {
            let what = "it is no subvolume";
            return Err(Error::new(ErrorKind::InvalidInput, "snapshot", Some(source), what));
        }
        let made = walk::find_parent(&self.fs, target)
            .and_then(|(parent, name)| parent.snapshot(name, found.id().tree, read_only));
        made.context("snapshot", target).map(drop)
    }

    /// Deletes a subvolume or a snapshot. Its space is freed in the background, or by
    /// [`Filesystem::sync`].
    ///
    /// # Errors
    ///
    /// `NotFound`; `InvalidInput` where the path is no subvolume; `DirectoryNotEmpty` where another
    /// subvolume lies in it.
    pub fn delete_subvolume(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        walk::find_parent(&self.fs, path)
            .and_then(|(parent, name)| parent.delete_subvolume(name))
            .context("delete subvolume", path)
    }
}

/// Removes the snapshot that [`Filesystem::snapshot`] left because of a crash. If the removal
/// fails, the next snapshot or the next opening tries again.
fn remove_left(root: &Inode) {
    if root.lookup(SNAPSHOT_NAME).is_ok_and(|found| is_subvolume(found.id())) {
        let _ = root.delete_subvolume(SNAPSHOT_NAME);
    }
}

/// Whether an inode is the root directory of a subvolume. Root directories have the same number in
/// all subvolumes.
fn is_subvolume(id: InodeId) -> bool {
    id.ino == buttress_fs::Ino::ROOT_DIR
}

fn is_not_found(error: &buttress_fs::Error) -> bool {
    error.kind() == buttress_fs::ErrorKind::Name(NameError::NotFound)
}
