//! Work that makes the kernel ask us something, done beside the threads that answer it.
//!
//! # Place
//!
//! With the write-back cache the kernel holds data that we have not seen, and does not always send it
//! before it asks what depends on it: where data and holes are, or what lies behind the end that we
//! know. Telling the kernel to give up its pages of the file makes it send them. It waits for that
//! meanwhile, so whoever tells it must not be one of the threads that take what it sends. So it is with
//! a write that waits for room: what makes some is mostly the next that the kernel has to say.
//!
//! # Invariants
//!
//! - **K1** No thread that reads requests ever waits for one.

use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use fuser::{INodeNo, Notifier};

type Job = Box<dyn FnOnce() + Send>;

/// Where the kernel forgets pages from: nowhere, for a negative offset.
const ATTRIBUTES_ONLY: i64 = -1;

/// A way to tell the kernel something, and threads that may wait for what follows: one for what the kernel
/// sends, and one for what it lets go of, since what it sends may need that.
#[derive(Debug)]
pub(crate) struct Aside {
    kernel: Kernel,
    flush: Worker,
    room: Worker,
}

/// A thread that does one job after the other; it ends when this is dropped.
#[derive(Debug)]
struct Worker(Sender<Job>);

/// The kernel, once there is a session with it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kernel(Arc<OnceLock<Notifier>>);

impl Aside {
    /// Starts the threads; they end when this is dropped.
    pub(crate) fn new(kernel: Kernel) -> std::io::Result<Self> {
        let (flush, room) = (Worker::start("fuse-aside")?, Worker::start("fuse-room")?);
        Ok(Self { kernel, flush, room })
    }

    /// Works where waiting for room keeps nobody from hearing the kernel (K1).
    pub(crate) fn where_room_comes(&self, work: impl FnOnce() + Send + 'static) {
        self.room.give(Box::new(work));
    }

    /// Has the kernel send what it holds of a node's content, and then works (K1).
    pub(crate) fn after_flush(&self, node: u64, work: impl FnOnce() + Send + 'static) {
        let kernel = self.kernel.clone();
        let job = Box::new(move || {
            kernel.tell(node, 0);
            work();
        });
        self.flush.give(job);
    }

    /// Has the kernel ask for a node's attributes before it believes them again.
    pub(crate) fn doubt_attributes(&self, node: u64) {
        self.kernel.tell(node, ATTRIBUTES_ONLY);
    }
}

impl Worker {
    fn start(name: &str) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let work = move || {
            for job in queue {
                // An answer that is dropped unsent is an error to whoever waits for it.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a request ended in a panic, which is a bug");
                }
            }
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self(jobs))
    }

    fn give(&self, job: Job) {
        // The thread lives as long as the sender; if it could not, the work is dropped, and with it
        // an answer, which is an error to whoever waits for it.
        let _ = self.0.send(job);
    }
}

impl Kernel {
    /// Introduces the kernel.
    pub(crate) fn is_there(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Has the kernel forget a name, and ask for the attributes of its directory again.
    pub(crate) fn forget_name(&self, dir: u64, name: &OsStr) {
        let Some(notifier) = self.0.get() else { return };
        // A directory that the kernel does not know has no names to be forgotten.
        if let Err(error) = notifier.inval_entry(INodeNo(dir), name) {
            tracing::debug!(%error, dir, "the kernel was not told to forget a name");
        }
        self.tell(dir, 0);
    }

    /// Has the kernel write what it holds of a file, and forget it; waits until that is done.
    pub(crate) fn give_up(&self, node: u64) {
        self.tell(node, 0);
    }

    fn tell(&self, node: u64, offset: i64) {
        let Some(notifier) = self.0.get() else { return };
        if let Err(error) = notifier.inval_inode(INodeNo(node), offset, 0) {
            tracing::debug!(%error, node, "the kernel was not told to forget");
        }
    }
}
