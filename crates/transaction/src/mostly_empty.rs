//! A usually empty value behind a mutex; a flag lets readers of its size skip the lock.
//!
//! # Invariants
//!
//! - **S1** A change sets the flag before it changes the value, and no code clears the flag. So a
//!   thread that counts sees its own changes. Such a thread also sees the changes of every thread
//!   that it has waited for.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_base::sync::Mutex;

/// A usually empty value behind a mutex and a flag.
#[derive(Debug, Default)]
pub struct MostlyEmpty<T> {
    some: AtomicBool,
    /// Unranked: a caller may hold it while it acts on the content.
    content: Mutex<T>,
}

impl<T> MostlyEmpty<T> {
    /// Locks the value for reading.
    pub fn lock(&self) -> impl Deref<Target = T> + '_ {
        self.content.lock()
    }

    /// Changes the value.
    pub fn change<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        self.some.store(true, Ordering::Release);
        act(&mut self.content.lock())
    }

    /// Returns `count` of the value; 0 without the lock if the value never changed.
    pub fn count(&self, count: impl FnOnce(&T) -> u64) -> u64 {
        if self.some.load(Ordering::Acquire) { count(&self.content.lock()) } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S1: the count includes all added entries and no removed entries.
    #[test]
    fn counts_what_is_there() {
        let list = MostlyEmpty::<Vec<u64>>::default();
        let sum = || list.count(|list| list.iter().sum());
        assert_eq!(sum(), 0);
        list.change(|list| list.extend([3, 4]));
        assert_eq!((sum(), list.lock().len()), (7, 2));
        assert_eq!(list.change(std::mem::take), [3, 4]);
        assert_eq!(sum(), 0);
    }
}
