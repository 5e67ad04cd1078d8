//! Attaches the kernel's end of a connection to the directory tree, and unmounts it.
//!
//! # Place
//!
//! `session` mounts before it serves, and unmounts through this module. A process that has the
//! right to mount calls mount(2). Other processes run `fusermount3`, a small setuid program.
//!
//! # Failure
//!
//! A mount that is busy is unmounted lazily. Programs that still use the mount keep it until they
//! are done, and no other program finds it.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net;

use crate::mount_list::Listed;
use crate::pool::Connection;
use crate::whole_mount::{Top, WholeMount};
use crate::{Error, Options};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
pub(crate) const SUBTYPE: &str = "buttress";

/// A place where the volume is mounted.
#[derive(Debug)]
pub(crate) struct Mount {
    target: PathBuf,
    by_helper: bool,
    /// Device number of the mount as `stat` reports it: major and minor; `None` if unknown.
    device: Option<(u32, u32)>,
    /// Set if the kernel's mount shows the whole volume.
    whole: Option<WholeMount>,
    /// Whether the kernel mounted a block device, and not a connection alone.
    is_block_device: bool,
}

/// Observes the connection to the kernel, beside the threads that read from it.
#[derive(Clone, Debug)]
pub(crate) struct Link(Arc<OwnedFd>);

impl Link {
    /// Watches the connection that `device` is one end of.
    pub(crate) fn new(device: &OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(device.try_clone()?)))
    }
}

impl Connection for Link {
    fn has_request(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut descriptors = [PollFd::new(&*self.0, PollFlags::IN)];
        !matches!(poll(&mut descriptors, Some(&now)), Ok(0))
    }

    fn is_gone(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut descriptors = [PollFd::new(&*self.0, PollFlags::empty())];
        match poll(&mut descriptors, Some(&now)) {
            Ok(_) => descriptors.iter().any(|one| one.revents().contains(PollFlags::ERR)),
            Err(_) => false,
        }
    }
}

/// The result of an unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// No program used the mount any more.
    Clean,
    /// Programs still use the mount. It is detached and ends when they are done.
    Busy,
}

impl Mount {
    /// Mounts on `target`; returns the mount and the device through which the kernel speaks. A
    /// mount of the whole volume is attached nowhere yet; its top is returned with it.
    pub(crate) fn new(
        target: &Path,
        options: &Options,
    ) -> Result<(Self, OwnedFd, Option<Top>), Error> {
        let target = place(target)?;
        let device = open_device()?;
        if options.shared {
            let (whole, top) = WholeMount::new(&target, &device, options)?;
            let number = Some(whole.device());
            let mount = Self {
                target,
                by_helper: false,
                device: number,
                whole: Some(whole),
                is_block_device: options.block_device,
            };
            return Ok((mount, device, Some(top)));
        }
        match by_syscall(&target, &device, options) {
            Ok(()) => Ok((Self::made(target, false), device, None)),
            Err(Error::Mount { source, .. })
                if source.raw_os_error() == Some(Errno::PERM.raw_os_error()) =>
            {
                drop(device);
                let device = by_helper(&target, options)?;
                Ok((Self::made(target, true), device, None))
            }
            Err(error) => Err(error),
        }
    }

    /// Describes the mount that was just made on `target`.
    fn made(target: PathBuf, by_helper: bool) -> Self {
        // A stat(2) would send a request to this server, which is only starting.
        let device = Listed::at(&target).ok().flatten().map(|seen| seen.device);
        Self { target, by_helper, device, whole: None, is_block_device: false }
    }

    /// Major and minor number of the mount.
    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// The mount of the whole volume, if the kernel's mount shows the whole volume.
    pub(crate) fn whole(&self) -> Option<&WholeMount> {
        self.whole.as_ref()
    }

    /// Whether the kernel mounted a block device. The end of such a mount waits for the server.
    pub(crate) fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    /// Opens the top for reading.
    pub(crate) fn open(&self) -> io::Result<Top> {
        match &self.whole {
            Some(whole) => whole.top()?.open(),
            None => Ok(Top::from(OwnedFd::from(File::open(&self.target)?))),
        }
    }

    /// The directory of the first mount, as a path with no symbolic links.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Unmounts, lazily if the mount is busy. A mount that is already gone is no error.
    pub(crate) fn unmount(&self) -> Result<Unmounted, Error> {
        if let Some(whole) = &self.whole {
            return match whole.take_away() {
                Ok(true) => Ok(Unmounted::Busy),
                Ok(false) => Ok(Unmounted::Clean),
                Err(source) => Err(Error::Unmount { target: self.target.clone(), source }),
            };
        }
        match self.try_unmount(false) {
            Ok(()) => Ok(Unmounted::Clean),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                Ok(Unmounted::Clean)
            }
            Err(_) => match self.try_unmount(true) {
                Ok(()) => Ok(Unmounted::Busy),
                Err(source) => Err(Error::Unmount { target: self.target.clone(), source }),
            },
        }
    }

    fn try_unmount(&self, lazy: bool) -> io::Result<()> {
        if !self.by_helper {
            let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
            return Ok(rustix::mount::unmount(&self.target, flags | UnmountFlags::NOFOLLOW)?);
        }
        let mut command = Command::new(HELPER);
        command.arg("-u").arg("-q");
        if lazy {
            command.arg("-z");
        }
        let status = command.arg("--").arg(&self.target).stderr(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::from(io::ErrorKind::ResourceBusy)) }
    }

    /// Sets the kernel's read-ahead to `kib`. The kernel's default of 128 KiB would cut a
    /// sequential read into small requests. The change needs root rights; without them reads are
    /// only slower.
    pub(crate) fn set_read_ahead(&self, kib: u32) -> io::Result<()> {
        let (major, minor) = self.device.ok_or(io::ErrorKind::NotFound)?;
        // On a block device, the plain name belongs to the disk.
        let kind = if self.is_block_device { "-fuseblk" } else { "" };
        let file = format!("/sys/class/bdi/{major}:{minor}{kind}/read_ahead_kb");
        std::fs::write(file, kib.to_string())
    }
}

