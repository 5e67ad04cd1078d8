//! Whether the one for whom a thread works still wants it done, as a kernel knows of a task by its signals.
//!
//! # Place
//!
//! Who calls the engine says whose work it is ([`Interrupt::heeded`]); who lets a thread wait for long, where to give up
//! loses nothing, asks ([`is_interrupted`]) and gives up. In between nobody passes anything on.
//!
//! # Invariants
//!
//! - **I1** It is a property of the thread, for as long as a call lasts: what a thread of the engine's own does is never
//!   interrupted, whoever waits for it; nor what a caller's thread does for others on the way ([`shielded`]).
//! - **I2** Asking changes nothing, and may be done as often as one looks: it costs no more than reading a cell where nobody
//!   said whose work it is.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Somebody's work, which may cease to be wanted. Clones are of the same.
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

/// While it lives, the thread that made it works for somebody.
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

    /// Work for somebody of whom the system knows whether he still wants it, by a number. `ask` must not wait.
    #[must_use]
    pub const fn asked(ask: fn(u32) -> bool, of: u32) -> Self {
        Self(Source::Asked { ask, of })
    }

    /// Says, from any thread and for good, that it is no longer wanted. Who waits looks within some hundredths of a second.
    /// Nothing is changed for somebody of whom the system knows.
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

    /// Has this thread heed it for as long as what is returned lives; one in the other, the inner one counts.
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

/// Works for others, whatever becomes of the one whose work it was until now: what he would give up they would lose.
pub fn shielded<R>(work: impl FnOnce() -> R) -> R {
    let _heeding = Heeding { before: HEEDED.take(), stays: PhantomData };
    work()
}

/// Whether this thread works for somebody who may cease to want it.
#[must_use]
pub fn is_heeded() -> bool {
    HEEDED.with_borrow(Option::is_some)
}

/// Whether what this thread does is no longer wanted.
#[must_use]
pub fn is_interrupted() -> bool {
    // Not within the borrow: whoever is asked may work by himself.
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
        assert!(!is_interrupted(), "nobody is heeded");
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

    /// Somebody of whom the system knows is asked each time.
    #[test]
    fn the_system_is_asked() {
        let even = Interrupt::asked(|number| number.is_multiple_of(2), 4);
        even.raise();
        assert!(even.heeded(is_interrupted));
        assert!(!Interrupt::asked(|number| number.is_multiple_of(2), 5).heeded(is_interrupted));
    }
}
