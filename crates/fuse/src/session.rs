//! One mount, from the moment the kernel knows of it to the moment all is durable.
//!
//! # Place
//!
//! `cli` opens a volume and hands a clone of it to [`mount`]; [`Session::serve`] returns when the
//! mount is gone, and `cli` closes the volume. An [`Unmounter`] ends a session from another thread.
//!
//! With `submounts` each subvolume has a session of its own ([`crate::submounts`]), on the
//! directory that is its top.
//!
//! # Failure
//!
//! However serving ends, nothing here holds the volume afterwards, and closing the volume commits
//! its last changes. If the process is killed instead, the next mount finds the volume as of the
//! last commit. A dead mount then stays behind, and answers `ENOTCONN` until it is unmounted.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use buttress_fs::{Filesystem, Inode, InodeId, TreeId};

use crate::device::{Device, Message};
use crate::dispatch;
use crate::ending::Ending;
use crate::exchange::Exchange;
use crate::front_end::FrontEnd;
use crate::mount::{Link, Mount, Unmounted};
use crate::mount_list::Listed;
use crate::mount_notifier::MountNotifier;
use crate::mounts::Mounts;
use crate::notifier_threads::{NotifierThreads, SessionNotifier};
use crate::pool::{Connection, Kind, WorkerPool};
use crate::ring::{self, Ring, RingHandler, Rings};
use crate::sharer::{self, First, Sharer};
use crate::submounts::Submounts;
use crate::whole_mount::{Top, WholeMount};
use crate::{Error, Options, options};

/// The number of threads for requests that come through the device while rings are in use.
pub(crate) const BESIDE_RINGS: usize = 2;

/// A volume that is mounted; programs that look into it wait until it is served.
#[derive(Debug)]
pub struct Session {
    /// `None` once it is served.
    unserved: Option<Unserved>,
    unmounter: Unmounter,
    submounts: Arc<Submounts>,
}

/// The parts of a session that is not served yet.
#[derive(Debug)]
struct Unserved {
    device_threads: DeviceThreads,
    ring: Option<Ring>,
    /// The first of several mounts, which is put at its place once requests are answered.
    first: Option<First>,
}

/// A volume that is mounted and served.
#[derive(Debug)]
pub struct Serving {
    device_threads: JoinHandle<std::io::Result<()>>,
    ring: Option<Ring>,
    unmounter: Unmounter,
    submounts: Arc<Submounts>,
}

/// A handle that ends a session from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mount: Arc<Mount>,
    link: Link,
    ending: Arc<Ending>,
    /// The mounts below this one, which have to be unmounted first.
    below: Weak<Submounts>,
}

/// The threads for the requests that come through the device.
#[derive(Debug)]
pub(crate) struct DeviceThreads {
    device: Device,
    front: Arc<FrontEnd>,
    threads: usize,
}

/// One session before it is served, and its notifier, which sends messages apart from requests.
pub(crate) struct Opened {
    pub(crate) device_threads: DeviceThreads,
    pub(crate) ring: Option<Ring>,
    pub(crate) unmounter: Unmounter,
    pub(crate) notifier: MountNotifier,
    /// The top of a mount of the whole volume, which is attached nowhere yet.
    pub(crate) top: Option<Top>,
}

/// Mounts a volume on the directory `target`.
///
/// # Errors
///
/// All errors of [`Error`] except `Unmount`.
pub fn mount(fs: Filesystem, target: &Path, options: &Options) -> Result<Session, Error> {
    let shown = fs.root().id().tree;
    let root = if options.shared { sharer::top_level(&fs)? } else { fs.root() };
    let tree = root.id().tree;
    let Opened { device_threads, ring, mut unmounter, notifier, top } =
        open(fs.clone(), root, target, options)?;
    let sharer = Sharer::new(fs.clone(), Arc::clone(&unmounter.mount), notifier.nodes());
    let first = top.map(|top| First::new(sharer, shown, options, top));
    let top = unmounter.target().to_owned();
    let submounts = Submounts::new(fs, tree, top, notifier, options);
    device_threads.set_mounts(submounts.this());
    unmounter.below = Arc::downgrade(&submounts);
    Ok(Session { unserved: Some(Unserved { device_threads, ring, first }), unmounter, submounts })
}

