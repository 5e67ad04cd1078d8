//! Parts of a file that earlier checks found to be writable in place.
//!
//! # Place
//!
//! Each part is a hint, with the state that the check saw: the layout of the file's extents, and
//! the stamp of the extent. A writer takes the right to write in place. Then it compares the hint's
//! layout and stamp with the present ones.
//!
//! # Invariants
//!
//! - **X1** All parts are of one layout. A change of the file's layout discards all of them.
//! - **X2** A file has at most [`HINTS_MAX`] parts.

use std::collections::BTreeMap;
use std::ops::Range;

use buttress_format::Logical;
use buttress_txn::Stamp;

/// The most parts remembered for a file. With one more part, the file forgets all parts.
const HINTS_MAX: usize = 4096;

/// The item of an extent that only this file refers to.
#[derive(Clone, Debug)]
pub(crate) struct InPlaceHint {
    /// The range of the item in the file.
    pub(crate) range: Range<u64>,
    /// The address of the range's first byte on disk.
    pub(crate) disk: Logical,
    /// The address of the whole extent; the item may show only a part of it.
    pub(crate) of: Logical,
    /// The state of the extent that the check was based on.
    pub(crate) stamp: Stamp,
}

/// The parts of one file.
#[derive(Debug, Default)]
pub(crate) struct InPlaceHints {
    layout: u64,
    hints: BTreeMap<u64, InPlaceHint>,
}

impl InPlaceHints {
    /// Remembers a part.
    pub(crate) fn insert(&mut self, layout: u64, hint: InPlaceHint) {
        if self.layout != layout || self.hints.len() >= HINTS_MAX {
            self.hints.clear();
            self.layout = layout;
        }
        self.hints.insert(hint.range.start, hint);
    }

    /// The part that all of `range` lies in.
    pub(crate) fn find(&self, layout: u64, range: &Range<u64>) -> Option<InPlaceHint> {
        let (_, hint) = self.hints.range(..=range.start).next_back()?;
        (self.layout == layout && range.end <= hint.range.end).then(|| hint.clone())
    }

    /// Forgets the part that starts at `offset`.
    pub(crate) fn forget(&mut self, offset: u64) {
        self.hints.remove(&offset);
    }
}
