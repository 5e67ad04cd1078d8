//! Bytes that will be written where they lie: a token that promises nothing, and says for how much.
//!
//! # Place
//!
//! `data` makes one where it has seen that a range is a file's alone, and keeps it beside the promises of
//! what is dirty until writeback has found the place once more. Linear like those: it splits and merges, and
//! cannot be copied.
//!
//! # Invariants
//!
//! - **Q1** The only way from here to new space is [`NoReserve::exchange`]: who may not write in place after
//!   all has the bytes promised first, or has none. So nothing is given back that was never promised.
//! - **Q2** What a volume counts as unreserved is the sum of the live tokens.
//!
//! # Locks
//!
//! In debug builds [`Rank::Leaf`](buttress_base::Rank), alone.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(debug_assertions)]
use buttress_base::{Rank, Ranked};

#[cfg(debug_assertions)]
use crate::roll::Roll;
use crate::{DataReservation, Space};

/// How many bytes of a volume are dirty with nothing promised for them.
#[derive(Debug)]
pub(crate) struct Unreserved {
    bytes: AtomicU64,
    /// The same, counted by the tokens (Q2). Whoever holds it may change `bytes`.
    #[cfg(debug_assertions)]
    roll: Ranked<Roll<1>>,
}

impl Unreserved {
    pub(crate) fn new() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            #[cfg(debug_assertions)]
            roll: Ranked::new(Rank::Leaf, Roll::default()),
        }
    }

    /// Compares the count with the tokens (Q2).
    pub(crate) fn audit(&self) -> Result<(), String> {
        #[cfg(debug_assertions)]
        {
            let roll = self.roll.lock();
            let ([tokens], bytes) = (roll.sum(), self.bytes.load(Ordering::Relaxed));
            if tokens != bytes {
                return Err(format!("Q2: tokens hold {tokens} of {bytes} bytes without a promise"));
            }
        }
        Ok(())
    }
}

impl Space {
    /// A token for bytes that are to be written where they lie. Nothing is asked for: the caller has seen that
    /// they may be, and looks again before he writes.
    pub fn no_reserve(self: &Arc<Self>, bytes: u64) -> NoReserve {
        #[cfg(debug_assertions)]
        let token = {
            let mut roll = self.unreserved.roll.lock();
            self.unreserved.bytes.fetch_add(bytes, Ordering::Relaxed);
            roll.grant([bytes]);
            roll.enter([bytes])
        };
        #[cfg(not(debug_assertions))]
        self.unreserved.bytes.fetch_add(bytes, Ordering::Relaxed);
        NoReserve {
            space: Arc::clone(self),
            bytes,
            #[cfg(debug_assertions)]
            token,
        }
    }

    /// Bytes that are dirty with nothing promised for them.
    #[must_use]
    pub fn unreserved(&self) -> u64 {
        self.unreserved.bytes.load(Ordering::Relaxed)
    }
}

/// Bytes that will be written where they lie, and have no new space promised.
#[must_use = "bytes that have neither this nor a promise have no place"]
pub struct NoReserve {
    space: Arc<Space>,
    bytes: u64,
    /// Its number in the roll of live tokens.
    #[cfg(debug_assertions)]
    token: u64,
}

impl NoReserve {
    /// Returns for how many bytes it stands.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts `bytes` off into a token of their own.
    ///
    /// # Panics
    ///
    /// When there are not that many: a bug of the caller.
    pub fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "Q1: {bytes} bytes of {} without a promise", self.bytes);
        self.bytes -= bytes;
        Self {
            space: Arc::clone(&self.space),
            bytes,
            #[cfg(debug_assertions)]
            token: self.space.unreserved.roll.lock().split(self.token, [bytes]),
        }
    }

    /// Adds the bytes of another token of the same volume.
    ///
    /// # Panics
    ///
    /// When it is another volume's: a bug of the caller.
    pub fn merge(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.space, &other.space), "Q1: tokens of two volumes");
        #[cfg(debug_assertions)]
        {
            let mut roll = self.space.unreserved.roll.lock();
            roll.merge(self.token, other.token);
            other.token = roll.enter([0]);
        }
        self.bytes += mem::take(&mut other.bytes);
    }

    /// Trades it for a promise of as many bytes, since they cannot be written in place (Q1).
    ///
    /// # Errors
    ///
    /// What `promise` met; the bytes have no place then, and the token is gone.
    ///
    /// # Panics
    ///
    /// When less was promised: a bug of the caller.
    pub fn exchange<E>(
        self,
        promise: impl FnOnce(u64) -> Result<DataReservation, E>,
    ) -> Result<DataReservation, E> {
        let promised = promise(self.bytes)?;
        let (bytes, found) = (self.bytes, promised.bytes());
        assert!(bytes <= found, "Q1: {found} bytes promised for {bytes}");
        Ok(promised)
    }
}

impl Drop for NoReserve {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        let mut roll = self.space.unreserved.roll.lock();
        #[cfg(debug_assertions)]
        roll.leave(self.token, [self.bytes]);
        self.space.unreserved.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for NoReserve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NoReserve").field("bytes", &self.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Short;

    fn space() -> Arc<Space> {
        Arc::new(Space::new(4096, 16384))
    }

    /// Q2: parts of a token are counted once, and not when they are gone.
    #[test]
    fn live_tokens_are_counted() {
        let space = space();
        let mut all = space.no_reserve(10 << 12);
        let mut part = all.split(3 << 12);
        part.merge(space.no_reserve(1 << 12));
        assert_eq!((all.bytes(), part.bytes()), (7 << 12, 4 << 12));
        assert_eq!(space.unreserved(), 11 << 12);
        space.audit().expect("the count is the tokens'");
        drop(all);
        assert_eq!(space.unreserved(), 4 << 12);
        drop(part);
        assert_eq!(space.unreserved(), 0);
        space.audit().expect("the count is the tokens'");
    }

    /// Q1: what is refused a promise leaves nothing behind, and what is promised less never gets by.
    #[test]
    fn an_exchange_pays_in_full_or_fails() {
        let space = space();
        let refused = space.no_reserve(4096).exchange(|bytes| space.reserve_data(bytes));
        assert_eq!(refused.map(|_| ()), Err(Short { missing: 4096 }));
        assert_eq!(space.unreserved(), 0);
        let less = || space.no_reserve(4096).exchange(|_| space.reserve_data(0));
        let less = std::panic::catch_unwind(std::panic::AssertUnwindSafe(less));
        assert!(less.is_err(), "nothing was promised for 4096 bytes");
        assert_eq!(space.unreserved(), 0);
    }
}