/// Mounts `root` and everything below it on `target`.
pub(crate) fn open(
    fs: Filesystem,
    root: Inode,
    target: &Path,
    options: &Options,
) -> Result<Opened, Error> {
    let (mount, device, top) = Mount::new(target, options)?;
    let link = Link::new(&device).map_err(Error::Session)?;
    let mut unmounter = Unmounter {
        mount: Arc::new(mount),
        link: link.clone(),
        ending: Arc::default(),
        below: Weak::new(),
    };
    let rings = rings(options);
    ring::set_limit(options.request_bytes_max);
    let threads = if rings.is_some() { BESIDE_RINGS } else { options.thread_count() };
    let pool = WorkerPool::new(link, if rings.is_some() { 1 } else { threads }, options);
    let notifier = SessionNotifier::default();
    let notifier_threads = NotifierThreads::new(notifier.clone()).map_err(Error::Session)?;
    let options = &Options { io_uring: Some(rings.is_some()), ..options.clone() };
    let for_ring = rings.as_ref().map(|_| device.try_clone());
    let agreed = Device::negotiate(device, &dispatch::terms(options));
    let (device, agreed) = agreed.map_err(|error| {
        drop(unmounter.unmount());
        Error::Session(error)
    })?;
    notifier.set_notifier(device.notifier());
    let front = Arc::new(FrontEnd::new(fs, root, pool, notifier_threads, options.clone(), agreed));
    front.forget_deleted_subvolumes();
    unmounter.ending = front.ending();
    let notifier = MountNotifier::new(&(unmounter.mount), notifier, front.nodes());
    let device_threads = DeviceThreads { device, front: Arc::clone(&front), threads };
    let ring = match rings.zip(for_ring) {
        Some((rings, device)) if front.is_over_ring() => {
            let handler = Box::new(RingHandler(front));
            let started =
                device.and_then(|device| rings.start(&device, handler, options.thread_count()));
            match started {
                Ok(started) => Some(started),
                Err(error) => {
                    device_threads.end(top);
                    drop(unmounter.unmount());
                    return Err(Error::Session(error));
                }
            }
        }
        _ => None,
    };
    if let Err(error) = unmounter.mount.set_read_ahead(options.read_ahead_kib) {
        tracing::debug!(%error, "the kernel keeps its own readahead");
    }
    Ok(Opened { device_threads, ring, unmounter, notifier, top })
}

/// Makes rings, if they are wanted and the kernel supports them.
pub(crate) fn rings(options: &Options) -> Option<Rings> {
    let made = match options.io_uring {
        Some(false) => return None,
        _ if !ring::is_offered() => Err(std::io::Error::other(
            "the kernel does not offer it: `echo Y > /sys/module/fuse/parameters/enable_uring`, as root (Linux 6.14)",
        )),
        _ => Rings::new(options.io_uring_depth),
    };
    match made {
        Ok(rings) => Some(rings),
        Err(error) if options.io_uring.is_some() => {
            tracing::warn!(%error, "mounted without io_uring");
            None
        }
        Err(error) => {
            tracing::debug!(%error, "mounted without io_uring");
            None
        }
    }
}

