//! Sets of addresses as sparse bitmaps, filled by many threads.
//!
//! # Invariants
//!
//! - **B1** A set takes memory only for pages that have an address, wherever the addresses lie. A
//!   set of all addresses in 32 GiB of neighbouring space takes 1 MiB.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

/// Addresses are multiples of 2 to the power of this number.
const GRAIN_SHIFT: u32 = 12;
const PAGE_WORDS: usize = 128;
const PAGE_SHIFT: u32 = PAGE_WORDS.trailing_zeros() + 6;

type Page = [AtomicU64; PAGE_WORDS];

/// A set of addresses of sectors, which are multiples of 4096.
#[derive(Debug, Default)]
pub struct SectorSet {
    /// Unranked: many threads take read locks. No other lock is taken under it.
    pages: RwLock<HashMap<u64, Arc<Page>>>,
}

impl SectorSet {
    fn place(at: u64) -> (u64, usize, u64) {
        let index = at >> GRAIN_SHIFT;
        let word = (index >> 6) as usize % PAGE_WORDS;
        (index >> PAGE_SHIFT, word, 1 << (index & 63))
    }

    /// Adds an address. Returns false if the set had it already.
    pub fn insert(&self, at: u64) -> bool {
        let (page, word, bit) = Self::place(at);
        let found = self.pages.read().get(&page).map(Arc::clone);
        let found = found.unwrap_or_else(|| {
            let mut pages = self.pages.write();
            let empty = || Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            Arc::clone(pages.entry(page).or_insert_with(empty))
        });
        found[word].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Whether the set has an address.
    #[must_use]
    pub fn contains(&self, at: u64) -> bool {
        let (page, word, bit) = Self::place(at);
        let pages = self.pages.read();
        pages.get(&page).is_some_and(|page| page[word].load(Ordering::Relaxed) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The set holds exactly the inserted addresses, at both ends of the address space.
    #[test]
    fn holds_what_was_put_in() {
        let set = SectorSet::default();
        for at in [0, 4096, 1 << 40, u64::MAX - 4095] {
            assert!(!set.contains(at));
            assert!(set.insert(at));
            assert!(!set.insert(at));
            assert!(set.contains(at));
        }
        assert!(!set.contains(8192));
        assert_eq!(set.pages.read().len(), 3, "B1");
    }
}
