//! Bitmaps of slots, one plane of the index. A search skips their empty parts.
//!
//! # Invariants
//!
//! - **I2** When the call that set a bit has returned, the summary bits above it are set at every
//!   level. There is one exception: another call cleared such a summary bit, and has not yet
//!   checked the bits below it. [`MissReasons`] tells whether such a call may be running. A summary
//!   bit may be set without a bit below, which costs one more read.
//! - **I3** A search may miss a group that was in the index all the time. Afterwards the search can
//!   find out that this may have happened ([`MissReasons::may_have_missed`]).
//!
//! # Locks
//!
//! The bitmaps have no locks. Bits of one group change under that group's lock. Many groups share a
//! word, which changes by atomic operations. The operations come from the module `sync` beside this
//! file. A model checker compiles the same code with its own operations (`tests/index`).

use std::sync::OnceLock;

use super::sync::{AtomicU64, Ordering::SeqCst};

/// Number of orders of runs. All runs of 8 GiB and more have the last order.
pub(crate) const ORDERS: usize = 22;

const FAN: usize = 64;
const SEGMENT: usize = FAN * FAN;

/// Most groups of one kind: sixteen million.
pub(crate) const SLOTS_MAX: usize = FAN * FAN * SEGMENT;

/// Why a search that found nothing may be wrong (I3).
#[derive(Debug, Default)]
pub(crate) struct MissReasons {
    /// How often a group was entered at a new place, or found again after a clear.
    arrivals: AtomicU64,
    /// How many calls clear summary bits, and have not yet checked whether another call set a bit
    /// below.
    clearing: AtomicU64,
}

impl MissReasons {
    /// The current count of arrivals. A search stores the count when it begins.
    pub(crate) fn arrival_count(&self) -> u64 {
        self.arrivals.load(SeqCst)
    }

    /// Whether a search that began at `then` may have missed an entry. A call that clears a summary
    /// bit and has to set it again counts an arrival before it reports that it is done. Because of
    /// the order of these two loads, the search sees that call or its arrival.
    pub(crate) fn may_have_missed(&self, then: u64) -> bool {
        self.clearing.load(SeqCst) != 0 || self.arrivals.load(SeqCst) != then
    }

    /// Counts an arrival. A caller counts the arrival after it enters a group, and before it
    /// removes the group from another place.
    pub(crate) fn arrived(&self) {
        self.arrivals.fetch_add(1, SeqCst);
    }

    /// Clears summary bits by `act`, which returns whether a bit had to be set again.
    fn clear(&self, act: impl FnOnce() -> bool) {
        self.clearing.fetch_add(1, SeqCst);
        if act() {
            self.arrived();
        }
        self.clearing.fetch_sub(1, SeqCst);
    }
}

/// 4096 bits for each order, with a summary bit for each word.
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
        // A call that clears the summary bit checks the word once more afterwards, and finds this
        // bit.
        if self.summary[order].load(SeqCst) & (1 << word) == 0 {
            self.summary[order].fetch_or(1 << word, SeqCst);
        }
    }

    /// Returns whether the word is now empty. If it is empty, the caller clears the word's summary
    /// bit.
    fn clear(&self, order: usize, bit: usize) -> bool {
        let mask = 1_u64 << (bit % FAN);
        self.words[order][bit / FAN].fetch_and(!mask, SeqCst) & !mask == 0
    }

    /// Returns whether the summary bit had to be set again.
    fn clear_summary(&self, order: usize, bit: usize) -> bool {
        let word = bit / FAN;
        self.summary[order].fetch_and(!(1 << word), SeqCst);
        let is_back = self.words[order][word].load(SeqCst) != 0;
        if is_back {
            self.summary[order].fetch_or(1 << word, SeqCst);
        }
        is_back
    }

    fn is_set(&self, order: usize, bit: usize) -> bool {
        self.words[order][bit / FAN].load(SeqCst) & (1 << (bit % FAN)) != 0
    }

    fn is_empty(&self, order: usize) -> bool {
        self.summary[order].load(SeqCst) == 0
    }

    /// The first set bit at or after `from`.
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

/// A block of 64 segments, each allocated on first use.
type SegmentBlock = [Lazy<Bits>; FAN];

/// One plane: a bit for each segment with an entry, and the segments that ever had an entry.
#[derive(Debug, Default)]
pub(crate) struct PlaneBits {
    top: Lazy<Bits>,
    segments: Lazy<[Lazy<SegmentBlock>; FAN]>,
}

impl PlaneBits {
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

    pub(crate) fn set(&self, order: usize, slot: usize) {
        self.segment_or_new(slot / SEGMENT).set(order, slot % SEGMENT);
        self.top().set(order, slot / SEGMENT);
    }

    pub(crate) fn clear(&self, order: usize, slot: usize, doubts: &MissReasons) {
        let Some(segment) = self.segment(slot / SEGMENT) else { return };
        if segment.clear(order, slot % SEGMENT) {
            doubts.clear(|| {
                let is_back = segment.clear_summary(order, slot % SEGMENT);
                is_back
                    | (segment.is_empty(order) && self.clear_top(segment, order, slot / SEGMENT))
            });
        }
    }

    /// Clears the bits of a segment that became empty. Returns whether it has an entry again.
    fn clear_top(&self, segment: &Bits, order: usize, at: usize) -> bool {
        let mut is_back = self.top().clear(order, at) && self.top().clear_summary(order, at);
        if !segment.is_empty(order) {
            self.top().set(order, at);
            is_back = true;
        }
        is_back
    }

    pub(crate) fn has(&self, order: usize, slot: usize) -> bool {
        self.segment(slot / SEGMENT).is_some_and(|bits| bits.is_set(order, slot % SEGMENT))
    }

    /// The first entered slot at or after `from`.
    pub(crate) fn next(&self, order: usize, from: usize) -> Option<usize> {
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
