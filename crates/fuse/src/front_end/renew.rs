//! Moves to newer commits of a volume that another machine writes.
//!
//! # Invariants
//!
//! - **F1** A file that a program has open keeps its commit, for all programs that open it
//!   meanwhile: the kernel has one cache for a file. The file moves to the present commit when its
//!   last user has closed it. Directories move at once.
//! - **F2** Nodes get inodes of the new commit first, and then the kernel is notified. A request
//!   that still uses an inode of the old commit holds a lock of the kernel: the lock of a folio or
//!   of a directory. The notification waits for this lock. For attributes the kernel compares
//!   versions. A stale answer that still gets into the kernel's cache is valid for one interval
//!   only ([`FrontEnd::valid_secs`]).
//! - **F3** The thread that notifies answers no request (`notifier_threads::K1`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use buttress_fs::{Attr, FileKind, Inode, InodeId};

use super::{FrontEnd, Node, place};
use crate::errno::Answer;
use crate::node::Resting;
use crate::notifier_threads::Span;

/// Names of a larger directory are not compared. They are valid for an interval.
const LISTED_MAX: u64 = 4 << 20;

impl FrontEnd {
    /// Looks for newer commits until the mount has ended.
    pub(crate) fn follow(front: &Weak<Self>, interval: Duration) {
        loop {
            std::thread::sleep(interval);
            let Some(front) = front.upgrade() else { return };
            match front.fs.renew() {
                Ok(true) => front.renew_nodes(),
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the mount stays with an older commit"),
            }
        }
    }

    /// Gives nodes inodes of the present commit, and notifies the kernel of the changes (F2).
    fn renew_nodes(&self) {
        let mut names = Vec::new();
        // The order matters. A node that begins to rest behind the first call is in the second
        // list. A node that a request remakes meanwhile has an inode of the new commit, although
        // the kernel holds older pages. It is in the third list (`node::N4`).
        let all = self.nodes.all();
        let mut changed = self.nodes.resting_with_pages();
        changed.extend(self.nodes.take_remade());
        for (id, node) in all {
            if self.fs.is_of_present(&node.inode) {
                continue;
            }
            let newer = self.present(node.inode.id());
            let is_same = shows_same(&node, newer.as_ref());
            if !self.renew_node(id, &node, newer.clone()) {
                continue;
            }
            if !is_same {
                changed.push(id);
                if let Some(newer) = newer.filter(|newer| newer.kind() == FileKind::Directory) {
                    let other = other_names(&node.inode, &newer);
                    names.extend(other.into_iter().map(|name| (id, name)));
                }
            }
        }
        tracing::debug!(changed = changed.len(), names = names.len(), "a newer commit is shown");
        for (dir, name) in names {
            self.notifier_threads.forget_name_now(dir, &name);
        }
        for id in changed {
            self.notifier_threads.drop_content_now(id);
        }
    }

    /// Exchanges the inode of a node, unless the file is open (F1). Returns whether the inode was
    /// exchanged.
    fn renew_node(&self, id: u64, node: &Arc<Node>, newer: Option<Inode>) -> bool {
        // The record of the pages and listings that the kernel may hold is kept.
        let new = newer.map(|inode| {
            let new = Node::remade(inode, Some(Resting(node.recorded())));
            new.may_be_cached.store(node.may_be_cached.load(Ordering::Relaxed), Ordering::Relaxed);
            Arc::new(new)
        });
        let is_closed = |present: &Arc<Node>| {
            Arc::ptr_eq(present, node)
                && (node.inode.kind() == FileKind::Directory
                    || node.openers.load(Ordering::SeqCst) == 0)
        };
        self.nodes.exchange(id, is_closed, new).is_some()
    }

    /// The inode in the present commit. `None` if the inode is gone.
    fn present(&self, id: InodeId) -> Option<Inode> {
        self.fs.inode(id).ok()
    }

