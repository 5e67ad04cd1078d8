//! Turns the sorted records of a walk into items of an extent tree.
//!
//! # Invariants
//!
//! - **RC1** There is one pass, in address order. It needs memory for the references of one extent,
//!   and for the chunks.
//! - **RC2** All users of an extent agree on its kind and length. The extent lies in one chunk of
//!   the right kind, and shares no bytes with another extent. Otherwise the rebuild ends.
//! - **RC3** The old nodes of trees that are written anew get no item. Their space counts as free,
//!   but the rebuild writes no bytes to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_base::RangeSet;
use buttress_format::{
    BackRef, BlockGroupFlags, Chunk, Extent, ExtentFlags, ExtentItem, Generation, Incompat, Key,
    Kind, Logical, Superblock, TreeId, header::ITEM_LEN, limits::MAX_EXTENT,
};
use buttress_sorter::Merge;
use buttress_sorter::spool::Spool;

use super::sums::Wanted;
use crate::error::{Error, Result};
use crate::record::{self, Entry, User, WORDS};

/// The result of a pass over all records.
pub(crate) struct Collected {
    /// Items of extents, in key order.
    pub(crate) items: Spool,
    pub(crate) groups: Vec<GroupUse>,
    /// Ranges of metadata chunks that nothing uses, ascending.
    pub(crate) gaps: Vec<Extent>,
    pub(crate) extents: u64,
    /// Data that needs checksums, if the walk recorded it.
    pub(crate) wanted: Wanted,
}

impl Collected {
    /// Counts new nodes at these places.
    pub(crate) fn use_places(&mut self, places: &[Logical], nodesize: u64) {
        for place in places {
            let at = self.groups.partition_point(|group| group.chunk.logical <= *place);
            if let Some(group) = at.checked_sub(1).and_then(|at| self.groups.get_mut(at)) {
                group.used += nodesize;
            }
        }
    }
}

/// The use of a chunk.
pub(crate) struct GroupUse {
    pub(crate) chunk: Arc<Chunk>,
    /// Bytes that extents use.
    pub(crate) used: u64,
    /// Contiguous free ranges.
    pub(crate) free_runs: u64,
}

/// The records of one address.
#[derive(Default)]
struct Open {
    at: Logical,
    node: Option<NodeFacts>,
    users: Vec<(User, u64)>,
    len: Option<u64>,
    generation: Option<Generation>,
}

/// The facts in a node's header, and how the node refers to its children.
#[derive(Clone, Copy)]
struct NodeFacts {
    level: u8,
    by_address: bool,
    generation: Generation,
    owner: TreeId,
    first: Key,
}

/// Makes items of records.
pub(crate) struct Collector<'c> {
    superblock: &'c Superblock,
    /// Trees that are written anew (RC3).
    anew: &'c [TreeId],
    /// Ranges that are in use now and must not be overwritten.
    avoid: &'c RangeSet,
    out: Collected,
    group: usize,
    /// The end of the last extent in the present group, and the end of the last range that must not
    /// be overwritten.
    reached: Logical,
    kept: Logical,
}

impl<'c> Collector<'c> {
    pub(crate) fn new(
        superblock: &'c Superblock,
        chunks: &[Arc<Chunk>],
        anew: &'c [TreeId],
        avoid: &'c RangeSet,
    ) -> Result<Self> {
        let group = |chunk: &Arc<Chunk>| {
            let chunk = Arc::clone(chunk);
            GroupUse { chunk, used: 0, free_runs: 0 }
        };
        let groups: Vec<GroupUse> = chunks.iter().map(group).collect();
        let reached = groups.first().map_or(Logical(0), |group| group.chunk.logical);
        let (items, wanted) = (Spool::new()?, Wanted::new()?);
        let out = Collected { items, groups, gaps: Vec::new(), extents: 0, wanted };
        Ok(Self { superblock, anew, avoid, out, group: 0, reached, kept: reached })
    }

