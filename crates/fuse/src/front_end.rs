//! [`FrontEnd`] turns requests of the kernel into operations on the volume.
//!
//! # Place
//!
//! [`FrontEnd`] holds a mounted volume and the table of nodes that the kernel knows. Each group of
//! requests has its handlers in one file (`names`, `content`, `listing`, `xattr`, `flags`,
//! `ioctl`). `dispatch` decodes requests and sends the answers. Nothing here
//! knows the format on disk.
//!
//! # Invariants
//!
//! - **D1** Every request is answered once. If its handler panics, the answer is `EIO`, and the
//!   mount goes on.
//! - **D2** Names and attributes in the kernel's cache are true. The volume changes only through
//!   this mount, or the kernel is told of the change (`session::KernelSync`). The time limit of
//!   names and attributes is there only because the protocol demands one.
//! - **D3** A program that keeps writing to a file learns that its writes fail, even if the kernel
//!   caches the writes. By itself the kernel would report the failure only when the file is closed.
//!   A program that fills the disk until a write fails would never end. So after a failure the
//!   server invalidates the kernel's cached attributes. The kernel asks for the attributes before
//!   the next write, and the server answers with the error.
//! - **D4** No answer to a request waits for a notification that may wait for the request. The
//!   kernel handles a notification under its own locks, and holds other locks while it waits for an
//!   answer.
//!     - To drop pages of a file (`INVAL_INODE`), the kernel takes their folio locks and waits for
//!       their write-back. It takes no inode lock. So a request that holds a folio, or blocks
//!       write-back, never waits for such a notification. Such requests are SETATTR, OPEN that
//!       truncates, and READ and WRITE of the page cache. (The kernel names a lock owner only in
//!       direct requests.) A direct READ, a direct WRITE and LSEEK may wait. They hold at most the
//!       inode lock, which the kernel never takes below a folio lock.
//!     - To drop a name (`INVAL_ENTRY`), the kernel takes the directory's inode lock. Most requests
//!       about names hold that lock, so they never wait for such a notification. Commands of btrfs
//!       by ioctl(2) hold no lock. These commands do wait for the notification, on a thread of
//!       their own (`ioctl`).
//!
//! `docs/internals/mount.md` has the table of all requests.

pub(crate) mod content;
mod deleted;
pub(crate) mod flags;
mod ioctl;
pub(crate) mod listing;
pub(crate) mod names;
mod old_pages;
mod privileges;
mod renew;
mod rights;
pub(crate) mod space;
mod statx;
mod verity;
mod xattr;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use buttress_fs::{
    Attr, Error, ErrorKind, FileKind, Filesystem, Ino, Inode, InodeId, NameError, TreeId,
};
use buttress_protocol::{Attr as WireAttr, EntryOut, Errno, InitFlags};

use self::deleted::AbsentNames;
use self::ioctl::Walks;
use crate::ending::Ending;
use crate::errno::{self, Answer};
use crate::filled_pages::FilledPages;
use crate::freed_files::FreedFiles;
use crate::mounts::Mounts;
use crate::node::{Handle, NodeLimits, Nodes, Place, Resting};
use crate::notifier_threads::NotifierThreads;
use crate::pool::WorkerPool;
use crate::{Options, acl, attr};

/// How long the kernel may use attributes and names that it received (D2), in seconds.
pub(crate) const VALID_SECS: u64 = 24 * 60 * 60;

/// A mounted volume as the kernel sees it.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    fs: Filesystem,
    nodes: Arc<Nodes<Arc<Node>>>,
    pub(crate) pool: Arc<WorkerPool>,
    notifier_threads: NotifierThreads,
    freed_files: FreedFiles,
    pub(crate) options: Options,
    /// Whether the kernel's write-back cache is on: it gathers writes before it sends them.
    keeps_writes: bool,
    /// Whether requests come by io_uring.
    over_ring: bool,
    /// Whether the kernel lacks the notification to forget nodes. Such a kernel gets notifications
    /// to forget names instead.
    cannot_prune: Arc<AtomicBool>,
    /// Names that the kernel knows to be absent from deleted subvolumes
    /// (`front_end::deleted::DS3`).
    absent_names: Arc<AbsentNames>,
    /// All mounts of the volume. Commands of ioctl(2) notify them of changes (`ioctl`).
    mounts: OnceLock<Weak<dyn Mounts>>,
    /// Walks of programs over trees, by commands of ioctl(2).
    walks: Walks,
    ending: Arc<Ending>,
}

