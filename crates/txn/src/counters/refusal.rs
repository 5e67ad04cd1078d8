//! Refusals of space. Each refusal is reported to tracing subscribers and counted. The last refusal
//! is kept with all accounts.
//!
//! # Invariants
//!
//! - **R1** A reader that sees the count of a refusal also finds its record, because the record is
//!   stored before the count rises.
//! - **R2** A thread that refuses a request holds no short lock, because it takes short locks to
//!   read all accounts. The lock of the record is held only for a copy.

use std::time::{Duration, Instant};

use buttress_space::SpaceKind;

use crate::reserve::Accounts;

/// The last refusal of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kind of space that was refused.
    pub kind: SpaceKind,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// Time since the refusal.
    pub ago: Duration,
    /// All accounts at the moment of the refusal.
    pub accounts: Accounts,
}

/// A refusal as the counters keep it, with its time instead of its age.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) kind: SpaceKind,
    pub(crate) bytes: u64,
    pub(crate) at: Instant,
    pub(crate) accounts: Accounts,
}
