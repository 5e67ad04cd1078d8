//! How the thread that makes room sees a wait for space: a ticket of either line.

use std::time::Duration;

use buttress_space::{DataReservation, DataTicket};

/// How long a waiter that may have to make room itself sleeps.
pub const OWN_SLICE: Duration = Duration::from_millis(2);

/// A waiter in a line.
pub trait Waits {
    /// What it waits for.
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

/// What came of a last look.
pub enum Look<P> {
    /// It has what it waited for.
    Served(P),
    /// Others are done, and what they have put may be written: the flush steps run again.
    MakeRoom,
    /// Nothing.
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