/// One inode that the kernel knows, with cached facts about it.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) inode: Inode,
    /// Set once the file is known to have no capabilities. The kernel asks for capabilities before
    /// the first write to each file.
    no_capability: AtomicBool,
    /// The number of opens for writing. While this number is above zero, the kernel may hold
    /// content that it has not sent.
    writers: AtomicU32,
    /// Whether a Merkle tree of the file is being made (`front_end::verity::FY1`).
    sealing: AtomicBool,
    /// The number of opens of any kind. If it is zero and the file has no name, the kernel will
    /// soon forget the file.
    openers: AtomicU32,
    /// The error of a failed write from the kernel's cache, kept until a writer gets it (D3).
    failed_write: AtomicI32,
    /// Whether a directory has a default ACL, or [`UNKNOWN`] before the ACL was read.
    default_list: AtomicU8,
    /// Whether the kernel may hold content: it was read through the kernel's cache, or opened for
    /// writing.
    may_be_cached: AtomicBool,
    /// Whether the kernel may hold pages that we read for it.
    filled_pages: FilledPages,
    /// Whether the kernel shows a `ctime` from before a `chattr`.
    shows_old_change: AtomicBool,
    /// For a directory: the cookie at which its listings end (`front_end::listing::L2`). Zero
    /// before the first listing.
    listed_to: AtomicU64,
}

/// The program that sent a request. Its ids are those of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// The number of the thread that asks; zero where the kernel asks by itself.
    pub(crate) task: u32,
}

/// The maximum number of names in one round of notifications to a kernel that cannot forget nodes.
const NAMES_DROPPED_MAX: usize = 4096;

const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
const PRESENT: u8 = 2;

/// The answer to a lookup.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) attr: WireAttr,
    pub(crate) generation: u64,
    /// How long the kernel may use the entry, in seconds.
    pub(crate) valid_secs: u64,
}

impl Entry {
    /// The entry as the kernel gets it. The node id is the inode number in `attr`; for the root,
    /// both are 1.
    pub(crate) fn wire(&self) -> EntryOut {
        EntryOut::new(self.attr.ino, self.generation, self.valid_secs, self.attr)
    }
}

impl Node {
    /// Whether the kernel may hold content that we have not seen.
    pub(crate) fn is_written(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }
}

impl FrontEnd {
    /// Creates the front end of a mount that shows `root` and everything below it. `agreed` are the
    /// features that both sides support.
    pub(crate) fn new(
        fs: Filesystem,
        root: Inode,
        pool: Arc<WorkerPool>,
        notifier_threads: NotifierThreads,
        options: Options,
        agreed: InitFlags,
    ) -> Self {
        let home = if options.shared { fs.root().id() } else { root.id() };
        let top = place(root.id());
        let limits = NodeLimits { handles: options.handles_max, known: options.known_max };
        let nodes = Nodes::new(top, home.tree.0, Arc::new(Node::new(root)), limits)
            .listing_remade(options.follow.is_some());
        let freed_files = FreedFiles::new();
        let keeps_writes = agreed.contains(InitFlags::WRITEBACK_CACHE);
        let over_ring = agreed.contains(InitFlags::OVER_IO_URING);
        let (nodes, cannot_prune) = (Arc::new(nodes), Arc::default());
        let (mounts, walks, ending) = (OnceLock::new(), Walks::new(), Arc::default());
        Self {
            fs,
            nodes,
            pool,
            notifier_threads,
            freed_files,
            options,
            keeps_writes,
            over_ring,
            cannot_prune,
            absent_names: Arc::default(),
            mounts,
            walks,
            ending,
        }
    }

