//! Checks extents: every use has a record, every record has a use, and the counts agree.
//!
//! # Invariants
//!
//! - **X1** One pass reads the records in address order. It needs memory for one extent at a time.
//! - **X2** Each extent has one item. Each use is recorded as often as it occurs. The recorded
//!   references add up to the count in the item. All users expect the length of the item.

use std::io;

use buttress_format::{BlockGroupFlags, Extent, ExtentFlags, Generation, Logical, TreeId};
use buttress_sorter::Merge;
use buttress_tree::NodePtr;

use crate::context::{Context, Tree};
use crate::csums::Csums;
use crate::facts::Group;
use crate::free_space::FreeSpace;
use crate::log_space::LogSpace;
use crate::reach::reaches;
use crate::record::{self, Entry, Record, User, WORDS};
use crate::stripes::Stripes;
use buttress_issue::Issue;

/// Records between two progress reports.
const STRIDE: u64 = 1 << 14;

/// Sums over all extents.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sizes {
    pub(crate) used: u64,
    pub(crate) data: u64,
}

/// Checks extents, and passes them on to the checks of free space, checksums and stripe items.
pub(crate) struct Extents<'e, 'c> {
    pub(crate) context: &'e Context<'c>,
    pub(crate) groups: &'e [Group],
    pub(crate) trees: &'e [Tree],
    others: Others<'e, 'c>,
    state: State,
}

/// The checks that get the extents, too.
pub(crate) struct Others<'e, 'c> {
    pub(crate) free_space: Option<FreeSpace<'e, 'c>>,
    pub(crate) csums: Option<Csums<'e, 'c>>,
    pub(crate) stripes: Option<Stripes<'e, 'c>>,
    pub(crate) log_space: LogSpace<'e, 'c>,
}

#[derive(Default)]
struct State {
    sizes: Sizes,
    /// The current group, and the bytes used in it so far.
    group: usize,
    group_used: u64,
    before: Option<Extent>,
    at: Logical,
    item: Option<Item>,
    node: Option<(u8, Generation, TreeId)>,
    /// Whether the tree for which the node was written is among its recorded users.
    has_owner: bool,
    recorded: u64,
    uses: u64,
    is_reported_missing: bool,
}

#[derive(Clone, Copy)]
struct Item {
    extent: Extent,
    refs: u64,
    flags: u64,
    level: Option<u8>,
    generation: Generation,
}

impl Item {
    fn is_node(&self) -> bool {
        self.flags & ExtentFlags::TREE_BLOCK != 0
    }
}

impl<'e, 'c> Extents<'e, 'c> {
    pub(crate) fn new(
        context: &'e Context<'c>,
        groups: &'e [Group],
        trees: &'e [Tree],
        others: Others<'e, 'c>,
    ) -> Self {
        Self { context, groups, trees, others, state: State::default() }
    }

    /// Checks everything (X1).
    pub(crate) fn run(mut self, mut sorted: Merge<WORDS>) -> io::Result<Sizes> {
        let mut current = sorted.next_record()?;
        let mut count = 0_u64;
        while let Some(mut record) = current {
            current = sorted.next_record()?;
            while let Some(next) = current.filter(|next| record::same_use(&record, next)) {
                record = join(&record, &next);
                current = sorted.next_record()?;
            }
            self.record(&record);
            count += 1;
            if count.is_multiple_of(STRIDE) {
                self.context.progress.advance(STRIDE * size_of::<Record>() as u64);
            }
        }
        self.end_extent();
        self.leave_groups_before(None);
        if let Some(free_space) = &mut self.others.free_space {
            free_space.finish();
        }
        if let Some(csums) = &mut self.others.csums {
            csums.finish();
        }
        if let Some(stripes) = &mut self.others.stripes {
            stripes.finish();
        }
        self.others.log_space.finish()?;
        Ok(self.state.sizes)
    }

