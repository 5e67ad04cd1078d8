//! The files of the host that have several names and were copied already.
//!
//! # Invariants
//!
//! - **H1** Within one subvolume, the second name of a file on the host becomes another name of the
//!   first copy. Links do not lead from one subvolume to another.
//! - **H2** A file takes at most 60 bytes of memory here, until the copy has met all its names. A
//!   name outside the copied tree is never met, so such a file takes the memory until the copy
//!   ends.

use std::collections::HashMap;

use buttress_fs::{Ino, InodeId, TreeId};
use rustix::fs::Stat;

/// The copies of files with several names.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// A device on the host with a subvolume of the copy. A `Source` has the index of its pair in
    /// this list.
    places: Vec<(u64, TreeId)>,
    copies: HashMap<Source, Copied>,
}

/// A file on the host and the subvolume of a copy. The numbers are stored in halves, so that the
/// structure needs no padding (H2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source {
    place: u32,
    ino: [u32; 2],
}

/// A copy.
#[derive(Clone, Copy, Debug)]
struct Copied {
    ino: [u32; 2],
    /// Names on the host that were not met yet.
    left: u32,
}

const fn halves(number: u64) -> [u32; 2] {
    [(number >> 32) as u32, number as u32]
}

const fn whole([high, low]: [u32; 2]) -> u64 {
    (high as u64) << 32 | low as u64
}

impl Links {
    /// Notes the copy of the first name of a file.
    pub(crate) fn first(&mut self, stat: &Stat, copy: InodeId) {
        let place = self.place(stat, copy.tree).unwrap_or_else(|| {
            self.places.push((stat.st_dev, copy.tree));
            self.places.len() - 1
        });
        let left = u32::try_from(stat.st_nlink - 1).unwrap_or(u32::MAX);
        let source = Source { place: place as u32, ino: halves(stat.st_ino) };
        self.copies.insert(source, Copied { ino: halves(copy.ino.0), left });
    }

    /// Returns the file that was made for a host file, when the import meets another name of that
    /// host file.
    pub(crate) fn another(&mut self, stat: &Stat, tree: TreeId) -> Option<InodeId> {
        let source = Source { place: self.place(stat, tree)? as u32, ino: halves(stat.st_ino) };
        let copied = self.copies.get_mut(&source)?;
        let ino = Ino(whole(copied.ino));
        copied.left = copied.left.saturating_sub(1);
        if copied.left == 0 {
            self.copies.remove(&source);
        }
        Some(InodeId { tree, ino })
    }

    fn place(&self, stat: &Stat, tree: TreeId) -> Option<usize> {
        // The last place is the likeliest, because trees are copied one after the other.
        self.places.iter().rposition(|place| *place == (stat.st_dev, tree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// H1. A file takes no memory any more when all its names were met.
    #[test]
    fn names_lead_to_the_copy_within_a_subvolume() {
        let mut stat = rustix::fs::stat("/").expect("the root");
        let (one, two) = (TreeId(5), TreeId(256));
        let copy = |tree, ino| InodeId { tree, ino: Ino(ino) };
        let mut links = Links::default();
        (stat.st_nlink, stat.st_ino) = (3, u64::MAX - 6);
        assert_eq!(links.another(&stat, one), None);
        links.first(&stat, copy(one, 300));
        assert_eq!(links.another(&stat, two), None);
        links.first(&stat, copy(two, 257));
        assert_eq!(links.another(&stat, one), Some(copy(one, 300)));
        stat.st_ino -= 1;
        assert_eq!(links.another(&stat, one), None);
        stat.st_ino += 1;
        stat.st_dev ^= 1;
        assert_eq!(links.another(&stat, one), None);
        stat.st_dev ^= 1;
        for (tree, ino) in [(one, 300), (two, 257), (two, 257)] {
            assert_eq!(links.another(&stat, tree), Some(copy(tree, ino)));
        }
        assert!(links.copies.is_empty());
        assert_eq!(size_of::<(Source, Copied)>(), 24, "H2");
    }
}
