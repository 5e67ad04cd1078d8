//! The checksum tree at commit: sums of new data in, sums of freed data out.
//!
//! # Invariants
//!
//! - **C1** No two items overlap; an item's payload is a whole number of sums.
//! - **C2** A new run that begins where an item ends makes that item longer, as long as it stays
//!   within what Linux allows one item to hold.

use std::collections::BTreeMap;

use buttress_format::{Extent, Key, Kind, Logical, TreeId, ids, limits};
use buttress_tree::{Change, Cursor, Geometry, NodePtr, NodeSource};

use crate::{Error, Result};

/// The items that change, by address: their new sums, or nothing.
struct Editor<'s, S: NodeSource + ?Sized> {
    source: &'s S,
    root: NodePtr,
    sector: u64,
    size: usize,
    edited: BTreeMap<Logical, Option<Vec<u8>>>,
}

fn key_of(at: Logical) -> Key {
    Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at.0)
}

/// Turns freed ranges and new runs, each ascending, into changes of items.
pub(crate) fn changes<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    geometry: &Geometry,
    freed: &[Extent],
    added: &[(Extent, std::sync::Arc<[u8]>)],
) -> Result<BTreeMap<Key, Change>> {
    let mut editor = Editor {
        source,
        root,
        sector: u64::from(geometry.sectorsize),
        size: geometry.csum.size(),
        edited: BTreeMap::new(),
    };
    for extent in freed {
        editor.remove(*extent)?;
    }
    let max = limits::csum_item_max(geometry.nodesize, geometry.csum.size());
    for (extent, sums) in added {
        editor.insert(*extent, sums, max)?;
    }
    let into_change = |sums: Option<Vec<u8>>| sums.map(Into::into);
    Ok(editor.edited.into_iter().map(|(at, sums)| (key_of(at), into_change(sums))).collect())
}

impl<S: NodeSource + ?Sized> Editor<'_, S> {
    fn len(&self, sums: &[u8]) -> u64 {
        (sums.len() / self.size) as u64 * self.sector
    }

    /// The last item at or before an address, as edited so far.
    fn before(&self, at: Logical) -> Result<Option<(Logical, Vec<u8>)>> {
        let mut high = at;
        loop {
            let cursor = Cursor::seek_before(self.source, TreeId::CSUM, self.root, &key_of(high))?;
            let in_tree = cursor
                .key()
                .filter(|k| k.kind == Kind::EXTENT_CSUM && k.objectid == ids::EXTENT_CSUM)
                .map(|k| Logical(k.offset));
            let in_edit = self.edited.range(..=high).next_back();
            match (in_tree, in_edit) {
                (None, None) => return Ok(None),
                (tree, Some((edit, sums))) if tree.is_none_or(|t| *edit >= t) => match sums {
                    Some(sums) => return Ok(Some((*edit, sums.clone()))),
                    None => match edit.0.checked_sub(1) {
                        Some(below) => high = Logical(below),
                        None => return Ok(None),
                    },
                },
                (Some(tree), _) => return Ok(Some((tree, self.item(&cursor, tree)?))),
                (None, Some(_)) => return Ok(None),
            }
        }
    }

    fn item(&self, cursor: &Cursor<'_, S>, at: Logical) -> Result<Vec<u8>> {
        let sums = cursor.item().unwrap_or_default();
        let odd = !sums.len().is_multiple_of(self.size) || sums.is_empty();
        if odd || at.checked_add(self.len(sums)).is_none() {
            return Err(Error::Extents { at, what: "a checksum item has an impossible length" });
        }
        Ok(sums.to_vec())
    }

    /// Cuts a range out of every item that holds a part of it.
    fn remove(&mut self, extent: Extent) -> Result<()> {
        // From the last item that begins in the range back to the one that reaches into it.
        let Some(mut high) = extent.end().0.checked_sub(1).map(Logical) else { return Ok(()) };
        while let Some((start, sums)) = self.before(high)? {
            let end = start.end(self.len(&sums));
            if end <= extent.start {
                break;
            }
            let index = |at: Logical| (at.distance(start) / self.sector) as usize * self.size;
            self.edited.insert(start, None);
            if start < extent.start {
                let head = sums[..index(extent.start)].to_vec();
                self.edited.insert(start, Some(head));
            }
            if end > extent.end() {
                let tail = sums[index(extent.end())..].to_vec();
                self.edited.insert(extent.end(), Some(tail));
            }
            match start.0.checked_sub(1) {
                Some(below) if start > extent.start => high = Logical(below),
                _ => break,
            }
        }
        Ok(())
    }

    fn insert(&mut self, extent: Extent, sums: &[u8], max: usize) -> Result<()> {
        let mut at = extent.start;
        let mut rest = sums;
        if let Some((start, mut item)) = self.before(at)? {
            let end = start.end(self.len(&item));
            if end > at {
                return Err(Error::Extents { at, what: "new data already has checksums" });
            }
            if end == at && item.len() < max {
                let (more, left) = rest.split_at((max - item.len()).min(rest.len()));
                item.extend_from_slice(more);
                self.edited.insert(start, Some(item));
                at = at.end(self.len(more));
                rest = left;
            }
        }
        for piece in rest.chunks(max) {
            self.edited.insert(at, Some(piece.to_vec()));
            at = at.end(self.len(piece));
        }
        Ok(())
    }
}
