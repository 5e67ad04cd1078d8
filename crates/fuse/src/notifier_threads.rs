//! Work that makes the kernel send requests. It runs beside the threads that answer requests.
//!
//! # Place
//!
//! With the write-back cache the kernel holds data that the server has not seen. The kernel may
//! send a request that depends on this data before the data. Examples are a search for data or
//! holes, and a read past the known end. When the server tells the kernel to drop a file's pages,
//! the kernel writes them and waits for the answers. So the thread that tells the kernel never
//! answers requests. A thread that answers requests may not wait for space either: the kernel's
//! next request often frees space.
//!
//! # Invariants
//!
//! - **K1** No thread that reads requests ever waits for a request.
//! - **K2** The kernel has at most [`BACKGROUND_MAX`] background requests at once. At most half of
//!   them wait for the kernel ([`WaitPermit`]), since the writes that they wait for are mostly
//!   background requests, too. A request that holds a folio of the kernel does not wait at all
//!   (`front_end::D4`).
//! - **K3** Names are invalidated on a thread for which no request about names or content waits.
//!   This thread waits for the inode lock of a directory. The kernel holds that lock while it waits
//!   for the lock of a file to be removed. A direct write holds the file's lock, and may wait for
//!   another of these threads. Commands of ioctl(2), here called orders, hold no lock in the
//!   kernel, and wait on threads of their own: one for those that may take minutes, one for others.
//! - **K4** At most [`ORDERS_MAX`] orders wait for their thread or are carried out. A program may
//!   give orders by any number of threads, and each order keeps the memory of its request. A user
//!   other than root has at most [`USER_ORDERS_MAX`] of these orders. All such users together have
//!   at most [`USERS_ORDERS_MAX`]. So a user fills the queue neither for root nor for other users.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use buttress_base::activity::{self, Cause};
use buttress_base::rank::{Rank, Ranked};

use crate::device::Notifier;

type Job = Box<dyn FnOnce() + Send>;

/// A negative offset: the kernel then invalidates attributes and no pages.
const ATTRIBUTES_ONLY: i64 = -1;

/// The most nodes in one message to prune.
const PRUNED_MAX: usize = 1024;

/// Requests that the kernel sends before it waits for answers: readahead, direct I/O, write-back.
pub(crate) const BACKGROUND_MAX: u16 = 512;
/// How many requests may wait for the kernel (K2).
const WAITING_MAX: usize = BACKGROUND_MAX as usize / 2;

/// The most orders at once (K4).
const ORDERS_MAX: usize = 256;
/// The most orders at once of one user other than root (K4).
const USER_ORDERS_MAX: usize = 64;
/// The most orders at once of all users other than root (K4).
const USERS_ORDERS_MAX: usize = 192;
/// The user that no share limits.
pub(crate) const ROOT_UID: u32 = 0;

/// A part of a file's content, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Span {
    /// All of the content.
    Whole,
    /// An offset and a length.
    Part(u64, u32),
}

/// Notifies the kernel, with threads that may wait for the result: one for the writes that a
/// notification causes, one for space, and one for names. A write may need space first. Commands of
/// ioctl(2) have two threads that may wait for the other three.
#[derive(Debug)]
pub(crate) struct NotifierThreads {
    notifier: SessionNotifier,
    flush: Worker,
    space: Worker,
    names: Worker,
    orders: Worker,
    /// Orders that may take minutes, so that no other order waits for them.
    long_orders: Worker,
    /// Requests that wait for the kernel (K2).
    waiting: Arc<AtomicUsize>,
    /// Orders that were taken (K4).
    ordered: Arc<TakenOrders>,
}

/// Permission for a request to wait for the kernel (K2). The permission ends when this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct WaitPermit(Arc<AtomicUsize>);

impl Drop for WaitPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The numbers of orders that wait or are carried out, by user (K4). Users without an order have no
/// entry.
#[derive(Debug)]
struct TakenOrders(Ranked<BTreeMap<u32, usize>>);

impl TakenOrders {
    /// Counts one more order of a user. `None` if the user's share is used up.
    fn take(self: &Arc<Self>, uid: u32) -> Option<OrderPermit> {
        let mut by_user = self.0.lock();
        let all: usize = by_user.values().sum();
        let own = by_user.get(&uid).copied().unwrap_or(0);
        let of_root = by_user.get(&ROOT_UID).copied().unwrap_or(0);
        let has_share =
            uid == ROOT_UID || own < USER_ORDERS_MAX && all - of_root < USERS_ORDERS_MAX;
        if all >= ORDERS_MAX || !has_share {
            return None;
        }
        by_user.insert(uid, own + 1);
        Some(OrderPermit { taken: Arc::clone(self), uid })
    }
}

/// Permission for one order of a user, until this value is dropped (K4).
#[derive(Debug)]
struct OrderPermit {
    taken: Arc<TakenOrders>,
    uid: u32,
}

