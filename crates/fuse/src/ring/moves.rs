//! Programs that move between processors while their requests are answered.
//!
//! # What must hold
//!
//! - Drivers lower their policy (`placement`) only where programs move. Two calls of the kernel for
//!   each answer would otherwise bring nothing.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::placement::may_lower;

/// Programs that move between processors while their requests are answered.
#[derive(Debug)]
pub(super) struct Moves {
    /// Whether drivers may lower their policy.
    is_allowed: bool,
    /// The thread that asked last, and its processor.
    last: AtomicU64,
    /// How many more answers are sent with the lower policy.
    left: AtomicU32,
    /// Whether the watch dozes.
    pub(super) watch_dozes: AtomicBool,
}

impl Moves {
    /// After a move, this many answers are sent with the lower policy.
    const ANSWERS: u32 = 256;
    /// Bits of a processor's number in `last`.
    const SHIFT: u32 = 16;

    pub(super) fn new() -> Self {
        Self { is_allowed: may_lower(), ..Self::none() }
    }

    /// Never lowers a policy.
    pub(super) fn none() -> Self {
        Self {
            is_allowed: false,
            last: AtomicU64::new(0),
            left: AtomicU32::new(0),
            watch_dozes: AtomicBool::new(false),
        }
    }

    /// Notes that a thread has asked from a processor. Zero is no thread.
    pub(super) fn note(&self, thread: u32, processor: u16) {
        let now = u64::from(thread) << Self::SHIFT | u64::from(processor);
        let last = self.last.load(Ordering::Relaxed);
        if !self.is_allowed || thread == 0 || last == now {
            return;
        }
        self.last.store(now, Ordering::Relaxed);
        if last >> Self::SHIFT == u64::from(thread) {
            self.left.store(Self::ANSWERS, Ordering::Relaxed);
        }
    }

    /// Whether the next answers are to be sent with the lower policy. Counts them.
    pub(super) fn should_lower(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        // Mostly there is no move, and then this line is only read.
        self.left.load(Ordering::Relaxed) > 0
            && self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// Sends no more answers with the lower policy until the next move.
    pub(super) fn stop(&self) {
        self.left.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Moves {
        Moves { is_allowed: true, ..Moves::none() }
    }

    /// A thread that asks from two processors in turn has moved. Two threads that ask in turn have
    /// not.
    #[test]
    fn moves_are_those_of_one_thread() {
        let moves = allowed();
        for _ in 0..4 {
            moves.note(7, 0);
            moves.note(8, 1);
        }
        moves.note(0, 0);
        moves.note(0, 1);
        assert!(!moves.should_lower());
        moves.note(8, 1);
        moves.note(8, 0);
        for _ in 0..Moves::ANSWERS {
            assert!(moves.should_lower());
        }
        assert!(!moves.should_lower());
        moves.note(8, 1);
        assert!(moves.should_lower());
        moves.stop();
        assert!(!moves.should_lower());
        let forbidden = Moves::none();
        forbidden.note(8, 0);
        forbidden.note(8, 1);
        assert!(!forbidden.should_lower());
    }
}