/// The canonical path of a directory to mount on.
///
/// # Errors
///
/// [`Error::Target`], [`Error::DeadMount`].
pub(crate) fn place(target: &Path) -> Result<PathBuf, Error> {
    let refused = |source: io::Error| match source.raw_os_error() {
        Some(number) if number == Errno::NOTCONN.raw_os_error() => {
            Error::DeadMount { target: target.to_owned() }
        }
        _ => Error::Target { target: target.to_owned(), source },
    };
    let target = target.canonicalize().map_err(refused)?;
    if !std::fs::metadata(&target).map_err(refused)?.is_dir() {
        return Err(refused(io::Error::from(io::ErrorKind::NotADirectory)));
    }
    Ok(target)
}

fn open_device() -> Result<OwnedFd, Error> {
    let opened = File::options().read(true).write(true).open(DEVICE);
    match opened {
        Ok(file) if file.metadata().is_ok_and(|meta| meta.file_type().is_char_device()) => {
            Ok(file.into())
        }
        Ok(_) => Err(Error::NoFuse),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(Error::FuseForbidden(error))
        }
        Err(_) => Err(Error::NoFuse),
    }
}

fn by_syscall(target: &Path, device: &OwnedFd, options: &Options) -> Result<(), Error> {
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let mut data = format!(
        "fd={},rootmode=40000,user_id={user},group_id={group},default_permissions",
        device.as_raw_fd(),
    );
    if options.allow_other.unwrap_or(user == 0) {
        data.push_str(",allow_other");
    }
    let flags = [
        (options.read_only, MountFlags::RDONLY),
        (!options.suid || user != 0, MountFlags::NOSUID),
        (!options.dev || user != 0, MountFlags::NODEV),
        (!options.exec, MountFlags::NOEXEC),
        (options.sync, MountFlags::SYNCHRONOUS),
        (options.dirsync, MountFlags::DIRSYNC),
    ];
    let flags = flags.into_iter().filter(|(wanted, _)| *wanted).map(|(_, flag)| flag);
    let text = std::ffi::CString::new(data.as_str()).expect("numbers and words hold no zero byte");
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(&options.source, target, kind, flags.collect(), text.as_c_str()).map_err(
        |errno| Error::Mount { target: target.to_owned(), options: data, source: errno.into() },
    )
}

fn by_helper(target: &Path, options: &Options) -> Result<OwnedFd, Error> {
    let session = |errno: Errno| Error::Session(errno.into());
    // The helper inherits its end of the socket pair, so neither end has close-on-exec. This
    // process closes its copy of the helper's end right below.
    let (ours, theirs) = net::socketpair(
        net::AddressFamily::UNIX,
        net::SocketType::STREAM,
        net::SocketFlags::empty(),
        None,
    )
    .map_err(session)?;
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(target)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::NoHelper)?;
    drop(theirs);
    let device = receive_device(&ours);
    drop(ours);
    let output = child.wait_with_output().map_err(Error::Session)?;
    device.ok_or_else(|| {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.trim().trim_start_matches("fusermount3: ").to_owned();
        Error::Helper { target: target.to_owned(), message }
    })
}

fn helper_options(options: &Options) -> String {
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut text = format!("fsname={source},subtype={SUBTYPE},default_permissions,nosuid,nodev");
    let words = [
        (options.read_only, ",ro"),
        (!options.exec, ",noexec"),
        (options.sync, ",sync"),
        (options.dirsync, ",dirsync"),
        (options.allow_other == Some(true), ",allow_other"),
    ];
    text.extend(words.into_iter().filter(|(wanted, _)| *wanted).map(|(_, word)| word));
    text
}

/// Receives the descriptor that the helper sends when it has mounted; `None` when it has not.
fn receive_device(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::RecvAncillaryBuffer::new(&mut space);
    let buffers = &mut [io::IoSliceMut::new(&mut byte)];
    let received = rustix::io::retry_on_intr(|| {
        net::recvmsg(socket, buffers, &mut control, net::RecvFlags::CMSG_CLOEXEC)
    });
    received.ok()?;
    control.drain().find_map(|message| match message {
        net::RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A comma in the image's name must not become an option.
    #[test]
    fn helper_options_escape_the_source() {
        let options = Options { source: "a,suid".to_owned(), ..Options::default() };
        assert!(helper_options(&options).starts_with("fsname=a\\,suid,subtype=buttress,"));
    }
}