impl Drop for OrderPermit {
    fn drop(&mut self) {
        let mut by_user = self.taken.0.lock();
        match by_user.get_mut(&self.uid) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(by_user.remove(&self.uid)),
        }
    }
}

/// A place in the queue of orders (K4).
#[derive(Debug)]
pub(crate) struct OrderPlace<'a> {
    worker: &'a Worker,
    permit: OrderPermit,
}

impl OrderPlace<'_> {
    /// Runs `work` on its thread of orders, which may wait for notifications (K1).
    pub(crate) fn run(self, work: impl FnOnce() + Send + 'static) {
        let Self { worker, permit } = self;
        worker.give(Box::new(move || {
            // The permit is dropped also if the work panics, or is never done.
            let _permit = permit;
            work();
        }));
    }
}

/// A thread that does one job after the other. The thread ends when this value is dropped.
#[derive(Debug)]
struct Worker(Sender<Job>);

/// The notifier of a session. Before the session has begun, it does nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct SessionNotifier(Arc<OnceLock<Notifier>>);

impl NotifierThreads {
    /// Starts the threads, which end when the returned value is dropped.
    pub(crate) fn new(notifier: SessionNotifier) -> std::io::Result<Self> {
        let (flush, space) = (Worker::start("fuse-flush")?, Worker::start("fuse-space")?);
        let (names, orders) = (Worker::start("fuse-names")?, Worker::start("fuse-orders")?);
        let long_orders = Worker::start("fuse-trim")?;
        let waiting = Arc::default();
        let ordered = Arc::new(TakenOrders(Ranked::new(Rank::Leaf, BTreeMap::new())));
        Ok(Self { notifier, flush, space, names, orders, long_orders, waiting, ordered })
    }

    /// Returns permission to wait for the kernel; `None` while many requests wait (K2).
    pub(crate) fn wait_permit(&self) -> Option<WaitPermit> {
        let one_more = |count: usize| (count < WAITING_MAX).then_some(count + 1);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        Some(WaitPermit(Arc::clone(&self.waiting)))
    }

    /// Runs `work` on a thread that may wait for space without delaying requests (K1).
    pub(crate) fn on_space_thread(&self, work: impl FnOnce() + Send + 'static) {
        self.space.give(Box::new(work));
    }

    /// A place in the queue of a thread of orders, for an order of a user; `None` while too many
    /// wait there (K4).
    pub(crate) fn order_place(&self, uid: u32, may_take_minutes: bool) -> Option<OrderPlace<'_>> {
        let permit = self.ordered.take(uid)?;
        let worker = if may_take_minutes { &self.long_orders } else { &self.orders };
        Some(OrderPlace { worker, permit })
    }

    /// Makes the kernel forget a name, and waits until it has done so. Only threads for which no
    /// request waits may call this (K3).
    pub(crate) fn forget_name_now(&self, dir: u64, name: &[u8]) {
        self.notifier.forget_name(dir, name);
    }

    /// Makes the kernel drop its pages and attributes of a node, and waits until it has done so.
    /// Only a thread that answers no request may call this (K1).
    pub(crate) fn drop_content_now(&self, node: u64) {
        self.notifier.drop_content(node);
    }

    /// Has the kernel write and drop its pages of a node, and then runs `work` (K1).
    pub(crate) fn after_flush(&self, node: u64, span: Span, work: impl FnOnce() + Send + 'static) {
        let notifier = self.notifier.clone();
        let job = Box::new(move || {
            notifier.invalidate_span(node, span);
            work();
        });
        self.flush.give(job);
    }

    /// Has the kernel forget names, each in its directory, at a later time (K3).
    pub(crate) fn forget_names(&self, names: Vec<(u64, Vec<u8>)>) {
        let notifier = self.notifier.clone();
        self.names.give(Box::new(move || {
            for (dir, name) in names {
                notifier.forget_name(dir, &name);
            }
        }));
    }

    /// Has the kernel forget unused nodes at a later time (K3). Then calls `done`, with true if the
    /// kernel supports this notification.
    pub(crate) fn prune(&self, nodes: Vec<u64>, done: impl FnOnce(bool) + Send + 'static) {
        let notifier = self.notifier.clone();
        self.names.give(Box::new(move || {
            done(notifier.prune_all(&nodes));
        }));
    }

    /// Runs `work` at a later time on the thread that has the kernel forget names (K3).
    pub(crate) fn on_names(&self, work: impl FnOnce(&SessionNotifier) + Send + 'static) {
        let notifier = self.notifier.clone();
        self.names.give(Box::new(move || work(&notifier)));
    }

    /// Has the kernel forget names, but keep the attributes of their directories (K3).
    pub(crate) fn invalidate_names(
        &self,
        names: Vec<(u64, Vec<u8>)>,
        done: impl FnOnce() + Send + 'static,
    ) {
        let notifier = self.notifier.clone();
        self.names.give(Box::new(move || {
            names.iter().for_each(|(dir, name)| notifier.drop_name(*dir, name));
            done();
        }));
    }

    /// Makes the kernel's cached attributes of a node invalid.
    pub(crate) fn doubt_attributes(&self, node: u64) {
        self.notifier.invalidate(node, ATTRIBUTES_ONLY, 0);
    }
}