/// Serves a connection that the caller made. Each read of `device` returns one request, and each
/// write sends one answer. Returns when the connection ends.
///
/// # Errors
///
/// [`Error::Session`] when the exchange with the kernel failed.
pub fn serve_connection(fs: Filesystem, device: OwnedFd, options: &Options) -> Result<(), Error> {
    let link = Link::new(&device).map_err(Error::Session)?;
    let pool = WorkerPool::new(link, 1, options);
    let notifier = SessionNotifier::default();
    let notifier_threads = NotifierThreads::new(notifier.clone()).map_err(Error::Session)?;
    let root = fs.root();
    let (device, agreed) =
        Device::negotiate(device, &dispatch::terms(options)).map_err(Error::Session)?;
    notifier.set_notifier(device.notifier());
    let front = Arc::new(FrontEnd::new(fs, root, pool, notifier_threads, options.clone(), agreed));
    DeviceThreads { device, front, threads: 1 }.run().map_err(Error::Session)
}

impl DeviceThreads {
    /// Sets the mounts of the volume. This mount is one of them.
    pub(crate) fn set_mounts(&self, mounts: Weak<dyn Mounts>) {
        self.front.set_mounts(mounts);
    }

    /// Starts a thread that moves to newer commits, if the options say so. The thread ends some
    /// time after the mount.
    fn follow(&self) -> std::io::Result<()> {
        let Some(interval) = self.front.options.follow else { return Ok(()) };
        let front = Arc::downgrade(&self.front);
        let work = move || FrontEnd::follow(&front, interval);
        std::thread::Builder::new().name("fuse-follow".to_owned()).spawn(work).map(drop)
    }

    /// Handles the requests on a thread of its own.
    fn start(self) -> std::io::Result<JoinHandle<std::io::Result<()>>> {
        let builder = std::thread::Builder::new().name("fuse-session".to_owned());
        builder.spawn(move || self.run())
    }

    /// Ends a connection that was not served. The kernel may send a request when `top` is closed.
    fn end<T>(self, top: T) {
        let serving = self.start();
        drop(top);
        drop(serving.map(JoinHandle::join));
    }

    /// Handles the requests that come through the device. Returns when the connection has ended.
    pub(crate) fn run(self) -> std::io::Result<()> {
        let Self { device, front, threads } = self;
        device.serve(threads, move |message: Message| {
            let kind = dispatch::kind(&message.head(), message.parts());
            if kind == Kind::Trifle {
                dispatch::serve(&front, message);
                return front.pool.trifle_done();
            }
            let guard = front.pool.guard(kind, message.head().task);
            dispatch::serve(&front, message);
            drop(guard);
            if kind == Kind::Forget && front.is_over_ring() {
                front.gather_forgets();
            }
        })
    }
}

impl Session {
    /// Returns a handle that ends this session.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        self.unmounter.clone()
    }

    /// Whether requests come by io_uring.
    #[must_use]
    pub fn is_over_io_uring(&self) -> bool {
        self.unserved.as_ref().is_some_and(|unserved| unserved.ring.is_some())
    }

    /// Returns a handle that makes more mounts of the volume, or `None` if its mount cannot be
    /// shared.
    #[must_use]
    pub fn sharer(&self) -> Option<Sharer> {
        self.unserved.as_ref()?.first.as_ref().map(First::sharer)
    }

    /// Returns a handle that keeps the kernel's caches and the volume consistent.
    #[must_use]
    pub fn kernel_sync(&self) -> KernelSync {
        KernelSync(Arc::clone(&self.submounts))
    }

    /// Starts to serve. With `submounts` it also mounts each subvolume. A subvolume that cannot be
    /// mounted stays a directory of the mount above it.
    ///
    /// # Errors
    ///
    /// [`Error::Session`] if a thread cannot be started. [`Error::Target`], [`Error::DeadMount`] or
    /// [`Error::Mount`] if the first of several mounts cannot be attached.
    pub fn start(mut self) -> Result<Serving, Error> {
        let unserved = self.unserved.take().expect("only this takes it");
        let Unserved { device_threads, ring, first } = unserved;
        device_threads.follow().map_err(Error::Session)?;
        self.unmounter.ending.is_served.store(true, Ordering::SeqCst);
        let device_threads = match device_threads.start() {
            Ok(device_threads) => device_threads,
            Err(error) => {
                // No thread answers requests. The end of the process ends the mount.
                std::mem::forget(first);
                return Err(Error::Session(error));
            }
        };
        let (unmounter, submounts) = (self.unmounter.clone(), Arc::clone(&self.submounts));
        if let Some(first) = first {
            first.show(unmounter.target()).inspect_err(|_| {
                drop(unmounter.unmount());
            })?;
        }
        submounts.mount_all();
        Ok(Serving { device_threads, ring, unmounter, submounts })
    }

    /// Serves until the mount is gone. All handles on the volume are dropped then.
    ///
    /// # Errors
    ///
    /// [`Error::Session`] when the exchange with the kernel failed.
    pub fn serve(self) -> Result<(), Error> {
        self.start()?.wait()
    }
}

