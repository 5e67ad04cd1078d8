//! The kernel's single mount of a whole volume. It is attached nowhere; each visible mount shows a
//! part of it.
//!
//! # Place
//!
//! Two superblocks of the kernel would each cache the same files, and disagree. So the kernel has
//! one for a volume, with the top level as its top. Its first mount has no place in the directory
//! tree: this holds it by a descriptor. A mount of a subvolume is a clone of the part below the
//! subvolume's top, as with Linux's btrfs.
//!
//! # Invariants
//!
//! - **T1** The process holds the descriptor while its list of mounts shows a mount of the volume,
//!   or while a subtree is being attached. Then it closes the descriptor. The kernel ends the
//!   session when no mount, open file or namespace uses the volume any more. Until then the server
//!   answers programs that this process cannot see (lazy unmounts, other namespaces).
//! - **T2** A subtree that is handed out shows the requested inode, or the request fails.
//! - **T3** Nothing here makes the kernel send a request before the server answers requests. The
//!   lock is not held while the list of mounts is read.
//!
//! # Locks
//!
//! One, a leaf, held to clone the descriptor, to take it out, or to count subtrees. The descriptor
//! is closed without the lock.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, fsconfig_create,
    fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount, open_tree,
};

use crate::mount::{Link, Mount};
use crate::mount_list::{self, Listed};
use crate::{Error, Options};

/// The whole volume, as the kernel has it.
#[derive(Debug)]
pub(crate) struct WholeMount {
    device: (u32, u32),
    /// Unranked: a leaf; nothing is locked while it is held.
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// The detached mount, as long as it is held (T1).
    top: Option<Arc<OwnedFd>>,
    /// Subtrees that are on their way to a place, and the first mount until it is made.
    under_way: usize,
}

/// Keeps the whole volume from being let go while a subtree is on its way to its place (T1).
#[derive(Debug)]
pub struct UnderWay(Arc<Mount>);

impl UnderWay {
    pub(crate) fn new(mount: &Arc<Mount>) -> Option<Self> {
        let mut held = mount.whole()?.held.lock();
        held.top.as_ref()?;
        held.under_way += 1;
        drop(held);
        Some(Self(Arc::clone(mount)))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(whole) = self.0.whole() {
            whole.held.lock().under_way -= 1;
            whole.release_if_unseen();
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

/// A mount that is a copy of what lies at `path` below the top of another.
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
    /// Makes the kernel's mount for the connection behind `device`. It is attached nowhere.
    pub(crate) fn new(target: &Path, device: &OwnedFd, options: &Options) -> Result<Self, Error> {
        let text = |words: &[(&str, String)]| {
            let words: Vec<_> = words.iter().map(|(key, value)| format!("{key}={value}")).collect();
            words.join(",")
        };
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
            // `ro` here is final. If the mount may become writable later, only the attribute of
            // each mount refuses changes.
            ("ro", options.read_only && !options.may_begin_writing),
            ("sync", options.sync),
            ("dirsync", options.dirsync),
        ];
        let made = || -> rustix::io::Result<Self> {
            let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
            for (key, value) in &words {
                fsconfig_set_string(&context, *key, value.as_str())?;
            }
            for (key, _) in flags.iter().filter(|(_, wanted)| *wanted) {
                fsconfig_set_flag(&context, *key)?;
            }
            fsconfig_create(&context)?;
            let top = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            // Cached attributes are enough, and the server does not answer yet (T3).
            let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let seen = rustix::fs::statx(&top, c"", how, StatxFlags::INO)?;
            let held = Held { top: Some(Arc::new(top)), under_way: 0 };
            let device = (seen.stx_dev_major, seen.stx_dev_minor);
            Ok(Self { device, held: Mutex::new(held) })
        };
        made().map_err(|errno| Error::Mount {
            target: target.to_owned(),
            options: text(&words),
            source: errno.into(),
        })
    }

    /// Major and minor number of the whole, and of each of its mounts.
    pub(crate) fn device(&self) -> (u32, u32) {
        self.device
    }

    fn top(&self) -> io::Result<Arc<OwnedFd>> {
        let gone = || io::Error::other("it was unmounted, and programs still use it");
        self.held.lock().top.clone().ok_or_else(gone)
    }

    /// The top level, opened for reading.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&*self.top()?, c".", how, Mode::empty())?)
    }

