//! Which groups have a free run of at least so many bytes, without looking at groups.
//!
//! # Place
//!
//! One for each kind of space. A group has a slot for as long as it lives, and is entered in one plane under
//! every order up to that of its largest free run; so one bitmap answers "who has at least this". A search
//! goes from a slot to the end and then from the beginning: the same groups are met in the same order, and
//! neighbours in address are neighbours here.
//!
//! # Invariants
//!
//! - **I1** While a group's lock is free, its bits say what its summary says: set in one plane for every order up
//!   to its own, clear everywhere else.
//! - **I2** A set bit has its summary bits set, above it at every level, once whoever set it has returned.
//!   Summary bits without anything below them are possible, and cost a look.
//! - **I3** Whoever saw a group nowhere although it was somewhere all the time sees afterwards that `arrivals` has
//!   changed: it is counted after a group was entered anywhere and before it is taken out anywhere.
//!
//! # Locks
//!
//! None. Bits of one group change under that group's lock; words are shared by many groups and change by
//! atomic operations.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// log2 of the smallest run that is told apart: a sector.
const ORDER_MIN: u32 = 12;

/// Runs of `1 << (ORDER_MIN + ORDERS - 1)` bytes (8 GiB) and more are all alike.
pub(crate) const ORDERS: usize = 22;

const FAN: usize = 64;
const SEGMENT: usize = FAN * FAN;

/// Most groups of one kind: sixteen million.
pub(crate) const SLOTS_MAX: usize = FAN * FAN * SEGMENT;

/// What a group is entered as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plane {
    /// Its free extents are not known yet; the order is that of all that is free in it.
    Unloaded,
    /// Loaded, for allocations of any size.
    Unset,
    /// For allocations up to 128 KiB.
    Small,
    /// Up to 8 MiB.
    Medium,
    /// For larger ones.
    Large,
}

const PLANES: usize = 5;

/// The order of a run: what it has at least.
pub(crate) fn order_of(bytes: u64) -> Option<usize> {
    let log = bytes.checked_ilog2()?.checked_sub(ORDER_MIN)?;
    Some((log as usize).min(ORDERS - 1))
}

/// The least order at which every run has `bytes`; none where runs must be looked at.
pub(crate) fn order_holding(bytes: u64) -> Option<usize> {
    let log = bytes.max(1).next_power_of_two().trailing_zeros().saturating_sub(ORDER_MIN);
    ((log as usize) < ORDERS).then_some(log as usize)
}

/// 4096 bits for each order, and above them one for each word.
#[derive(Debug)]
struct Bits {
    words: [[AtomicU64; FAN]; ORDERS],
    summary: [AtomicU64; ORDERS],
}

impl Bits {
    fn new() -> Box<Self> {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        Box::new(Self {
            words: std::array::from_fn(|_| zeros()),
            summary: std::array::from_fn(|_| AtomicU64::new(0)),
        })
    }

    fn set(&self, order: usize, bit: usize) {
        let (word, mask) = (bit / FAN, 1 << (bit % FAN));
        self.words[order][word].fetch_or(mask, SeqCst);
        // Who clears the summary looks at the word once more afterwards, and finds this bit.
        if self.summary[order].load(SeqCst) & (1 << word) == 0 {
            self.summary[order].fetch_or(1 << word, SeqCst);
        }
    }

    fn clear(&self, order: usize, bit: usize) {
        let (word, mask) = (bit / FAN, 1_u64 << (bit % FAN));
        if self.words[order][word].fetch_and(!mask, SeqCst) & !mask != 0 {
            return;
        }
        self.summary[order].fetch_and(!(1 << word), SeqCst);
        if self.words[order][word].load(SeqCst) != 0 {
            self.summary[order].fetch_or(1 << word, SeqCst);
        }
    }

    fn is_set(&self, order: usize, bit: usize) -> bool {
        self.words[order][bit / FAN].load(SeqCst) & (1 << (bit % FAN)) != 0
    }

    fn is_empty(&self, order: usize) -> bool {
        self.summary[order].load(SeqCst) == 0
    }

    /// The first bit at or after `from`.
    fn next(&self, order: usize, from: usize) -> Option<usize> {
        if from >= SEGMENT {
            return None;
        }
        let (mut word, mut mask) = (from / FAN, u64::MAX << (from % FAN));
        loop {
            let found = self.words[order][word].load(SeqCst) & mask;
            if found != 0 {
                return Some(word * FAN + found.trailing_zeros() as usize);
            }
            let above = if word + 1 < FAN { u64::MAX << (word + 1) } else { 0 };
            let words = self.summary[order].load(SeqCst) & above;
            if words == 0 {
                return None;
            }
            word = words.trailing_zeros() as usize;
            mask = u64::MAX;
        }
    }
}

type Lazy<T> = OnceLock<Box<T>>;

