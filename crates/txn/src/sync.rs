//! What the gate is built on. The tests have another one of these, of a model checker.

pub(crate) use buttress_base::CachePadded;
pub(crate) use buttress_base::shard::{SHARDS, shard};
pub(crate) use buttress_base::sync::{RwLock, RwLockReadGuard};
