//! The extents in use, as the extent tree of one moment records them.

use buttress_format::{Extent, ExtentFlags, ExtentItem, Generation, Key, Kind, Logical, TreeId};
use buttress_tree::NodePtr;

use crate::salvage::Salvage;
use crate::tree::Leaves;

/// The extent tree of one moment.
#[derive(Debug)]
pub(crate) struct Extents {
    leaves: Leaves,
}

/// The current use of a range of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeUse {
    /// Nothing: the whole range is free.
    Free,
    /// Exactly the extent asked for. The value is the transaction that allocated it.
    Extent(Generation),
    /// Another extent, or a node.
    Other,
    /// The part of the extent tree for this range cannot be read.
    Unknown,
}

impl Extents {
    pub(crate) fn new(salvage: &Salvage, root: NodePtr) -> Self {
        Self { leaves: Leaves::walk(salvage, TreeId::EXTENT, root, None) }
    }

    /// Returns the transaction that wrote the node at an address, if a node there is in use.
    pub(crate) fn block(&self, salvage: &Salvage, at: Logical) -> Option<Generation> {
        let from = Key::new(at.0, Kind::EXTENT_ITEM, 0);
        let to = Key::new(at.0, Kind(Kind::METADATA_ITEM.0 + 1), 0);
        let mut found = None;
        self.leaves.items(salvage, &from, Some(&to), &mut |key, bytes| {
            if let Ok(item) = ExtentItem::parse(&key, bytes)
                && item.flags & ExtentFlags::TREE_BLOCK != 0
            {
                found = Some(item.generation);
            }
        });
        found
    }

    /// Returns the use of a range of data.
    pub(crate) fn usage(&self, salvage: &Salvage, extent: Extent) -> RangeUse {
        // An extent that begins before this range may overlap the range.
        let before = extent.start.0.saturating_sub(buttress_format::limits::MAX_EXTENT);
        let from = Key::new(before, Kind(0), 0);
        let to = Key::new(extent.end().0, Kind(0), 0);
        let mut found = RangeUse::Free;
        let gaps = self.leaves.items(salvage, &from, Some(&to), &mut |key, bytes| {
            let len = match key.kind {
                Kind::EXTENT_ITEM => key.offset,
                Kind::METADATA_ITEM => u64::from(salvage.superblock().nodesize),
                _ => return,
            };
            let there = Extent::new(Logical(key.objectid), len);
            if !there.overlaps(&extent) {
                return;
            }
            let item = ExtentItem::parse(&key, bytes).ok();
            found = match item {
                Some(item) if there == extent && item.flags & ExtentFlags::DATA != 0 => {
                    RangeUse::Extent(item.generation)
                }
                _ => RangeUse::Other,
            };
        });
        if gaps.is_empty() || found == RangeUse::Other { found } else { RangeUse::Unknown }
    }
}
