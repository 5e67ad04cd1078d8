//! The count of bytes that are dirty and have no reservation, because they are written in place.
//!
//! # Invariants
//!
//! - **Q2** The count is the sum of the live tokens ([`InPlaceToken`](crate::InPlaceToken)).
//!
//! # Locks
//!
//! In debug builds the count has a lock of [`Rank::Leaf`](buttress_base::Rank), which is taken
//! alone.

use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(debug_assertions)]
use buttress_base::{Rank, Ranked};

#[cfg(debug_assertions)]
use crate::token_audit::TokenAudit;

/// How many bytes of a volume are dirty and have no reservation.
#[derive(Debug)]
pub(crate) struct InPlaceBytes {
    bytes: AtomicU64,
    /// The same number, counted by the tokens (Q2). In debug builds `bytes` changes under this lock
    /// only.
    #[cfg(debug_assertions)]
    audit: Ranked<TokenAudit<1>>,
}

impl InPlaceBytes {
    pub(crate) fn new() -> Self {
        Self {
            bytes: AtomicU64::new(0),
            #[cfg(debug_assertions)]
            audit: Ranked::new(Rank::Leaf, TokenAudit::default()),
        }
    }

    /// Returns the bytes of all live tokens.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts a new token. The returned number is used in debug builds only.
    pub(crate) fn enter(&self, bytes: u64) -> u64 {
        #[cfg(debug_assertions)]
        {
            let mut audit = self.audit.lock();
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            audit.grant([bytes]);
            audit.enter([bytes])
        }
        #[cfg(not(debug_assertions))]
        {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            bytes & 0
        }
    }

    /// Splits `bytes` off a token; returns the number of the new token.
    pub(crate) fn split(&self, token: u64, bytes: u64) -> u64 {
        #[cfg(debug_assertions)]
        return self.audit.lock().split(token, [bytes]);
        #[cfg(not(debug_assertions))]
        return (token + bytes) & 0;
    }

    /// Joins two tokens; returns the number of an empty token that replaces `other`.
    pub(crate) fn merge(&self, token: u64, other: u64) -> u64 {
        #[cfg(debug_assertions)]
        {
            let mut audit = self.audit.lock();
            audit.merge(token, other);
            audit.enter([0])
        }
        #[cfg(not(debug_assertions))]
        return (token + other) & 0;
    }

    /// Ends a token.
    pub(crate) fn leave(&self, token: u64, bytes: u64) {
        #[cfg(debug_assertions)]
        let mut audit = self.audit.lock();
        #[cfg(debug_assertions)]
        audit.leave(token, [bytes]);
        #[cfg(not(debug_assertions))]
        let _ = token;
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Compares the count with the tokens (Q2).
    pub(crate) fn audit(&self) -> Result<(), String> {
        #[cfg(debug_assertions)]
        {
            let audit = self.audit.lock();
            let ([tokens], bytes) = (audit.sum(), self.bytes.load(Ordering::Relaxed));
            if tokens != bytes {
                return Err(format!(
                    "Q2: tokens hold {tokens} of {bytes} bytes without a reservation"
                ));
            }
        }
        Ok(())
    }
}
