//! Sets of addresses as sparse bitmaps, filled by many threads.
//!
//! # Invariants
//!
//! - **B1** A set takes memory only for pages that have an address, wherever the addresses lie. A
//!   set of all addresses in 32 GiB of neighbouring space takes 1 MiB.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_format::Logical;
use parking_lot::RwLock;

/// Addresses are multiples of 2 to the power of this number.
const GRAIN_SHIFT: u32 = 12;
const PAGE_WORDS: usize = 128;
const PAGE_SHIFT: u32 = PAGE_WORDS.trailing_zeros() + 6;

type Page = [AtomicU64; PAGE_WORDS];

/// A set of sector addresses.
#[derive(Default)]
pub(crate) struct AddressSet {
    /// Unranked: many threads take read locks. No other lock is taken under it.
    pages: RwLock<HashMap<u64, Arc<Page>>>,
}

impl AddressSet {
    fn place(at: Logical) -> (u64, usize, u64) {
        let index = at.0 >> GRAIN_SHIFT;
        let word = (index >> 6) as usize % PAGE_WORDS;
        (index >> PAGE_SHIFT, word, 1 << (index & 63))
    }

    /// Adds an address. Returns false if the set had it already.
    pub(crate) fn insert(&self, at: Logical) -> bool {
        let (page, word, bit) = Self::place(at);
        let found = self.pages.read().get(&page).map(Arc::clone);
        let found = found.unwrap_or_else(|| {
            let mut pages = self.pages.write();
            let empty = || Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            Arc::clone(pages.entry(page).or_insert_with(empty))
        });
        found[word].fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    pub(crate) fn contains(&self, at: Logical) -> bool {
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
        let set = AddressSet::default();
        for at in [0, 4096, 1 << 40, u64::MAX - 4095] {
            assert!(!set.contains(Logical(at)));
            assert!(set.insert(Logical(at)));
            assert!(!set.insert(Logical(at)));
            assert!(set.contains(Logical(at)));
        }
        assert!(!set.contains(Logical(8192)));
        assert_eq!(set.pages.read().len(), 3, "B1");
    }
}
