//! Steps of cases on a mount, by system calls. The requests of the kernel are counted.
//!
//! # What must hold
//!
//! - This process serves the mount and is also the program that uses it. So the counts include the
//!   work of the server and of the program.
//! - A mount is gone when its step has ended, also after a failure.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use buttress_fs::Filesystem;
use buttress_fuse::{Options, Serving, Unmounter};

use super::bed::{OPERATIONS, name, spread};
use super::{Done, MountStep, Transport};

/// Requests that come when the kernel has time for them.
const AT_SOME_TIME: [&str; 3] = ["forget", "batch_forget", "interrupt"];

/// The requests of the kernel to this process so far, without the requests in [`AT_SOME_TIME`].
pub(super) fn requests() -> u64 {
    let counts = buttress_fuse::requests().into_iter();
    let counted = counts.filter(|(name, _)| !AT_SOME_TIME.contains(name));
    counted.map(|(_, count)| count).sum()
}

/// The switch of the kernel for requests by io_uring.
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel offers requests by io_uring.
pub(super) fn has_ring() -> bool {
    fs::read_to_string(SWITCH).is_ok_and(|switch| switch.starts_with('Y'))
}

/// Whether this process can mount.
pub(super) fn can_mount() -> bool {
    rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists()
}

/// A mount that this process serves.
struct Served {
    serving: Option<Serving>,
    unmounter: Unmounter,
}

impl Served {
    fn new(
        fs: Filesystem,
        at: &Path,
        transport: Transport,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        fs::create_dir_all(at)?;
        let io_uring = Some(transport == Transport::Ring);
        let options = Options { source: "growth".to_owned(), io_uring, ..Options::default() };
        let session = buttress_fuse::mount(fs, at, &options)?;
        if io_uring != Some(session.is_over_io_uring()) {
            return Err("requests do not come by io_uring".into());
        }
        let unmounter = session.unmounter();
        Ok(Self { serving: Some(session.start()?), unmounter })
    }

    fn end(mut self) -> Done {
        self.unmounter.unmount()?;
        self.serving.take().map_or(Ok(()), |serving| Ok(serving.wait()?))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.take() {
            // The error of the step is reported, so a failure of this unmount is ignored.
            let _ = self.unmounter.unmount().map(|_| serving.wait());
        }
    }
}

/// Runs a step on a mount of the volume below `dir`.
pub(super) fn run(
    fs: &Filesystem,
    dir: &Path,
    (step, transport): (MountStep, Transport),
    size: u64,
) -> Done {
    let at = dir.join("mnt");
    let served = Served::new(fs.clone(), &at, transport)?;
    step(&at, size)?;
    served.end()
}

fn path(dir: &Path, at: u64) -> Result<PathBuf, Box<dyn std::error::Error>> {
    Ok(dir.join("src").join(String::from_utf8(name(at))?))
}

/// Does something with each of `size` names.
fn each(dir: &Path, size: u64, mut work: impl FnMut(&Path) -> std::io::Result<()>) -> Done {
    (0..size).try_for_each(|at| Ok(work(&path(dir, at)?)?))
}

pub(super) fn create(dir: &Path, size: u64) -> Done {
    fs::create_dir(dir.join("src"))?;
    each(dir, size, |path| File::create_new(path)?.write_all(&[7; 100]))
}

pub(super) fn create_and_sync(dir: &Path, size: u64) -> Done {
    fs::create_dir(dir.join("src"))?;
    each(dir, size, |path| {
        let mut file = File::create_new(path)?;
        file.write_all(&[7; 100])?;
        file.sync_all()
    })
}

pub(super) fn stat(dir: &Path, size: u64) -> Done {
    each(dir, size, |path| fs::symlink_metadata(path).map(drop))
}

pub(super) fn list(dir: &Path, size: u64) -> Done {
    let found = fs::read_dir(dir.join("src"))?.collect::<Result<Vec<_>, _>>()?.len() as u64;
    if found == size { Ok(()) } else { Err("names are missing".into()) }
}

pub(super) fn rename(dir: &Path, size: u64) -> Done {
    each(dir, size, |path| fs::rename(path, path.with_extension("new")))
}

pub(super) fn set_mode(dir: &Path, size: u64) -> Done {
    each(dir, size, |path| fs::set_permissions(path, PermissionsExt::from_mode(0o600)))
}

pub(super) fn get_xattr(dir: &Path, size: u64) -> Done {
    each(dir, size, |path| match rustix::fs::lgetxattr(path, "user.none", &mut [0_u8; 16]) {
        Ok(_) | Err(rustix::io::Errno::NODATA) => Ok(()),
        Err(error) => Err(error.into()),
    })
}

pub(super) fn read(dir: &Path, size: u64) -> Done {
    each(dir, size, |path| File::open(path)?.read_to_end(&mut Vec::new()).map(drop))
}

pub(super) fn unlink(dir: &Path, size: u64) -> Done {
    each(dir, size, |path| fs::remove_file(path))
}

/// A fixed number of operations in a directory of `size` names.
pub(super) fn few_names(dir: &Path, size: u64) -> Done {
    for at in spread(size) {
        let (path, new) = (path(dir, at)?, path(dir, size + at)?);
        fs::symlink_metadata(&path)?;
        File::open(&path)?.read_to_end(&mut Vec::new())?;
        File::create_new(&new)?.write_all(&[7; 100])?;
        fs::rename(&new, path.with_extension("new"))?;
        fs::remove_file(path)?;
    }
    Ok(())
}

/// The argument of the command that makes a snapshot: Linux's `btrfs_ioctl_vol_args_v2`.
#[repr(C)]
struct SnapshotArgs {
    source: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; 4040],
}

/// `BTRFS_IOC_SNAP_CREATE_V2`.
const SNAP_CREATE_V2: rustix::ioctl::Opcode = 0x5000_9417;

#[expect(unsafe_code, reason = "rustix has no name for this command")]
fn snapshot(dir: &Path, name: &str) -> Done {
    let (into, source) = (File::open(dir)?, File::open(dir.join("home"))?);
    let mut args = SnapshotArgs {
        source: i64::from(source.as_raw_fd()),
        transid: 0,
        flags: 0,
        unused: [0; 4],
        name: [0; 4040],
    };
    let name = CString::new(name)?;
    args.name[..name.as_bytes().len()].copy_from_slice(name.as_bytes());
    // SAFETY: the command reads its argument, which has the layout that the kernel defines. The
    // descriptor in the argument is open until the call has returned.
    unsafe { rustix::ioctl::ioctl(&into, rustix::ioctl::Setter::<SNAP_CREATE_V2, _>::new(args)) }?;
    Ok(())
}

pub(super) fn snapshots(dir: &Path, size: u64) -> Done {
    (0..size).try_for_each(|at| snapshot(dir, &format!("snap-{at:08}")))
}

/// A fixed number of snapshots of a subvolume that has `size` already.
pub(super) fn few_snapshots(dir: &Path, size: u64) -> Done {
    (size..size + OPERATIONS).try_for_each(|at| snapshot(dir, &format!("snap-{at:08}")))
}
