//! The checksum tree: there is a checksum for each sector of data whose file has checksums, and none
//! where no data is.
//!
//! # Invariants
//!
//! - **U1** Extents and what files want come in the order of addresses, and are compared as they
//!   come.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_format::{Extent, Ino, Key, Kind, Logical, TreeId, ids, limits::MAX_EXTENT};
use buttress_tree::Cursor;

use crate::context::{Context, Tree};
use crate::issue::Issue;
use crate::source::Source;

/// The ranges that items cover, in order.
pub(crate) struct Ranges<'r, 'c> {
    context: &'r Context<'c>,
    cursor: Option<Cursor<'r, Source<'c>>>,
    /// Whether to report what is wrong with the items; one of two passes does.
    reports: bool,
    reached: Logical,
    /// Bytes of checksums met.
    bytes: Arc<AtomicU64>,
}

impl<'r, 'c> Ranges<'r, 'c> {
    pub(crate) fn new(context: &'r Context<'c>, tree: &Tree, reports: bool) -> Self {
        let cursor = Cursor::seek(&context.source, tree.id, tree.root, &Key::MIN).ok();
        Self { context, cursor, reports, reached: Logical(0), bytes: Arc::default() }
    }

    /// Whether the tree could be read so far.
    fn is_whole(&self) -> bool {
        self.cursor.is_some()
    }

    fn next(&mut self) -> Option<Extent> {
        self.next_item(|_| ()).map(|(range, ())| range)
    }

    /// The next range and its checksums.
    pub(crate) fn next_with_sums(&mut self) -> Option<(Extent, Vec<u8>)> {
        self.next_item(<[u8]>::to_vec)
    }

    fn next_item<T>(&mut self, take: impl Fn(&[u8]) -> T) -> Option<(Extent, T)> {
        let csum_size = self.context.superblock.csum_type.size();
        loop {
            let cursor = self.cursor.as_mut()?;
            let (key, bytes) = (cursor.key()?, cursor.item()?);
            let count = bytes.len() / csum_size;
            let is_right = key.objectid == ids::EXTENT_CSUM
                && key.kind == Kind::EXTENT_CSUM
                && count > 0
                && bytes.len().is_multiple_of(csum_size)
                && self.context.is_aligned(key.offset);
            let range = Extent::new(Logical(key.offset), count as u64 * self.context.sectorsize());
            let taken = take(bytes);
            self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            // What cannot be read was reported by who read it.
            if cursor.advance().is_err() {
                self.cursor = None;
            }
            if !is_right {
                if self.reports {
                    let (tree, logical) = (TreeId::CSUM, Logical(0));
                    let why = "it is no list of checksums".to_owned();
                    self.context.add(Issue::ItemMalformed { tree, logical, key, why });
                }
                continue;
            }
            if range.start < self.reached && self.reports {
                self.context.add(Issue::CsumOverlap { at: range.start });
            }
            self.reached = self.reached.max(range.end());
            return Some((range, taken));
        }
    }
}

/// Compares checksums with data.
pub(crate) struct Csums<'s, 'c> {
    context: &'s Context<'c>,
    /// For what files want: items that reach behind the last start.
    wanted: Ranges<'s, 'c>,
    window: VecDeque<Extent>,
    /// For what extents leave.
    left: Ranges<'s, 'c>,
    rest: Option<Extent>,
}

impl<'s, 'c> Csums<'s, 'c> {
    pub(crate) fn new(context: &'s Context<'c>, tree: &Tree) -> Self {
        let wanted = Ranges::new(context, tree, false);
        let mut left = Ranges::new(context, tree, true);
        let rest = left.next();
        Self { context, wanted, window: VecDeque::new(), left, rest }
    }

    /// Bytes of checksums, as they are met.
    pub(crate) fn bytes_cell(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.left.bytes)
    }

    /// The next extent of data.
    pub(crate) fn data(&mut self, extent: Extent) {
        while let Some(range) = self.rest {
            if range.start >= extent.end() {
                return;
            }
            if range.start < extent.start {
                let end = range.end().min(extent.start);
                let at = Extent::new(range.start, end.distance(range.start));
                self.context.add(Issue::CsumUnused { at });
            }
            self.rest = if range.end() > extent.end() {
                Some(Extent::new(extent.end(), range.end().distance(extent.end())))
            } else {
                self.left.next()
            };
        }
    }

    /// The next bytes whose file wants checksums, or none.
    pub(crate) fn want(
        &mut self,
        range: Extent,
        wanted: bool,
        tree: TreeId,
        ino: Ino,
        offset: u64,
    ) {
        while self.window.front().is_some_and(|covered| covered.end() <= range.start) {
            self.window.pop_front();
        }
        // Longer than any extent is damage, which others report: nothing is collected for it.
        if range.len > 2 * MAX_EXTENT {
            return;
        }
        while self.window.back().is_none_or(|covered| covered.end() < range.end()) {
            let Some(next) = self.wanted.next() else { break };
            if next.end() <= range.start {
                continue;
            }
            match self.window.back_mut() {
                Some(last) if last.end() == next.start => last.len += next.len,
                _ => self.window.push_back(next),
            }
        }
        let mut at = range.start;
        for covered in &self.window {
            if covered.start >= range.end() {
                break;
            }
            if !wanted {
                let at = covered.start.max(range.start);
                self.context.add(Issue::CsumUnexpected { tree, ino, offset, at });
                return;
            }
            if covered.start > at {
                break;
            }
            at = at.max(covered.end());
        }
        if wanted && at < range.end() && self.wanted.is_whole() {
            self.context.add(Issue::CsumMissing { tree, ino, offset, at });
        }
    }

    /// There is no more data.
    pub(crate) fn finish(&mut self) {
        while let Some(range) = self.rest {
            self.context.add(Issue::CsumUnused { at: range });
            self.rest = self.left.next();
        }
    }
}
