//! The interface to waiting tickets of the data queue and of the metadata queue. The code that
//! makes room uses this interface.

use std::time::Duration;

use buttress_space::{DataReservation, DataTicket};

/// How long a ticket sleeps at a time if its thread may have to make room itself.
pub const OWN_SLICE: Duration = Duration::from_millis(2);

/// A waiting ticket.
pub trait Waits {
    /// The reservation that the ticket waits for.
    type Token;

    /// Waits at most `limit` for the ticket to be granted or refused. `None` is a timeout, and
    /// `Some(None)` a refusal.
    fn wait(&mut self, limit: Duration) -> Option<Option<Self::Token>>;

    /// Whether no other ticket of the queue is served before this one.
    fn is_first(&self) -> bool;

    /// Whether the ticket may give up (`txn::flush::F4`).
    fn may_give_up(&self) -> bool;

    /// The last attempt before the first ticket gives up, after no flush step helped.
    fn look_once_more(&mut self) -> Look<Self::Token> {
        Look::InVain
    }
}

/// The result of the last attempt.
pub enum Look<P> {
    /// The ticket has its reservation.
    Served(P),
    /// Other operations that free space have ended. A commit may now write the puts of these
    /// operations, so the flush steps run again.
    MakeRoom,
    /// There is no space.
    InVain,
}

impl Waits for DataTicket<'_> {
    type Token = DataReservation;

    fn wait(&mut self, limit: Duration) -> Option<Option<DataReservation>> {
        self.wait_for(limit).map(Result::ok)
    }

    fn is_first(&self) -> bool {
        DataTicket::is_first(self)
    }

    fn may_give_up(&self) -> bool {
        true
    }
}
