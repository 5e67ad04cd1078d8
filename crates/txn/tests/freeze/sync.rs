//! The primitives of the gate, under a scheduler that tries the orders in which threads may run.

pub(crate) use buttress_base::CachePadded;
pub(crate) use shuttle::sync::RwLockReadGuard;

/// There are few shards, so that threads meet in all of them.
pub(crate) const SHARDS: usize = 2;

shuttle::thread_local! {
    static MINE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Sets the shard of this thread.
pub(crate) fn set_shard(shard: usize) {
    MINE.with(|mine| mine.set(shard % SHARDS));
}

pub(crate) fn shard() -> usize {
    MINE.with(std::cell::Cell::get)
}

/// A lock without poisoning, like the lock that it replaces.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect("no poison")
    }

    pub(crate) fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
        self.0.write().expect("no poison")
    }
}
