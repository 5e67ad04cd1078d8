//! Compares the parity of RAID5 and RAID6 with its data, row by row.
//!
//! # Place
//!
//! The volume reads a row and compares it, as it does for a scrub. This module says which parts of
//! a row are in use, and whether their content is right. Rows with nodes are always compared, and
//! rows with data if the options ask for all data.
//!
//! # Invariants
//!
//! - **PA1** Wrong parity is an issue only beside a sector with a right checksum. The rest may
//!   never have been written: preallocated extents are in use, and their rows may hold anything.
//! - **PA2** One thread goes over extents and checksums in the order of their addresses, and hands
//!   out rows. So the memory is that of one row for each thread that compares.
//! - **PA3** Issues are in the order of the rows, however many threads compare.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use buttress_base::queue::{self, Receiver, Sender};
use buttress_base::thread;
use buttress_format::{
    BlockGroupFlags, Chunk, DeviceId, Extent, ExtentFlags, ExtentItem, Generation, Header, Key,
    Kind, Logical, TreeId,
};
use buttress_tree::Cursor;
use buttress_volume::Sector;

use crate::context::{Context, Tree};
use crate::csums::Ranges;
use crate::facts::Group;
use crate::source::Source;
use buttress_issue::Issue;

/// The most rows that wait for a thread.
const ROWS_AHEAD: usize = 32;

/// A row's index, its issues, and the bytes of parity that were compared.
type Done = (u64, Vec<Issue>, u64);
/// Lists of checksums that reach into a row, in order.
type Sums = VecDeque<Arc<(Extent, Vec<u8>)>>;