impl Worker {
    fn start(name: &str) -> std::io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let work = move || {
            for job in queue {
                // If the job drops its answer unsent, the waiting request gets an error.
                if catch_unwind(AssertUnwindSafe(job)).is_err() {
                    tracing::error!("a request ended in a panic, which is a bug");
                }
            }
        };
        buttress_base::thread::Builder::new().name(name.to_owned()).spawn(work)?;
        Ok(Self(jobs))
    }

    fn give(&self, job: Job) {
        // The thread lives as long as the sender. If sending fails, the job and its answer are
        // dropped, and the request that waits for the answer gets an error.
        let _ = self.0.send(Box::new(activity::carried(job)));
    }
}

impl SessionNotifier {
    /// Sets the notifier when a session begins.
    pub(crate) fn set_notifier(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Has the kernel forget a name, and ask for the attributes of its directory again.
    pub(crate) fn forget_name(&self, dir: u64, name: &[u8]) {
        self.drop_name(dir, name);
        self.invalidate_span(dir, Span::Whole);
    }

    /// Has the kernel forget a name, but keep the attributes of its directory.
    pub(crate) fn drop_name(&self, dir: u64, name: &[u8]) {
        let Some(notifier) = self.0.get() else { return };
        let _waiting = activity::wait(Cause::Kernel);
        // The kernel has no names to forget for a directory that it does not know.
        if let Err(error) = notifier.inval_entry(dir, name) {
            tracing::debug!(%error, dir, "the kernel was not told to forget a name");
        }
    }

    /// Has the kernel forget unused nodes. Returns whether the kernel supports this notification.
    pub(crate) fn prune_all(&self, nodes: &[u64]) -> bool {
        nodes.chunks(PRUNED_MAX).all(|nodes| self.prune(nodes))
    }

    fn prune(&self, nodes: &[u64]) -> bool {
        let Some(notifier) = self.0.get() else { return true };
        let told = notifier.prune(nodes);
        let is_known = !told.as_ref().is_err_and(|error| error.kind() == ErrorKind::InvalidInput);
        if let Err(error) = told {
            tracing::debug!(%error, "the kernel was not told to forget nodes");
        }
        is_known
    }

    /// Makes the kernel write and drop the content that it holds of a file. Waits until that is
    /// done.
    pub(crate) fn drop_content(&self, node: u64) {
        self.invalidate_span(node, Span::Whole);
    }

    fn invalidate_span(&self, node: u64, span: Span) {
        let part = match span {
            Span::Part(offset, len) => i64::try_from(offset).ok().zip(Some(i64::from(len))),
            Span::Whole => None,
        };
        // A length of zero means all bytes that follow.
        let (offset, len) = part.unwrap_or((0, 0));
        self.invalidate(node, offset, len);
    }

    fn invalidate(&self, node: u64, offset: i64, len: i64) {
        let Some(notifier) = self.0.get() else { return };
        let _waiting = activity::wait(Cause::Kernel);
        if let Err(error) = notifier.inval_inode(node, offset, len) {
            tracing::debug!(%error, node, "the kernel was not told to forget");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K4: neither one user nor all users together fill the queue for root, and one user does not
    /// fill it for another.
    #[test]
    fn no_user_fills_the_queue_for_others() {
        let threads = NotifierThreads::new(SessionNotifier::default()).expect("threads");
        let take =
            |uid: u32| std::iter::from_fn(|| threads.order_place(uid, false)).collect::<Vec<_>>();
        let first = take(1000);
        assert_eq!(first.len(), USER_ORDERS_MAX);
        let others: Vec<_> = (1001..1010).map(take).collect();
        assert_eq!(others[0].len(), USER_ORDERS_MAX);
        assert_eq!(first.len() + others.iter().map(Vec::len).sum::<usize>(), USERS_ORDERS_MAX);
        let of_root = take(ROOT_UID);
        assert_eq!(of_root.len(), ORDERS_MAX - USERS_ORDERS_MAX);
        assert!(
            threads.order_place(1000, false).is_none() && threads.order_place(2000, true).is_none()
        );
        drop((first, others));
        assert_eq!(take(2000).len(), USER_ORDERS_MAX, "places come back");
        drop(of_root);
        assert_eq!(take(ROOT_UID).len(), ORDERS_MAX, "root may have all of them");
        assert!(threads.ordered.0.lock().is_empty(), "users without an order are not kept");
    }
}