impl Drop for Session {
    /// Ends a session that was never served. The kernel waits for an answer when the top is closed.
    fn drop(&mut self) {
        if let Some(Unserved { device_threads, first, .. }) = self.unserved.take()
            && let Some(first) = first
        {
            device_threads.end(first);
        }
    }
}

impl Serving {
    /// Waits until the mount is gone. All handles on the volume are dropped then.
    ///
    /// # Errors
    ///
    /// [`Error::Session`] when the exchange with the kernel failed.
    pub fn wait(self) -> Result<(), Error> {
        let broken = || std::io::Error::other("a thread of the session ended in a panic");
        let served = self.device_threads.join().unwrap_or_else(|_| Err(broken()));
        self.submounts.unmount_all();
        if let Some(ring) = self.ring {
            ring.join();
        }
        if let Some(error) = self.unmounter.ending.failure.get() {
            return Err(Error::Closing(Arc::clone(error)));
        }
        served.or_else(|error| {
            if is_the_end(&error, self.unmounter.link.is_gone()) {
                return Ok(());
            }
            // The end of a mount of a block device waits for an answer, and no thread is left to
            // give an answer. Such a mount ends with the process.
            if !self.unmounter.mount.is_block_device() {
                drop(self.unmounter.unmount());
            }
            Err(Error::Session(error))
        })
    }
}

/// Whether a session that ended with this error ended well. A thread that is reading a request when
/// the mount goes away gets `ECONNABORTED`. A thread that reads later gets `ENODEV`, which `Device`
/// does not report as an error.
fn is_the_end(error: &std::io::Error, is_gone: bool) -> bool {
    is_gone && error.raw_os_error() == Some(rustix::io::Errno::CONNABORTED.raw_os_error())
}

/// The inodes that the kernel knows, and those of them that have a handle here: open ones, and some
/// that were used lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownInodes {
    /// How many inodes the kernel knows.
    pub inodes: usize,
    /// How many of them have a handle.
    pub handles: usize,
}

impl KnownInodes {
    /// About how many bytes of this process the records of all known inodes take.
    #[must_use]
    pub fn record_bytes(&self) -> usize {
        self.inodes * options::KNOWN_BYTES
    }

    /// About how many bytes of this process the handles take.
    #[must_use]
    pub fn handle_bytes(&self) -> usize {
        self.handles * options::HANDLE_BYTES
    }
}

/// Tells the kernel of changes that code makes to a mounted volume apart from requests of the
/// kernel. A thread that serves requests must not use this.
#[derive(Clone, Debug)]
pub struct KernelSync(Arc<Submounts>);

impl KernelSync {
    /// Has the kernel send all data that it holds in its cache. Data that programs had written
    /// before the call is in the volume afterwards, but is not durable.
    ///
    /// # Errors
    ///
    /// When a mount cannot be opened, or a write fails.
    pub fn write_back(&self) -> std::io::Result<()> {
        self.0.write_back(None)
    }

