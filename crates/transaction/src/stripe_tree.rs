//! The stripe tree at commit: items for data that was written, and none for data that was freed.
//!
//! # Invariants
//!
//! - **P1** The tree has items only for bytes of data extents, in groups with a profile that has
//!   such items. Data that is allocated ahead gets its items when it is written.
//! - **P2** Items that this program makes do not overlap each other. Linux may make overlapping
//!   items, for data that it overwrites in place.
//! - **P3** The time is proportional to the changed items.
//!
//! # Failure
//!
//! An item that does not parse is removed like any other, if its range is freed or written.

use std::collections::BTreeMap;

use buttress_format::{Extent, Key, Kind, Logical, Stride, StripeItem, TreeId};
use buttress_tree::{Change, Cursor, NodePtr, NodeSource};

use crate::Result;

#[cfg(test)]
mod tests;

/// Turns freed ranges and written ranges, each ascending, into changes of items. `items` gives the
/// items that a written range gets.
///
/// # Errors
///
/// When a node of the tree is damaged.
pub fn changes<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    freed: &[Extent],
    written: &[Extent],
    items: impl Fn(Extent) -> Vec<(Extent, StripeItem)>,
) -> Result<BTreeMap<Key, Change>> {
    let mut changes = BTreeMap::new();
    cut(source, root, &merged(freed, written), &mut changes)?;
    for (range, item) in written.iter().flat_map(|range| items(*range)) {
        changes.insert(StripeItem::key(range), Some(item.to_bytes().into()));
    }
    Ok(changes)
}

/// The ranges of both lists, ascending. No range of one list overlaps a range of the other.
fn merged(freed: &[Extent], written: &[Extent]) -> Vec<Extent> {
    let mut all = [freed, written].concat();
    all.sort_unstable();
    all
}

/// Removes ranges from every item that has a part of them.
fn cut<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    ranges: &[Extent],
    changes: &mut BTreeMap<Key, Change>,
) -> Result<()> {
    for (index, range) in ranges.iter().enumerate() {
        let first = Key::new(range.start.0, Kind(0), 0);
        let mut cursor = Cursor::seek_before(source, TreeId::RAID_STRIPE, root, &first)?;
        let reaches = |key: Key| StripeItem::range(&key).is_some_and(|it| it.end() > range.start);
        if !cursor.key().is_some_and(reaches) {
            cursor = Cursor::seek(source, TreeId::RAID_STRIPE, root, &first)?;
        }
        while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
            if key.objectid >= range.end().0 {
                break;
            }
            // An item that reaches into several ranges was cut at the first of them.
            if key.kind == Kind::RAID_STRIPE && !changes.contains_key(&key) {
                let kept = remains(&key, bytes, &ranges[index..]);
                changes.insert(key, None);
                for (range, item) in kept {
                    changes.insert(StripeItem::key(range), Some(item.to_bytes().into()));
                }
            }
            cursor.advance()?;
        }
    }
    Ok(())
}

/// The parts of an item that remain after some ranges are removed. Nothing remains of an item that
/// does not parse.
fn remains(key: &Key, bytes: &[u8], gone: &[Extent]) -> Vec<(Extent, StripeItem)> {
    let mut kept = Vec::new();
    let Some((whole, item)) = StripeItem::range(key).zip(StripeItem::parse(bytes).ok()) else {
        return kept;
    };
    let mut keep = |low: Logical, high: Logical| {
        if low >= high {
            return;
        }
        let skipped = low.distance(whole.start);
        let moved = item.0.iter().map(|stride| {
            let offset = stride.offset.checked_add(skipped)?;
            Some(Stride { offset, ..*stride })
        });
        if let Some(moved) = moved.collect() {
            kept.push((Extent::new(low, high.distance(low)), StripeItem(moved)));
        }
    };
    let mut low = whole.start;
    for range in gone.iter().take_while(|range| range.start < whole.end()) {
        keep(low, range.start);
        low = low.max(range.end());
    }
    keep(low, whole.end());
    kept
}
