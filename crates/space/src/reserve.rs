//! Promises: space that will be there when the work needs it, given back if the work does not.
//!
//! # Place
//!
//! `data` reserves bytes for dirty pages and holds the token until the work is done. Tokens are
//! linear: they split and merge, and cannot be copied. Metadata is reserved by `txn`, by items.
//!
//! # Invariants
//!
//! - **R1** Every promised byte belongs to exactly one live token.
//! - **R2** A token that is dropped gives back what it still holds.
//!
//! # Failure
//!
//! A refusal says how many bytes are missing and changes nothing. Who can wait takes a ticket; nothing
//! here calls up to make room for him.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::ticket::{Class, Ticket, Verdict};
use crate::{Short, Space, SpaceKind};

impl Space {
    /// Promises `bytes` for contents of files: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`Short`] when they are not there; make room and ask again.
    pub fn reserve_data(self: &Arc<Self>, bytes: u64) -> Result<DataReservation, Short> {
        Promise::new(self, SpaceKind::Data, bytes).map(DataReservation)
    }

    /// As [`Space::reserve_data`], unless somebody waits whom one of `class` must not overtake, or `fits`
    /// says that something else stands against it.
    ///
    /// # Errors
    ///
    /// [`Short`]; nobody was put into the line.
    pub fn reserve_data_at_once(
        self: &Arc<Self>,
        class: Class,
        bytes: u64,
        fits: impl Fn() -> bool,
    ) -> Result<DataReservation, Short> {
        if !self.data_queue().at_once(self.ledger(SpaceKind::Data), class, bytes, fits) {
            return Err(Short { missing: bytes });
        }
        Ok(DataReservation(Promise::of_granted(self, SpaceKind::Data, bytes)))
    }

    /// Promises `bytes` for contents of files, or a place in the line of those who wait for that.
    pub fn ask_data(
        self: &Arc<Self>,
        class: Class,
        bytes: u64,
        fits: impl Fn() -> bool,
    ) -> Result<DataReservation, DataTicket<'_>> {
        match self.data_queue().ask(self.ledger(SpaceKind::Data), class, bytes, fits) {
            None => Ok(DataReservation(Promise::of_granted(self, SpaceKind::Data, bytes))),
            Some(ticket) => Err(DataTicket { space: self, ticket: Some(ticket), bytes }),
        }
    }

    /// Serves those who wait for data, the first first; says how many. `fits` as in
    /// [`Space::reserve_data_at_once`].
    pub fn serve_data(&self, fits: impl Fn() -> bool) -> u64 {
        self.data_queue().serve(self.ledger(SpaceKind::Data), fits)
    }
}

/// What a token is made of.
struct Promise {
    space: Arc<Space>,
    kind: SpaceKind,
    bytes: u64,
    /// Its number in the roll of live tokens, in debug builds.
    token: u64,
}

impl Promise {
    fn new(space: &Arc<Space>, kind: SpaceKind, bytes: u64) -> Result<Self, Short> {
        space.ledger(kind).promise(bytes)?;
        Ok(Self::of_granted(space, kind, bytes))
    }

    /// The token of what the account has promised already.
    fn of_granted(space: &Arc<Space>, kind: SpaceKind, bytes: u64) -> Self {
        let token = space.ledger(kind).enter(bytes);
        Self { space: Arc::clone(space), kind, bytes, token }
    }

    fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "R1: {bytes} bytes of a promise of {}", self.bytes);
        self.bytes -= bytes;
        let token = self.space.ledger(self.kind).split(self.token, bytes);
        Self { space: Arc::clone(&self.space), kind: self.kind, bytes, token }
    }

    fn merge(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.space, &other.space), "R1: promises of two volumes");
        self.space.ledger(self.kind).merge(self.token, other.token);
        self.bytes += mem::take(&mut other.bytes);
        other.token = MERGED;
    }

    fn shrink_to(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "R1: {bytes} bytes of a promise of {}", self.bytes);
        let excess = self.bytes - bytes;
        self.bytes = bytes;
        if excess > 0 {
            self.space.ledger(self.kind).give_back(self.token, excess);
            self.space.serve_freed();
        }
    }
}

/// The number of a token that is part of another now.
const MERGED: u64 = u64::MAX;

impl Drop for Promise {
    fn drop(&mut self) {
        if self.token != MERGED {
            self.space.ledger(self.kind).leave(self.token, self.bytes);
            if self.bytes > 0 {
                self.space.serve_freed();
            }
        }
    }
}

/// A place in the line of those who wait for data space. Leaves it when dropped, and gives back what was
/// granted meanwhile.
#[must_use = "who drops his ticket does not wait"]
#[derive(Debug)]
pub struct DataTicket<'s> {
    space: &'s Arc<Space>,
    ticket: Option<Ticket<'s, u64>>,
    bytes: u64,
}

impl DataTicket<'_> {
    /// Waits for a verdict, at most so long. `None` when there is none yet.
    ///
    /// # Errors
    ///
    /// Refused: the line was left.
    pub fn wait_for(&mut self, limit: Duration) -> Option<Result<DataReservation, Short>> {
        match self.ticket.as_mut()?.wait_for(limit)? {
            Verdict::Granted => {
                let promise = Promise::of_granted(self.space, SpaceKind::Data, self.bytes);
                Some(Ok(DataReservation(promise)))
            }
            Verdict::Refused => Some(Err(Short { missing: self.bytes })),
        }
    }

    /// Whether nobody is served before him.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.ticket.as_ref().is_some_and(Ticket::is_first)
    }
}

impl Drop for DataTicket<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        if ticket.leave() == Some(Verdict::Granted) {
            self.space.ledger(SpaceKind::Data).revoke(self.bytes);
        }
        // He may have stood before somebody who fits.
        self.space.serve_freed();
    }
}

/// A promise of space for contents of files. Dropping it gives back whatever was not allocated.
#[must_use = "a reservation nobody holds is given back at once"]
pub struct DataReservation(Promise);

impl DataReservation {
    /// Returns the bytes still promised.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Cuts `bytes` off into a token of their own.
    ///
    /// # Panics
    ///
    /// When there are not that many: a bug of the caller (R1).
    pub fn split(&mut self, bytes: u64) -> Self {
        Self(self.0.split(bytes))
    }

    /// Adds the bytes of another token of the same volume.
    ///
    /// # Panics
    ///
    /// When it is another volume's: a bug of the caller.
    pub fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
    }

    /// Gives back all but `bytes`.
    ///
    /// # Panics
    ///
    /// When there are fewer: a bug of the caller (R1).
    pub fn shrink_to(&mut self, bytes: u64) {
        self.0.shrink_to(bytes);
    }

    /// Whether the promise was made by `space`.
    pub(crate) fn is_of(&self, space: &Space) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0.space), space)
    }

    /// Forgets `bytes` that an allocation turned into reserved space; the account knows already.
    pub(crate) fn take(&mut self, bytes: u64) {
        assert!(bytes <= self.0.bytes, "R1: {bytes} bytes of a promise of {}", self.0.bytes);
        self.0.space.ledger(self.0.kind).settle(self.0.token, bytes);
        self.0.bytes -= bytes;
    }
}

impl fmt::Debug for DataReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataReservation").field("bytes", &self.0.bytes).finish()
    }
}