    /// Counts the inodes that the kernel knows.
    #[must_use]
    pub fn known(&self) -> KnownInodes {
        let notifiers = self.0.notifiers();
        let sum = |count: fn(&MountNotifier) -> usize| notifiers.iter().map(count).sum::<usize>();
        KnownInodes {
            inodes: sum(|notifier| notifier.nodes().count()),
            handles: sum(|notifier| notifier.nodes().handles()),
        }
    }

    /// The mount points of the subvolumes that are mounted by themselves, each with the device
    /// number that `stat` reports there.
    #[must_use]
    pub fn submounts(&self) -> Vec<(PathBuf, u64)> {
        self.0.devices()
    }

    /// Tells the kernel that a subvolume was created under this name.
    pub fn note_created(&self, dir: InodeId, name: &[u8]) {
        self.0.note_created(dir, name);
    }

    /// Prepares for the removal of a subvolume. After the call, only programs that are already in
    /// the subvolume can look into it.
    pub fn prepare_removal(&self, tree: TreeId) {
        self.0.prepare_removal(tree);
    }

    /// Tells the mounts that a subvolume stays, although its removal was prepared.
    pub fn cancel_removal(&self) {
        self.0.cancel_removal();
    }

    /// Makes the kernel reread its cached content of a subvolume that was changed without the
    /// kernel.
    pub fn invalidate_content(&self, tree: TreeId) {
        for notifier in self.0.notifiers() {
            notifier.invalidate_content(tree);
        }
    }

    /// Makes the kernel forget the unused inodes of a deleted subvolume. The kernel forgets a
    /// directory only after the directory's files, so one call may not be enough.
    pub fn forget_subvolume(&self, tree: TreeId) {
        for notifier in self.0.notifiers() {
            notifier.forget_subvolume(tree);
        }
    }

    /// Makes the kernel look again at a name that was added or removed.
    pub fn invalidate_name(&self, dir: InodeId, name: &[u8]) {
        self.0.invalidate_name(dir, name);
    }
}

impl Unmounter {
    /// The mounts of the volume that are visible now, in the order in which they were made. `None`
    /// if the volume cannot have several mounts.
    #[must_use]
    pub fn visible_mounts(&self) -> Option<Vec<Listed>> {
        self.mount.whole().map(WholeMount::visible_mounts)
    }

    /// The first mount point of the volume.
    #[must_use]
    pub fn target(&self) -> &Path {
        self.mount.target()
    }

    /// Whether the mount was unmounted and no program uses it any more. From then on its device
    /// number may belong to another mount, although its last changes may not be durable yet.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.link.is_gone() || self.ending.has_begun.load(Ordering::SeqCst)
    }

    /// The device number that `stat` reports for files of the mount, except for subvolumes that are
    /// mounted by themselves. `None` if the list of mounts could not be read.
    #[must_use]
    pub fn device(&self) -> Option<u64> {
        self.mount.device().map(|(major, minor)| rustix::fs::makedev(major, minor))
    }

    /// Unmounts; lazily, if programs still use the mount. If the mount is gone already, nothing is
    /// unmounted, not even a newer mount at the same place.
    ///
    /// # Errors
    ///
    /// [`Error::Unmount`].
    pub fn unmount(&self) -> Result<Unmounted, Error> {
        if self.is_gone() {
            return Ok(Unmounted::Clean);
        }
        if let Some(below) = self.below.upgrade() {
            below.hide_all();
        }
        self.mount.unmount()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An aborted connection is no failure once the mount is gone. Any other error is a failure,
    /// and so is an abort of a mount that is still there.
    #[test]
    fn aborted_readers_end_well() {
        let error = |errno: rustix::io::Errno| std::io::Error::from(errno);
        assert!(is_the_end(&error(rustix::io::Errno::CONNABORTED), true));
        assert!(!is_the_end(&error(rustix::io::Errno::CONNABORTED), false));
        assert!(!is_the_end(&error(rustix::io::Errno::IO), true));
    }
}
