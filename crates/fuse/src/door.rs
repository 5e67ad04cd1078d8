//! The door: what the kernel asks, in the volume's words.
//!
//! # Place
//!
//! [`Door`] holds a mounted volume and the table of nodes that the kernel knows. One file per group
//! of requests works them out (`door/names`, `door/content`, `door/listing`, `door/xattr`,
//! `door/flags`); `dispatch` unpacks each request and sends the answer. Nothing here knows the disk.
//!
//! # Invariants
//!
//! - **D1** Every request is answered once, also when its handler panics: then with `EIO`, and the
//!   mount goes on.
//! - **D2** What the kernel may remember is true for as long as it may: the volume changes through
//!   this mount alone, so a time limit on attributes and names exists only because the protocol
//!   wants one.

mod content;
mod flags;
mod listing;
mod names;
mod xattr;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use buttress_fs::{Attr, Error, ErrorKind, Filesystem, Ino, Inode, InodeId, NameError, TreeId};
use fuser::{Errno, FileAttr, Generation};

use crate::crew::Crew;
use crate::node::{Nodes, Place};
use crate::{Options, acl, attr, errno};

/// How long the kernel may believe what it was told (D2).
pub(crate) const VALID: Duration = Duration::from_secs(24 * 60 * 60);

/// What a handler gives its dispatcher.
pub(crate) type Answer<T> = Result<T, Errno>;

/// A mounted volume as the kernel sees it.
#[derive(Debug)]
pub(crate) struct Door {
    fs: Filesystem,
    nodes: Nodes<Arc<Node>>,
    pub(crate) crew: Arc<Crew>,
    pub(crate) options: Options,
}

/// One inode that the kernel knows, and what was learnt about it on the way.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) inode: Inode,
    /// Set once it is known that no file capabilities are attached: the kernel asks before the
    /// first write to each file.
    no_capability: AtomicBool,
    /// Whether a directory has a default list, once that was asked.
    default_list: AtomicU8,
}

const UNKNOWN: u8 = 0;
const ABSENT: u8 = 1;
const PRESENT: u8 = 2;

/// What a lookup answers.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) attr: FileAttr,
    pub(crate) generation: Generation,
}

impl Door {
    /// Opens a door to `fs`.
    pub(crate) fn new(fs: Filesystem, crew: Arc<Crew>, options: Options) -> Self {
        let root = fs.root();
        let nodes = Nodes::new(place(root.id()), Arc::new(Node::new(root)));
        Self { fs, nodes, crew, options }
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
        self.crew.handled();
        answer
    }

    /// Finds the handle of a node. One that the kernel should have forgotten is looked up by number.
    pub(crate) fn node(&self, id: u64) -> Answer<Arc<Node>> {
        if let Some(node) = self.nodes.handle(id) {
            return Ok(node);
        }
        let place = self.nodes.place_of(id).ok_or(Errno::ESTALE)?;
        let id = InodeId { tree: TreeId(place.tree), ino: Ino(place.ino) };
        Ok(Arc::new(Node::new(self.fs.inode(id).map_err(refuse)?)))
    }

    /// Forgets nodes. Dropping the last handle of a nameless file deletes it here.
    pub(crate) fn forget(&self, id: u64, count: u64) {
        drop(self.nodes.forget(id, count));
    }

    /// Counts a reference to an inode, and describes it.
    fn entry(&self, inode: Inode) -> Entry {
        let attr = inode.attr();
        let id = self.nodes.id_of(place(attr.id));
        self.nodes.remember(id, || Arc::new(Node::new(inode)));
        Entry { attr: attr::to_wire(&attr, id), generation: Generation(attr.generation) }
    }

    fn wire_attr(&self, attr: &Attr) -> FileAttr {
        attr::to_wire(attr, self.nodes.user_ino(place(attr.id)))
    }

    /// Answers `getattr`.
    pub(crate) fn getattr(&self, id: u64) -> Answer<FileAttr> {
        Ok(self.wire_attr(&self.node(id)?.inode.attr()))
    }

    /// Answers `statfs`.
    pub(crate) fn statfs(&self) -> Answer<buttress_fs::StatFs> {
        self.fs.statfs().map_err(refuse)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        tracing::debug!(nodes = self.nodes.count(), "the kernel has let go of the mount");
        self.nodes.forget_all();
    }
}

impl Node {
    fn new(inode: Inode) -> Self {
        Self { inode, no_capability: AtomicBool::new(false), default_list: AtomicU8::new(UNKNOWN) }
    }

    /// Says whether what is made in this directory gets a list from it.
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

    /// Forgets whether there is a default list: it may have changed.
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

fn place(id: InodeId) -> Place {
    Place { tree: id.tree.0, ino: id.ino.0 }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn refuse(error: Error) -> Errno {
    errno::from_error(&error)
}
