//! An allocator that counts, so that growth is seen without a clock.
//!
//! # What must hold
//!
//! - Nothing is counted before [`start`]: other experiments pay for one load of a flag.
//! - Counts are of the whole process. Counted work runs alone, and its threads count with it.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

static IS_ON: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);
static PEAK: AtomicI64 = AtomicI64::new(0);

/// The allocations since [`start`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// Pieces of memory that were allocated, including pieces that grew.
    pub allocations: u64,
    /// The most bytes at once, without the bytes from before [`start`].
    pub peak: u64,
    /// Bytes that were allocated and not freed.
    pub held: u64,
}

/// Begins to count, from zero.
pub fn start() {
    ALLOCATIONS.store(0, Ordering::Relaxed);
    LIVE.store(0, Ordering::Relaxed);
    PEAK.store(0, Ordering::Relaxed);
    IS_ON.store(true, Ordering::Relaxed);
}

/// The counts up to now.
#[must_use]
pub fn counted() -> Heap {
    let bytes = |number: &AtomicI64| u64::try_from(number.load(Ordering::Relaxed)).unwrap_or(0);
    Heap {
        allocations: ALLOCATIONS.load(Ordering::Relaxed),
        peak: bytes(&PEAK),
        held: bytes(&LIVE),
    }
}

fn taken(len: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    let live = LIVE.fetch_add(len as i64, Ordering::Relaxed) + len as i64;
    if live > PEAK.load(Ordering::Relaxed) {
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
}

/// Counts the requests to another allocator.
#[derive(Debug)]
pub struct Counting<A>(pub A);

// SAFETY: every request goes unchanged to the allocator inside, and its answer is returned.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Counting<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if IS_ON.load(Ordering::Relaxed) {
            taken(layout.size());
        }
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if IS_ON.load(Ordering::Relaxed) {
            taken(layout.size());
        }
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { self.0.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        if IS_ON.load(Ordering::Relaxed) {
            LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        }
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { self.0.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        if IS_ON.load(Ordering::Relaxed) {
            LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
            taken(len);
        }
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { self.0.realloc(at, layout, len) }
    }
}
