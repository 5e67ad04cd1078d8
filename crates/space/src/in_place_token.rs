//! Tokens for bytes that will be written in place, and so need no reservation.
//!
//! # Place
//!
//! `data` makes a token for a range that no other file shares. `data` keeps the token beside the
//! reservations of dirty data, until writeback has checked once more that it may write in place.
//! Like reservations, tokens are linear: they split and merge, and cannot be copied.
//!
//! # Invariants
//!
//! - **Q1** Only [`InPlaceToken::exchange`] turns a token into a reservation, for all of its bytes
//!   or none. If a writer finds that it cannot write in place, it calls this function. So no code
//!   gives back bytes that were never reserved.
//! - The volume's count of bytes without a reservation is the sum of the live tokens
//!   (`unreserved::Q2`).

use std::fmt;
use std::mem;
use std::sync::Arc;

use crate::{DataReservation, Space};

impl Space {
    /// Makes a token for bytes that will be written in place, without a check. The caller has
    /// checked that writing in place is allowed, and checks again before the write.
    pub fn in_place_token(self: &Arc<Self>, bytes: u64) -> InPlaceToken {
        let token = self.unreserved_count().enter(bytes);
        InPlaceToken { space: Arc::clone(self), bytes, token }
    }

    /// Bytes that are dirty and have no reservation.
    #[must_use]
    pub fn unreserved(&self) -> u64 {
        self.unreserved_count().bytes()
    }
}

/// Bytes that will be written in place, without a reservation of new space.
#[must_use = "bytes that have neither this nor a reservation have no place"]
pub struct InPlaceToken {
    space: Arc<Space>,
    bytes: u64,
    /// The token's number in the list of live tokens (`token_audit`), in debug builds.
    token: u64,
}

impl InPlaceToken {
    /// Returns the number of bytes of the token.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Cuts `bytes` off into a new token.
    ///
    /// # Panics
    ///
    /// When the token has fewer bytes: a bug of the caller.
    pub fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "Q1: {bytes} bytes of {} without a reservation", self.bytes);
        self.bytes -= bytes;
        let token = self.space.unreserved_count().split(self.token, bytes);
        Self { space: Arc::clone(&self.space), bytes, token }
    }

    /// Adds the bytes of another token of the same volume.
    ///
    /// # Panics
    ///
    /// When `other` belongs to another volume: a bug of the caller.
    pub fn merge(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.space, &other.space), "Q1: tokens of two volumes");
        other.token = self.space.unreserved_count().merge(self.token, other.token);
        self.bytes += mem::take(&mut other.bytes);
    }

    /// Exchanges the token for a reservation of as many bytes, because they cannot be written in
    /// place (Q1).
    ///
    /// # Errors
    ///
    /// The error of `reserve`. The token has then ended, and its bytes have neither a token nor a
    /// reservation.
    ///
    /// # Panics
    ///
    /// When `reserve` returns fewer bytes: a bug of the caller.
    pub fn exchange<E>(
        self,
        reserve: impl FnOnce(u64) -> Result<DataReservation, E>,
    ) -> Result<DataReservation, E> {
        let reservation = reserve(self.bytes)?;
        let (bytes, found) = (self.bytes, reservation.bytes());
        assert!(bytes <= found, "Q1: {found} bytes reserved for {bytes}");
        Ok(reservation)
    }
}

impl Drop for InPlaceToken {
    fn drop(&mut self) {
        self.space.unreserved_count().leave(self.token, self.bytes);
    }
}

impl fmt::Debug for InPlaceToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InPlaceToken").field("bytes", &self.bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Refused;

    fn space() -> Arc<Space> {
        Arc::new(Space::new(4096, 16384))
    }

    /// `unreserved::Q2`: each part of a token is counted once, and is not counted after it ends.
    #[test]
    fn live_tokens_are_counted() {
        let space = space();
        let mut all = space.in_place_token(10 << 12);
        let mut part = all.split(3 << 12);
        part.merge(space.in_place_token(1 << 12));
        assert_eq!((all.bytes(), part.bytes()), (7 << 12, 4 << 12));
        assert_eq!(space.unreserved(), 11 << 12);
        space.audit().expect("the count is the tokens'");
        drop(all);
        assert_eq!(space.unreserved(), 4 << 12);
        drop(part);
        assert_eq!(space.unreserved(), 0);
        space.audit().expect("the count is the tokens'");
    }

    /// Q1: after a refused reservation the token's bytes do not count any more. A reservation of
    /// fewer bytes is not accepted.
    #[test]
    fn an_exchange_pays_in_full_or_fails() {
        let space = space();
        let refused = space.in_place_token(4096).exchange(|bytes| space.reserve_data(bytes));
        assert_eq!(refused.map(|_| ()), Err(Refused { missing: 4096 }));
        assert_eq!(space.unreserved(), 0);
        let less = || space.in_place_token(4096).exchange(|_| space.reserve_data(0));
        let less = std::panic::catch_unwind(std::panic::AssertUnwindSafe(less));
        assert!(less.is_err(), "no bytes were reserved for 4096");
        assert_eq!(space.unreserved(), 0);
    }
}
