//! `buttress umount`: unmounts a volume, and ends when the volume is closed.
//!
//! # Place
//!
//! The kernel does not wait for a FUSE server: umount(2) returns, and the server begins its last
//! commit. So this verb connects to the server first and then unmounts. It then reads until the
//! server reports that the volume is closed and the devices are free. umount(8) runs the same code
//! through [`crate::helper`].
//!
//! # Invariants
//!
//! - **U1** While looking for a mount, this verb asks servers only over their sockets, never
//!   through the mount. So a mount with a dead or hanging server can be unmounted.
//! - **U2** Success means that the volume is closed and its devices are free, or that this user
//!   sees another mount of the volume. If programs still use the volume without a visible mount, or
//!   the server does not answer, the verb prints this fact.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use buttress_fuse::Listed;
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::closing;
use crate::exit::{Exit, Failure, Result};
use crate::live::{self, Answer, CloseWait, MountUse};
use crate::ui::{Ui, note};

/// The program that may unmount for users other than root.
const FUSERMOUNT: &str = "fusermount3";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The mount points, images or block devices to unmount.
    #[arg(value_name = "DIR", required = true)]
    targets: Vec<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// How to unmount.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub(crate) struct How {
    /// Detach the mount now. Programs that use it can continue.
    #[arg(long, short)]
    pub lazy: bool,
    /// Abort all waiting requests, for a server that does not answer any more. With the name of a
    /// volume in a store that is no longer mounted: end the wait for the store.
    #[arg(long, short)]
    pub force: bool,
    /// If programs use the mount, make it read-only instead.
    #[arg(long, short)]
    pub read_only: bool,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    for target in &args.targets {
        unmount(target, args.how, ui)?;
    }
    Ok(Exit::Success)
}

/// Unmounts the mount at `target`, or from the image `target`, and waits until its volume is closed
/// (U2).
///
/// # Errors
///
/// If there is no Buttress mount, or the mount is in use, or closing the volume fails.
pub(crate) fn unmount(target: &Path, how: How, ui: &Ui) -> Result<()> {
    let mounted = match find(target) {
        Err(failure) if how.force => return live::give_up(target).unwrap_or(Err(failure)),
        found => found?,
    };
    let name = mounted.point.display().to_string();
    let say = |what: &str| note(format!("{name}: {what}"));
    let server = server_of(&mounted);
    // The wait begins before the unmount, because a server ends once it has closed its volume.
    let close_wait = server.as_ref().and_then(|(socket, answer)| {
        CloseWait::of(socket, answer.pid)
            .inspect_err(|error| tracing::debug!(%error, "the server tells of no end"))
            .ok()
    });
    if let Some((socket, _)) = &server {
        let mut below = live::submounts(socket);
        below.sort_by_key(|place| std::cmp::Reverse(place.components().count()));
        below.retain(|place| place.starts_with(&mounted.point));
        below
            .iter()
            .try_for_each(|place| detach(place, how))
            .map_err(|error| refused(&name, &error))?;
    }
    if let Err(error) = detach(&mounted.point, how) {
        if how.read_only && error.is_busy {
            return remount(&mounted.point, true, rustix::mount::MountFlags::empty());
        }
        return Err(refused(&name, &error));
    }
    let Some(mut close_wait) = close_wait else {
        return without_word(&mounted, &say);
    };
    if live::all_of_same(&mounted).is_ok_and(|others| !others.is_empty()) {
        return Ok(());
    }
    let mount_use = close_wait.mount_use().unwrap_or(MountUse::Closing);
    if mount_use == MountUse::Used {
        if !how.lazy {
            say("programs use it, or it is mounted where this one cannot see: the server goes on");
        }
        return Ok(());
    }
    let bar = ui.wait_bar("writing");
    let say = |what: &str| bar.suspend(|| say(what));
    close_wait.wait(say).map_err(|failure| Failure::new(failure.exit, format!("{name}: {failure}")))
}

/// Waits for the lock on the image, if no server can be asked, as with the server of another user.
fn without_word(mounted: &Listed, say: &dyn Fn(&str)) -> Result<()> {
    let Ok(source) = closing::full_name(&mounted.source) else { return Ok(()) };
    closing::until_closed(&source);
    if live::mounted_from(&source).is_none() && closing::locked_by(&source).is_some() {
        say("its server cannot be asked, and has the volume open");
    }
    Ok(())
}

