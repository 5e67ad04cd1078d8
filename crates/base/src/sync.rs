//! Mutexes, read-write locks and condition variables of the whole engine.
//!
//! # Place
//!
//! In a release build these are the types of `parking_lot`, at no cost. A debug build, and a build
//! with `--cfg buttress_seeded`, wraps each type once more. In such a build a thread that runs
//! under [`crate::seeded`] waits in the scheduler. Every other thread waits in `parking_lot`, after
//! one relaxed load.
//!
//! # Invariants
//!
//! - **Y1** A guard first releases the lock and then notifies the scheduler. So the scheduler never
//!   treats a held lock as free.

#[cfg(not(any(debug_assertions, buttress_seeded)))]
pub use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};

#[cfg(any(debug_assertions, buttress_seeded))]
pub use watched::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, WaitTimeoutResult,
};

#[cfg(any(debug_assertions, buttress_seeded))]
mod watched {
    use std::fmt;
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    use crate::seeded::{self, Place, Want};

    /// Notifies the scheduler on drop that a lock may be free. This value is the last field of each
    /// guard, so it is dropped after the lock is released (Y1).
    struct Tell(Place, Want);

    impl Drop for Tell {
        fn drop(&mut self) {
            seeded::released(self.0, self.1);
        }
    }

    /// As `parking_lot::Mutex`.
    #[derive(Default)]
    pub struct Mutex<T: ?Sized> {
        // Unranked: ranks are built on this type.
        inner: parking_lot::Mutex<T>,
    }

    impl<T> Mutex<T> {
        /// Creates an unlocked mutex.
        #[must_use]
        pub const fn new(value: T) -> Self {
            Self { inner: parking_lot::Mutex::new(value) }
        }

        /// Takes the value out.
        pub fn into_inner(self) -> T {
            self.inner.into_inner()
        }
    }

    impl<T: ?Sized> Mutex<T> {
        fn place(&self) -> Place {
            Place::of(&self.inner)
        }

        fn guard<'a>(&'a self, inner: parking_lot::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            MutexGuard { inner, _tell: Tell(self.place(), Want::Mutex) }
        }