    pub(crate) fn run(mut self, mut sorted: Merge<WORDS>) -> Result<Collected> {
        let mut open = Open::default();
        while let Some(record) = sorted.next_record()? {
            let (at, entry) = record::read(&record);
            if at != open.at {
                let done = std::mem::replace(&mut open, Open { at, ..Open::default() });
                self.extent(done)?;
            }
            match entry {
                Entry::Node { level, by_address, generation, owner, first } => {
                    open.node = Some(NodeFacts { level, by_address, generation, owner, first });
                }
                Entry::Use { user, uses, recorded, len } => {
                    if open.len.is_some_and(|known| known != len) {
                        return Err(conflict(at, "its users expect different lengths"));
                    }
                    open.len = Some(len);
                    if !user.is_of_node() {
                        let since = Generation(recorded);
                        open.generation =
                            Some(open.generation.map_or(since, |known| known.min(since)));
                    }
                    match open.users.last_mut() {
                        Some((last, count)) if *last == user => *count += uses,
                        _ => open.users.push((user, uses)),
                    }
                }
                Entry::Sums { range, wanted, .. } => {
                    if wanted && range.len > 0 && range.len <= 2 * MAX_EXTENT {
                        self.out.wanted.add(range)?;
                    }
                }
                Entry::Item { .. } | Entry::Logged(_) => {}
            }
        }
        self.extent(open)?;
        while self.group < self.out.groups.len() {
            self.close_group();
        }
        Ok(self.out)
    }

    fn extent(&mut self, open: Open) -> Result<()> {
        let Some(len) = open.len else { return Ok(()) };
        let at = open.at;
        let is_node = open.users.iter().any(|(user, _)| user.is_of_node());
        if is_node && open.users.iter().any(|(user, _)| !user.is_of_node()) {
            return Err(conflict(at, "it is used as a node and as data"));
        }
        let extent = Extent::new(at, len);
        if len == 0 || at.checked_add(len).is_none() {
            return Err(conflict(at, "its length is impossible"));
        }
        self.enter(extent, is_node, open.node.is_some_and(|node| node.owner == TreeId::CHUNK))?;
        if open.node.is_some_and(|node| self.anew.contains(&node.owner)) {
            self.keep(extent);
            return Ok(());
        }
        self.use_space(extent);
        let mut item = ExtentItem {
            refs: open.users.iter().fold(0, |sum, (_, count)| sum.saturating_add(*count)),
            generation: open.generation.unwrap_or(self.superblock.generation),
            flags: ExtentFlags::DATA,
            tree_block: None,
            inline: Vec::new(),
        };
        let mut key = Key::new(at.0, Kind::EXTENT_ITEM, len);
        if is_node {
            let node = open.node.ok_or_else(|| conflict(at, "a node was not read"))?;
            item.generation = node.generation;
            item.flags = ExtentFlags::TREE_BLOCK;
            if node.by_address {
                item.flags |= ExtentFlags::FULL_BACKREF;
            }
            if self.superblock.incompat.has(Incompat::SKINNY_METADATA) {
                key = Key::new(at.0, Kind::METADATA_ITEM, u64::from(node.level));
            } else {
                item.tree_block = Some((node.first, node.level));
            }
        }
        self.record(at, &key, item, &open.users)
    }

    /// Writes the item, with as many references inline as Linux allows, and further references as
    /// separate items after it.
    fn record(
        &mut self,
        at: Logical,
        key: &Key,
        mut item: ExtentItem,
        users: &[(User, u64)],
    ) -> Result<()> {
        let most = (self.superblock.nodesize as usize / 16).saturating_sub(ITEM_LEN);
        let mut keyed: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
        let mut len = item.byte_len();
        for (user, count) in users {
            let reference = reference(*user, *count)
                .ok_or_else(|| conflict(at, "it has more references than can be counted"))?;
            if len + reference.inline_len() <= most {
                len += reference.inline_len();
                item.inline.push(reference);
                continue;
            }
            let (mut key, payload) = reference.keyed(at);
            // References with the same hash are at the next offsets.
            while keyed.contains_key(&key) {
                key.offset = key.offset.wrapping_add(1);
            }
            keyed.insert(key, payload);
        }
        self.out.items.push(key, &item.to_bytes())?;
        for (key, payload) in keyed {
            self.out.items.push(&key, &payload)?;
        }
        self.out.extents += 1;
        Ok(())
    }

