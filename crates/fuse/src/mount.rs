//! Putting the kernel's end of the door into the directory tree, and taking it away.
//!
//! # Place
//!
//! `session` mounts before it serves and unmounts through this. Whoever may mount does it by
//! mount(2); everybody else through `fusermount3`, a small program that is installed with the
//! right to.
//!
//! # Failure
//!
//! A [`Mount`] that is dropped is unmounted, at the latest as a lazy unmount: programs that still
//! use it keep it until they are done, and no new one finds it.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net;

use crate::crew::Line;
use crate::{Error, Options};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const SUBTYPE: &str = "buttress";

/// A place where the volume is mounted.
#[derive(Debug)]
pub(crate) struct Mount {
    target: PathBuf,
    by_helper: bool,
    /// Major and minor number of what is mounted, as `stat` of anything in it says, if they could be found out.
    device: Option<(u32, u32)>,
}

/// A look at the connection to the kernel, beside the threads that read from it.
#[derive(Clone, Debug)]
pub(crate) struct Link(Arc<OwnedFd>);

impl Link {
    /// Watches the connection that `device` is one end of.
    pub(crate) fn new(device: &OwnedFd) -> io::Result<Self> {
        Ok(Self(Arc::new(device.try_clone()?)))
    }
}

impl Line for Link {
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

/// What an unmount came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Nobody used the mount any more.
    Clean,
    /// Somebody does. The mount is out of sight and ends when they are done.
    Busy,
}

impl Mount {
    /// Mounts on `target`; returns the mount and the device through which the kernel speaks.
    pub(crate) fn new(target: &Path, options: &Options) -> Result<(Self, OwnedFd), Error> {
        let refused = |source: io::Error| match source.raw_os_error() {
            Some(number) if number == Errno::NOTCONN.raw_os_error() => {
                Error::DeadMount { target: target.to_owned() }
            }
            _ => Error::Target { target: target.to_owned(), source },
        };
        let target = target.canonicalize().map_err(refused)?;
        let mode = std::fs::metadata(&target).map_err(refused)?.mode();
        if mode & 0o170_000 != 0o040_000 {
            return Err(refused(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        let device = open_device()?;
        match by_syscall(&target, mode, &device, options) {
            Ok(()) => Ok((Self::made(target, false), device)),
            Err(Error::Mount { source, .. })
                if source.raw_os_error() == Some(Errno::PERM.raw_os_error()) =>
            {
                drop(device);
                let device = by_helper(&target, options)?;
                Ok((Self::made(target, true), device))
            }
            Err(error) => Err(error),
        }
    }

    /// What was mounted on `target` a moment ago.
    fn made(target: PathBuf, by_helper: bool) -> Self {
        // Names of others' mounts need not be UTF-8.
        let mounts = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let device = device_number(&String::from_utf8_lossy(&mounts), &target);
        Self { target, by_helper, device }
    }

    /// Major and minor number of the mount.
    pub(crate) fn device(&self) -> Option<(u32, u32)> {
        self.device
    }

    /// Where it is mounted, with no symbolic links.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Takes the mount away, lazily if it is busy. A mount that is already gone is no error.
    pub(crate) fn unmount(&self) -> Result<Unmounted, Error> {
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

    /// Lets the kernel read ahead `kib` at a time: its default of 128 KiB would cut a sequential
    /// read into small requests. Needs root rights; without them reads are merely slower.
    pub(crate) fn set_read_ahead(&self, kib: u32) -> io::Result<()> {
        let (major, minor) = self.device.ok_or(io::ErrorKind::NotFound)?;
        std::fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string())
    }
}

/// Finds major and minor number of the last mount on `target` in the text of mountinfo. Asking stat(2)
/// instead would ask the very server that is just starting.
fn device_number(mountinfo: &str, target: &Path) -> Option<(u32, u32)> {
    let wanted = escape_octal(&target.to_string_lossy());
    mountinfo.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (major, minor) = fields.next()?.split_once(':')?;
        (fields.nth(1)? == wanted).then_some(())?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    })
}

fn escape_octal(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for letter in path.chars() {
        match letter {
            ' ' => escaped.push_str("\\040"),
            '\t' => escaped.push_str("\\011"),
            '\n' => escaped.push_str("\\012"),
            '\\' => escaped.push_str("\\134"),
            other => escaped.push(other),
        }
    }
    escaped
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

fn by_syscall(target: &Path, mode: u32, device: &OwnedFd, options: &Options) -> Result<(), Error> {
    let user = rustix::process::getuid().as_raw();
    let group = rustix::process::getgid().as_raw();
    let mut data = format!(
        "fd={},rootmode={mode:o},user_id={user},group_id={group},default_permissions",
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
    // The helper inherits its end, so neither end is closed on exec; ours is closed right below.
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

    /// The last mount on a directory is the one that is seen there, also when its name has spaces.
    #[test]
    fn device_number_of_the_last_mount() {
        let text = "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                    40 22 0:50 / /mnt/a\\040b rw - fuse.buttress x rw\n\
                    41 22 0:51 / /mnt/a\\040b rw - fuse.buttress y rw\n";
        assert_eq!(device_number(text, Path::new("/mnt/a b")), Some((0, 51)));
        assert_eq!(device_number(text, Path::new("/mnt")), None);
    }

    /// A comma in the image's name must not become an option.
    #[test]
    fn helper_options_escape_the_source() {
        let options = Options { source: "a,suid".to_owned(), ..Options::default() };
        assert!(helper_options(&options).starts_with("fsname=a\\,suid,subtype=buttress,"));
    }
}
