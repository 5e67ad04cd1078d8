//! The kernel's single mount of a whole volume. Each visible mount shows a part of it.
//!
//! # Place
//!
//! Two superblocks of the kernel would each cache the same files, and disagree. So the kernel has
//! one superblock for a volume, with the top level as its top. A mount of a subvolume is a clone of
//! the part below the subvolume's top, as with Linux's btrfs.
//!
//! # Invariants
//!
//! - **T1** This process holds no mount of the volume for longer than it takes to attach another
//!   one, or to write back. So the last unmount by any program ends the kernel's superblock. With a
//!   block device (`fuseblk`) that program waits until the volume is closed.
//! - **T2** A subtree that is handed out shows the requested inode, or the request fails.
//! - **T3** Nothing here makes the kernel send a request before the server answers requests.
//! - **T4** The end of a superblock on a block device waits for the server, and no signal ends the
//!   wait. So a thread of the server that may cause the end has no descriptor of the connection
//!   (`apart`). If the process is killed meanwhile, its last descriptor is closed, the connection
//!   breaks, and the wait of the thread ends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount,
    fsopen, mount_change, move_mount, open_tree, unmount,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use crate::apart;
use crate::mount_list::{self, Listed};
use crate::{Error, Options};

/// The whole volume, as the kernel has it.
#[derive(Debug)]
pub(crate) struct WholeMount {
    device: (u32, u32),
}

/// The top of the volume, open in this process. The open top keeps the volume mounted while another
/// mount of the volume is made (T1).
#[derive(Debug)]
pub struct Top {
    /// `None` while this value is dropped.
    held: Option<OwnedFd>,
    /// Set if all mounts of the volume are below other mounts. In this case the held mount cannot
    /// be cloned.
    covered: Option<Covered>,
}

/// A mount of the volume that is below another mount.
#[derive(Clone, Debug)]
struct Covered {
    device: (u32, u32),
    point: PathBuf,
}

impl Top {
    fn descriptor(&self) -> &OwnedFd {
        self.held.as_ref().expect("it is there until it is dropped")
    }

    /// The top level, opened for reading.
    pub(crate) fn open(&self) -> io::Result<Self> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self::from(rustix::fs::openat(self.descriptor(), c".", how, Mode::empty())?))
    }

    /// A mount of the directory at `path`, attached nowhere yet. The directory must have the number
    /// `ino` (T2).
    pub(crate) fn subtree(&self, path: &Path, ino: u64) -> io::Result<Subtree> {
        let tree = match &self.covered {
            None => clone_of(self.descriptor(), path)?,
            Some(covered) => covered.clone_of(path)?,
        };
        let seen = rustix::fs::statx(&tree, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
        if seen.stx_ino != ino {
            return Err(io::Error::other("the subvolume was moved meanwhile: try again"));
        }
        Ok(Subtree::from(tree))
    }
}

impl From<OwnedFd> for Top {
    fn from(opened: OwnedFd) -> Self {
        Self { held: Some(opened), covered: None }
    }
}

impl AsFd for Top {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor().as_fd()
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        // This may end the last mount of the volume (T4).
        if let Some(top) = self.held.take() {
            apart::close(top);
        }
    }
}

/// Whether the kernel can mount a volume at several places (Linux 6.15), and this process may do
/// so.
#[must_use]
pub fn can_share() -> bool {
    let cloned = || -> rustix::io::Result<OwnedFd> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let top = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        clone_of(&top, Path::new(""))
    };
    cloned().is_ok()
}

/// A mount that is a copy of the tree at `path` below the top of another mount.
fn clone_of(top: &OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_SYMLINK_NOFOLLOW;
    if path.as_os_str().is_empty() {
        flags |= OpenTreeFlags::AT_EMPTY_PATH;
    }
    open_tree(top, path, flags)
}