    /// The inode that the mount shows. An open file has the inode of its commit (F1). Any other
    /// node has the inode of the present commit.
    pub(super) fn shown(&self, id: u64, inode: Inode) -> Inode {
        if self.options.follow.is_none() {
            return inode;
        }
        match self.nodes.handle(id) {
            Ok(node) if node.openers.load(Ordering::SeqCst) > 0 => node.inode.clone(),
            _ if self.fs.is_of_present(&inode) => inode,
            _ => self.present(inode.id()).unwrap_or(inode),
        }
    }

    /// Renews a node that was remembered with an inode of the previous commit: the volume moved on
    /// while the request was handled.
    pub(super) fn renew_late(&self, id: u64, node: &Arc<Node>) {
        if self.options.follow.is_none() || self.fs.is_of_present(&node.inode) {
            return;
        }
        let newer = self.present(node.inode.id());
        if !self.renew_node(id, node, newer.clone()) || shows_same(node, newer.as_ref()) {
            return;
        }
        // The kernel may have cached content of this node, and `renew_nodes` now skips the node. So
        // this function notifies the kernel.
        if let Some(newer) = newer.filter(|newer| newer.kind() == FileKind::Directory) {
            let other = other_names(&node.inode, &newer);
            self.notifier_threads.forget_names(other.into_iter().map(|name| (id, name)).collect());
        }
        self.notifier_threads.after_flush(id, Span::Whole, || ());
    }

    /// Takes the node of a file that is about to be open, and counts the open.
    pub(super) fn node_to_open(&self, id: u64) -> Answer<Arc<Node>> {
        loop {
            let node = self.node(id)?;
            node.openers.fetch_add(1, Ordering::SeqCst);
            if self.options.follow.is_none() {
                return Ok(node);
            }
            // The node may have been exchanged before this open was counted.
            let is_present =
                self.nodes.handle(id).is_ok_and(|present| Arc::ptr_eq(&present, &node));
            if is_present {
                return Ok(node);
            }
            node.openers.fetch_sub(1, Ordering::SeqCst);
            if self.nodes.handle(id).is_err() {
                // The node table has no such node, although the kernel names it. The open is not
                // counted.
                return Ok(node);
            }
        }
    }

    /// Renews a file after its last close (F1).
    pub(super) fn renew_closed(&self, id: u64, node: &Arc<Node>) {
        let is_old = self.options.follow.is_some() && !self.fs.is_of_present(&node.inode);
        if !is_old {
            return;
        }
        let newer = self.present(node.inode.id());
        if self.renew_node(id, node, newer.clone()) && !shows_same(node, newer.as_ref()) {
            self.notifier_threads.after_flush(id, Span::Whole, || ());
        }
    }
}

/// Whether a node shows the same in a newer commit, so that the kernel can keep its pages.
fn shows_same(node: &Node, newer: Option<&Inode>) -> bool {
    let shown = |inode: &Inode| Attr { atime: inode.attr().mtime, ..inode.attr() };
    newer.is_some_and(|newer| shown(&node.inode) == shown(newer))
}

/// The names of a directory that only one of two commits has, or that lead to another inode.
fn other_names(before: &Inode, now: &Inode) -> Vec<Vec<u8>> {
    if before.attr().size.max(now.attr().size) > LISTED_MAX {
        return Vec::new();
    }
    let names = |inode: &Inode| {
        let mut names = BTreeMap::new();
        // A directory that cannot be read has no names to compare. Its names stay valid for an
        // interval.
        let _ = inode.read_dir(0, |entry| {
            names.insert(entry.name.to_vec(), place(entry.id));
            ControlFlow::Continue(())
        });
        names
    };
    let (before, mut other) = (names(before), names(now));
    for (name, at) in before {
        match other.remove(&name) {
            Some(now) if now == at => {}
            _ => drop(other.insert(name, at)),
        }
    }
    // The map now has the names that only one commit has, and the names that lead to another inode.
    other.into_keys().collect()
}
