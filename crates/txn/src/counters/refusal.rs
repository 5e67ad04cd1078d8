//! A refusal of space: told to subscribers, counted, and the last one kept with all accounts.
//!
//! # Invariants
//!
//! - **R1** A reader that sees the count of a refusal finds its record, too: the record is kept
//!   first, and counted second.
//! - **R2** A thread that refuses holds no short lock: all accounts are looked at. What is kept is
//!   locked for a copy alone.

use std::time::{Duration, Instant};

use buttress_space::SpaceKind;

use crate::reserve::Accounts;

/// The last refusal of space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Of what.
    pub kind: SpaceKind,
    /// Bytes that were asked for.
    pub bytes: u64,
    /// How long ago.
    pub ago: Duration,
    /// All accounts at that moment.
    pub accounts: Accounts,
}

/// The same, as it is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    pub(crate) kind: SpaceKind,
    pub(crate) bytes: u64,
    pub(crate) at: Instant,
    pub(crate) accounts: Accounts,
}