        /// Waits for the lock.
        #[track_caller]
        pub fn lock(&self) -> MutexGuard<'_, T> {
            let place = self.place();
            let inner = seeded::acquire(place, Want::Mutex, || self.inner.try_lock());
            self.guard(inner.unwrap_or_else(|| self.inner.lock()))
        }

        /// Takes the lock if it is free.
        #[track_caller]
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            seeded::point();
            self.inner.try_lock().map(|inner| self.guard(inner))
        }

        /// Borrows the value of a mutex that nothing else can reach.
        pub fn get_mut(&mut self) -> &mut T {
            self.inner.get_mut()
        }
    }

    impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.inner.fmt(f)
        }
    }

    /// As `parking_lot::MutexGuard`.
    #[must_use = "a guard that is dropped at once guards nothing"]
    pub struct MutexGuard<'a, T: ?Sized> {
        inner: parking_lot::MutexGuard<'a, T>,
        _tell: Tell,
    }

    impl<T: ?Sized> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.inner
        }
    }

    impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.inner
        }
    }

    impl<T: ?Sized + fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.inner.fmt(f)
        }
    }

    /// As `parking_lot::Condvar`.
    #[derive(Debug, Default)]
    pub struct Condvar {
        inner: parking_lot::Condvar,
    }

    impl Condvar {
        /// Creates a condition variable that no thread waits on.
        #[must_use]
        pub const fn new() -> Self {
            Self { inner: parking_lot::Condvar::new() }
        }

        /// Wakes one waiting thread.
        pub fn notify_one(&self) -> bool {
            seeded::notify(Place::of(&self.inner), false);
            self.inner.notify_one()
        }

        /// Wakes all waiting threads.
        pub fn notify_all(&self) -> usize {
            seeded::notify(Place::of(&self.inner), true);
            self.inner.notify_all()
        }

        /// Releases the lock until a notification comes, and then takes the lock again.
        #[track_caller]
        pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
            if self.wait_seeded(guard, None).is_none() {
                self.inner.wait(&mut guard.inner);
            }
        }

        /// As [`Condvar::wait`], for `limit` at most.
        #[track_caller]
        pub fn wait_for<T: ?Sized>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            limit: Duration,
        ) -> WaitTimeoutResult {
            let told = self.wait_seeded(guard, Some(limit));
            let told =
                told.unwrap_or_else(|| !self.inner.wait_for(&mut guard.inner, limit).timed_out());
            WaitTimeoutResult(!told)
        }

        /// Waits in the scheduler if the thread belongs to a run; returns whether a notification
        /// came.
        #[track_caller]
        fn wait_seeded<T: ?Sized>(
            &self,
            guard: &mut MutexGuard<'_, T>,
            limit: Option<Duration>,
        ) -> Option<bool> {
            if !seeded::is_seeded() {
                return None;
            }
            let mutex = parking_lot::MutexGuard::mutex(&guard.inner);
            let at = Place::of(mutex);
            let signal = Place::of(&self.inner);
            // The lock is free when this closure ends, and no other thread runs before this thread
            // takes the lock.
            parking_lot::MutexGuard::unlocked(&mut guard.inner, || {
                let told = seeded::wait(signal, at, limit);
                while mutex.is_locked() {
                    seeded::wait_locked(at);
                }
                Some(told)
            })
        }
    }

    /// Whether a timed wait ended at its time limit.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct WaitTimeoutResult(bool);

    impl WaitTimeoutResult {
        /// Says whether the limit passed before a notification came.
        #[must_use]
        pub const fn timed_out(&self) -> bool {
            self.0
        }
    }

    /// As `parking_lot::RwLock`: a reader waits for a writer that waits.
    #[derive(Default)]
    pub struct RwLock<T: ?Sized> {
        // Unranked: each user of this type says why it has no rank.
        inner: parking_lot::RwLock<T>,
    }

    impl<T> RwLock<T> {
        /// Creates an unlocked lock.
        #[must_use]
        pub const fn new(value: T) -> Self {
            Self { inner: parking_lot::RwLock::new(value) }
        }

        /// Takes the value out.
        pub fn into_inner(self) -> T {
            self.inner.into_inner()
        }
    }

    impl<T: ?Sized> RwLock<T> {
        fn place(&self) -> Place {
            Place::of(&self.inner)
        }

        /// Waits for a share of the lock.
        #[track_caller]
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            let place = self.place();
            let inner = seeded::acquire(place, Want::Read, || self.inner.try_read());
            let inner = inner.unwrap_or_else(|| self.inner.read());
            RwLockReadGuard { inner, _tell: Tell(place, Want::Read) }
        }

        /// Waits for the lock.
        #[track_caller]
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            let place = self.place();
            let inner = seeded::acquire(place, Want::Write, || self.inner.try_write());
            let inner = inner.unwrap_or_else(|| self.inner.write());
            RwLockWriteGuard { inner, _tell: Tell(place, Want::Write) }
        }

        /// Takes a share of the lock if that needs no wait.
        #[track_caller]
        pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
            seeded::point();
            let inner = self.inner.try_read()?;
            Some(RwLockReadGuard { inner, _tell: Tell(self.place(), Want::Read) })
        }

        /// Takes the lock if it is free.
        #[track_caller]
        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            seeded::point();
            let inner = self.inner.try_write()?;
            Some(RwLockWriteGuard { inner, _tell: Tell(self.place(), Want::Write) })
        }

        /// Borrows the value of a lock that nothing else can reach.
        pub fn get_mut(&mut self) -> &mut T {
            self.inner.get_mut()
        }
    }

    impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.inner.fmt(f)
        }
    }

    /// As `parking_lot::RwLockReadGuard`.
    #[must_use = "a guard that is dropped at once guards nothing"]
    pub struct RwLockReadGuard<'a, T: ?Sized> {
        inner: parking_lot::RwLockReadGuard<'a, T>,
        _tell: Tell,
    }

    impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.inner
        }
    }

    /// As `parking_lot::RwLockWriteGuard`.
    #[must_use = "a guard that is dropped at once guards nothing"]
    pub struct RwLockWriteGuard<'a, T: ?Sized> {
        inner: parking_lot::RwLockWriteGuard<'a, T>,
        _tell: Tell,
    }

    impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.inner
        }
    }

    impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.inner
        }
    }
}
