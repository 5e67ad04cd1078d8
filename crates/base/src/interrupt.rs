//! Cancellation: whether the work that a thread does is still wanted, as a kernel knows by a task's
//! signals.
//!
//! # Place
//!
//! A caller of the engine installs a token for its thread ([`Interrupt::heeded`]). Code that waits
//! for long, and loses nothing by giving up, asks [`is_interrupted`] and gives up. Nothing in
//! between passes the token on.
//!
//! # Invariants
//!
//! - **I1** The token belongs to the thread, for as long as a call lasts. A thread of the engine
//!   has none, whatever waits for it. Work for others on the way runs without the token
//!   ([`shielded`]).
//! - **I2** Asking changes nothing and may be done in any loop: without a token it costs no more
//!   than reading a cell.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A token for work that may cease to be wanted. Clones share one state.
#[derive(Clone, Debug)]
pub struct Interrupt(Source);

#[derive(Clone, Debug)]
enum Source {
    Raised(Arc<AtomicBool>),
    Asked { ask: fn(u32) -> bool, of: u32 },
}

thread_local! {
    static HEEDED: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

/// While it lives, the token holds for the thread that made it.
#[derive(Debug)]
#[must_use = "nobody is heeded any more once it is dropped"]
pub struct Heeding {
    before: Option<Interrupt>,
    /// It belongs to its thread.
    stays: PhantomData<*const ()>,
}

impl Default for Interrupt {
    fn default() -> Self {
        Self::new()
    }
}

impl Interrupt {
    /// Work that is wanted until [`raise`](Self::raise).
    #[must_use]
    pub fn new() -> Self {
        Self(Source::Raised(Arc::new(AtomicBool::new(false))))
    }

    /// A token that asks the system, by a number, whether the work is still wanted. `ask` must not
    /// wait.
    #[must_use]
    pub const fn asked(ask: fn(u32) -> bool, of: u32) -> Self {
        Self(Source::Asked { ask, of })
    }

    /// Says, from any thread and for good, that the work is no longer wanted. A waiting thread
    /// looks within some hundredths of a second. Changes nothing for a token that asks the system.
    pub fn raise(&self) {
        if let Source::Raised(raised) = &self.0 {
            raised.store(true, Ordering::Release);
        }
    }

    /// Whether it is no longer wanted.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        match &self.0 {
            Source::Raised(raised) => raised.load(Ordering::Acquire),
            Source::Asked { ask, of } => ask(*of),
        }
    }

    /// Works, and gives up waiting once it is no longer wanted.
    pub fn heeded<R>(&self, work: impl FnOnce() -> R) -> R {
        let _heeding = self.heed();
        work()
    }

    /// Has this thread heed it for as long as what is returned lives; one in the other, the inner
    /// one counts.
    pub fn heed(&self) -> Heeding {
        let before = HEEDED.replace(Some(self.clone()));
        Heeding { before, stays: PhantomData }
    }
}

impl Drop for Heeding {
    fn drop(&mut self) {
        HEEDED.set(self.before.take());
    }
}

/// Works for others, without the token of this thread: what the token would give up, the others
/// would lose.
pub fn shielded<R>(work: impl FnOnce() -> R) -> R {
    let _heeding = Heeding { before: HEEDED.take(), stays: PhantomData };
    work()
}

/// Whether this thread has a token.
#[must_use]
pub fn is_heeded() -> bool {
    HEEDED.with_borrow(Option::is_some)
}

/// Whether what this thread does is no longer wanted.
#[must_use]
pub fn is_interrupted() -> bool {
    // Not within the borrow: the asked function may install a token itself.
    let heeded = HEEDED.with_borrow(Clone::clone);
    heeded.is_some_and(|heeded| heeded.is_raised())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I1: of the thread alone, for the call alone, and the inner one counts.
    #[test]
    fn belongs_to_a_thread_and_a_call() {
        let (outer, inner) = (Interrupt::new(), Interrupt::new());
        outer.clone().raise();
        assert!(!is_interrupted(), "no interrupt is heeded");
        outer.heeded(|| {
            assert!(is_interrupted());
            inner.heeded(|| assert!(!is_interrupted()));
            shielded(|| assert!(!is_interrupted()));
            assert!(is_interrupted(), "the outer one again");
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(!is_interrupted(), "another thread"));
            });
        });
        assert!(!is_interrupted());
    }

    /// A token of the system asks it each time.
    #[test]
    fn the_system_is_asked() {
        let even = Interrupt::asked(|number| number.is_multiple_of(2), 4);
        even.raise();
        assert!(even.heeded(is_interrupted));
        assert!(!Interrupt::asked(|number| number.is_multiple_of(2), 5).heeded(is_interrupted));
    }
}