impl WholeMount {
    /// Makes the kernel's mount for the connection behind `device`. The mount is attached nowhere.
    /// It ends with the returned [`Top`], except if a part of the mount was attached.
    pub(crate) fn new(
        target: &Path,
        device: &OwnedFd,
        options: &Options,
    ) -> Result<(Self, Top), Error> {
        let text = |words: &[(&str, String)]| {
            let words: Vec<_> = words.iter().map(|(key, value)| format!("{key}={value}")).collect();
            words.join(",")
        };
        let kind = if options.block_device { "fuseblk" } else { "fuse" };
        let words = [
            ("source", options.source.clone()),
            ("subtype", crate::mount::SUBTYPE.to_owned()),
            ("fd", device.as_raw_fd().to_string()),
            ("rootmode", "40000".to_owned()),
            ("user_id", rustix::process::getuid().as_raw().to_string()),
            ("group_id", rustix::process::getgid().as_raw().to_string()),
        ];
        let flags = [
            ("default_permissions", true),
            ("allow_other", options.allow_other.unwrap_or(true)),
            // `ro` of the superblock is final. If a mount may become writable later, only the
            // attribute `MOUNT_ATTR_RDONLY` of each mount refuses changes.
            ("ro", options.read_only && !options.may_begin_writing),
            ("sync", options.sync),
            ("dirsync", options.dirsync),
        ];
        let made = || -> rustix::io::Result<(Self, Top)> {
            let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
            for (key, value) in &words {
                fsconfig_set_string(&context, *key, value.as_str())?;
            }
            for (key, _) in flags.iter().filter(|(_, wanted)| *wanted) {
                fsconfig_set_flag(&context, *key)?;
            }
            if options.block_device {
                // The default is 512 in some kernels. Blocks smaller than pages made Linux 6.17
                // lose data of its write-back cache, and disks with larger sectors refuse them.
                fsconfig_set_string(&context, "blksize", "4096")?;
            }
            fsconfig_create(&context)?;
            let top = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            // Cached attributes are enough, and the server does not answer yet (T3).
            let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let seen = rustix::fs::statx(&top, c"", how, StatxFlags::INO)?;
            let device = (seen.stx_dev_major, seen.stx_dev_minor);
            Ok((Self { device }, Top::from(top)))
        };
        made().map_err(|errno| Error::Mount {
            target: target.to_owned(),
            options: format!("{kind}: {}", text(&words)),
            source: errno.into(),
        })
    }

    /// Major and minor number of the whole volume, and of each of its mounts.
    pub(crate) fn device(&self) -> (u32, u32) {
        self.device
    }

    /// The top, by way of a mount that this process sees. Fails if this process sees no mount.
    pub(crate) fn top(&self) -> io::Result<Top> {
        let all = self.visible_mounts();
        if let Some(mount) = all.iter().find_map(|seen| opened(self.device, &seen.point)) {
            return Ok(Top::from(top_behind(mount.descriptor())?));
        }
        // All mounts of the volume are below other mounts.
        match all.into_iter().next() {
            Some(seen) => {
                let covered = Covered { device: self.device, point: seen.point };
                let held = Some(covered.clone_of(Path::new(""))?);
                Ok(Top { held, covered: Some(covered) })
            }
            None => Err(io::Error::other("it was unmounted, and programs still use it")),
        }
    }

    /// The mounts of the volume that this process sees, in the order in which they were made.
    pub(crate) fn visible_mounts(&self) -> Vec<Listed> {
        let all = Listed::all().unwrap_or_default();
        all.into_iter().filter(|one| one.device == self.device).collect()
    }

