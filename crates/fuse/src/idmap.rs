//! Converts ids of the volume to ids of this machine and back. The options are
//! `uidmap=VOLUME:HERE:COUNT`, `gidmap=VOLUME:HERE:COUNT` and `idmap=user`.
//!
//! # Place
//!
//! An image made for another machine, or for a container, has owners with ids that mean other users
//! here. The map converts ids in every attribute, every new file, every change of owner and every
//! access list. So the kernel decides by the ids that programs have.
//!
//! # Invariants
//!
//! - **I1** Without an option no id is changed.
//! - **I2** With an option, an id of the volume that is in no range is shown as [`UNMAPPED_ID`],
//!   which is never written. An id of this machine that is in no range has no counterpart in the
//!   volume. Making a file with such an owner, or changing an owner to it, fails with `EOVERFLOW`.
//!   An idmapped mount of Linux does the same.
//! - **I3** Ranges overlap neither in the volume's ids nor in this machine's. So an id that is
//!   written is shown again as the same id.

/// The id that is shown for ids of the volume that are in no range.
pub(crate) const UNMAPPED_ID: u32 = 65_534;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    volume: u32,
    here: u32,
    count: u32,
}

impl Span {
    fn overlaps(self, other: Self) -> bool {
        let meets = |a: u32, b: u32| {
            let (a, b) = (u64::from(a), u64::from(b));
            a < b + u64::from(other.count) && b < a + u64::from(self.count)
        };
        meets(self.volume, other.volume) || meets(self.here, other.here)
    }
}

/// One kind of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    spans: Vec<Span>,
}

impl IdMap {
    /// Says whether the map changes no id (I1).
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.spans.is_empty()
    }

    /// Adds `VOLUME:HERE:COUNT`; says whether it is well formed and overlaps nothing (I3).
    pub fn add(&mut self, text: &str) -> bool {
        let numbers: Option<Vec<u32>> = text.split(':').map(|word| word.parse().ok()).collect();
        let Some(&[volume, here, count]) = numbers.as_deref() else { return false };
        self.insert(Span { volume, here, count })
    }

    /// Maps root of the volume to the id `here`. Returns false if this mapping overlaps another
    /// range.
    pub fn add_root(&mut self, here: u32) -> bool {
        self.insert(Span { volume: 0, here, count: 1 })
    }

    fn insert(&mut self, span: Span) -> bool {
        // The largest number means "no id" everywhere, so no range may contain it.
        let fits = |first: u32| first.checked_add(span.count).is_some();
        if span.count == 0 || !fits(span.volume) || !fits(span.here) {
            return false;
        }
        if self.spans.iter().any(|other| span.overlaps(*other)) {
            return false;
        }
        self.spans.push(span);
        true
    }

    /// Converts an id of the volume to the id that programs see.
    #[must_use]
    pub fn show(&self, id: u32) -> u32 {
        if self.is_identity() {
            return id;
        }
        let of = |span: &Span| {
            Some(span.here + id.checked_sub(span.volume).filter(|at| *at < span.count)?)
        };
        self.spans.iter().find_map(of).unwrap_or(UNMAPPED_ID)
    }

    /// Converts an id of this machine to the id that is written. `None` if the volume has no id for
    /// it (I2).
    #[must_use]
    pub fn write(&self, id: u32) -> Option<u32> {
        if self.is_identity() {
            return Some(id);
        }
        let of = |span: &Span| {
            Some(span.volume + id.checked_sub(span.here).filter(|at| *at < span.count)?)
        };
        self.spans.iter().find_map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I2, I3: ids in a range are converted both ways, and other ids are not.
    #[test]
    fn ranges_go_both_ways() {
        let mut map = IdMap::default();
        assert_eq!((map.show(7), map.write(7)), (7, Some(7)));
        assert!(map.add("0:1000:1") && map.add("1:100000:65536"));
        assert_eq!(
            [0, 1, 65536, 65537].map(|id| map.show(id)),
            [1000, 100_000, 165_535, UNMAPPED_ID]
        );
        assert_eq!([1000, 100_000, 0].map(|id| map.write(id)), [Some(0), Some(1), None]);
        for wrong in
            ["0:5:1", "70000:1000:1", "1:2", "a:1:1", "1:1:0", "4294967295:1:2", "7:4294967295:1"]
        {
            assert!(!map.add(wrong), "{wrong}");
        }
    }
}