    fn record(&mut self, record: &Record) {
        let (at, entry) = record::read(record);
        if at != self.state.at {
            self.end_extent();
            self.state.at = at;
        }
        match entry {
            Entry::Item { extent, refs, flags, level, generation } => {
                self.item(Item { extent, refs, flags, level, generation });
            }
            Entry::Node { level, generation, owner, .. } => {
                self.node(level, generation, owner);
            }
            Entry::Use { user, uses, recorded, len } => self.user(user, uses, recorded, len),
            Entry::Sums { range, wanted, written, tree, ino, offset } => {
                if let Some(csums) = &mut self.others.csums {
                    csums.want(range, wanted, tree, ino, offset);
                }
                if let Some(stripes) = self.others.stripes.as_mut().filter(|_| written) {
                    stripes.want(range, tree, ino, offset);
                }
            }
            Entry::Logged(extent) => self.others.csums.iter_mut().for_each(|it| it.data(extent)),
        }
    }

    fn item(&mut self, item: Item) {
        let extent = item.extent;
        if let Some(before) = self.state.before
            && extent.start < before.end()
        {
            self.context.add(Issue::ExtentOverlap { extent, before });
        }
        let reached = self.state.before.map_or(Logical(0), |before| before.end());
        if self.state.item.is_some() {
            return;
        }
        if extent.end() > reached {
            self.state.before = Some(extent);
        }
        self.state.item = Some(item);
        self.leave_groups_before(Some(extent.start));
        self.state.sizes.used = self.state.sizes.used.saturating_add(extent.len);
        match self.groups.get(self.state.group) {
            Some(group) if group.extent.contains(extent.start) => {
                self.state.group_used = self.state.group_used.saturating_add(extent.len);
                if extent.end() > group.extent.end() {
                    self.context.add(Issue::ExtentOutside { extent });
                }
                let fits = if item.is_node() {
                    group.flags.0 & (BlockGroupFlags::METADATA.0 | BlockGroupFlags::SYSTEM.0) != 0
                } else {
                    group.flags.has(BlockGroupFlags::DATA)
                };
                if !fits {
                    let group = group.extent.start;
                    self.context.add(Issue::ExtentGroup { extent: extent.start, group });
                }
            }
            _ => self.context.add(Issue::ExtentOutside { extent }),
        }
        if let Some(free_space) = &mut self.others.free_space {
            free_space.used(extent);
        }
        self.others.log_space.used(extent, item.is_node());
        if !item.is_node() {
            self.state.sizes.data = self.state.sizes.data.saturating_add(extent.len);
            if let Some(csums) = &mut self.others.csums {
                csums.data(extent);
            }
            if let Some(stripes) = &mut self.others.stripes {
                stripes.data(extent);
            }
        }
    }

    fn node(&mut self, level: u8, generation: Generation, owner: TreeId) {
        self.state.node = Some((level, generation, owner));
        let extent = self.state.at;
        // Without an item, `user` reports the missing extent.
        let Some(item) = self.state.item else { return };
        let mismatch = |field, found, expected| {
            self.context.add(Issue::ExtentMismatch { extent, field, found, expected });
        };
        if !item.is_node() {
            mismatch("flags", item.flags, ExtentFlags::TREE_BLOCK);
            return;
        }
        if item.level != Some(level) {
            mismatch("level", item.level.map_or(u64::MAX, u64::from), level.into());
        }
        if generation > item.generation {
            mismatch("generation", item.generation.0, generation.0);
        }
        let may_share = owner.is_fs_tree() || owner == TreeId::DATA_RELOC || owner.0 > u64::MAX / 2;
        if item.flags & ExtentFlags::FULL_BACKREF != 0 && !may_share {
            mismatch("flags", item.flags, ExtentFlags::TREE_BLOCK);
        }
        let group = self.groups.get(self.state.group).filter(|group| group.extent.contains(extent));
        if let Some(group) = group
            && group.flags.has(BlockGroupFlags::SYSTEM) != (owner == TreeId::CHUNK)
        {
            let group = group.extent.start;
            self.context.add(Issue::ExtentGroup { extent, group });
        }
    }

