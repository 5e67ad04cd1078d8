//! Reservations of data space: bytes that an operation owns before it allocates.
//!
//! # Place
//!
//! `data` reserves bytes for dirty pages and holds the token until the work is done. Tokens are
//! linear: they split and merge, and cannot be copied. `txn` reserves metadata, by the number of
//! items.
//!
//! # Invariants
//!
//! - **R1** Every reserved byte belongs to exactly one live token.
//! - **R2** A token that is dropped gives back the bytes that it still holds.
//!
//! # Failure
//!
//! A refusal says how many bytes are missing and changes nothing. A caller that can wait takes a
//! ticket. This module does not call upper layers to make room.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::ticket::{Priority, Ticket, Verdict};
use crate::{Refused, Space, SpaceKind};

impl Space {
    /// Reserves `bytes` for contents of files: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`Refused`] when there are not enough bytes. The caller makes room and asks again.
    pub fn reserve_data(self: &Arc<Self>, bytes: u64) -> Result<DataReservation, Refused> {
        Token::new(self, SpaceKind::Data, bytes).map(DataReservation)
    }

    /// As [`Space::reserve_data`]. Also refuses if `fits` returns false, or if a request of
    /// `priority` must wait behind another request.
    ///
    /// # Errors
    ///
    /// [`Refused`]; the request is not in the queue.
    pub fn reserve_data_at_once(
        self: &Arc<Self>,
        priority: Priority,
        bytes: u64,
        fits: impl Fn() -> bool,
    ) -> Result<DataReservation, Refused> {
        if !self.data_requests().at_once(
            self.shared_account(SpaceKind::Data),
            priority,
            bytes,
            fits,
        ) {
            return Err(Refused { missing: bytes });
        }
        Ok(DataReservation(Token::of_granted(self, SpaceKind::Data, bytes)))
    }

    /// Reserves `bytes` for contents of files, or adds the request to the queue.
    pub fn ask_data(
        self: &Arc<Self>,
        priority: Priority,
        bytes: u64,
        fits: impl Fn() -> bool,
    ) -> Result<DataReservation, DataTicket<'_>> {
        match self.data_requests().ask(self.shared_account(SpaceKind::Data), priority, bytes, fits)
        {
            None => Ok(DataReservation(Token::of_granted(self, SpaceKind::Data, bytes))),
            Some(ticket) => Err(DataTicket { space: self, ticket: Some(ticket), bytes }),
        }
    }

    /// Serves waiting requests for data in their order; returns how many were served. `fits` has
    /// the same meaning as in [`Space::reserve_data_at_once`].
    pub fn serve_data(&self, fits: impl Fn() -> bool) -> u64 {
        self.data_requests().serve(self.shared_account(SpaceKind::Data), fits)
    }
}

/// The content of a token.
struct Token {
    space: Arc<Space>,
    kind: SpaceKind,
    bytes: u64,
    /// The token's number in the list of live tokens (`token_audit`), in debug builds.
    token: u64,
}

impl Token {
    fn new(space: &Arc<Space>, kind: SpaceKind, bytes: u64) -> Result<Self, Refused> {
        space.shared_account(kind).reserve(bytes)?;
        Ok(Self::of_granted(space, kind, bytes))
    }

    /// The token of bytes that the account has reserved already.
    fn of_granted(space: &Arc<Space>, kind: SpaceKind, bytes: u64) -> Self {
        let token = space.shared_account(kind).enter(bytes);
        Self { space: Arc::clone(space), kind, bytes, token }
    }

    fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "R1: {bytes} bytes of a reservation of {}", self.bytes);
        self.bytes -= bytes;
        let token = self.space.shared_account(self.kind).split(self.token, bytes);
        Self { space: Arc::clone(&self.space), kind: self.kind, bytes, token }
    }

    fn merge(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.space, &other.space), "R1: reservations of two volumes");
        self.space.shared_account(self.kind).merge(self.token, other.token);
        self.bytes += mem::take(&mut other.bytes);
        other.token = MERGED;
    }

    fn shrink_to(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "R1: {bytes} bytes of a reservation of {}", self.bytes);
        let excess = self.bytes - bytes;
        self.bytes = bytes;
        if excess > 0 {
            self.space.shared_account(self.kind).give_back(self.token, excess);
            self.space.serve_freed();
        }
    }
}

/// The number of a token that was merged into another.
const MERGED: u64 = u64::MAX;

impl Drop for Token {
    fn drop(&mut self) {
        if self.token != MERGED {
            self.space.shared_account(self.kind).leave(self.token, self.bytes);
            if self.bytes > 0 {
                self.space.serve_freed();
            }
        }
    }
}

/// A place in the queue for data space. A dropped ticket leaves the queue, and gives back the bytes
/// that were granted meanwhile.
#[must_use = "a dropped ticket does not wait"]
#[derive(Debug)]
pub struct DataTicket<'s> {
    space: &'s Arc<Space>,
    ticket: Option<Ticket<'s, u64>>,
    bytes: u64,
}

impl DataTicket<'_> {
    /// Waits for a verdict, at most for `limit`. `None` when there is no verdict yet.
    ///
    /// # Errors
    ///
    /// [`Refused`]; the request is then not in the queue any more.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Result<DataReservation, Refused>> {
        match self.ticket.as_mut()?.wait_for(limit)? {
            Verdict::Granted => {
                let token = Token::of_granted(self.space, SpaceKind::Data, self.bytes);
                Some(Ok(DataReservation(token)))
            }
            Verdict::Refused => Some(Err(Refused { missing: self.bytes })),
        }
    }

    /// Whether this request is the next that is served.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::is_first)
    }
}

impl Drop for DataTicket<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if ticket.leave() == Some(Verdict::Granted) {
            self.space.shared_account(SpaceKind::Data).revoke(self.bytes);
        }
        // The dropped ticket may have kept a later request waiting that fits now.
        self.space.serve_freed();
    }
}

/// A reservation of space for contents of files. Dropping it gives back the bytes that were not
/// allocated.
#[must_use = "a dropped reservation is given back at once"]
pub struct DataReservation(Token);

impl DataReservation {
    /// Returns the bytes still reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Cuts `bytes` off into a new token.
    ///
    /// # Panics
    ///
    /// When the token has fewer bytes: a bug of the caller (R1).
    pub fn split(&mut self, bytes: u64) -> Self {
        Self(self.0.split(bytes))
    }

    /// Adds the bytes of another token of the same volume.
    ///
    /// # Panics
    ///
    /// When `other` belongs to another volume: a bug of the caller.
    pub fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
    }

    /// Gives back all but `bytes`.
    ///
    /// # Panics
    ///
    /// When the token has fewer bytes: a bug of the caller (R1).
    pub fn shrink_to(&mut self, bytes: u64) {
        self.0.shrink_to(bytes);
    }

    /// Whether this is a reservation of `space`.
    pub(crate) fn is_of(&self, space: &Space) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0.space), space)
    }

    /// Drops `bytes` that an allocation took; the account has counted the allocation already.
    pub(crate) fn take(&mut self, bytes: u64) {
        assert!(bytes <= self.0.bytes, "R1: {bytes} bytes of a reservation of {}", self.0.bytes);
        self.0.space.shared_account(self.0.kind).take_from_token(self.0.token, bytes);
        self.0.bytes -= bytes;
    }
}

impl fmt::Debug for DataReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataReservation").field("bytes", &self.0.bytes).finish()
    }
}
