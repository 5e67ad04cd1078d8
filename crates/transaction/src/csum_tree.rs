//! The checksum tree at commit: adds the sums of new data and removes the sums of freed data.
//!
//! # Invariants
//!
//! - **C1** No two items overlap; an item's payload is a whole number of sums.
//! - **C2** A new run that begins where an item ends extends that item, up to the length that Linux
//!   allows.
//! - **C3** The time is proportional to the changed items plus the changed sums, not to their
//!   product. A commit may free and add a hundred thousand extents of one sector, and an item has
//!   four thousand sums.
//! - **C4** Where a run goes on in a new item, that item begins at a multiple of `multiple`. With a
//!   stripe tree, btrfs-progs reads the data from there, and finds only what begins there.

use std::collections::BTreeMap;

use buttress_format::{Extent, Key, Kind, Logical, TreeId, ids, limits};
use buttress_tree::{Change, Cursor, Geometry, NodePtr, NodeSource};

use crate::{Error, Result};

#[cfg(test)]
mod tests;

/// The changed items by address: their new sums, or `None` for a removed item.
struct Editor<'s, S: NodeSource + ?Sized> {
    source: &'s S,
    root: NodePtr,
    sector: u64,
    size: usize,
    /// The longest item, in bytes of sums.
    max: usize,
    /// See C4, in bytes of data.
    multiple: u64,
    edited: BTreeMap<Logical, Option<Vec<u8>>>,
    /// The start and end of the last item that sums were added to.
    last: Option<(Logical, Logical)>,
}

/// The last item at or before an address, as edited so far.
enum Before {
    /// The item is among the edited items.
    Edited(Logical),
    InTree(Logical, Vec<u8>),
}

fn key_of(at: Logical) -> Key {
    Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at.0)
}

/// Turns freed ranges and new runs, each ascending, into changes of items. `multiple` is that of
/// C4, in bytes; 1 where it does not matter.
///
/// # Errors
///
/// When a node of the tree is damaged, or new data already has checksums.
pub fn changes<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    (geometry, multiple): (&Geometry, u64),
    freed: &[Extent],
    added: &[(Extent, std::sync::Arc<[u8]>)],
) -> Result<BTreeMap<Key, Change>> {
    let mut editor = Editor {
        source,
        root,
        sector: u64::from(geometry.sectorsize),
        size: geometry.csum.size(),
        max: limits::csum_item_max(geometry.nodesize, geometry.csum.size()),
        multiple,
        edited: BTreeMap::new(),
        last: None,
    };
    editor.remove(freed)?;
    for (extent, sums) in added {
        editor.insert(*extent, sums)?;
    }
    Ok(editor.edited.into_iter().map(|(at, s)| (key_of(at), s.map(Into::into))).collect())
}

