//! The queue of requests for data space: a request gets its bytes from the account, or waits.
//!
//! # What must hold
//!
//! - A request is granted only if the account reserved its bytes. If the owner's test (`fits`) then
//!   refuses the request, the account gets the bytes back.

use crate::account::SharedAccount;
use crate::ticket::{Priority, Queue, Ticket};

/// Waiting requests for data space, each with the number of bytes that it needs.
#[derive(Debug)]
pub(crate) struct DataQueue(Queue<u64>);

impl DataQueue {
    pub(crate) fn new() -> Self {
        Self(Queue::new())
    }

    pub(crate) fn queue(&self) -> &Queue<u64> {
        &self.0
    }

    /// Tries to reserve `bytes` in `account`, without waiting. Returns false if the account lacks
    /// these bytes, or `fits` refuses. Also returns false if a request of `priority` must wait
    /// behind another request.
    pub(crate) fn at_once(
        &self,
        account: &SharedAccount,
        priority: Priority,
        bytes: u64,
        fits: impl Fn() -> bool,
    ) -> bool {
        self.0.at_once(priority, || grant(account, bytes, &fits))
    }

    /// Reserves `bytes` in `account`, or adds the request to the queue and returns its ticket.
    pub(crate) fn ask(
        &self,
        account: &SharedAccount,
        priority: Priority,
        bytes: u64,
        fits: impl Fn() -> bool,
    ) -> Option<Ticket<'_, u64>> {
        self.0.ask(priority, bytes, |bytes| grant(account, *bytes, &fits))
    }

    /// Grants waiting requests from the first on, as long as they fit. Returns the number of
    /// granted requests.
    pub(crate) fn serve(&self, account: &SharedAccount, fits: impl Fn() -> bool) -> u64 {
        self.0.serve(|bytes| grant(account, *bytes, &fits))
    }
}

fn grant(account: &SharedAccount, bytes: u64, fits: impl Fn() -> bool) -> bool {
    if account.reserve(bytes).is_err() {
        return false;
    }
    if fits() {
        return true;
    }
    account.revoke(bytes);
    false
}
