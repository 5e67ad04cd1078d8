//! Threads of a release build: those of the standard library, freed where the starting thread is
//! bound to a processor.

use std::io;
use std::thread::{self, JoinHandle, ScopedJoinHandle};

use super::freed;

/// As [`thread::Builder`].
#[derive(Debug)]
#[must_use = "nothing runs before it is spawned"]
pub struct Builder(thread::Builder);

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// Describes a thread.
    pub fn new() -> Self {
        Self(thread::Builder::new())
    }

    /// Names the thread.
    pub fn name(self, name: String) -> Self {
        Self(self.0.name(name))
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
        self.0.spawn(freed(work))
    }
}

/// As [`thread::Scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope>(&'scope thread::Scope<'scope, 'env>);

impl<'scope> Scope<'scope, '_> {
    /// Starts a thread that ends before the scope does.
    pub fn spawn<F, T>(&self, work: F) -> ScopedJoinHandle<'scope, T>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        self.0.spawn(freed(work))
    }
}

/// As [`thread::scope`].
pub fn scope<'env, F, T>(work: F) -> T
where
    F: for<'scope> FnOnce(&Scope<'scope, 'env>) -> T,
{
    thread::scope(|inner| work(&Scope(inner)))
}
