//! The types that the claims of runs are built on. A test replaces this module with types of a
//! model checker.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use buttress_base::sync::Condvar;
pub(crate) use buttress_base::{Rank, Ranked};
