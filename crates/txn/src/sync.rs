//! The locks and shards of the gate. The tests replace this module by a module of a model checker.

pub(crate) use buttress_base::CachePadded;
pub(crate) use buttress_base::shard::{SHARDS, shard};
pub(crate) use buttress_base::sync::{RwLock, RwLockReadGuard};