/// Makes the mount at `target` read-only, or writable again, both in its server and in the kernel.
/// `flags` are the flags that only the kernel handles.
///
/// # Errors
///
/// There is no Buttress mount, or files are open for writing, or the volume cannot be written.
pub(crate) fn remount(
    target: &Path,
    read_only: bool,
    flags: rustix::mount::MountFlags,
) -> Result<()> {
    let mounted = find(target)?;
    let name = mounted.point.display().to_string();
    let Some((socket, answer)) = server_of(&mounted) else {
        let what = format!("{name}: its server does not answer: ask as the user who mounted it");
        return Err(Failure::new(Exit::Failure, what));
    };
    let is_shared = answer.subject.is_shared;
    let by_kernel = || {
        // If a volume has several mounts, each has flags of its own.
        let flags = if is_shared { flags | rustix::mount::MountFlags::BIND } else { flags };
        let flags = if read_only { flags | rustix::mount::MountFlags::RDONLY } else { flags };
        let done = rustix::mount::mount_remount(&mounted.point, flags, c"");
        done.map_err(|errno| refused(&name, &Refusal::of(errno)))
    };
    let by_server = || {
        let order = crate::order::Order::Remount { read_only };
        let never = std::sync::atomic::AtomicBool::new(false);
        live::give(&socket, &order, &never, &mut |_| true).map(drop)
    };
    // First, the kernel writes its dirty data to the server and admits no more writes. Then the
    // server makes the data durable.
    if read_only {
        by_kernel()?;
        let list = |error: std::io::Error| Failure::new(Exit::Failure, format!("{name}: {error}"));
        let others = live::all_of_same(&mounted).map_err(list)?;
        if others.iter().all(|other| other.is_read_only) {
            return by_server();
        }
        // Other mounts are still writable, so the server must stay writable.
        let durable = std::fs::File::open(&mounted.point).and_then(|top| {
            rustix::fs::syncfs(&top)?;
            top.sync_all()
        });
        durable.map_err(list)
    } else {
        by_server()?;
        by_kernel()
    }
}

/// Finds the mount of ours at a place, or from an image (U1).
fn find(target: &Path) -> Result<Listed> {
    let wrong = |what: String| Failure::new(Exit::Failure, format!("{}: {what}", target.display()));
    let list = |error: std::io::Error| wrong(error.to_string());
    // Only the parent is resolved, so that the mount itself is not asked.
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).canonicalize();
    let named = target.file_name().filter(|_| !target.ends_with("."));
    if let (Ok(parent), Some(name)) = (parent, named)
        && let Some(found) = Listed::at(&parent.join(name)).map_err(list)?
    {
        return ours(found, target);
    }
    let whole = closing::full_name(target).map_err(list)?;
    if let Some(found) = Listed::at(&whole).map_err(list)? {
        return ours(found, target);
    }
    live::mounted_from(&whole).ok_or_else(|| wrong("is not mounted".to_owned()))
}

fn ours(mounted: Listed, target: &Path) -> Result<Listed> {
    if live::is_ours(&mounted) {
        return Ok(mounted);
    }
    let (target, kind) = (target.display(), &mounted.kind);
    let what = format!("{target}: what is mounted there is of type {kind}, and not ours");
    Err(Failure::new(Exit::Failure, what))
}

/// The server of a mount, if the server belongs to this user and answers.
fn server_of(mounted: &Listed) -> Option<(PathBuf, Answer)> {
    let all = live::reachable().into_iter();
    all.into_iter().find(|(_, answer)| answer.subject.device == Some(mounted.device_number()))
}

/// The reason why unmounting failed.
struct Refusal {
    is_busy: bool,
    what: String,
}

impl Refusal {
    fn of(errno: Errno) -> Self {
        let what = match errno {
            Errno::BUSY => "programs use it".to_owned(),
            errno => std::io::Error::from(errno).to_string(),
        };
        Self { is_busy: errno == Errno::BUSY, what }
    }
}

fn refused(name: &str, refusal: &Refusal) -> Failure {
    Failure::new(Exit::Failure, format!("{name}: {}", refusal.what))
}

/// Unmounts by a system call, or by the program that has the privilege to unmount.
fn detach(point: &Path, how: How) -> Result<(), Refusal> {
    let mut flags = UnmountFlags::NOFOLLOW;
    if how.lazy {
        flags |= UnmountFlags::DETACH;
    }
    if how.force {
        flags |= UnmountFlags::FORCE;
    }
    match rustix::mount::unmount(point, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => by_fusermount(point, how),
        Err(errno) => Err(Refusal::of(errno)),
    }
}

fn by_fusermount(point: &Path, how: How) -> Result<(), Refusal> {
    let lazy = how.lazy.then_some(OsStr::new("-z"));
    let ran = Command::new(FUSERMOUNT)
        .arg("-u")
        .args(lazy)
        .arg("--")
        .arg(point)
        .stdout(Stdio::null())
        .output()
        .map_err(|error| Refusal { is_busy: false, what: format!("{FUSERMOUNT}: {error}") })?;
    if ran.status.success() {
        return Ok(());
    }
    let what = String::from_utf8_lossy(&ran.stderr).trim().to_owned();
    Err(Refusal { is_busy: what.contains("busy"), what })
}
