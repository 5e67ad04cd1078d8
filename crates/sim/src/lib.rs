//! Devices that record, crash, fail or are slow, for the tests of every crate above.
//!
//! # Place
//!
//! The crate depends only on `base` and `block`. So every crate above can test itself on devices
//! that are worse than real ones. [`record`] finds every state that a power cut could leave.
//! [`fault`] fails the n-th request. [`slow`] is as slow as a disk. With [`campaign`], a test runs
//! as one round of a long search. `processors` simulates a machine with any number of processors,
//! for the scheduler of `base::seeded`.

#![forbid(unsafe_code)]

pub mod campaign;
pub mod fault;
#[cfg(any(debug_assertions, buttress_seeded))]
pub mod processors;
pub mod record;
pub mod slow;

pub use fault::{FaultDevice, FaultKind, Faults};
pub use record::{Crash, DeviceId, Log, Recorder};
pub use slow::{Slow, Slowness};
