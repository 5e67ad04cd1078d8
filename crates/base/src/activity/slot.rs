//! What one thread does: a few words that the thread writes and any thread reads.
//!
//! # Invariants
//!
//! - **SL1** One word has a cause and the time when the wait for it began. So no reader sees a
//!   cause with the start of another wait.
//! - **SL2** A reader gets the subject and the wait of the request that it gets. The word of the
//!   request is zero while the subject changes. A reader looks at that word before and after the
//!   others. Two requests of a thread begin at different times, so their words differ.

use super::atomic::{AtomicU64, Ordering};

/// The bits of a word that have a kind. The other bits have a time in nanoseconds.
const KIND_BITS: u32 = 7;
/// The largest kind. Zero stands for none.
pub(crate) const KIND_MAX: u64 = (1 << KIND_BITS) - 1;
/// The times that a word can hold: those of four years. Later times begin at zero again.
const TIME_MAX: u64 = u64::MAX >> KIND_BITS;
/// How often a reader begins again if the thread has gone on to another request.
const TRIES: usize = 3;

/// A kind and the time at which it began, or zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

/// What a reader sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) request: Word,
    pub(crate) subject: u64,
    /// What the thread waits for.
    pub(crate) wait: Option<Word>,
}

/// The words of one thread.
#[derive(Debug)]
pub(crate) struct Slot {
    request: AtomicU64,
    subject: AtomicU64,
    wait: AtomicU64,
}

impl Word {
    const NONE: Self = Self(0);

    /// The word of a kind from 1 to [`KIND_MAX`].
    pub(crate) fn new(kind: u64, nanos: u64) -> Self {
        Self((nanos & TIME_MAX) << KIND_BITS | kind & KIND_MAX)
    }

    pub(crate) fn kind(self) -> u64 {
        self.0 & KIND_MAX
    }

    /// The time from the begin until `now`, in nanoseconds. Zero if the begin is after `now`.
    pub(crate) fn age(self, now: u64) -> u64 {
        let age = now.wrapping_sub(self.0 >> KIND_BITS) & TIME_MAX;
        if age > TIME_MAX / 2 { 0 } else { age }
    }
}

impl Slot {
    pub(crate) fn new() -> Self {
        let word = || AtomicU64::new(0);
        Self { request: word(), subject: word(), wait: word() }
    }

    /// Whether the thread works on a request. Only the thread itself asks.
    pub(crate) fn is_busy(&self) -> bool {
        self.request.load(Ordering::Relaxed) != 0
    }

    /// Begins a request. No request is in work.
    pub(crate) fn begin(&self, request: Word, subject: u64) {
        // Each of these stores is seen only with those before it (SL2).
        self.subject.store(subject, Ordering::Release);
        self.request.store(request.0, Ordering::Release);
    }

    /// Ends the request.
    pub(crate) fn end(&self) {
        self.request.store(0, Ordering::Release);
    }

    /// Begins a wait. Returns what [`Self::resume`] needs at its end. A wait for the cause that the
    /// thread waits for already goes on.
    pub(crate) fn wait(&self, cause: u64, now: impl FnOnce() -> u64) -> Word {
        let before = Word(self.wait.load(Ordering::Relaxed));
        if before.kind() != cause {
            self.wait.store(Word::new(cause, now()).0, Ordering::Release);
        }
        before
    }

    /// Ends a wait: the thread waits for what it waited for before, or for nothing.
    pub(crate) fn resume(&self, before: Word) {
        self.wait.store(before.0, Ordering::Release);
    }

    /// Forgets everything, for another thread.
    pub(crate) fn clear(&self) {
        self.end();
        self.resume(Word::NONE);
    }

    /// What the thread does now. A thread that goes from request to request is seen with the last
    /// of them, and without a wait.
    pub(crate) fn look(&self) -> Option<Seen> {
        let mut request = self.request.load(Ordering::Acquire);
        for _ in 0..TRIES {
            if request == 0 {
                return None;
            }
            let subject = self.subject.load(Ordering::Acquire);
            let wait = Word(self.wait.load(Ordering::Acquire));
            let after = self.request.load(Ordering::Acquire);
            if after == request {
                let wait = (wait != Word::NONE).then_some(wait);
                return Some(Seen { request: Word(request), subject, wait });
            }
            request = after;
        }
        None
    }
}
