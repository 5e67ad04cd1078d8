//! Creates inodes, with or without a name: files, directories and device nodes.

use std::sync::Arc;

use buttress_data::Codec;
use buttress_format::{
    Body, Compression, FileExtent, Generation, InodeFlags, InodeItem, Key, Kind,
};
use buttress_items::property::{self, CompressionProperty};
use buttress_items::{
    Batch, Change, Error, FileKind, InodeId, NameError, Result, acl, mode, names, orphan,
    xattr_items,
};
use buttress_txn::{ReserveClass, View};

use crate::cell::{DefaultAcl, InodeCell};
use crate::inode::Inode;
use buttress_make::clock::now;

/// The properties of a new inode.
pub(super) struct Plan<'a> {
    /// Type and permission bits.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
    /// The target of a symbolic link.
    pub(super) target: Option<&'a [u8]>,
}

/// The kind, the permission bits and the owner of an inode that [`Inode::create`] makes. The owner
/// is 0 and the group is 0, unless [`NewInode::owner`] says otherwise.
///
/// ```
/// use buttress_fs::NewInode;
///
/// let pipe = NewInode::fifo(0o600).owner(1000, 100);
/// assert_ne!(pipe, NewInode::file(0o600).owner(1000, 100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode {
    /// Type and permission bits.
    mode: u32,
    uid: u32,
    gid: u32,
    rdev: u64,
}

impl NewInode {
    /// A regular file.
    #[must_use]
    pub const fn file(permissions: u32) -> Self {
        Self::of(mode::REGULAR, permissions, 0)
    }

    /// A named pipe.
    #[must_use]
    pub const fn fifo(permissions: u32) -> Self {
        Self::of(mode::FIFO, permissions, 0)
    }

    /// A socket.
    #[must_use]
    pub const fn socket(permissions: u32) -> Self {
        Self::of(mode::SOCKET, permissions, 0)
    }

    /// A character device. The number has the encoding of [`Attr::rdev`](crate::Attr::rdev).
    #[must_use]
    pub const fn char_device(permissions: u32, rdev: u64) -> Self {
        Self::of(mode::CHARACTER, permissions, rdev)
    }

    /// A block device. The number has the encoding of [`Attr::rdev`](crate::Attr::rdev).
    #[must_use]
    pub const fn block_device(permissions: u32, rdev: u64) -> Self {
        Self::of(mode::BLOCK, permissions, rdev)
    }

    /// The kind by the type bits of `mode`, as `mknod` has them. Without type bits: a regular file.
    #[must_use]
    pub const fn of_mode(mode: u32, rdev: u64) -> Self {
        let kind = mode & mode::TYPE;
        Self::of(if kind == 0 { mode::REGULAR } else { kind }, mode, rdev)
    }

    /// Sets the owner and the group.
    #[must_use]
    pub const fn owner(self, uid: u32, gid: u32) -> Self {
        Self { uid, gid, ..self }
    }

    const fn of(kind: u32, permissions: u32, rdev: u64) -> Self {
        Self { mode: kind | permissions & mode::PERMISSIONS, uid: 0, gid: 0, rdev }
    }
}

impl Inode {
    /// Makes a regular file, pipe, socket or device node.
    ///
    /// # Errors
    ///
    /// `Exists`, `NoSpace`, `ReadOnly`; `Invalid` for the mode of a directory or a link.
    pub fn create(&self, name: &[u8], new: NewInode) -> Result<Self> {
        let NewInode { mode, uid, gid, rdev } = new;
        match FileKind::from_mode(mode) {
            None | Some(FileKind::Directory | FileKind::Symlink) => {
                return Err(Error::invalid("directories and links are made by calls of their own"));
            }
            Some(_) => {}
        }
        self.make(name, &Plan { mode, uid, gid, rdev, target: None })
    }

