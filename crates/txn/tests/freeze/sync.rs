//! What the gate rests on, under a scheduler that tries the orders in which threads may run.

pub(crate) use shuttle::sync::RwLockReadGuard;

/// Without poisoning, as the one outside.
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
