//! An index of groups by their largest free run, so that a search does not look at each group.
//!
//! # Place
//!
//! There is one index for each kind of space. A group has a slot, a number that it keeps for as
//! long as it lives. A plane has the groups of one size class, or the groups that are not loaded.
//! The order of a run is the binary logarithm of its length in units of 4 KiB, rounded down
//! ([`order_of`]). A group is entered in one plane, under every order up to the order of its
//! largest free run. So for each order, one bitmap names all groups of a plane with a run of at
//! least this order. A search goes from a slot to the last slot, and then on from the first. Groups
//! that are added together get slots in the order of their addresses, so a search meets neighbours
//! in turn.
//!
//! # Invariants
//!
//! - **I1** While a group's lock is free, its bits agree with its summary. The bits are set in one
//!   plane for every order up to the group's own, and clear everywhere else.
//! - **I2** Every set bit is found (`plane_bits::I2`).
//! - **I3** A search may miss a group that was in the index all the time. Afterwards the search can
//!   tell that this may have happened (`plane_bits::I3`).
//!
//! # Locks
//!
//! The index has no locks. Bits of one group change under that group's lock. Many groups share a
//! word, which changes by atomic operations.

use crate::plane_bits::{MissReasons, PlaneBits};
pub(crate) use crate::plane_bits::{ORDERS, SLOTS_MAX};

/// log2 of the smallest run with an order: a sector.
const ORDER_MIN: u32 = 12;

/// The plane in which a group is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    /// The group's free extents are not known yet; the order is computed from all free bytes of the
    /// group.
    Unloaded,
    /// Loaded, for allocations of any size.
    Unset,
    /// Loaded, for allocations up to 128 KiB.
    Small,
    /// Loaded, for allocations up to 8 MiB.
    Medium,
    /// Loaded, for larger allocations.
    Large,
}

const PLANES: usize = 5;

/// The order of a run, rounded down: order `n` means at least 4 KiB << `n`. `None` below 4 KiB.
pub(crate) fn order_of(bytes: u64) -> Option<usize> {
    let log = bytes.checked_ilog2()?.checked_sub(ORDER_MIN)?;
    Some((log as usize).min(ORDERS - 1))
}

/// The least order at which every run has `bytes`. `None` above 8 GiB, because a run of the last
/// order may have only 8 GiB.
pub(crate) fn order_holding(bytes: u64) -> Option<usize> {
    let log = bytes.max(1).next_power_of_two().trailing_zeros().saturating_sub(ORDER_MIN);
    ((log as usize) < ORDERS).then_some(log as usize)
}

/// All planes of one kind of space.
#[derive(Debug, Default)]
pub(crate) struct Index {
    bits: [PlaneBits; PLANES],
    doubts: MissReasons,
}

/// The place where a group is entered: a plane, and the highest order.
pub(crate) type Entry = Option<(Plane, usize)>;

impl Index {
    /// Moves a group from one entry to another. The caller holds the group's lock.
    ///
    /// The group is entered at its new place before it leaves the old one, so it is always in a
    /// plane. In between, `between` publishes the new summary. The order matters for a group that
    /// was just loaded. If the summary changed while only one of the two planes had the group,
    /// plane and summary would disagree. A search would then neither load the group nor use its
    /// free space.
    pub(crate) fn shift(&self, slot: usize, before: Entry, after: Entry, between: impl FnOnce()) {
        if before == after {
            return between();
        }
        let range = |entry: Entry, plane: Plane| match entry {
            Some((of, order)) if of == plane => order + 1,
            _ => 0,
        };
        let planes = || [after, before].into_iter().flatten().map(|(plane, _)| plane);
        let mut arrives = false;
        for plane in planes() {
            let bits = &self.bits[plane as usize];
            let fresh = range(before, plane)..range(after, plane);
            arrives |= !fresh.is_empty();
            fresh.for_each(|order| bits.set(order, slot));
        }
        if arrives {
            self.doubts.arrived();
        }
        between();
        for plane in planes() {
            let bits = &self.bits[plane as usize];
            (range(after, plane)..range(before, plane))
                .for_each(|order| bits.clear(order, slot, &self.doubts));
        }
    }

    /// The current count of arrivals. A search stores the count when it begins.
    pub(crate) fn arrival_count(&self) -> u64 {
        self.doubts.arrival_count()
    }

    /// Whether a search that began at `then` may have missed a group that was always entered (I3).
    pub(crate) fn was_overtaken(&self, then: u64) -> bool {
        self.doubts.may_have_missed(then)
    }

