//! The shared space of each file and folder, counted as `btrfs filesystem du` does.

use buttress_format::{Compression, Ino, TreeId};
use buttress_tree::Result;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use crate::progress::Watch;
use crate::sharing::Sharing;
use crate::trees::Trees;
use crate::walk::{File, Start, Visitor, walk};

/// A line; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShareRow {
    /// The path from the place of the walk, with slashes.
    pub path: Vec<u8>,
    /// Bytes of file data in extents, without holes and without data inside tree items.
    pub total: u64,
    /// The bytes of `total` that no other file has.
    pub exclusive: u64,
    /// Bytes of shared data below the place; each address counts once. `Some` only in the row of
    /// the place.
    pub set_shared: Option<u64>,
}

#[derive(Default)]
struct Sum {
    path_len: usize,
    total: u64,
    shared: u64,
}

struct Shares<'s> {
    sharing: &'s Sharing,
    path: Vec<u8>,
    open: Vec<Sum>,
    seen: FxHashSet<(TreeId, Ino)>,
    /// The start and the end of each shared range.
    ranges: Vec<(u64, u64)>,
    rows: Vec<ShareRow>,
}

impl Shares<'_> {
    fn push_name(&mut self, name: &[u8]) -> usize {
        let before = self.path.len();
        if before > 0 && !name.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend(name);
        before
    }

    fn add(&mut self, sum: &Sum) {
        let (path, exclusive) = (self.path.clone(), sum.total - sum.shared);
        self.rows.push(ShareRow { path, total: sum.total, exclusive, set_shared: None });
        if let Some(above) = self.open.last_mut() {
            above.total += sum.total;
            above.shared += sum.shared;
        }
    }
}

impl Visitor for Shares<'_> {
    fn enter(&mut self, name: &[u8]) {
        let path_len = self.push_name(name);
        self.open.push(Sum { path_len, ..Sum::default() });
    }

    fn file(&mut self, name: &[u8], file: &File) {
        if !self.seen.insert((file.tree, file.ino)) {
            return;
        }
        let mut sum = Sum::default();
        for piece in &file.pieces {
            let Some((region, start)) = piece.extent.region().zip(piece.start()) else { continue };
            sum.total += region.len;
            if piece.is_shared(self.sharing) {
                sum.shared += region.len;
                // The address is the one that FIEMAP reports. For an uncompressed part it includes
                // the offset in the extent. For a compressed part it is the start of the extent.
                let is_plain = piece.extent.compression == Compression::None;
                let at = start.0.saturating_add(if is_plain { region.offset } else { 0 });
                self.ranges.push((at, at.saturating_add(region.len)));
            }
        }
        let before = self.push_name(name);
        self.add(&sum);
        self.path.truncate(before);
    }

    fn leave(&mut self) {
        if let Some(sum) = self.open.pop() {
            self.add(&sum);
            self.path.truncate(sum.path_len);
        }
    }
}

/// Returns a row for each file and folder. A folder comes after its content, and the place comes
/// last.
///
/// # Errors
///
/// A tree is damaged, or `watch` does not go on.
pub fn shares(
    trees: &Trees<'_>,
    sharing: &Sharing,
    start: Start,
    watch: Watch<'_>,
) -> Result<Vec<ShareRow>> {
    let (open, ranges, rows) = (Vec::new(), Vec::new(), Vec::new());
    let (path, seen) = (Vec::new(), FxHashSet::default());
    let mut visitor = Shares { sharing, path, open, seen, ranges, rows };
    walk(trees, sharing, start, false, &mut visitor, watch)?;
    let Shares { mut ranges, mut rows, .. } = visitor;
    if let Some(last) = rows.last_mut() {
        last.set_shared = Some(covered(&mut ranges));
    }
    Ok(rows)
}

/// Bytes that ranges cover together.
fn covered(ranges: &mut [(u64, u64)]) -> u64 {
    ranges.sort_unstable();
    let (mut sum, mut end) = (0, 0);
    for &mut (from, to) in ranges {
        sum += to.saturating_sub(from.max(end));
        end = end.max(to);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_are_counted_once() {
        assert_eq!(covered(&mut [(10, 20), (0, 5), (15, 30), (16, 18)]), 25);
        assert_eq!(covered(&mut []), 0);
    }
}