/// Compares all parity. Returns the bytes of parity that were compared.
pub(crate) fn compare_all(context: &Context<'_>, trees: &[Tree]) -> u64 {
    let find = |id| trees.iter().find(|tree| tree.id == id);
    let Some(extents) = find(TreeId::EXTENT) else { return 0 };
    let (rows, taken) = queue::bounded::<Row>(ROWS_AHEAD);
    let (done, results) = queue::unbounded::<Done>();
    thread::scope(|scope| {
        for _ in 0..context.threads {
            let (taken, done) = (taken.clone(), done.clone());
            scope.spawn(move || work(context, &taken, &done));
        }
        drop((taken, done));
        let reports = scope.spawn(move || report(context, &results));
        let sums = find(TreeId::CSUM).map(|tree| Ranges::new(context, tree, false));
        let mut feeder = Feeder { context, sums, window: VecDeque::new(), rows, index: 0 };
        for chunk in context.volume.chunks().iter() {
            if let Some(row) = row_at(context, chunk.logical, chunk.flags) {
                feeder.chunk(chunk, row, extents);
            }
        }
        drop(feeder);
        reports.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The bytes in use beside the parity that [`compare_all`] compares, as the groups say.
pub(crate) fn bytes(context: &Context<'_>, groups: &[Group]) -> u64 {
    let with_parity =
        groups.iter().filter(|group| row_at(context, group.extent.start, group.flags).is_some());
    with_parity.fold(0, |sum, group| sum.saturating_add(group.used))
}

/// Bytes of data in the rows of a chunk, if its parity is compared.
fn row_at(context: &Context<'_>, chunk: Logical, flags: BlockGroupFlags) -> Option<u64> {
    let is_wanted = !flags.has(BlockGroupFlags::DATA) || context.options.check_data_csum;
    context.volume.row_bytes(chunk).filter(|_| is_wanted)
}

/// An extent in use.
#[derive(Clone, Copy)]
struct Used {
    extent: Extent,
    /// The transaction of a node.
    node: Option<Generation>,
}

/// A row to compare, and what is known of it.
struct Row {
    index: u64,
    range: Extent,
    is_data: bool,
    used: Vec<Used>,
    sums: Sums,
}

/// Hands out rows.
struct Feeder<'r, 'c> {
    context: &'r Context<'c>,
    sums: Option<Ranges<'r, 'c>>,
    window: Sums,
    rows: Sender<Row>,
    index: u64,
}

impl Feeder<'_, '_> {
    fn chunk(&mut self, chunk: &Chunk, row: u64, extents: &Tree) {
        let whole = Extent::new(chunk.logical, chunk.len);
        let is_data = chunk.flags.has(BlockGroupFlags::DATA);
        let first = Key::new(whole.start.0, Kind(0), 0);
        let (source, id, root) = (&self.context.source, extents.id, extents.root);
        let mut cursor = Cursor::seek(source, id, root, &first).ok();
        let mut at = whole.start;
        let mut used: Vec<Used> = Vec::new();
        while let Some(next) = next_used(self.context, &mut cursor, whole.end()) {
            while next.extent.start >= at.end(row) {
                let before = at;
                at = match used.is_empty() {
                    true => whole.start.end(next.extent.start.distance(whole.start) / row * row),
                    false => at.end(row),
                };
                self.row(Extent::new(before, row), is_data, &mut used);
            }
            self.context.progress.advance(next.extent.len);
            used.push(next);
        }
        while !used.is_empty() && at < whole.end() {
            self.row(Extent::new(at, row), is_data, &mut used);
            at = at.end(row);
        }
    }

    /// Hands out a row, and keeps the extents that reach into the next one.
    fn row(&mut self, range: Extent, is_data: bool, used: &mut Vec<Used>) {
        if used.is_empty() {
            return;
        }
        if is_data {
            self.read_sums(range);
        }
        let (index, sums) = (self.index, self.window.clone());
        self.index += 1;
        // The threads alone keep the receiver. Sending fails only if all have panicked.
        let _ = self.rows.send(Row { index, range, is_data, used: used.clone(), sums });
        used.retain(|used| used.extent.end() > range.end());
    }

    fn read_sums(&mut self, range: Extent) {
        self.window.retain(|list| list.0.end() > range.start);
        while self.window.back().is_none_or(|last| last.0.start < range.end()) {
            let Some(next) = self.sums.as_mut().and_then(Ranges::next_with_sums) else { return };
            if next.0.end() > range.start {
                self.window.push_back(Arc::new(next));
            }
        }
    }
}

fn work(context: &Context<'_>, rows: &Receiver<Row>, done: &Sender<Done>) {
    while let Some(row) = rows.recv() {
        // Sending fails only if `report` has panicked. Its panic is passed on.
        let _ = done.send(compare(context, &row));
    }
}

/// Reports issues in the order of their rows (PA3). Returns the bytes of all rows.
fn report(context: &Context<'_>, results: &Receiver<Done>) -> u64 {
    let (mut early, mut next, mut sum) = (BTreeMap::new(), 0, 0_u64);
    while let Some((index, issues, compared)) = results.recv() {
        sum = sum.saturating_add(compared);
        early.insert(index, issues);
        while let Some(issues) = early.remove(&next) {
            next += 1;
            issues.into_iter().for_each(|issue| context.add(issue));
        }
    }
    sum
}

fn compare(context: &Context<'_>, row: &Row) -> Done {
    let Row { index, range, is_data, ref used, ref sums } = *row;
    let unit = if is_data { context.sectorsize() } else { context.nodesize() };
    let classify = |within: usize, bytes: &[u8]| {
        let place = range.start.end(within as u64);
        match used.iter().find(|used| used.extent.contains(place)) {
            None => Sector::Unused,
            Some(Used { node: None, .. }) => data_state(context, sums, place, bytes),
            // A node that lies across units is looked at in the walk over its tree.
            Some(Used { node: Some(_), extent }) if extent.start != place => Sector::Unknown,
            Some(Used { node: Some(generation), .. }) => {
                node_state(context, place, *generation, bytes)
            }
        }
    };
    // Rows are whole, and each begins where its chunk says. So the only error is a chunk that was
    // reported before.
    let found = context.volume.compare_row(range.start, unit as usize, false, classify);
    let found = found.map(|(_, found)| found).unwrap_or_default();
    let mut issues = Vec::new();
    let mut wrong: VecDeque<(DeviceId, u64)> = found.surely_wrong.into();
    while let Some((device, offset)) = wrong.pop_front() {
        let before = wrong.len();
        wrong.retain(|(other, _)| *other != device);
        let bytes = (before - wrong.len() + 1) as u64 * unit;
        issues.push(Issue::ParityMismatch { row: range, device, offset, bytes });
    }
    (index, issues, found.compared.saturating_mul(unit))
}

/// The next extent before `end`.
fn next_used(
    context: &Context<'_>,
    cursor: &mut Option<Cursor<'_, Source<'_>>>,
    end: Logical,
) -> Option<Used> {
    while let Some(here) = cursor {
        let (key, bytes) = here.key().and_then(|key| Some((key, here.item()?)))?;
        if key.objectid >= end.0 {
            return None;
        }
        let len = match key.kind {
            Kind::EXTENT_ITEM => Some(key.offset),
            Kind::METADATA_ITEM => Some(context.nodesize()),
            _ => None,
        };
        let item = len.and_then(|len| Some((len, ExtentItem::parse(&key, bytes).ok()?)));
        // Behind a leaf that cannot be read, the cursor is of no more use. The leaf is reported.
        if here.advance().is_err() {
            *cursor = None;
        }
        if let Some((len, item)) = item {
            let is_node = item.flags & ExtentFlags::TREE_BLOCK != 0;
            let extent = Extent::new(Logical(key.objectid), len);
            return Some(Used { extent, node: is_node.then_some(item.generation) });
        }
    }
    None
}

fn data_state(context: &Context<'_>, sums: &Sums, at: Logical, bytes: &[u8]) -> Sector {
    let csum = context.superblock.csum_type;
    let list = sums.iter().find(|list| list.0.contains(at));
    let sum = list.map(|list| &**list).and_then(|(list, sums)| {
        let index = (at.distance(list.start) / context.sectorsize()) as usize;
        sums.get(index * csum.size()..(index + 1) * csum.size())
    });
    match sum {
        None => Sector::Unknown,
        Some(sum) if csum.digest(bytes)[..csum.size()] == *sum => Sector::Good,
        Some(_) => Sector::Bad,
    }
}

fn node_state(context: &Context<'_>, at: Logical, generation: Generation, bytes: &[u8]) -> Sector {
    let csum = context.superblock.csum_type;
    if bytes.len() as u64 != context.nodesize() {
        return Sector::Unknown;
    }
    let is_good = csum.digest(&bytes[32..])[..csum.size()] == bytes[..csum.size()]
        && Header::parse(bytes)
            .is_ok_and(|header| header.bytenr == at && header.generation == generation);
    if is_good { Sector::Good } else { Sector::Bad }
}
