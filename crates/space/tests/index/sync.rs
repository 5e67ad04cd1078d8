//! The primitives of the index's bitmaps, under a scheduler that tries the orders in which threads
//! may run.

pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};