/// Sixty-four segments.
type Shelf = [Lazy<Bits>; FAN];

/// One plane: which segments have a bit, and the segments that anything was ever entered in.
#[derive(Debug, Default)]
struct Sheet {
    top: Lazy<Bits>,
    segments: Lazy<[Lazy<Shelf>; FAN]>,
}

impl Sheet {
    fn top(&self) -> &Bits {
        self.top.get_or_init(Bits::new)
    }

    fn segment(&self, segment: usize) -> Option<&Bits> {
        let outer = self.segments.get()?[segment / FAN].get()?;
        outer[segment % FAN].get().map(|bits| &**bits)
    }

    fn segment_or_new(&self, segment: usize) -> &Bits {
        let outer = self.segments.get_or_init(|| Box::new([const { OnceLock::new() }; FAN]));
        let inner = outer[segment / FAN].get_or_init(|| Box::new([const { OnceLock::new() }; FAN]));
        inner[segment % FAN].get_or_init(Bits::new)
    }

    fn set(&self, order: usize, slot: usize) {
        self.segment_or_new(slot / SEGMENT).set(order, slot % SEGMENT);
        self.top().set(order, slot / SEGMENT);
    }

    fn clear(&self, order: usize, slot: usize) {
        let Some(segment) = self.segment(slot / SEGMENT) else { return };
        segment.clear(order, slot % SEGMENT);
        if segment.is_empty(order) {
            self.top().clear(order, slot / SEGMENT);
            if !segment.is_empty(order) {
                self.top().set(order, slot / SEGMENT);
            }
        }
    }

    fn next(&self, order: usize, from: usize) -> Option<usize> {
        let top = self.top.get()?;
        let (mut segment, mut within) = (from / SEGMENT, from % SEGMENT);
        loop {
            let found = self.segment(segment).and_then(|bits| bits.next(order, within));
            if let Some(bit) = found {
                return Some(segment * SEGMENT + bit);
            }
            segment = top.next(order, segment + 1)?;
            within = 0;
        }
    }
}

/// All planes of one kind of space.
#[derive(Debug, Default)]
pub(crate) struct Index {
    sheets: [Sheet; PLANES],
    arrivals: AtomicU64,
}

/// Where a group is entered: in a plane, under an order and all below.
pub(crate) type Entry = Option<(Plane, usize)>;

impl Index {
    /// Moves a group from one entry to another. The caller holds the group's lock.
    ///
    /// In between it may be in two planes, never in none; `between` runs then, and lets everybody see what the
    /// group is now. Were it seen before or after, a group whose free space has just been read would for a moment
    /// be neither among those to be read nor among those that have some, and a search would find nothing at all.
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
            let sheet = &self.sheets[plane as usize];
            let fresh = range(before, plane)..range(after, plane);
            arrives |= !fresh.is_empty();
            fresh.for_each(|order| sheet.set(order, slot));
        }
        if arrives {
            self.arrivals.fetch_add(1, SeqCst);
        }
        between();
        for plane in planes() {
            let sheet = &self.sheets[plane as usize];
            (range(after, plane)..range(before, plane)).for_each(|order| sheet.clear(order, slot));
        }
    }

    /// How often a group was entered where it was not before (I3).
    pub(crate) fn arrivals(&self) -> u64 {
        self.arrivals.load(SeqCst)
    }

    /// The first slot at or after `from` that has a run of `order` in `plane`.
    pub(crate) fn next(&self, plane: Plane, order: usize, from: usize) -> Option<usize> {
        self.sheets[plane as usize].next(order, from)
    }

    /// Whether anything is entered in `plane` under `order`.
    pub(crate) fn any(&self, plane: Plane, order: usize) -> bool {
        self.next(plane, order, 0).is_some()
    }

    /// Compares a group's bits with what they should be (I1).
    pub(crate) fn verify(&self, slot: usize, entry: Entry) -> Result<(), String> {
        for plane in [Plane::Unloaded, Plane::Unset, Plane::Small, Plane::Medium, Plane::Large] {
            let sheet = &self.sheets[plane as usize];
            for order in 0..ORDERS {
                let expected = entry.is_some_and(|(of, most)| of == plane && order <= most);
                let found = sheet
                    .segment(slot / SEGMENT)
                    .is_some_and(|bits| bits.is_set(order, slot % SEGMENT));
                if found != expected {
                    return Err(format!("I1: slot {slot}, {plane:?}, order {order} is {found}"));
                }
                if found && sheet.next(order, slot) != Some(slot) {
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

    /// Orders are whole powers of two, and never promise what is not there.
    #[test]
    fn x3_orders_round_the_safe_way() {
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

    /// I1, I2: the same answers as a map of entries, whatever moves, over several segments.
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
                index.verify(slot, after).expect("what was entered");
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

    /// I2: threads that change slots of one word leave no bit behind that cannot be found.
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