    fn user(&mut self, user: User, uses: u64, recorded: u64, len: u64) {
        let state = &mut self.state;
        let extent = state.at;
        state.uses += uses;
        if let (User::Tree(tree), Some((_, _, owner))) = (user, state.node)
            && tree == owner
            && recorded > 0
        {
            state.has_owner = true;
        }
        state.recorded += recorded;
        let Some(item) = state.item else {
            if !std::mem::replace(&mut state.is_reported_missing, true) {
                self.context.add(Issue::ExtentMissing { extent, user: user.to_string() });
            }
            return;
        };
        if uses > 0 && user.is_of_node() != item.is_node() {
            let expected =
                if user.is_of_node() { ExtentFlags::TREE_BLOCK } else { ExtentFlags::DATA };
            let (field, found) = ("flags", item.flags);
            self.context.add(Issue::ExtentMismatch { extent, field, found, expected });
        }
        if uses > 0 && len != item.extent.len {
            let (field, found, expected) = ("length", item.extent.len, len);
            self.context.add(Issue::ExtentMismatch { extent, field, found, expected });
        }
        let user = || user.to_string();
        match (uses, recorded) {
            (uses, recorded) if uses == recorded => {}
            (0, recorded) => {
                self.context.add(Issue::BackrefUnused { extent, user: user(), recorded });
            }
            (uses, 0) => self.context.add(Issue::BackrefMissing { extent, user: user(), uses }),
            (uses, recorded) => {
                self.context.add(Issue::BackrefCount { extent, user: user(), recorded, uses });
            }
        }
    }

    /// Finishes the checks of the current address.
    fn end_extent(&mut self) {
        let state = &mut self.state;
        if let Some(item) = state.item.take() {
            if state.uses == 0 {
                self.context.add(Issue::ExtentUnused { extent: item.extent });
            }
            // If the owner does not reference a node any more, the node's references to its
            // children are by address (`FULL_BACKREF`).
            let is_owned = state.has_owner
                || item.flags & ExtentFlags::FULL_BACKREF != 0
                || self.context.has_leftovers.load(std::sync::atomic::Ordering::Relaxed);
            if let Some((level, generation, owner)) =
                state.node.filter(|_| item.is_node() && !is_owned)
            {
                let node = NodePtr { logical: state.at, generation, level };
                // After a balance by Linux, the owner may reach the node although no item names the
                // owner. In that case an ancestor of the node is shared by other trees and
                // referenced by address.
                let is_reached = self
                    .trees
                    .iter()
                    .any(|tree| tree.id == owner && reaches(&self.context.source, tree, node));
                if !is_reached {
                    self.context.add(Issue::NodeOwnerRef { logical: state.at, owner });
                }
            }
            if item.refs != state.recorded {
                let (extent, found, expected) = (state.at, item.refs, state.recorded);
                self.context.add(Issue::ExtentRefs { extent, found, expected });
            }
        }
        state.node = None;
        state.has_owner = false;
        state.recorded = 0;
        state.uses = 0;
        state.is_reported_missing = false;
    }

    /// Checks the used bytes of all groups that end before an address, or of all groups.
    fn leave_groups_before(&mut self, at: Option<Logical>) {
        while let Some(group) = self.groups.get(self.state.group) {
            if at.is_some_and(|at| at < group.extent.end()) {
                return;
            }
            let (found, expected) = (group.used, self.state.group_used);
            if found != expected {
                let group = group.extent.start;
                self.context.add(Issue::BlockGroupUsed { group, found, expected });
            }
            self.state.group += 1;
            self.state.group_used = 0;
        }
    }
}

/// Joins two records of one use. If users expect different lengths, the joined record has an
/// impossible length.
fn join(first: &Record, second: &Record) -> Record {
    let mut joined = *first;
    joined[5] = first[5].saturating_add(second[5]);
    joined[6] = first[6].saturating_add(second[6]);
    joined[7] = match (first[7], second[7]) {
        (0, len) | (len, 0) => len,
        (len, other) if len == other => len,
        _ => u64::MAX,
    };
    joined
}
