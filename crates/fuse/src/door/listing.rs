//! Listing directories.
//!
//! # Invariants
//!
//! - **L1** The position behind an entry is one more than its cookie, 1 behind `.` and 2 behind
//!   `..`; so a listing goes on where it stopped with no state kept here, however long it pauses.

use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use buttress_fs::{FileKind, InodeId};
use fuser::{FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use super::{Answer, Door, Node, VALID, place, refuse};
use crate::attr;

const BEHIND_DOT: u64 = 1;
const BEHIND_DOT_DOT: u64 = 2;

/// Names fetched at once: about as many as an answer holds.
const BATCH: usize = 128;

struct Listed {
    name: Vec<u8>,
    id: InodeId,
    kind: FileKind,
    position: u64,
}

impl Door {
    /// Answers `readdir`: fills `reply` from `position` on.
    pub(crate) fn readdir(&self, id: u64, position: u64, reply: &mut ReplyDirectory) -> Answer<()> {
        let node = self.node(id)?;
        for (ino, behind, name) in self.dots(&node, position) {
            if reply.add(INodeNo(ino), behind, FileType::Directory, name) {
                return Ok(());
            }
        }
        fetch(&node, position, |listed| {
            let ino = self.nodes.user_ino(place(listed.id));
            let name = std::ffi::OsStr::from_bytes(&listed.name);
            reply.add(INodeNo(ino), listed.position, attr::kind_to_wire(listed.kind), name)
        })
    }

    /// Answers `readdirplus`: the same with a lookup of each name.
    pub(crate) fn readdirplus(
        &self,
        id: u64,
        position: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Answer<()> {
        let node = self.node(id)?;
        for (ino, behind, name) in self.dots(&node, position) {
            let attr = attr::unreadable(ino, FileKind::Directory);
            if reply.add(INodeNo(ino), behind, name, &Duration::ZERO, &attr, Generation(0)) {
                return Ok(());
            }
        }
        fetch(&node, position, |listed| self.add_with_attr(&listed, reply))
    }

    /// Adds one entry; true when there was no room for it.
    fn add_with_attr(&self, listed: &Listed, reply: &mut ReplyDirectoryPlus) -> bool {
        let id = self.nodes.id_of(place(listed.id));
        let name = std::ffi::OsStr::from_bytes(&listed.name);
        let Ok(inode) = self.fs.inode(listed.id) else {
            // The kernel counts a reference all the same; taking back one we never gave is harmless.
            let attr = attr::unreadable(id, listed.kind);
            return reply.add(
                INodeNo(id),
                listed.position,
                name,
                &Duration::ZERO,
                &attr,
                Generation(0),
            );
        };
        let attr = inode.attr();
        let wire = self.shown(&attr, id);
        let full = reply.add(
            INodeNo(id),
            listed.position,
            name,
            &VALID,
            &wire,
            Generation(attr.generation),
        );
        if !full {
            self.nodes.remember(id, || std::sync::Arc::new(Node::new(inode)));
        }
        full
    }

    fn dots(&self, node: &Node, position: u64) -> impl Iterator<Item = (u64, u64, &'static str)> {
        let dot = (position < BEHIND_DOT)
            .then(|| (self.nodes.user_ino(place(node.inode.id())), BEHIND_DOT, "."));
        let dot_dot =
            (position < BEHIND_DOT_DOT).then(|| (self.parent_ino(node), BEHIND_DOT_DOT, ".."));
        dot.into_iter().chain(dot_dot)
    }
}

/// Gives the entries behind `position` to `add` until it has no room. Names are copied out first:
/// `add` may look inodes up, and nothing of the directory should be held meanwhile.
fn fetch(node: &Node, position: u64, mut add: impl FnMut(Listed) -> bool) -> Answer<()> {
    let mut cookie = position.saturating_sub(1);
    loop {
        let mut batch = Vec::with_capacity(BATCH);
        let listed = node.inode.read_dir(cookie, |entry| {
            batch.push(Listed {
                name: entry.name.to_vec(),
                id: entry.id,
                kind: entry.kind,
                position: entry.cookie.saturating_add(1),
            });
            if batch.len() < BATCH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        listed.map_err(refuse)?;
        let Some(last) = batch.last() else { return Ok(()) };
        let is_whole = batch.len() < BATCH;
        cookie = last.position.saturating_sub(1);
        if batch.into_iter().any(&mut add) || is_whole {
            return Ok(());
        }
    }
}
