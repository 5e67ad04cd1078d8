//! Changes by address that the ledger of reservations has not read yet.
//!
//! # Invariants
//!
//! - The list joins changes when it has [`FEW`] entries, or twice as many entries as the last join
//!   left, whichever is more. So its memory follows the number of changed addresses.
//! - The joined changes of one address say the same as its single changes, one after another.

use buttress_format::Logical;

/// The length from which a list joins the changes of the same address.
const FEW: usize = 1 << 13;

/// A change at an address.
pub(crate) trait Change: Copy {
    /// The address.
    fn start(&self) -> Logical;
    /// Adds a later change of the same address.
    fn join(&mut self, later: Self);
    /// Whether the change has no effect on the ledger.
    fn is_nothing(&self) -> bool;
}

/// The changes since the ledger read them last, in their order.
#[derive(Debug)]
pub(crate) struct Unread<C> {
    list: Vec<C>,
    /// The length at which the list joins changes again.
    full: usize,
}

impl<C> FromIterator<C> for Unread<C> {
    fn from_iter<I: IntoIterator<Item = C>>(changes: I) -> Self {
        Self { list: changes.into_iter().collect(), full: FEW }
    }
}

impl<C> Default for Unread<C> {
    fn default() -> Self {
        Self { list: Vec::new(), full: FEW }
    }
}

impl<C: Change> Unread<C> {
    /// Notes a change: O(log n), amortised.
    pub(crate) fn push(&mut self, change: C) {
        if self.list.len() == self.full {
            self.join();
            self.full = FEW.max(2 * self.list.len());
        }
        self.list.push(change);
    }

    /// Adds all changes of another list. No address has changes in both lists.
    pub(crate) fn append(&mut self, mut other: Self) {
        self.list.append(&mut other.list);
    }

    /// The changes by address, one for each address.
    pub(crate) fn into_sorted(mut self) -> Vec<C> {
        self.join();
        self.list
    }

    fn join(&mut self) {
        self.list.sort_by_key(C::start);
        self.list.dedup_by(|later, first| {
            let are_one = later.start() == first.start();
            if are_one {
                first.join(*later);
            }
            are_one
        });
        self.list.retain(|change| !change.is_nothing());
    }
}

#[cfg(test)]
mod tests {
    use buttress_base::Rng;

    use super::*;

    /// Bytes before and after.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Step(Logical, u64, u64);

    impl Change for Step {
        fn start(&self) -> Logical {
            self.0
        }

        fn join(&mut self, later: Self) {
            self.2 = later.2;
        }

        fn is_nothing(&self) -> bool {
            (self.1, self.2) == (0, 0)
        }
    }

    /// However often the same addresses change, a list has the whole change of each address, and
    /// stays short.
    #[test]
    fn a_list_of_unread_changes_stays_short_when_few_addresses_change_often() {
        let (mut unread, mut rng) = (Unread::default(), Rng::new(1));
        let (first, mut held) = ([7; 100], [7; 100]);
        for _ in 0..20 * FEW {
            let (at, after) = (rng.below(100) as usize, rng.below(3));
            unread.push(Step(Logical(at as u64), held[at], after));
            held[at] = after;
            assert!(unread.list.len() <= FEW);
        }
        let expected: Vec<_> =
            (0..100).map(|at| Step(Logical(at as u64), first[at], held[at])).collect();
        assert_eq!(unread.into_sorted(), expected);
        let mut unread = Unread::default();
        for at in 0..3 * FEW as u64 {
            unread.push(Step(Logical(at), 0, 1));
            unread.push(Step(Logical(at), 1, 0));
        }
        assert_eq!((unread.list.len() <= FEW, unread.into_sorted()), (true, vec![]));
    }
}
