//! What the gate is built on. The tests have another one of these, of a model checker.

pub(crate) use buttress_base::apart::{Apart, STRIPES, stripe};
pub(crate) use buttress_base::sync::{RwLock, RwLockReadGuard};
