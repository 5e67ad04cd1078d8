//! The interface by which the thread that makes room handles a waiting ticket of either queue.

use std::time::Duration;

use buttress_space::{DataReservation, DataTicket};

/// How long a waiter that may have to make room itself sleeps.
pub const OWN_SLICE: Duration = Duration::from_millis(2);

/// A waiter in a line.
pub trait Waits {
    /// The token that the waiter waits for.
    type Token;

    /// Waits for a verdict, at most so long; the inner `None` is a refusal.
    fn wait(&mut self, limit: Duration) -> Option<Option<Self::Token>>;

    /// Whether no other waiter is served before it.
    fn is_first(&self) -> bool;

    /// Whether it may give up (`txn::flush::F4`).
    fn may_give_up(&self) -> bool;

    /// Its last look, when it stands first and no step helped, before it gives up.
    fn look_once_more(&mut self) -> Look<Self::Token> {
        Look::InVain
    }
}

/// The result of a last look.
pub enum Look<P> {
    /// The waiter has its token.
    Served(P),
    /// Other operations that free space have ended. A commit may now write what they put, so the
    /// flush steps run again.
    MakeRoom,
    /// The look found no space.
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