impl<S: NodeSource + ?Sized> Editor<'_, S> {
    fn len(&self, sums: &[u8]) -> u64 {
        (sums.len() / self.size) as u64 * self.sector
    }

    /// How many bytes of sums an item at `start` may have (C2, C4).
    fn room(&self, start: Logical) -> usize {
        let end = start.0.saturating_add((self.max / self.size) as u64 * self.sector);
        let len = (end - end % self.multiple).saturating_sub(start.0);
        if len == 0 { self.max } else { (len / self.sector) as usize * self.size }
    }

    /// The item at the position of a cursor.
    fn item<'c>(&self, cursor: &'c Cursor<'_, S>) -> Result<Option<(Logical, &'c [u8])>> {
        let ours = |k: &Key| k.kind == Kind::EXTENT_CSUM && k.objectid == ids::EXTENT_CSUM;
        let Some(at) = cursor.key().filter(ours).map(|k| Logical(k.offset)) else {
            return Ok(None);
        };
        let sums = cursor.item().unwrap_or_default();
        let odd = !sums.len().is_multiple_of(self.size) || sums.is_empty();
        if odd || at.checked_add(self.len(sums)).is_none() {
            return Err(Error::Extents { at, what: "a checksum item has an impossible length" });
        }
        Ok(Some((at, sums)))
    }

    /// Removes ranges from every item that holds a part of them. The ranges are ascending and do
    /// not overlap. Each item is edited once, however many parts are removed, because it may have
    /// four thousand sums.
    fn remove(&mut self, gone: &[Extent]) -> Result<()> {
        let (mut rest, mut done) = (gone, Logical(0));
        while let Some(first) = rest.first() {
            let low = first.start.max(done);
            let mut cursor =
                Cursor::seek_before(self.source, TreeId::CSUM, self.root, &key_of(low))?;
            let reaches = |(at, sums): (Logical, &[u8])| at.end(self.len(sums)) > low;
            if !self.item(&cursor)?.is_some_and(reaches) {
                cursor.seek_on(&key_of(low))?;
            }
            let Some((at, sums)) = self.item(&cursor)? else { break };
            let end = at.end(self.len(sums));
            // The part of a range before the item has no sums.
            rest = &rest[rest.partition_point(|range| range.end() <= at)..];
            let inside = rest.partition_point(|range| range.start < end);
            if inside > 0 {
                let kept = self.cut(at, sums, &rest[..inside]);
                self.edited.insert(at, None);
                self.edited.extend(kept.into_iter().map(|(at, sums)| (at, Some(sums))));
            }
            // The last of these ranges may reach into the next item.
            rest = &rest[rest.partition_point(|range| range.end() <= end)..];
            done = end;
        }
        Ok(())
    }

    /// The sums of an item that remain after some ranges are removed.
    fn cut(&self, start: Logical, sums: &[u8], gone: &[Extent]) -> Vec<(Logical, Vec<u8>)> {
        let index = |at: Logical| (at.distance(start) / self.sector) as usize * self.size;
        let end = start.end(self.len(sums));
        let mut kept = Vec::new();
        let mut keep = |low: Logical, high: Logical| {
            if low < high && index(low) < index(high) {
                kept.push((low, sums[index(low)..index(high)].to_vec()));
            }
        };
        let mut low = start;
        for range in gone {
            keep(low, range.start);
            low = low.max(range.end());
        }
        keep(low, end);
        kept
    }

    fn before(&self, at: Logical) -> Result<Option<Before>> {
        let mut cursor = Cursor::seek_before(self.source, TreeId::CSUM, self.root, &key_of(at))?;
        let mut high = at;
        loop {
            let in_tree = self.item(&cursor)?;
            let in_edit = self.edited.range(..=high).next_back();
            match (in_tree, in_edit) {
                (None, None) => return Ok(None),
                (tree, Some((edit, sums))) if tree.is_none_or(|(tree, _)| *edit >= tree) => {
                    if sums.is_some() {
                        return Ok(Some(Before::Edited(*edit)));
                    }
                    // This item was removed, so the search goes on before this item, also in the
                    // tree.
                    let Some(below) = edit.0.checked_sub(1) else { return Ok(None) };
                    high = Logical(below);
                    if tree.is_some_and(|(tree, _)| tree > high) {
                        cursor.retreat()?;
                    }
                }
                (Some((tree, sums)), _) => {
                    return Ok(Some(Before::InTree(tree, sums.to_vec())));
                }
                (None, Some(_)) => return Ok(None),
            }
        }
    }

    fn insert(&mut self, extent: Extent, sums: &[u8]) -> Result<()> {
        let before = match self.last {
            Some((start, end)) if end == extent.start => Some(Before::Edited(start)),
            _ => self.before(extent.start)?,
        };
        let (start, mut item) = match before {
            // The item is moved out and put back, not copied, because many runs extend the same
            // item.
            Some(Before::Edited(start)) => {
                (start, self.edited.insert(start, None).flatten().unwrap_or_default())
            }
            Some(Before::InTree(start, item)) => (start, item),
            None => (extent.start, Vec::new()),
        };
        let end = start.end(self.len(&item));
        if end > extent.start {
            let at = extent.start;
            return Err(Error::Extents { at, what: "new data already has checksums" });
        }
        let (mut at, mut rest, mut last) = (extent.start, sums, start);
        let room = self.room(start).saturating_sub(item.len());
        if end == at && !item.is_empty() && room > 0 {
            let (more, left) = rest.split_at(room.min(rest.len()));
            item.extend_from_slice(more);
            (at, rest) = (at.end(self.len(more)), left);
            self.edited.insert(start, Some(item));
        } else if !item.is_empty() && self.edited.contains_key(&start) {
            self.edited.insert(start, Some(item));
        }
        while !rest.is_empty() {
            let (piece, left) = rest.split_at(self.room(at).min(rest.len()));
            self.edited.insert(at, Some(piece.to_vec()));
            last = at;
            (at, rest) = (at.end(self.len(piece)), left);
        }
        self.last = Some((last, at));
        Ok(())
    }
}
