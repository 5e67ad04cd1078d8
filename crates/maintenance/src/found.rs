//! Extents in use, as a committed extent tree lists them.

use buttress_format::{Extent, ExtentFlags, ExtentItem, Generation, Key, Kind, Logical, TreeId};
use buttress_tree::Cursor;
use buttress_txn::{Error, Result, View};

/// How many bytes of extents are listed at once.
pub(crate) const STEP_BYTES: u64 = 64 << 20;

/// One extent to look at.
#[derive(Clone, Copy)]
pub(crate) struct FoundExtent {
    pub(crate) extent: Extent,
    pub(crate) generation: Generation,
    /// The level of a node; `None` for data.
    pub(crate) level: Option<u8>,
}

/// Returns the extents in use from an address on, for one step, and the start of the next step.
/// Each step but the last covers at least [`STEP_BYTES`].
pub(crate) fn extents(
    view: &View,
    from: Logical,
    end: Logical,
) -> Result<(Vec<FoundExtent>, Logical)> {
    extents_for(view, from, end, STEP_BYTES)
}

/// As [`extents`], for a step that covers at least `least` bytes.
pub(crate) fn extents_for(
    view: &View,
    from: Logical,
    end: Logical,
    least: u64,
) -> Result<(Vec<FoundExtent>, Logical)> {
    let root = view
        .committed_root(TreeId::EXTENT)?
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    let geometry = view.store().geometry();
    let (nodesize, sectorsize) = (u64::from(geometry.nodesize), u64::from(geometry.sectorsize));
    let mut found: Vec<FoundExtent> = Vec::new();
    let mut bytes = 0;
    let first = Key::new(from.0, Kind(0), 0);
    let mut cursor = Cursor::seek(&**view.store(), TreeId::EXTENT, root, &first)?;
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        if key.objectid >= end.0 {
            return Ok((found, end));
        }
        // Other items may have the address of a long extent: its references and its block group. A
        // step that began at such an item would list the same extent again, and the steps would
        // never end.
        let is_behind = found.last().is_some_and(|last| last.extent.start.0 < key.objectid);
        if bytes >= least && is_behind {
            return Ok((found, Logical(key.objectid)));
        }
        let len = match key.kind {
            Kind::EXTENT_ITEM => key.offset,
            Kind::METADATA_ITEM => nodesize,
            _ => 0,
        };
        if len > 0 {
            let start = Logical(key.objectid);
            let malformed = |source| Error::Item { tree: TreeId::EXTENT, key, source };
            let item = ExtentItem::parse(&key, item).map_err(malformed)?;
            if start.checked_add(len).is_none_or(|last| last > end) {
                return Err(Error::Extents { at: start, what: "it reaches past its block group" });
            }
            let is_node = item.flags & ExtentFlags::TREE_BLOCK != 0;
            // An extent with a partial sector, or a node of another size, cannot be compared unit
            // by unit.
            let unit = if is_node { nodesize } else { sectorsize };
            let is_whole = start.0.is_multiple_of(sectorsize) && len.is_multiple_of(unit);
            if !is_whole || (is_node && len != nodesize) {
                return Err(Error::Extents {
                    at: start,
                    what: "its place or length is impossible",
                });
            }
            let level = match (is_node, key.kind, item.tree_block) {
                (false, ..) => None,
                (true, Kind::METADATA_ITEM, _) => Some(u8::try_from(key.offset).unwrap_or(u8::MAX)),
                (true, _, known) => known.map(|(_, level)| level),
            };
            let extent = Extent::new(start, len);
            found.push(FoundExtent { extent, generation: item.generation, level });
            bytes += len;
        }
        cursor.advance()?;
    }
    Ok((found, end))
}