    /// Makes a directory.
    ///
    /// # Errors
    ///
    /// `Exists`, `NoSpace`, `ReadOnly`.
    pub fn mkdir(&self, name: &[u8], mode: u32, uid: u32, gid: u32) -> Result<Self> {
        let mode = mode & mode::PERMISSIONS | mode::DIRECTORY;
        self.make(name, &Plan { mode, uid, gid, rdev: 0, target: None })
    }

    /// Makes a regular file without a name; [`Inode::link`] may give it one.
    ///
    /// # Errors
    ///
    /// `NoSpace`, `ReadOnly`.
    pub fn tmpfile(&self, mode: u32, uid: u32, gid: u32) -> Result<Self> {
        let dir = &self.cell;
        dir.expect_dir()?;
        dir.expect_writable(&self.mount().status)?;
        self.mount().space.expect_quota(dir.tree())?;
        let mode = mode & mode::PERMISSIONS | mode::REGULAR;
        let plan = Plan { mode, uid, gid, rdev: 0, target: None };
        let view = self.mount().engine.view();
        let mut batch = Batch::new(dir.tree());
        let made = self.prepare(&view, &plan, &mut batch, 0)?;
        batch.set(orphan::key(made.id.ino), Change::Bytes(Vec::new()));
        drop(view);
        let reservation = self.mount().space.reserve(batch.cost(1), ReserveClass::Normal)?;
        let handle = self.mount().engine.begin(reservation);
        let cell = made.enter(self, handle.generation())?;
        batch.apply(&handle);
        cell.file.update(&handle, |_| ());
        Self::new(self.mount(), cell)
    }

    pub(super) fn make(&self, name: &[u8], plan: &Plan<'_>) -> Result<Self> {
        names::check_name(name)?;
        let dir = &self.cell;
        dir.expect_dir()?;
        dir.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        mount.space.expect_quota(dir.tree())?;
        let _lock = dir.lock.write();
        dir.expect_linked()?;
        dir.expect_mutable()?;
        let view = mount.engine.view();
        if names::find(&view, dir.id, name)?.is_some() {
            return Err(NameError::Exists.into());
        }
        let mut batch = Batch::new(dir.tree());
        let made = self.prepare(&view, plan, &mut batch, 1)?;
        let index = dir.next_index(&view)?;
        let entry = names::entry(name, made.id.ino, made.kind);
        let limits = mount.ref_limits();
        batch.add_name(&view, dir.ino(), index, entry, limits.item_len_max)?;
        batch.add_first_ref(made.id.ino, dir.ino(), index, name);
        let stamp = made.item.otime;
        drop(view);
        let reservation = mount.space.reserve(batch.cost(2), ReserveClass::Normal)?;
        let handle = mount.engine.begin(reservation);
        let cell = made.enter(self, handle.generation())?;
        batch.apply(&handle);
        cell.file.update(&handle, |_| ());
        dir.file.update(&handle, |item| {
            item.size += names::size_of(name);
            item.mtime = stamp;
            item.ctime = stamp;
        });
        Self::new(mount, cell)
    }

