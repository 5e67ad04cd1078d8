//! The differences between two subvolumes, inode by inode.
//!
//! # Invariants
//!
//! - **D1** A node that both trees share is not read, and no node below it is read. So the cost
//!   depends only on the number of changes.
//! - **D2** Inodes come in the order of their numbers, each at most once.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use buttress_format::{Body, FileExtent, Ino, Key, Kind};
use buttress_tree::{Expect, Node, NodeSource};

use super::tree::Tree;
use crate::error::Result;

/// The differences of one inode.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) ino: Ino,
    /// Whether the inode's item or a name of the inode differs.
    pub(super) inode: bool,
    pub(super) xattrs: bool,
    /// Bytes of the file that some differing extent item covers; sorted, disjoint.
    pub(super) ranges: Vec<Range<u64>>,
}

/// A position in one of the two trees. It is an item, or a child that was not entered yet.
struct Side<'t, 'v> {
    tree: Option<&'t Tree<'v>>,
    path: Vec<(Arc<Node>, usize)>,
}

/// A node and a position in it.
pub(super) type Slot = (Arc<Node>, usize);

impl<'t, 'v> Side<'t, 'v> {
    fn new(tree: Option<&'t Tree<'v>>) -> Result<Self> {
        let mut side = Self { tree, path: Vec::new() };
        if let Some(tree) = tree {
            let root = tree.store().root(tree.id, tree.root)?;
            if !root.is_empty() {
                side.path.push((root, 0));
            }
        }
        Ok(side)
    }

    fn position(&self) -> Option<(u8, Key)> {
        self.path.last().map(|(node, slot)| (node.level(), node.key(*slot)))
    }

    fn here(&self) -> Option<Slot> {
        self.path.last().cloned()
    }

    /// The pointer to the node below the position.
    fn expect(&self) -> Option<Expect> {
        self.path.last().map(|(node, slot)| node.expect_child(*slot))
    }

    fn enter(&mut self) -> Result<()> {
        let (Some(tree), Some(expect)) = (self.tree, self.expect()) else { return Ok(()) };
        let child = tree.store().node(tree.id, &expect)?;
        self.path.push((child, 0));
        Ok(())
    }

    /// Moves past the position. At the end of a node the position goes up to the parent. So the
    /// parent's pointers are compared before anything below them is read (D1).
    fn skip(&mut self) {
        while let Some((node, slot)) = self.path.last_mut() {
            *slot += 1;
            if *slot < node.len() {
                return;
            }
            self.path.pop();
        }
    }
}

/// Walks both trees together.
pub(super) struct Diff<'t, 'v> {
    old: Side<'t, 'v>,
    new: Side<'t, 'v>,
    sector: u64,
    /// The first difference of the next inode, which [`Diff::next`] has read already.
    ahead: Option<Difference>,
}

/// An item that only one side has, or that differs.
pub(super) struct Difference {
    pub(super) key: Key,
    pub(super) old: Option<Slot>,
    pub(super) new: Option<Slot>,
}

impl<'t, 'v> Diff<'t, 'v> {
    pub(super) fn new(old: Option<&'t Tree<'v>>, new: &'t Tree<'v>) -> Result<Self> {
        let sector = new.sector();
        let same = old.is_some_and(|old| old.root == new.root);
        let (old, new) = if same { (None, None) } else { (old, Some(new)) };
        Ok(Self { old: Side::new(old)?, new: Side::new(new)?, sector, ahead: None })
    }

    /// Returns the next inode that differs.
    pub(super) fn next(&mut self) -> Result<Option<Change>> {
        let first = match self.ahead.take() {
            Some(first) => first,
            None => match self.item()? {
                Some(first) => first,
                None => return Ok(None),
            },
        };
        let ino = Ino(first.key.objectid);
        let mut change = Change { ino, inode: false, xattrs: false, ranges: Vec::new() };
        let mut difference = Some(first);
        while let Some(found) = difference {
            if found.key.objectid != ino.0 {
                self.ahead = Some(found);
                break;
            }
            self.note(&mut change, &found);
            difference = self.item()?;
        }
        join(&mut change.ranges);
        Ok(Some(change))
    }

