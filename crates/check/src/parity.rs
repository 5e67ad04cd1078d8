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
//! - **PA2** Rows are read in the order of their addresses. Memory is needed for one row, its
//!   extents and its checksums.

use std::collections::VecDeque;

use buttress_format::{
    BlockGroupFlags, DeviceId, Extent, ExtentFlags, ExtentItem, Generation, Header, Key, Kind,
    Logical, TreeId,
};
use buttress_tree::Cursor;
use buttress_volume::Sector;

use crate::context::{Context, Tree};
use crate::csums::Ranges;
use crate::issue::Issue;
use crate::source::Source;

/// Compares all parity. Returns the bytes of parity that were compared.
pub(crate) fn compare_all(context: &Context<'_>, trees: &[Tree]) -> u64 {
    let find = |id| trees.iter().find(|tree| tree.id == id);
    let Some(extents) = find(TreeId::EXTENT) else { return 0 };
    let mut rows = Rows {
        context,
        sums: find(TreeId::CSUM).map(|tree| Ranges::new(context, tree, false)),
        window: VecDeque::new(),
        compared: 0,
    };
    for chunk in context.volume.chunks().iter() {
        let is_data = chunk.flags.has(BlockGroupFlags::DATA);
        if !context.volume.has_parity(chunk.logical) || is_data && !context.options.check_data_csum
        {
            continue;
        }
        let Some(row) = context.volume.row_bytes(chunk.logical) else { continue };
        let whole = Extent::new(chunk.logical, chunk.len);
        rows.chunk(Striped { whole, row, is_data }, extents);
    }
    rows.compared
}

/// A chunk with parity.
#[derive(Clone, Copy)]
struct Striped {
    whole: Extent,
    /// Bytes of data in a row.
    row: u64,
    is_data: bool,
}

/// An extent in use.
#[derive(Clone, Copy)]
struct Used {
    extent: Extent,
    /// The transaction of a node.
    node: Option<Generation>,
}

struct Rows<'r, 'c> {
    context: &'r Context<'c>,
    sums: Option<Ranges<'r, 'c>>,
    /// Lists of checksums that reach into the next row.
    window: VecDeque<(Extent, Vec<u8>)>,
    compared: u64,
}

impl Rows<'_, '_> {
    fn chunk(&mut self, striped: Striped, extents: &Tree) {
        let Striped { whole, row, .. } = striped;
        let first = Key::new(whole.start.0, Kind(0), 0);
        let source = &self.context.source;
        let mut cursor = Cursor::seek(source, extents.id, extents.root, &first).ok();
        let mut at = whole.start;
        let mut used: Vec<Used> = Vec::new();
        while let Some(next) = next_used(self.context, &mut cursor, whole.end()) {
            while next.extent.start >= at.end(row) {
                let before = at;
                at = match used.is_empty() {
                    true => whole.start.end(next.extent.start.distance(whole.start) / row * row),
                    false => at.end(row),
                };
                self.row(striped, before, &mut used);
            }
            used.push(next);
        }
        while !used.is_empty() && at < whole.end() {
            self.row(striped, at, &mut used);
            at = at.end(row);
        }
    }

    /// Compares a row, and keeps the extents that reach into the next one.
    fn row(&mut self, striped: Striped, at: Logical, used: &mut Vec<Used>) {
        let Striped { row, is_data, .. } = striped;
        let range = Extent::new(at, row);
        if used.is_empty() {
            return;
        }
        if is_data {
            self.read_sums(range);
        }
        let (context, window) = (self.context, &self.window);
        let unit = if is_data { context.sectorsize() } else { context.nodesize() };
        let classify = |within: usize, bytes: &[u8]| {
            let place = at.end(within as u64);
            match used.iter().find(|used| used.extent.contains(place)) {
                None => Sector::Unused,
                Some(Used { node: None, .. }) => data_state(context, window, place, bytes),
                // A node that lies across units is looked at in the walk over its tree.
                Some(Used { node: Some(_), extent }) if extent.start != place => Sector::Unknown,
                Some(Used { node: Some(generation), .. }) => {
                    node_state(context, place, *generation, bytes)
                }
            }
        };
        // Rows are whole, and each begins where its chunk says. So the only error is a chunk that
        // was reported before.
        if let Ok((_, found)) = context.volume.compare_row(at, unit as usize, false, classify) {
            self.compared = self.compared.saturating_add(found.compared * unit);
            let mut wrong: VecDeque<(DeviceId, u64)> = found.surely_wrong.into();
            while let Some((device, offset)) = wrong.pop_front() {
                let before = wrong.len();
                wrong.retain(|(other, _)| *other != device);
                let bytes = (before - wrong.len() + 1) as u64 * unit;
                context.add(Issue::ParityMismatch { row: range, device, offset, bytes });
            }
        }
        used.retain(|used| used.extent.end() > range.end());
    }

    /// Reads the checksums up to the end of a row.
    fn read_sums(&mut self, range: Extent) {
        self.window.retain(|(list, _)| list.end() > range.start);
        while self.window.back().is_none_or(|(last, _)| last.start < range.end()) {
            let Some(next) = self.sums.as_mut().and_then(Ranges::next_with_sums) else { return };
            if next.0.end() > range.start {
                self.window.push_back(next);
            }
        }
    }
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

fn data_state(
    context: &Context<'_>,
    window: &VecDeque<(Extent, Vec<u8>)>,
    at: Logical,
    bytes: &[u8],
) -> Sector {
    let csum = context.superblock.csum_type;
    let sum = window.iter().find(|(list, _)| list.contains(at)).and_then(|(list, sums)| {
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