    /// Goes to the group of an extent, and checks the place (RC2).
    fn enter(&mut self, extent: Extent, is_node: bool, is_system: bool) -> Result<()> {
        while self.out.groups.get(self.group).is_some_and(|group| ends_before(group, extent)) {
            self.close_group();
        }
        let group = self.out.groups.get(self.group);
        let group = group.filter(|group| group.chunk.logical <= extent.start);
        let Some(group) = group else {
            return Err(conflict(extent.start, "it lies in no chunk"));
        };
        if extent.end() > group.chunk.logical.end(group.chunk.len) {
            return Err(conflict(extent.start, "it ends beyond its chunk"));
        }
        let wanted = match (is_node, is_system) {
            (_, true) => BlockGroupFlags::SYSTEM,
            (true, false) => BlockGroupFlags::METADATA,
            (false, false) => BlockGroupFlags::DATA,
        };
        if !group.chunk.flags.has(wanted) {
            return Err(conflict(extent.start, "its chunk is for something else"));
        }
        if extent.start < self.reached || extent.start < self.kept {
            return Err(conflict(extent.start, "it shares bytes with the extent before it"));
        }
        Ok(())
    }

    fn use_space(&mut self, extent: Extent) {
        let group = &mut self.out.groups[self.group];
        group.used += extent.len;
        group.free_runs += u64::from(extent.start > self.reached);
        self.reached = extent.end();
        self.keep(extent);
    }

    /// Records the space before `extent` for new nodes. The space of the extent itself is not
    /// available for new nodes.
    fn keep(&mut self, extent: Extent) {
        self.gap(extent.start);
        self.kept = extent.end();
    }

    /// Records the gap from `kept` to `end`, without ranges that must not be overwritten.
    fn gap(&mut self, end: Logical) {
        let chunk = Arc::clone(&self.out.groups[self.group].chunk);
        if !chunk.flags.has(BlockGroupFlags::METADATA) || self.kept >= end {
            return;
        }
        let mut free = RangeSet::default();
        free.insert(self.kept.0..end.0);
        for stripe in chunk.superblock_stripes() {
            free.remove(stripe.start.0..stripe.end().0);
        }
        let mut from = self.kept.0;
        while let Some(kept) = self.avoid.next_from(from).filter(|kept| kept.start < end.0) {
            free.remove(kept.clone());
            from = kept.end;
        }
        let gaps =
            free.iter().map(|range| Extent::new(Logical(range.start), range.end - range.start));
        self.out.gaps.extend(gaps);
    }

    fn close_group(&mut self) {
        let group = &mut self.out.groups[self.group];
        let end = group.chunk.logical.end(group.chunk.len);
        group.free_runs += u64::from(self.reached < end);
        self.gap(end);
        self.group += 1;
        if let Some(next) = self.out.groups.get(self.group) {
            (self.reached, self.kept) = (next.chunk.logical, next.chunk.logical);
        }
    }
}

fn ends_before(group: &GroupUse, extent: Extent) -> bool {
    group.chunk.logical.end(group.chunk.len) <= extent.start
}

/// The error for an extent with facts that contradict each other.
fn conflict(at: Logical, why: &str) -> Error {
    Error::Rebuild(format!("extent {at}: {why}"))
}

/// The reference that a user makes. `None` if the user has more uses than a reference can count.
fn reference(user: User, count: u64) -> Option<BackRef> {
    let count = u32::try_from(count).ok()?;
    Some(match user {
        User::Tree(root) => BackRef::TreeBlock { root },
        User::Node(parent) => BackRef::SharedBlock { parent },
        User::File(root, ino, offset) => BackRef::Data { root, ino, offset, count },
        User::Leaf(parent) => BackRef::SharedData { parent, count },
    })
}