    /// The first slot at or after `from` that has a run of `order` in `plane`.
    pub(crate) fn next(&self, plane: Plane, order: usize, from: usize) -> Option<usize> {
        self.bits[plane as usize].next(order, from)
    }

    /// Whether any group is entered in `plane` under `order`.
    pub(crate) fn any(&self, plane: Plane, order: usize) -> bool {
        self.next(plane, order, 0).is_some()
    }

    /// Checks that a group's bits agree with its entry (I1).
    pub(crate) fn verify(&self, slot: usize, entry: Entry) -> Result<(), String> {
        for plane in [Plane::Unloaded, Plane::Unset, Plane::Small, Plane::Medium, Plane::Large] {
            let bits = &self.bits[plane as usize];
            for order in 0..ORDERS {
                let expected = entry.is_some_and(|(of, most)| of == plane && order <= most);
                let found = bits.has(order, slot);
                if found != expected {
                    return Err(format!("I1: slot {slot}, {plane:?}, order {order} is {found}"));
                }
                if found && bits.next(order, slot) != Some(slot) {
                    return Err(format!("I2: slot {slot}, {plane:?}, order {order} is not found"));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use buttress_base::Rng;

    use super::*;

    const KIB: u64 = 1 << 10;

    /// Tests X3.
    /// Orders are whole powers of two, and are rounded so that a run never counts as longer than it
    /// is.
    #[test]
    fn orders_round_to_the_safe_side() {
        assert_eq!(order_of(4095), None);
        for exponent in 12..40 {
            let bytes = 1_u64 << exponent;
            let order = (exponent as usize - 12).min(ORDERS - 1);
            assert_eq!(order_of(bytes), Some(order));
            assert_eq!(order_of(2 * bytes - 1), Some(order));
            if order < ORDERS - 1 {
                assert_eq!(order_holding(bytes), Some(order));
                assert_eq!(order_holding(bytes - KIB), Some(order));
            }
            assert_eq!(order_holding(bytes + 1), (exponent < 33).then_some(order + 1));
        }
    }

    /// I1, I2: the index gives the same answers as a map of entries, after any moves, over several
    /// segments.
    #[test]
    fn agrees_with_a_map() {
        let planes = [Plane::Unloaded, Plane::Unset, Plane::Small, Plane::Medium, Plane::Large];
        for seed in 0..4 {
            let mut rng = Rng::new(seed);
            let (index, mut model) = (Index::default(), BTreeMap::new());
            let spread = [100, 5000, 300_000][(seed % 3) as usize];
            for step in 0..20_000 {
                let slot = rng.below(spread) as usize;
                let before: Entry = model.get(&slot).copied();
                let plane = *rng.choose(&planes).expect("five");
                let after = rng.chance(2, 3).then(|| (plane, rng.below(ORDERS as u64) as usize));
                index.shift(slot, before, after, || ());
                match after {
                    Some(entry) => model.insert(slot, entry),
                    None => model.remove(&slot),
                };
                index.verify(slot, after).expect("the entry");
                let (plane, order) =
                    (*rng.choose(&planes).expect("five"), rng.below(ORDERS as u64) as usize);
                let from = rng.below(spread) as usize;
                let mut later = model.range(from..);
                let expected = later.find(|(_, (of, most))| *of == plane && order <= *most);
                let found = index.next(plane, order, from);
                assert_eq!(found, expected.map(|(slot, _)| *slot), "seed {seed}, step {step}");
            }
        }
    }

    /// I2: after threads have changed slots of one word, every set bit can be found.
    #[test]
    fn threads_on_one_word_lose_nothing() {
        let index = Index::default();
        for round in 0..200_usize {
            buttress_base::thread::scope(|scope| {
                for slot in 0..4 {
                    let index = &index;
                    scope.spawn(move || {
                        let mut entry = None;
                        for i in 0..50 {
                            let next = ((i + slot + round) % 2 == 0).then_some((Plane::Unset, 3));
                            index.shift(slot, entry, next, || ());
                            entry = next;
                        }
                        index.shift(slot, entry, Some((Plane::Unset, 5)), || ());
                    });
                }
            });
            for slot in 0..4 {
                index.verify(slot, Some((Plane::Unset, 5))).expect("set last");
                index.shift(slot, Some((Plane::Unset, 5)), None, || ());
            }
            assert!(!index.any(Plane::Unset, 0));
        }
    }
}