    /// The numbers by which the kernel knows inodes.
    pub(crate) fn nodes(&self) -> Arc<Nodes<Arc<Node>>> {
        Arc::clone(&self.nodes)
    }

    /// Runs a handler; a panic becomes `EIO` (D1).
    pub(crate) fn guarded<T>(
        &self,
        request: &'static str,
        node: u64,
        work: impl FnOnce() -> Answer<T>,
    ) -> Answer<T> {
        tracing::trace!(request, node);
        let answer = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            tracing::error!(
                request,
                node,
                "a request ended in a panic, which is a bug; it was answered with EIO"
            );
            Err(Errno::EIO)
        });
        self.pool.handled();
        answer
    }

    /// Finds the handle of a node. If the handle rests (`node::N3`), or if the kernel should have
    /// forgotten the node, the inode is looked up by its number.
    pub(crate) fn node(&self, id: u64) -> Answer<Arc<Node>> {
        let resting = match self.nodes.handle(id) {
            Ok(node) => return Ok(node),
            Err(resting) => resting,
        };
        let place = self.nodes.place_of(id).ok_or(Errno::ESTALE)?;
        let inode = InodeId { tree: TreeId(place.tree), ino: Ino(place.ino) };
        // The kernel named a node, not a name. After this error it looks the name up again. The
        // name may lead to another inode by now: the volume of a follower has moved on.
        let inode = self.fs.inode(inode).map_err(|error| match refuse(error) {
            Errno::ENOENT => Errno::ESTALE,
            errno => errno,
        })?;
        let node = Arc::new(Node::remade(inode, resting));
        if resting.is_none() {
            return Ok(node);
        }
        let node = self.nodes.wake(id, node);
        self.renew_late(id, &node);
        Ok(node)
    }

    /// Wakes the node of a name that is about to be removed. If the name is the last one, the node
    /// lives on without a name and cannot rest (`node::N3`). The caller keeps the result until
    /// the name is gone: otherwise the node might rest again.
    fn wake_named(&self, dir: &Node, name: &[u8]) -> Answer<Option<Arc<Node>>> {
        if !self.nodes.has_rested() {
            return Ok(None);
        }
        let found = dir.inode.lookup(name).map_err(refuse);
        match found.and_then(|inode| self.node(self.nodes.id_of(place(inode.id())))) {
            Ok(node) => Ok(Some(node)),
            // A program that gives up removes no name.
            Err(Errno::EINTR) => Err(Errno::EINTR),
            Err(_) => Ok(None),
        }
    }

    /// Takes back `count` references of the kernel to a node. Dropping the last handle of a
    /// nameless file deletes the file.
    pub(crate) fn forget(&self, id: u64, count: u64) {
        self.freed_files.forget(|| {
            let Some(node) = self.nodes.forget(id, count) else { return false };
            let has_no_name = node.inode.attr().nlink == 0;
            drop(node);
            has_no_name
        });
    }

    /// Counts a reference to an inode, and describes it.
    fn entry(&self, inode: Inode) -> Entry {
        let id = self.nodes.id_of(place(inode.id()));
        let inode = self.shown(id, inode);
        let attr = inode.attr();
        self.remember(id, inode);
        self.entry_of(&attr, id)
    }

    /// Describes an inode.
    fn entry_of(&self, attr: &Attr, id: u64) -> Entry {
        let valid_secs = self.valid_secs();
        Entry { attr: self.to_wire(attr, id), generation: attr.generation, valid_secs }
    }

    /// How long the kernel may use attributes and names, in seconds. If another machine writes the
    /// volume, notifications tell the kernel of each change. A short time limits the harm if a
    /// notification comes before the answer to an earlier request.
    pub(crate) fn valid_secs(&self) -> u64 {
        self.options.follow.map_or(VALID_SECS, |interval| interval.as_secs().max(1))
    }

    /// Records a reference of the kernel to an inode.
    fn remember(&self, id: u64, inode: Inode) {
        let node = self.nodes.remember(id, |resting| Arc::new(Node::remade(inode, resting)));
        self.renew_late(id, &node);
        self.forget_surplus();
    }

    /// Asks the kernel to forget nodes, if it knows too many.
    fn forget_surplus(&self) {
        let Some(surplus) = self.nodes.surplus() else { return };
        tracing::debug!(count = surplus.len(), "the kernel is told to forget inodes");
        let nodes = Arc::clone(&self.nodes);
        if self.cannot_prune.load(Ordering::Relaxed) {
            let names = surplus.iter().take(NAMES_DROPPED_MAX).filter_map(|id| self.name_of(*id));
            self.notifier_threads.invalidate_names(names.collect(), move || nodes.note_pruned());
            return;
        }
        let cannot = Arc::clone(&self.cannot_prune);
        self.notifier_threads.prune(surplus, move |is_known| {
            cannot.store(!is_known, Ordering::Relaxed);
            nodes.note_pruned();
        });
    }

    /// A name of a node, with its directory's node.
    fn name_of(&self, id: u64) -> Option<(u64, Vec<u8>)> {
        let Place { tree, ino } = self.nodes.place_of(id)?;
        let inode = self.fs.inode(InodeId { tree: TreeId(tree), ino: Ino(ino) }).ok()?;
        let (dir, name) = inode.places().ok()?.into_iter().next()?;
        Some((self.nodes.id_of(place(dir)), name))
    }

    fn wire_attr(&self, attr: &Attr) -> WireAttr {
        self.to_wire(attr, self.nodes.user_ino(place(attr.id)))
    }

    /// Attributes with the ids of this machine.
    fn to_wire(&self, attr: &Attr, ino: u64) -> WireAttr {
        attr::to_wire(attr, ino, &self.options.users, &self.options.groups)
    }

    /// The ids that the volume has for the caller.
    fn owner(&self, caller: Caller) -> Answer<(u32, u32)> {
        let user = self.options.users.write(caller.uid).ok_or(Errno::EOVERFLOW)?;
        let group = self.options.groups.write(caller.gid).ok_or(Errno::EOVERFLOW)?;
        Ok((user, group))
    }

    /// Answers `getattr`. Only reads and writes of an open file ask with a handle (D3).
    pub(crate) fn getattr(&self, id: u64, has_handle: bool) -> Answer<WireAttr> {
        let node = self.node(id)?;
        if has_handle && node.failed_write.load(Ordering::Relaxed) != 0 {
            return Err(Errno::from_i32(node.failed_write.swap(0, Ordering::Relaxed)));
        }
        Ok(self.wire_attr(&node.inode.attr()))
    }

    /// Records the error of a failed write, which the next writer gets (D3).
    fn remember_failed_write(&self, id: u64, node: &Node, errno: Errno) {
        node.failed_write.store(errno.code(), Ordering::Relaxed);
        self.notifier_threads.doubt_attributes(id);
    }

    /// Whether requests come by io_uring.
    pub(crate) fn is_over_ring(&self) -> bool {
        self.over_ring
    }

    /// Whether the kernel's write-back cache is on.
    fn keeps_writes(&self) -> bool {
        self.keeps_writes
    }

    /// Answers `syncfs`: makes everything durable.
    pub(crate) fn sync_all(&self) -> Answer<()> {
        self.fs.sync().map_err(refuse)
    }

    /// Answers `destroy`, which the kernel sends for the last mount of a block device. The program
    /// that unmounts waits for the answer, so the volume is closed first. A session that was never
    /// served leaves the volume open: its caller still has the volume.
    pub(crate) fn close(&self) {
        if !self.options.block_device || !self.ending.is_served.load(Ordering::SeqCst) {
            return;
        }
        self.ending.has_begun.store(true, Ordering::SeqCst);
        self.nodes.forget_all();
        if let Err(error) = self.fs.clone().close() {
            tracing::error!(%error, "closing the volume failed");
            let _ = self.ending.failure.set(Arc::new(error));
        }
    }

    /// The state of the volume at the end of its mounts.
    pub(crate) fn ending(&self) -> Arc<Ending> {
        Arc::clone(&self.ending)
    }

    /// Answers `statfs`.
    pub(crate) fn statfs(&self) -> Answer<buttress_fs::StatFs> {
        self.fs.statfs().map_err(refuse)
    }
}