    /// Computes the new inode. Collects the items of the inode, except its inode item and the items
    /// of its name.
    pub(super) fn prepare(
        &self,
        view: &View,
        plan: &Plan<'_>,
        batch: &mut Batch,
        nlink: u32,
    ) -> Result<Made> {
        let dir = &self.cell;
        let mount = self.mount();
        let ino = mount.engine.commits().next_ino(dir.tree())?;
        let id = InodeId { tree: dir.tree(), ino };
        let kind = FileKind::from_mode(plan.mode).ok_or(Error::invalid("a mode without a type"))?;
        let (dir_mode, dir_gid, dir_flags) =
            dir.file.with_item(|item| (item.mode, item.gid, item.flags));
        let inherits_group = dir_mode & mode::SETGID != 0;
        let mut mode = plan.mode;
        if inherits_group && kind == FileKind::Directory {
            mode |= mode::SETGID;
        }
        let mut default_acl = DefaultAcl::Absent;
        if kind != FileKind::Symlink
            && let Some(list) = default_list(view, dir)?
        {
            mode = acl::inherit(&list, mode, kind, id, batch)?;
            if kind == FileKind::Directory {
                default_acl = DefaultAcl::Present;
            }
        }
        let stamp = now();
        let mut item = InodeItem {
            nlink,
            uid: plan.uid,
            gid: if inherits_group { dir_gid } else { plan.gid },
            mode,
            rdev: plan.rdev,
            flags: self.inherited_flags(dir_flags, kind),
            atime: stamp,
            ctime: stamp,
            mtime: stamp,
            otime: stamp,
            ..InodeItem::default()
        };
        if let Some(target) = plan.target {
            item.size = target.len() as u64;
            item.nbytes = target.len() as u64;
            let extent = FileExtent {
                generation: Generation(0),
                ram_bytes: target.len() as u64,
                compression: Compression::None,
                body: Body::Inline(target.to_vec()),
            };
            batch.set(Key::new(ino.0, Kind::EXTENT_DATA, 0), Change::Extent(extent));
        }
        let inherits = matches!(kind, FileKind::Regular | FileKind::Directory)
            && item.flags & InodeFlags::NODATACOW == 0;
        let codec = if inherits { dir.file.codec() } else { None };
        if let Some(codec) = codec {
            item.flags = CompressionProperty::Packed(codec).flags(item.flags);
            let attribute = Change::Names(vec![property::attribute(codec)]);
            batch.set(xattr_items::key(ino, property::COMPRESSION), attribute);
        }
        Ok(Made { id, kind, item, default_acl, codec })
    }

    /// Flags that a new inode takes from its directory and from the mount.
    fn inherited_flags(&self, dir_flags: u64, kind: FileKind) -> u64 {
        let mut flags = dir_flags & (InodeFlags::NOCOMPRESS | InodeFlags::COMPRESS);
        let regular = kind == FileKind::Regular;
        if dir_flags & InodeFlags::NODATACOW != 0 && (regular || kind == FileKind::Directory) {
            flags |= InodeFlags::NODATACOW;
            if regular {
                flags |= InodeFlags::NODATASUM;
            }
        }
        if regular {
            let options = &self.mount().options;
            if options.nodatasum || options.nodatacow {
                flags |= InodeFlags::NODATASUM;
            }
            if options.nodatacow {
                flags |= InodeFlags::NODATACOW;
            }
        }
        if flags & InodeFlags::NODATACOW != 0 {
            flags &= !InodeFlags::COMPRESS;
        }
        flags
    }
}

/// The default access control list of a directory, if it has one.
fn default_list(view: &View, dir: &InodeCell) -> Result<Option<Vec<u8>>> {
    if dir.default_acl() == DefaultAcl::Absent {
        return Ok(None);
    }
    let found = xattr_items::read(view, dir.id, acl::DEFAULT)?;
    dir.set_default_acl(match found {
        Some(_) => DefaultAcl::Present,
        None => DefaultAcl::Absent,
    });
    Ok(found)
}

/// An inode that an operation is creating.
pub(super) struct Made {
    pub(super) id: InodeId,
    pub(super) kind: FileKind,
    pub(super) item: InodeItem,
    default_acl: DefaultAcl,
    codec: Option<Codec>,
}

impl Made {
    /// Makes the cell, and enters it in the table before the handle ends. So no thread makes a
    /// second cell from the trees.
    pub(super) fn enter(mut self, dir: &Inode, generation: Generation) -> Result<Arc<InodeCell>> {
        self.item.generation = generation;
        let mount = dir.mount();
        let cell = mount.inodes.new_cell(self.id, self.item, Arc::clone(&dir.cell.home))?;
        cell.file.set_codec(self.codec);
        match self.kind {
            FileKind::Directory => cell.start_empty(self.default_acl),
            FileKind::Regular => cell.file.note_new(),
            _ => {}
        }
        Ok(mount.inodes.table().enter_new(cell))
    }
}