    fn note(&self, change: &mut Change, found: &Difference) {
        match found.key.kind {
            Kind::INODE_ITEM | Kind::INODE_REF | Kind::INODE_EXTREF => change.inode = true,
            Kind::XATTR_ITEM => change.xattrs = true,
            Kind::EXTENT_DATA => {
                for (node, slot) in [&found.old, &found.new].into_iter().flatten() {
                    // An item that does not parse is reported when the content is read.
                    let Ok(extent) = FileExtent::parse(node.item(*slot)) else { continue };
                    let len = match &extent.body {
                        Body::Inline(_) => extent.ram_bytes.max(1).next_multiple_of(self.sector),
                        Body::Regular(region) | Body::Prealloc(region) => region.len,
                    };
                    let start = found.key.offset;
                    change.ranges.push(start..start.saturating_add(len));
                }
            }
            _ => {}
        }
    }

    /// Returns the next item that differs. A caller must not use [`Diff::next`] as well, because
    /// `next` reads ahead.
    pub(super) fn item(&mut self) -> Result<Option<Difference>> {
        loop {
            let (old, new) = (self.old.position(), self.new.position());
            match (old, new) {
                (None, None) => return Ok(None),
                (Some((0, key)), None) => return Ok(Some(self.only_old(key))),
                (None, Some((0, key))) => return Ok(Some(self.only_new(key))),
                (Some(_), None) => self.old.enter()?,
                (None, Some(_)) => self.new.enter()?,
                (Some((old_level, old_key)), Some((new_level, new_key))) => {
                    match (old_key.cmp(&new_key), old_level, new_level) {
                        (Ordering::Less, 0, _) => return Ok(Some(self.only_old(old_key))),
                        (Ordering::Greater, _, 0) => return Ok(Some(self.only_new(new_key))),
                        (Ordering::Less, ..) => self.old.enter()?,
                        (Ordering::Greater, ..) => self.new.enter()?,
                        (Ordering::Equal, 0, 0) => {
                            if let Some(found) = self.both(old_key) {
                                return Ok(Some(found));
                            }
                        }
                        (Ordering::Equal, a, b) if a == b => {
                            let ptr = |side: &Side<'_, '_>| side.expect().map(|expect| expect.ptr);
                            if ptr(&self.old) == ptr(&self.new) {
                                self.old.skip();
                                self.new.skip();
                            } else {
                                self.old.enter()?;
                                self.new.enter()?;
                            }
                        }
                        (Ordering::Equal, a, b) if a > b => self.old.enter()?,
                        (Ordering::Equal, ..) => self.new.enter()?,
                    }
                }
            }
        }
    }

    fn only_old(&mut self, key: Key) -> Difference {
        let old = self.old.here();
        self.old.skip();
        Difference { key, old, new: None }
    }

    fn only_new(&mut self, key: Key) -> Difference {
        let new = self.new.here();
        self.new.skip();
        Difference { key, old: None, new }
    }

    fn both(&mut self, key: Key) -> Option<Difference> {
        let (old, new) = (self.old.here(), self.new.here());
        self.old.skip();
        self.new.skip();
        let same = match (&old, &new) {
            (Some((old, from)), Some((new, to))) => old.item(*from) == new.item(*to),
            _ => false,
        };
        (!same).then_some(Difference { key, old, new })
    }
}

/// Sorts ranges, and joins ranges that touch.
fn join(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges.drain(..) {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    *ranges = joined;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranges that touch become one.
    #[test]
    fn ranges_are_joined() {
        let mut ranges = vec![8..12, 0..4, 4..6, 20..30, 10..14];
        join(&mut ranges);
        assert_eq!(ranges, [0..6, 8..14, 20..30]);
    }
}
