//! Listing directories.
//!
//! # Invariants
//!
//! - **L1** The position behind an entry is one more than its cookie. Behind `.` it is 1, and
//!   behind `..` it is 2. So a listing continues from a position alone, however long it pauses; no
//!   state is kept here.
//! - **L2** When a listing of a directory begins, it notes the last cookie that the directory has
//!   given out. All listings of the directory end at that cookie. Entries that are made or renamed
//!   later are left to the next listing. The kernel opens directories without a request, so all
//!   listings of a directory share one bound. A listing that begins raises the bound: the other
//!   listings then list more, and omit nothing.

use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use buttress_fs::{Attr, FileKind, InodeId};
use buttress_protocol::{Attr as WireAttr, EntryOut, FileType, Listing};

use super::{FrontEnd, Node, place, refuse};
use crate::attr;
use crate::errno::Answer;

const BEHIND_DOT: u64 = 1;
const BEHIND_DOT_DOT: u64 = 2;

/// The most names that are fetched at once.
const BATCH: usize = 128;

struct Listed {
    name: Vec<u8>,
    id: InodeId,
    kind: FileKind,
    position: u64,
}

impl FrontEnd {
    /// Answers `readdir`: fills `reply` from `position` on.
    pub(crate) fn readdir(&self, id: u64, position: u64, reply: &mut Listing<'_>) -> Answer<()> {
        let node = self.node(id)?;
        for (ino, behind, name) in self.dots(&node, position) {
            if reply.add_name(ino, behind, FileType::Directory, name.as_bytes()) {
                return Ok(());
            }
        }
        fetch(&node, position, reply, Listing::names_left, |listed, reply| {
            let ino = self.nodes.user_ino(place(listed.id));
            reply.add_name(ino, listed.position, attr::kind_to_wire(listed.kind), &listed.name)
        })
    }

    /// Answers `readdirplus`: a listing with a lookup of each name.
    pub(crate) fn readdirplus(
        &self,
        id: u64,
        position: u64,
        reply: &mut Listing<'_>,
    ) -> Answer<()> {
        let node = self.node(id)?;
        for (ino, behind, name) in self.dots(&node, position) {
            let entry = unknown(attr::unreadable(ino, FileKind::Directory));
            if reply.add_entry(&entry, behind, name.as_bytes()) {
                return Ok(());
            }
        }
        fetch(&node, position, reply, Listing::entries_left, |listed, reply| {
            self.add_with_attr(&listed, reply)
        })
    }

    /// Adds one entry; true when there was no room for it.
    fn add_with_attr(&self, listed: &Listed, reply: &mut Listing<'_>) -> bool {
        let id = self.nodes.id_of(place(listed.id));
        if let Some(attr) = self.attr_of_unused(listed) {
            let entry = self.entry_of(&attr, id);
            if reply.add_entry(&entry.wire(), listed.position, &listed.name) {
                return true;
            }
            if !self.nodes.remember_resting(id)
                && let Ok(inode) = self.fs.inode(listed.id)
            {
                self.remember(id, inode);
            }
            self.forget_surplus();
            return false;
        }
        let Ok(inode) = self.fs.inode(listed.id) else {
            // The kernel counts a reference to this entry, too. A forget of a reference that was
            // never counted here does no harm.
            let entry = unknown(attr::unreadable(id, listed.kind));
            return reply.add_entry(&entry, listed.position, &listed.name);
        };
        let inode = self.shown(id, inode);
        let attr = inode.attr();
        let entry = self.entry_of(&attr, id);
        let full = reply.add_entry(&entry.wire(), listed.position, &listed.name);
        if !full {
            self.remember(id, inode);
        }
        full
    }

    /// The attributes of a listed inode that nothing uses, if it gets no handle. The table has
    /// dropped handles before, so it would drop this one, too: a file that is opened gets one then.
    /// A mount that follows another machine needs the handle. So does a directory, which may be the
    /// top of a subvolume, or a stub.
    fn attr_of_unused(&self, listed: &Listed) -> Option<Attr> {
        let is_plain = self.options.follow.is_none() && listed.kind != FileKind::Directory;
        if !is_plain || !self.nodes.has_rested() {
            return None;
        }
        self.fs.attr_of_unused(listed.id).ok().flatten()
    }

    fn dots(&self, node: &Node, position: u64) -> impl Iterator<Item = (u64, u64, &'static str)> {
        let dot = (position < BEHIND_DOT)
            .then(|| (self.nodes.user_ino(place(node.inode.id())), BEHIND_DOT, "."));
        let dot_dot =
            (position < BEHIND_DOT_DOT).then(|| (self.parent_ino(node), BEHIND_DOT_DOT, ".."));
        dot.into_iter().chain(dot_dot)
    }
}

/// An entry that is valid for no time: the kernel looks the name up before it uses the attributes.
fn unknown(attr: WireAttr) -> EntryOut {
    EntryOut::new(attr.ino, 0, 0, attr)
}

/// Gives the entries behind `position` to `add` until `reply` is full. Names are copied out first:
/// `add` may look inodes up, and no lock of the directory should be held meanwhile. `left` says how
/// many entries still fit at most. No more are copied, and one that shows that the reply is full.
fn fetch<'a>(
    node: &Node,
    position: u64,
    reply: &mut Listing<'a>,
    left: impl Fn(&Listing<'a>) -> usize,
    mut add: impl FnMut(Listed, &mut Listing<'a>) -> bool,
) -> Answer<()> {
    let mut cookie = position.saturating_sub(1);
    let end = listed_to(node, position)?;
    while cookie < end {
        let wanted = BATCH.min(left(reply) + 1);
        let mut batch = Vec::with_capacity(wanted);
        let mut is_at_end = false;
        let listed = node.inode.read_dir(cookie, |entry| {
            if entry.cookie > end {
                is_at_end = true;
                return ControlFlow::Break(());
            }
            batch.push(Listed {
                name: entry.name.to_vec(),
                id: entry.id,
                kind: entry.kind,
                position: entry.cookie.saturating_add(1),
            });
            if batch.len() < wanted { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        listed.map_err(refuse)?;
        let Some(last) = batch.last() else { return Ok(()) };
        let is_whole = is_at_end || batch.len() < wanted;
        cookie = last.position.saturating_sub(1);
        if batch.into_iter().any(|listed| add(listed, reply)) || is_whole {
            return Ok(());
        }
    }
    Ok(())
}

/// The last cookie that a listing at a position goes to (L2).
fn listed_to(node: &Node, position: u64) -> Answer<u64> {
    let known = node.listed_to.load(Ordering::Relaxed);
    if position != 0 && known != 0 {
        return Ok(known);
    }
    let last = node.inode.last_cookie().map_err(refuse)?;
    // If two listings begin together, the later bound is good for each.
    Ok(node.listed_to.fetch_max(last, Ordering::Relaxed).max(last))
}
