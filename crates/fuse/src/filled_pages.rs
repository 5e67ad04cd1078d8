//! Pages that the kernel may hold because we read them for it.
//!
//! # Why
//!
//! The kernel drops the pages of a direct write's range before it sends the write. A read during
//! the write may bring the old bytes in again. After an asynchronous write the kernel does not drop
//! these pages (Linux 6.18). So the server makes the kernel drop them before it answers, which
//! costs a notification. Only files with pages that the kernel read through its cache need the
//! notification.
//!
//! # Invariants
//!
//! - **S1** While the kernel may hold a page that a READ has filled, the count is above zero. A
//!   READ sets the count before it reads the volume. If the count is zero afterwards, the READ
//!   reads again. Only dropping all pages sets the count to zero, and only if no READ came since
//!   the drop began.
//! - **S2** A write changes the volume before it checks the count. So a READ that sets the count
//!   after this check reads the new bytes.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::errno::Answer;
use crate::notifier_threads::Span;

/// After this many direct writes without a READ the kernel drops all pages of the file.
const QUIET_WRITES: u64 = 64;
/// The low bits are the count. The high bits are the number of times that the count was set.
const COUNT: u64 = 0xffff;

/// How many direct writes still drop only their own pages, before a direct write drops all pages.
/// Zero if the kernel holds no pages that we read for it.
#[derive(Debug)]
pub(crate) struct FilledPages(AtomicU64);

impl FilledPages {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Reads bytes that the kernel will keep in its cache (S1).
    pub(crate) fn read_for_kernel(&self, mut read: impl FnMut() -> Answer<usize>) -> Answer<usize> {
        loop {
            self.set();
            let count = read();
            if self.0.load(Ordering::SeqCst) & COUNT > 0 {
                return count;
            }
        }
    }

    /// Whether the kernel may hold pages.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst) & COUNT > 0
    }

    /// Counts a READ.
    pub(crate) fn set(&self) {
        let set = |now: u64| {
            let is_set = now & COUNT == QUIET_WRITES;
            (!is_set).then(|| (now & !COUNT).wrapping_add(COUNT + 1) | QUIET_WRITES)
        };
        // A count that is already set stays.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, set);
    }

    /// Returns the pages that the kernel must drop after a write to `part`: the pages of `part`, or
    /// all. Also returns the value of the count. `None` if the kernel holds no pages.
    pub(crate) fn after_write(&self, part: Span) -> Option<(Span, u64)> {
        let fewer = |now: u64| match now & COUNT {
            0 => None,
            1 => Some(now),
            _ => Some(now - 1),
        };
        let seen = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).ok()?;
        Some((if seen & COUNT == 1 { Span::Whole } else { part }, seen))
    }

    /// Records that all pages were dropped. The drop began when the count was `seen`.
    pub(crate) fn note_dropped(&self, seen: u64) {
        // The exchange fails if a READ since then has changed the value.
        let _ = self.0.compare_exchange(seen, seen & !COUNT, Ordering::SeqCst, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: Span = Span::Part(4096, 512);

    fn read(pages: &FilledPages) {
        assert_eq!(pages.read_for_kernel(|| Ok(7)), Ok(7));
    }

    /// S1: the count is zero for a file that was not read. After a READ it stays above zero until
    /// all pages were dropped.
    #[test]
    fn count_ends_when_all_pages_were_dropped() {
        let pages = FilledPages::new();
        assert_eq!(pages.after_write(PART), None);
        read(&pages);
        for _ in 1..QUIET_WRITES {
            assert_eq!(pages.after_write(PART).map(|(span, _)| span), Some(PART));
        }
        let (span, seen) = pages.after_write(PART).expect("pages are there");
        assert_eq!(span, Span::Whole);
        // Other writes check the count before the pages were dropped.
        assert_eq!(pages.after_write(PART), Some((Span::Whole, seen)));
        pages.note_dropped(seen);
        assert_eq!(pages.after_write(PART), None);
    }

    /// S1: a READ that comes while all pages are dropped has its page dropped by the next write.
    #[test]
    fn count_stays_when_a_read_came_meanwhile() {
        let pages = FilledPages::new();
        read(&pages);
        let seen = (0..QUIET_WRITES).filter_map(|_| pages.after_write(PART)).last();
        let (span, seen) = seen.expect("pages are there");
        assert_eq!(span, Span::Whole);
        read(&pages);
        for _ in 1..QUIET_WRITES {
            assert_eq!(pages.after_write(PART).map(|(span, _)| span), Some(PART));
        }
        // The low bits are the same, but the high bits count another READ.
        pages.note_dropped(seen);
        assert_eq!(pages.after_write(PART).map(|(span, _)| span), Some(Span::Whole));
    }

    /// S1: a READ reads again if all pages were dropped while it read.
    #[test]
    fn read_repeats_when_all_was_dropped_meanwhile() {
        let pages = FilledPages::new();
        let mut times = 0;
        let counted = pages.read_for_kernel(|| {
            times += 1;
            if times == 1 {
                let drops = (0..QUIET_WRITES).filter_map(|_| pages.after_write(PART)).last();
                pages.note_dropped(drops.expect("pages are there").1);
            }
            Ok(times)
        });
        assert_eq!(counted, Ok(2));
    }
}
