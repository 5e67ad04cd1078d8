//! What the index's bitmaps rest on, under a scheduler that tries the orders in which threads may
//! run.

pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};