impl Drop for FrontEnd {
    fn drop(&mut self) {
        tracing::debug!(nodes = self.nodes.count(), "the kernel has let go of the mount");
        self.nodes.forget_all();
    }
}

impl Handle for Arc<Node> {
    fn is_idle(&self) -> bool {
        Arc::strong_count(self) == 1
            && self.openers.load(Ordering::Relaxed) == 0
            && self.writers.load(Ordering::Relaxed) == 0
            && self.failed_write.load(Ordering::Relaxed) == 0
    }

    /// A node may rest if it has a name, is idle, and is no stub. A stub has no number from which
    /// its handle could be remade. The returned number keeps the one fact that must not be lost.
    /// For a directory, the fact is the cookie at which its listings end
    /// (`front_end::listing::L2`). For a file, the fact is whether the kernel may hold its pages
    /// (`filled_pages::S1`).
    fn rest(&self) -> Option<u64> {
        // `is_idle` allows one reference, the table's own. The table hands out further references
        // under its lock, which the caller holds.
        let rests = self.is_idle() && self.inode.attr().nlink > 0 && !self.inode.is_stub();
        rests.then(|| self.recorded())
    }
}

impl Node {
    /// The number that must not be lost: see `rest`.
    fn recorded(&self) -> u64 {
        match self.inode.kind() {
            FileKind::Directory => self.listed_to.load(Ordering::Relaxed),
            _ => u64::from(self.filled_pages.is_set()),
        }
    }

