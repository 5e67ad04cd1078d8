//! Threads of the engine. They are threads of the system; in a seeded run ([`crate::seeded`]) one
//! of them runs at a time.
//!
//! In a release build without `--cfg buttress_seeded` most names of this module are reexports of
//! the standard library.
//!
//! # What must hold
//!
//! - A new thread does not inherit the processor and the policy of a thread that is bound to one
//!   ([`on_spawn_by`]). Threads that share out work would otherwise all run on one processor.

use std::sync::{LazyLock, OnceLock};
use std::time::Duration;

pub use std::thread::panicking;
#[cfg(not(any(debug_assertions, buttress_seeded)))]
pub use std::thread::{JoinHandle, ScopedJoinHandle, Thread, current, park, park_timeout};

#[cfg(not(any(debug_assertions, buttress_seeded)))]
pub use plain::{Builder, Scope, scope};
#[cfg(not(any(debug_assertions, buttress_seeded)))]
mod plain;

#[cfg(any(debug_assertions, buttress_seeded))]
pub use watched::{
    Builder, JoinHandle, Scope, ScopedJoinHandle, Thread, current, park, park_timeout, scope,
};

/// What a new thread does first, and for which threads' children.
#[derive(Clone, Copy, Debug)]
struct Freeing {
    is_bound: fn() -> bool,
    free: fn(),
}

static FREEING: OnceLock<Freeing> = OnceLock::new();

/// From now on, each thread that a bound thread starts first calls `free`. `is_bound` says whether
/// the calling thread is bound to a processor. The first call counts, and later ones do nothing.
pub fn on_spawn_by(is_bound: fn() -> bool, free: fn()) {
    let _ = FREEING.set(Freeing { is_bound, free });
}

/// Wraps the work of a thread that this thread is about to start.
fn freed<T>(work: impl FnOnce() -> T) -> impl FnOnce() -> T {
    let free = FREEING.get().filter(|freeing| (freeing.is_bound)()).map(|freeing| freeing.free);
    move || {
        if let Some(free) = free {
            free();
        }
        work()
    }
}

/// Sleeps. In a seeded run the sleep ends when no other thread can run, or by a random decision.
#[track_caller]
pub fn sleep(time: Duration) {
    #[cfg(any(debug_assertions, buttress_seeded))]
    if crate::seeded::sleep(time) {
        return;
    }
    std::thread::sleep(time);
}

/// Yields the processor; in a seeded run, the turn may pass to another thread here.
#[track_caller]
pub fn yield_now() {
    #[cfg(any(debug_assertions, buttress_seeded))]
    if crate::seeded::is_seeded() {
        return crate::seeded::point();
    }
    std::thread::yield_now();
}

/// Returns how many threads can run at once. In a seeded run with a machine this is the number of
/// simulated processors; in a seeded run without a machine it is 3.
#[must_use]
pub fn parallelism() -> usize {
    #[cfg(any(debug_assertions, buttress_seeded))]
    if crate::seeded::is_seeded() {
        return crate::seeded::processors().unwrap_or(3);
    }
    // The standard library reads files to compute this number, so the result is kept: small writes
    // need it often.
    static KNOWN: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));
    *KNOWN
}

/// Returns the number of this thread in its seeded run.
#[must_use]
pub fn seeded_index() -> Option<usize> {
    #[cfg(any(debug_assertions, buttress_seeded))]
    return crate::seeded::index();
    #[cfg(not(any(debug_assertions, buttress_seeded)))]
    None
}

/// Returns how long the processors of this thread's run were busy, if the run has a machine.
#[must_use]
pub fn processors_busy() -> Option<Duration> {
    #[cfg(any(debug_assertions, buttress_seeded))]
    return crate::seeded::busy();
    #[cfg(not(any(debug_assertions, buttress_seeded)))]
    None
}

/// Returns sixteen bytes of the generator of a seeded run. A second run with the same seed gets the
/// same bytes, so identifiers made of them are equal in both runs.
#[must_use]
pub fn seeded_bytes() -> Option<[u8; 16]> {
    #[cfg(any(debug_assertions, buttress_seeded))]
    return crate::seeded::bytes();
    #[cfg(not(any(debug_assertions, buttress_seeded)))]
    None
}

#[cfg(any(debug_assertions, buttress_seeded))]
mod watched {
    use std::io;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use parking_lot::Mutex;

    use crate::seeded::{self, Child};

    /// As [`thread::Thread`].
    #[derive(Clone, Debug)]
    pub struct Thread {
        inner: thread::Thread,
        child: Option<Child>,
    }

    impl Thread {
        /// The identifier of the thread.
        #[must_use]
        pub fn id(&self) -> ThreadId {
            self.inner.id()
        }

        /// Ends the current [`park`] of the thread, or its next one.
        #[track_caller]
        pub fn unpark(&self) {
            match &self.child {
                Some(child) => child.unpark(),
                None => self.inner.unpark(),
            }
        }
    }

    /// Returns the calling thread.
    #[must_use]
    pub fn current() -> Thread {
        Thread { inner: thread::current(), child: seeded::myself() }
    }

    /// Waits for [`Thread::unpark`]; may return without an `unpark`.
    #[track_caller]
    pub fn park() {
        match seeded::myself() {
            Some(child) => child.park(None),
            None => thread::park(),
        }
    }

