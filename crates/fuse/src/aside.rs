//! Work that makes the kernel ask us something, done beside the threads that answer it.
//!
//! # Place
//!
//! With the write-back cache the kernel holds data that the server has not seen. It does not always
//! send that before it asks what depends on it: where data and holes are, or what lies behind the
//! known end. When the kernel is told to give up its pages of the file, it sends them, and waits
//! for that. So the thread that tells it is none of those that take what it sends. The same holds
//! for a write that waits for room: mostly the next request of the kernel makes some.
//!
//! # Invariants
//!
//! - **K1** No thread that reads requests ever waits for one.
//! - **K2** Of the requests that the kernel sends in its background half at most wait for the
//!   kernel ([`Leave`]). It sends no more than [`BACKGROUND_MAX`] of these at once, and what it
//!   sends for us is mostly one of them. A request that holds a folio of the kernel does not wait
//!   at all (D4 of `door`).
//! - **K3** Names are forgotten by a thread that no request waits for. It waits for the inode lock
//!   of a directory. The kernel holds that while it waits for the lock of a file that is removed. A
//!   direct write holds that one, and may wait for another of these threads.

use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use crate::device::Notifier;

type Job = Box<dyn FnOnce() + Send>;

/// Where the kernel forgets pages from: nowhere, for a negative offset.
const ATTRIBUTES_ONLY: i64 = -1;

/// Nodes that one message has the kernel forget.
const PRUNED_MAX: usize = 1024;

/// Requests that the kernel sends before it waits for answers: readahead, direct I/O, write-back.
pub(crate) const BACKGROUND_MAX: u16 = 512;
/// How many requests may wait for the kernel (K2).
const WAITING_MAX: usize = BACKGROUND_MAX as usize / 2;

/// A part of a file's content, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// All of it.
    Whole,
    /// From an offset, so many.
    Part(u64, u32),
}

/// A way to tell the kernel something, and threads that may wait for what follows: one for what the
/// kernel sends, and one for what it lets go of, since what it sends may need that.
#[derive(Debug)]
pub(crate) struct Aside {
    kernel: Kernel,
    flush: Worker,
    room: Worker,
    names: Worker,
    /// Requests that wait for the kernel (K2).
    waiting: Arc<AtomicUsize>,
}

/// Leave for a request to wait for the kernel (K2); it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Leave(Arc<AtomicUsize>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
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
        let names = Worker::start("fuse-names")?;
        Ok(Self { kernel, flush, room, names, waiting: Arc::default() })
    }

    /// Leave to wait for the kernel; none while many requests do (K2).
    pub(crate) fn leave(&self) -> Option<Leave> {
        let one_more = |count: usize| (count < WAITING_MAX).then_some(count + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(Leave(Arc::clone(&self.waiting)))
    }

    /// Works where waiting for room keeps no thread from hearing the kernel (K1).
    pub(crate) fn where_room_comes(&self, work: impl FnOnce() + Send + 'static) {
        self.room.give(Box::new(work));
    }

    /// Has the kernel send what it holds of a node's content and forget it, and then works (K1).
    pub(crate) fn after_flush(&self, node: u64, span: Span, work: impl FnOnce() + Send + 'static) {
        let kernel = self.kernel.clone();
        let job = Box::new(move || {
            kernel.tell_of(node, span);
            work();
        });
        self.flush.give(job);
    }

    /// Has the kernel forget names, each of a directory, some time later (K3).
    pub(crate) fn forget_names(&self, names: Vec<(u64, Vec<u8>)>) {
        let kernel = self.kernel.clone();
        self.names.give(Box::new(move || {
            for (dir, name) in names {
                kernel.forget_name(dir, &name);
            }
        }));
    }

    /// Has the kernel forget nodes that no program uses, some time later (K3); then calls `done`,
    /// which is told whether the kernel knows how.
    pub(crate) fn prune(&self, nodes: Vec<u64>, done: impl FnOnce(bool) + Send + 'static) {
        let kernel = self.kernel.clone();
        self.names.give(Box::new(move || {
            let is_known = nodes.chunks(PRUNED_MAX).all(|nodes| kernel.prune(nodes));
            done(is_known);
        }));
    }

    /// Has the kernel forget names and leave what it knows of their directories (K3).
    pub(crate) fn drop_names(
        &self,
        names: Vec<(u64, Vec<u8>)>,
        done: impl FnOnce() + Send + 'static,
    ) {
        let kernel = self.kernel.clone();
        self.names.give(Box::new(move || {
            names.iter().for_each(|(dir, name)| kernel.drop_name(*dir, name));
            done();
        }));
    }

    /// Has the kernel ask for a node's attributes before it believes them again.
    pub(crate) fn doubt_attributes(&self, node: u64) {
        self.kernel.tell(node, ATTRIBUTES_ONLY, 0);
    }
}

impl Worker {
    fn start(name: &str) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let work = move || {
            for job in queue {
                // An answer that is dropped unsent is an error to the request that waits for it.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a request ended in a panic, which is a bug");
                }
            }
        };
        std::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self(jobs))
    }

    fn give(&self, job: Job) {
        // The thread lives as long as the sender. If it could not, the work is dropped, and with it
        // an answer, which is an error to the request that waits for it.
        let _ = self.0.send(job);
    }
}

impl Kernel {
    /// Introduces the kernel.
    pub(crate) fn is_there(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Has the kernel forget a name, and ask for the attributes of its directory again.
    pub(crate) fn forget_name(&self, dir: u64, name: &[u8]) {
        self.drop_name(dir, name);
        self.tell_of(dir, Span::Whole);
    }

    fn drop_name(&self, dir: u64, name: &[u8]) {
        let Some(notifier) = self.0.get() else { return };
        // A directory that the kernel does not know has no names to be forgotten.
        if let Err(error) = notifier.inval_entry(dir, name) {
            tracing::debug!(%error, dir, "the kernel was not told to forget a name");
        }
    }

    /// Has the kernel forget nodes that no program uses, and says whether it knows how.
    fn prune(&self, nodes: &[u64]) -> bool {
        let Some(notifier) = self.0.get() else { return true };
        let told = notifier.prune(nodes);
        let is_known = !told.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidInput);
        if let Err(error) = told {
            tracing::debug!(%error, "the kernel was not told to forget nodes");
        }
        is_known
    }

    /// Has the kernel write what it holds of a file, and forget it; waits until that is done.
    pub(crate) fn give_up(&self, node: u64) {
        self.tell_of(node, Span::Whole);
    }

    fn tell_of(&self, node: u64, span: Span) {
        match span {
            Span::Part(offset, len) if let Ok(offset) = i64::try_from(offset) => {
                self.tell(node, offset, i64::from(len));
            }
            // A length of zero means all that follows.
            _ => self.tell(node, 0, 0),
        }
    }

    fn tell(&self, node: u64, offset: i64, len: i64) {
        let Some(notifier) = self.0.get() else { return };
        if let Err(error) = notifier.inval_inode(node, offset, len) {
            tracing::debug!(%error, node, "the kernel was not told to forget");
        }
    }
}