    /// Creates a node, with the recorded number if the node rested before.
    fn remade(inode: Inode, resting: Option<Resting>) -> Self {
        let node = Self::new(inode);
        let Resting(number) = resting.unwrap_or(Resting(0));
        if node.inode.kind() == FileKind::Directory {
            node.listed_to.store(number, Ordering::Relaxed);
        } else if number != 0 {
            node.filled_pages.set();
        }
        node
    }

    fn new(inode: Inode) -> Self {
        Self {
            inode,
            no_capability: AtomicBool::new(false),
            default_list: AtomicU8::new(UNKNOWN),
            writers: AtomicU32::new(0),
            sealing: AtomicBool::new(false),
            openers: AtomicU32::new(0),
            failed_write: AtomicI32::new(0),
            may_be_cached: AtomicBool::new(false),
            shows_old_change: AtomicBool::new(false),
            filled_pages: FilledPages::new(),
            listed_to: AtomicU64::new(0),
        }
    }

    /// Reads content; returns the number of bytes that were read.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Answer<usize> {
        self.inode.peek_at(offset, buffer).map_err(refuse)
    }

    /// Returns whether new inodes in this directory get an access list from it.
    fn has_default_list(&self) -> Answer<bool> {
        let known = self.default_list.load(Ordering::Relaxed);
        if known != UNKNOWN {
            return Ok(known == PRESENT);
        }
        let is_present = match self.inode.xattr(acl::DEFAULT) {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::Name(NameError::NoAttribute) => false,
            Err(error) => return Err(refuse(error)),
        };
        self.default_list.store(if is_present { PRESENT } else { ABSENT }, Ordering::Relaxed);
        Ok(is_present)
    }

    /// Forgets whether there is a default list: the list may have changed.
    fn unlearn_default_list(&self) {
        self.default_list.store(UNKNOWN, Ordering::Relaxed);
    }

    fn lacks_capability(&self) -> bool {
        self.no_capability.load(Ordering::Relaxed)
    }

    fn set_lacks_capability(&self, lacks: bool) {
        self.no_capability.store(lacks, Ordering::Relaxed);
    }
}

pub(crate) fn place(id: InodeId) -> Place {
    Place { tree: id.tree.0, ino: id.ino.0 }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn refuse(error: Error) -> Errno {
    errno::from_error(&error)
}