    /// A mount of what lies at `path`, attached nowhere yet. It must have the number `ino` (T2).
    pub(crate) fn subtree(&self, path: &Path, ino: u64) -> io::Result<Subtree> {
        let tree = clone_of(&*self.top()?, path)?;
        let seen = rustix::fs::statx(&tree, c"", AtFlags::EMPTY_PATH, StatxFlags::INO)?;
        if seen.stx_ino != ino {
            return Err(io::Error::other("the subvolume was moved meanwhile: try again"));
        }
        Ok(Subtree(tree))
    }

    /// The mounts of the volume that this process sees, in the order in which they were made.
    pub(crate) fn visible_mounts(&self) -> Vec<Listed> {
        let all = Listed::all().unwrap_or_default();
        all.into_iter().filter(|one| one.device == self.device).collect()
    }

    /// Releases the whole mount if no mount of it is seen (T1).
    pub(crate) fn release_if_unseen(&self) {
        // Without the list the state is unknown, and the session ends with the process.
        let Ok(all) = Listed::all() else { return };
        if all.iter().all(|one| one.device != self.device) {
            let mut held = self.held.lock();
            let top = if held.under_way == 0 { held.top.take() } else { None };
            drop(held);
            if top.is_some() {
                tracing::debug!("no mount of the volume is seen any more");
            }
            drop(top);
        }
    }

    /// Releases the whole mount, even if mounts of it are seen.
    pub(crate) fn release(&self) {
        let top = self.held.lock().top.take();
        drop(top);
    }

    /// Unmounts every visible mount, those on top of others first. A mount that is in use is
    /// detached and ends later. Returns whether any was in use.
    pub(crate) fn take_away(&self) -> io::Result<bool> {
        let mut was_used = false;
        let mut failure = None;
        for one in self.visible_mounts().into_iter().rev() {
            // Mounts that other users have put on top of it stay.
            let seen = Listed::at(&one.point).ok().flatten();
            if seen.is_none_or(|top| top.device != self.device) {
                continue;
            }
            match mount_list::take_away(&one.point) {
                // A mount that was removed together with another one, by propagation, counts as not
                // in use.
                Ok(busy) => was_used |= busy,
                Err(error) => failure = Some(error),
            }
        }
        self.release();
        match failure {
            Some(error) => Err(error),
            None => Ok(was_used),
        }
    }
}

/// The interval of checks whether the connection has ended.
const LOOK: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// Starts a thread that reads the list of mounts whenever it changes, and lets go of the whole
/// mount if none is visible. It also checks every few seconds whether the connection has ended. It
/// does not wait for that, since the kernel wakes all threads that wait at a FUSE device for each
/// request.
pub(crate) fn watch(mount: &Arc<Mount>, link: Link) -> io::Result<()> {
    let list = std::fs::File::open(mount_list::LIST)?;
    let mount: Weak<Mount> = Arc::downgrade(mount);
    let work = move || {
        while let Some(mount) = mount.upgrade() {
            let Some(whole) = mount.whole() else { return };
            whole.release_if_unseen();
            if whole.held.lock().top.is_none() || link.is_at_its_end() {
                return;
            }
            drop(mount);
            let mut events = [PollFd::new(&list, PollFlags::PRI)];
            match poll(&mut events, Some(&LOOK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "the list of mounts cannot be watched");
                    return;
                }
            }
        }
    };
    std::thread::Builder::new().name("mounts".to_owned()).spawn(work).map(drop)
}

/// A mount of a subvolume that has no place yet. Without one it ends when this is dropped.
#[derive(Debug)]
pub struct Subtree(OwnedFd);

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
        set_attributes(&self.0, attributes).map_err(refused)?;
        let how = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
        move_mount(&self.0, c"", CWD, &target, how).map_err(refused)?;
        Ok(target)
    }
}

impl From<OwnedFd> for Subtree {
    fn from(tree: OwnedFd) -> Self {
        Self(tree)
    }
}

impl AsFd for Subtree {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Returns the attributes that each mount has for itself.
fn attributes(options: &Options) -> MountAttrFlags {
    let flags = [
        (options.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (!options.suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (!options.dev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (!options.exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
    ];
    flags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag).collect()
}

/// Sets attributes of a detached mount, so that the mount is never visible without them.
#[expect(unsafe_code, reason = "rustix has no mount_setattr")]
fn set_attributes(tree: &OwnedFd, attributes: MountAttrFlags) -> rustix::io::Result<()> {
    let given = libc::mount_attr {
        attr_set: u64::from(attributes.bits()),
        attr_clr: 0,
        propagation: 0,
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
