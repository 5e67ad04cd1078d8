//! Memory of a ring's entries for the data of requests and answers.
//!
//! # Invariants
//!
//! - **EM1** The touched bytes of all entries are counted until they are given back. If a request
//!   is answered while the count is above the limit, its entry keeps only [`KEPT`] bytes.
//! - **EM2** An entry that had no large request for [`REST`] gives memory back at its next request,
//!   also below the limit. So a burst of large writes does not hold memory for good.
//!
//! The kernel has the memory of entries that wait for a request. So an entry can give memory
//! back only while its request is being answered.

use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress_base::clock;
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::device::PAYLOAD_LEN;

/// The number of bytes that an entry always keeps. Most requests need no more.
const KEPT: usize = 64 << 10;
/// How long an entry without a large request keeps its memory.
const REST: Duration = Duration::from_secs(1);
/// The unit in which the kernel gives memory.
const PAGE: usize = 4096;

/// Bytes of all entries of this process that were touched and not given back.
static TOUCHED: AtomicU64 = AtomicU64::new(0);
/// Above so many touched bytes, entries give memory back (EM1).
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// Bytes that the entries of all rings of this process take.
pub(crate) fn touched_bytes() -> u64 {
    TOUCHED.load(Ordering::Relaxed)
}

/// Sets how many bytes the entries of all rings of this process may keep (EM1).
pub(crate) fn set_limit(bytes: u64) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// [`PAYLOAD_LEN`] bytes in whole pages, which take no memory before they are touched.
pub(super) struct Payload {
    start: NonNull<u8>,
    /// The bytes from the start that were touched, in whole pages.
    touched: usize,
    /// The time of the last large request. It matters only while more than [`KEPT`] bytes are
    /// touched.
    large_at: Instant,
}

#[expect(unsafe_code, reason = "entries are handed to and fro between threads and the kernel")]
// SAFETY: the mapping belongs to no thread.
unsafe impl Send for Payload {}

impl Payload {
    #[expect(unsafe_code, reason = "memory of its own")]
    pub(super) fn new() -> io::Result<Self> {
        let (any, flags) = (std::ptr::null_mut(), MapFlags::PRIVATE);
        // SAFETY: a new mapping replaces no other.
        let start = unsafe {
            rustix::mm::mmap_anonymous(any, PAYLOAD_LEN, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        let start = NonNull::new(start.cast()).expect("a mapping is not at zero");
        Ok(Self { start, touched: 0, large_at: clock::now() })
    }

    /// Where the bytes are.
    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Notes that a request and its answer used the first `len` bytes, and gives memory back that
    /// the entry should not keep (EM1, EM2). The bytes after [`KEPT`] may be zeros then, so the
    /// answer must not be longer.
    pub(super) fn request_done(&mut self, len: usize, answer_len: usize) {
        self.done_at(len.max(answer_len), answer_len, clock::now, LIMIT.load(Ordering::Relaxed));
    }

    fn done_at(&mut self, len: usize, answer_len: usize, now: impl Fn() -> Instant, limit: u64) {
        let len = len.min(PAYLOAD_LEN).next_multiple_of(PAGE);
        if len > self.touched {
            TOUCHED.fetch_add((len - self.touched) as u64, Ordering::Relaxed);
            self.touched = len;
        }
        if self.touched <= KEPT {
            return;
        }
        let now = now();
        if len > KEPT {
            self.large_at = now;
        }
        let is_rested = now.saturating_duration_since(self.large_at) >= REST;
        // The kernel reads the answer from this memory later. So the memory of a longer answer is
        // not given back.
        if answer_len <= KEPT && (is_rested || touched_bytes() > limit) {
            self.give_back();
        }
    }

    /// Gives all memory after [`KEPT`] bytes back.
    #[expect(unsafe_code, reason = "memory of its own")]
    fn give_back(&mut self) {
        let (from, len) = (self.start.as_ptr().wrapping_add(KEPT), self.touched - KEPT);
        // SAFETY: the pages lie in the mapping, which only this value has now. Later reads find
        // zeros, and no code relies on the old bytes.
        let given = unsafe { rustix::mm::madvise(from.cast(), len, Advice::LinuxDontNeed) };
        if given.is_ok() {
            TOUCHED.fetch_sub(len as u64, Ordering::Relaxed);
            self.touched = KEPT;
        }
    }
}

impl Drop for Payload {
    #[expect(unsafe_code, reason = "memory of its own")]
    fn drop(&mut self) {
        TOUCHED.fetch_sub(self.touched as u64, Ordering::Relaxed);
        // SAFETY: the memory was mapped with this length, and its owner drops it only when no code
        // uses it. A failure would leave the memory mapped, which is harmless.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), PAYLOAD_LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 1 << 20;

    /// Does what the owner of an entry does for a request of `len` bytes.
    fn write(payload: &mut Payload, len: usize) {
        // SAFETY: the mapping has `PAYLOAD_LEN` bytes, and only this test has it.
        #[expect(unsafe_code, reason = "as the kernel does")]
        unsafe {
            std::slice::from_raw_parts_mut(payload.start(), len).fill(7);
        }
    }

    /// The resident bytes of an entry's memory.
    fn resident(payload: &Payload) -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("the list of mappings");
        let start = payload.start() as usize;
        let mut lines = smaps.lines();
        let range = |line: &str| {
            let (low, rest) = line.split_once('-')?;
            let (high, _) = rest.split_once(' ')?;
            Some(usize::from_str_radix(low, 16).ok()?..usize::from_str_radix(high, 16).ok()?)
        };
        lines.by_ref().find(|line| range(line).is_some_and(|range| range.contains(&start)));
        let line = lines.find_map(|line| line.strip_prefix("Rss:")).expect("the resident part");
        line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number") << 10
    }

    /// EM1, EM2: an entry keeps its memory while large requests come and there is room. It gives
    /// the memory back above the limit, and after a rest, but never the answer itself.
    #[test]
    fn entries_give_memory_back() {
        let mut payload = Payload::new().expect("memory");
        let begun = clock::now();
        let done = |payload: &mut Payload, len, answer, secs, limit| {
            write(payload, len);
            payload.done_at(len, answer, || begun + Duration::from_secs(secs), limit);
            payload.touched
        };
        assert_eq!(done(&mut payload, 100, 0, 0, 0), PAGE, "a small one is always kept");
        assert_eq!(done(&mut payload, LARGE, 0, 0, u64::MAX), LARGE);
        assert!(touched_bytes() >= LARGE as u64);
        assert_eq!(done(&mut payload, 100, 0, 0, u64::MAX), LARGE, "a large one may follow");
        assert_eq!(done(&mut payload, 100, LARGE, 9, 0), LARGE, "the kernel reads the answer");
        assert_eq!(done(&mut payload, LARGE, 0, 9, 0), KEPT, "EM1");
        assert_eq!(done(&mut payload, LARGE, 0, 9, u64::MAX), LARGE);
        assert_eq!(done(&mut payload, 100, 0, 10, u64::MAX), KEPT, "EM2");
        // Neighbours of this mapping may be listed with it, but they are no part of the difference.
        let before = resident(&payload);
        write(&mut payload, LARGE);
        assert!(resident(&payload) >= before + LARGE - KEPT, "the system has the memory back");
    }
}