    /// As [`park`], for `limit` at most.
    #[track_caller]
    pub fn park_timeout(limit: Duration) {
        match seeded::myself() {
            Some(child) => child.park(Some(limit)),
            None => thread::park_timeout(limit),
        }
    }

    /// As [`thread::Builder`].
    #[derive(Debug, Default)]
    #[must_use = "nothing runs before it is spawned"]
    pub struct Builder {
        name: Option<String>,
    }

    impl Builder {
        /// Describes a thread.
        pub fn new() -> Self {
            Self::default()
        }

        /// Names the thread.
        pub fn name(self, name: String) -> Self {
            Self { name: Some(name) }
        }

        /// Starts the thread.
        ///
        /// # Errors
        ///
        /// The errors of the system.
        pub fn spawn<F, T>(self, work: F) -> io::Result<JoinHandle<T>>
        where
            F: FnOnce() -> T + Send + 'static,
            T: Send + 'static,
        {
            let child = seeded::child(self.name.as_deref().unwrap_or("thread"));
            let mut builder = thread::Builder::new();
            if let Some(name) = self.name {
                builder = builder.name(name);
            }
            let own = child.clone();
            let work = super::freed(work);
            let inner = builder.spawn(move || Child::run(own, work));
            if let (Err(_), Some(child)) = (&inner, &child) {
                child.forget();
            }
            Ok(JoinHandle { inner: inner?, child })
        }
    }

    /// As [`thread::JoinHandle`].
    #[derive(Debug)]
    pub struct JoinHandle<T> {
        inner: thread::JoinHandle<T>,
        child: Option<Child>,
    }

    impl<T> JoinHandle<T> {
        /// Waits until the thread ends.
        ///
        /// # Errors
        ///
        /// The payload with which the thread panicked.
        #[track_caller]
        pub fn join(self) -> thread::Result<T> {
            if let Some(child) = &self.child {
                child.wait();
            }
            self.inner.join()
        }

        /// The thread.
        #[must_use]
        pub fn thread(&self) -> Thread {
            Thread { inner: self.inner.thread().clone(), child: self.child.clone() }
        }
    }

    /// As [`thread::Scope`].
    #[derive(Debug)]
    pub struct Scope<'scope, 'env: 'scope> {
        inner: &'scope thread::Scope<'scope, 'env>,
        // Unranked: a leaf. A thread may hold ranked locks when it takes this one, and takes no
        // lock under it.
        children: Mutex<Vec<Child>>,
    }

    impl<'scope> Scope<'scope, '_> {
        /// Starts a thread that ends before the scope does.
        pub fn spawn<F, T>(&self, work: F) -> ScopedJoinHandle<'scope, T>
        where
            F: FnOnce() -> T + Send + 'scope,
            T: Send + 'scope,
        {
            let child = seeded::child("scoped");
            let own = child.clone();
            let work = super::freed(work);
            let inner = self.inner.spawn(move || Child::run(own, work));
            self.children.lock().extend(child.clone());
            ScopedJoinHandle { inner, child }
        }
    }

    /// As [`thread::ScopedJoinHandle`].
    #[derive(Debug)]
    pub struct ScopedJoinHandle<'scope, T> {
        inner: thread::ScopedJoinHandle<'scope, T>,
        child: Option<Child>,
    }

    impl<T> ScopedJoinHandle<'_, T> {
        /// Waits until the thread ends.
        ///
        /// # Errors
        ///
        /// The payload with which the thread panicked.
        #[track_caller]
        pub fn join(self) -> thread::Result<T> {
            if let Some(child) = &self.child {
                child.wait();
            }
            self.inner.join()
        }
    }

    /// As [`thread::scope`].
    #[track_caller]
    pub fn scope<'env, F, T>(work: F) -> T
    where
        F: for<'scope> FnOnce(&Scope<'scope, 'env>) -> T,
    {
        thread::scope(|inner| {
            let scope = Scope { inner, children: Mutex::new(Vec::new()) };
            let result = catch_unwind(AssertUnwindSafe(|| work(&scope)));
            // Waits in the scheduler first, which passes the turn on. The wait of `thread::scope`
            // would keep the turn, so the children could never run.
            for child in scope.children.into_inner() {
                child.wait();
            }
            result.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    thread_local! {
        static BOUND: Cell<bool> = const { Cell::new(false) };
    }
    static FREED: AtomicUsize = AtomicUsize::new(0);

    /// Threads that a bound thread starts are freed before their work begins. Other threads are
    /// not.
    #[test]
    fn children_of_bound_threads_are_freed() {
        on_spawn_by(|| BOUND.get(), || _ = FREED.fetch_add(1, Ordering::SeqCst));
        let start = || {
            let seen = || FREED.load(Ordering::SeqCst);
            let own = Builder::new().spawn(seen).expect("a thread").join().expect("no panic");
            let scoped = scope(|scope| scope.spawn(seen).join().expect("no panic"));
            (own, scoped)
        };
        assert_eq!(start(), (0, 0));
        BOUND.set(true);
        assert_eq!(start(), (1, 2));
        BOUND.set(false);
        assert_eq!(start(), (2, 2));
    }
}