    /// Unmounts every visible mount. A mount on top of another mount is unmounted first. A mount
    /// that is in use is detached and ends later. Returns whether any mount was in use.
    pub(crate) fn take_away(&self) -> io::Result<bool> {
        let mut was_used = false;
        let mut failure = None;
        for one in self.visible_mounts().into_iter().rev() {
            // Mounts that other users have put on top of this mount stay.
            let seen = Listed::at(&one.point).ok().flatten();
            if seen.is_none_or(|top| top.device != self.device) {
                continue;
            }
            // This may end the last mount of the volume (T4).
            match apart::run(move || mount_list::take_away(&one.point)).and_then(|done| done) {
                // A mount that was removed together with another one, by propagation, counts as not
                // in use.
                Ok(busy) => was_used |= busy,
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(was_used),
        }
    }
}

impl Covered {
    /// Clones the tree at `path` below the top. A thread with a copy of all mounts unmounts the
    /// covering mounts in its copy. No other program sees this change. The clone outlives the
    /// thread, but is no mount of this process's namespace.
    fn clone_of(&self, path: &Path) -> io::Result<OwnedFd> {
        let (Self { device, point }, path) = (self.clone(), path.to_owned());
        let work = move || {
            own_namespace()?;
            let list = Listed::parse(&std::fs::read(mount_list::LIST_OF_THREAD)?);
            let is_it = |one: &Listed| one.device == device && one.point == point;
            let above = list.iter().skip_while(|one| !is_it(one)).skip(1);
            let covering: Vec<_> = above.filter(|one| point.starts_with(&one.point)).collect();
            for one in covering.into_iter().rev() {
                unmount(&one.point, UnmountFlags::NOFOLLOW | UnmountFlags::DETACH)?;
            }
            let mount = opened(device, &point).ok_or(io::ErrorKind::NotFound)?;
            let top = Top::from(top_behind(mount.descriptor())?);
            Ok(clone_of(top.descriptor(), &path)?)
        };
        let thread = std::thread::Builder::new().name("uncover".to_owned()).spawn(work)?;
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended in a panic")))
    }
}

/// Opens a mount of the file system with this device number; `None` if another mount is visible at
/// the point.
fn opened(device: (u32, u32), point: &Path) -> Option<Top> {
    // An automount that lies there must not be triggered, so the mount point is opened only as a
    // path.
    let how = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let mount = Top::from(rustix::fs::open(point, how, Mode::empty()).ok()?);
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(mount.descriptor(), c"", how, StatxFlags::INO).ok()?;
    let is_it = (found.stx_dev_major, found.stx_dev_minor) == device;
    if is_it { mount.open().ok() } else { None }
}

/// Gives this thread a copy of all mounts. A change in the copy changes nothing elsewhere.
#[expect(unsafe_code, reason = "a thread of its own may have a namespace of its own")]
fn own_namespace() -> rustix::io::Result<()> {
    let flags = UnshareFlags::NEWNS | UnshareFlags::FS;
    // SAFETY: only a new table of descriptors would be unsafe, and the table stays shared.
    unsafe { unshare_unsafe(flags)? };
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

/// The top level of a volume, found by a mount of a part of the volume. The kernel opens the top
/// level by the number that FUSE has for the root.
#[expect(unsafe_code, reason = "rustix has no open_by_handle_at")]
fn top_behind(mount: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    /// A handle of the kernel for a file of FUSE (`FILEID_INO64_GEN`).
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        /// The number, its upper half first, and its generation.
        words: [u32; 3],
    }
    let mut root = Handle { bytes: 12, kind: 0x81, words: [0, 1, 0] };
    // SAFETY: the descriptor lives throughout; `root` has the layout of `struct file_handle`,
    // followed by as many bytes as its length says, and the kernel only reads it.
    let opened = unsafe {
        let handle = (&raw mut root).cast::<libc::file_handle>();
        libc::open_by_handle_at(mount.as_raw_fd(), handle, libc::O_PATH | libc::O_CLOEXEC)
    };
    if opened < 0 {
        let error = io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    // SAFETY: the kernel has just made this descriptor, and nothing else knows of it.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(opened) })
}

/// A mount of a subvolume that is attached nowhere yet. If it stays detached, it ends when this
/// value is dropped.
#[derive(Debug)]
pub struct Subtree(Top);

impl Subtree {
    /// Sets the attributes that each mount has for itself, and attaches the mount at `target`.
    ///
    /// # Errors
    ///
    /// [`Error::Target`], [`Error::DeadMount`] or [`Error::Mount`]. Nothing is mounted then.
    pub fn attach(&self, target: &Path, options: &Options) -> Result<PathBuf, Error> {
        let target = crate::mount::place(target)?;
        let attributes = attributes(options);
        let refused = |errno: Errno| Error::Mount {
            target: target.clone(),
            options: format!("attributes {:#x}", attributes.bits()),
            source: errno.into(),
        };
        set_attributes(self.0.descriptor(), attributes).map_err(refused)?;
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(self.0.descriptor(), c"", CWD, &target, how).map_err(refused)?;
        Ok(target)
    }
}

impl From<OwnedFd> for Subtree {
    fn from(tree: OwnedFd) -> Self {
        Self(Top::from(tree))
    }
}

impl AsFd for Subtree {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The attributes that each mount has for itself.
const OWN_ATTRIBUTES: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_RDONLY
    .union(MountAttrFlags::MOUNT_ATTR_NOSUID)
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC)
    .union(MountAttrFlags::MOUNT_ATTR_NODIRATIME);

/// Returns the attributes among [`OWN_ATTRIBUTES`] that the options ask for.
fn attributes(options: &Options) -> MountAttrFlags {
    let flags = [
        (options.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (!options.suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (!options.dev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (!options.exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ];
    flags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag).collect()
}

/// Sets attributes of a detached mount, so that the mount is never visible without them. A clone
/// loses the attributes of the mount that it was cloned from, and shares no later mounts with that
/// mount.
#[expect(unsafe_code, reason = "rustix has no mount_setattr")]
fn set_attributes(tree: &OwnedFd, attributes: MountAttrFlags) -> rustix::io::Result<()> {
    let given = libc::mount_attr {
        attr_set: u64::from(attributes.bits()),
        attr_clr: u64::from((OWN_ATTRIBUTES | MountAttrFlags::MOUNT_ATTR__ATIME).bits()),
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    // SAFETY: the descriptor lives throughout; the path is an empty string; the kernel reads
    // `given`, of the length that is given with it, and keeps nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const given,
            size_of::<libc::mount_attr>(),
        )
    };
    if done == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}
