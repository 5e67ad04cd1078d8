//! Cancellation: tells a thread whether its work is still wanted. Inside a kernel, the signals of a
//! task have this purpose.
//!
//! # Place
//!
//! A caller of the engine installs a token for its thread ([`Interrupt::heeded`]). Code with long
//! waits calls [`is_interrupted`], and gives up if that loses nothing. No function in between
//! passes the token on.
//!
//! # Invariants
//!
//! - **I1** A token belongs to one thread for the duration of one call. A thread of the engine has
//!   no token, even while a thread with a token waits for it. Work that a thread does for other
//!   threads runs without the token ([`shielded`]).
//! - **I2** [`is_interrupted`] changes no state and may be called in any loop. Without a token, the
//!   call costs one read of a cell.
//! - **I3** A wait for a device gives up only in work that may fail at each read of a device
//!   ([`Interrupt::heed_fully`]). Inside a transaction, such a failure would make the volume
//!   read-only.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a waiting thread checks whether its wait is abandoned.
pub const LOOK: Duration = Duration::from_millis(50);

/// A token for work that may cease to be wanted. Clones share one state.
#[derive(Clone, Debug)]
pub struct Interrupt(Source);

#[derive(Clone, Debug)]
enum Source {
    Raised(Arc<AtomicBool>),
    Asked { ask: fn(u32) -> bool, of: u32 },
}

/// The token of a thread.
#[derive(Clone, Debug)]
struct Heeded {
    token: Interrupt,
    /// Whether waits for a device give up, too (I3).
    is_full: bool,
}

thread_local! {
    static HEEDED: RefCell<Option<Heeded>> = const { RefCell::new(None) };
}

/// Keeps a token installed for the thread that made this value, until the value is dropped.
#[derive(Debug)]
#[must_use = "interrupts are not heeded any more once it is dropped"]
pub struct Heeding {
    before: Option<Heeded>,
    /// Makes the type `!Send`, because the token belongs to the thread.
    stays: PhantomData<*const ()>,
}

impl Default for Interrupt {
    fn default() -> Self {
        Self::new()
    }
}

impl Interrupt {
    /// Creates a token for work that is wanted until [`raise`](Self::raise).
    #[must_use]
    pub fn new() -> Self {
        Self(Source::Raised(Arc::new(AtomicBool::new(false))))
    }

    /// Creates a token that asks the system: each check calls `ask(of)`. The function `ask` returns
    /// true once the work is no longer wanted, and must not wait.
    #[must_use]
    pub const fn asked(ask: fn(u32) -> bool, of: u32) -> Self {
        Self(Source::Asked { ask, of })
    }

    /// Marks the work as no longer wanted, permanently and from any thread. A waiting thread
    /// notices this within some hundredths of a second. A token that asks the system is not
    /// affected.
    pub fn raise(&self) {
        if let Source::Raised(raised) = &self.0 {
            raised.store(true, Ordering::Release);
        }
    }

    /// Returns whether the work is no longer wanted.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        match &self.0 {
            Source::Raised(raised) => raised.load(Ordering::Acquire),
            Source::Asked { ask, of } => ask(*of),
        }
    }

    /// Runs `work` with this token installed. Waits inside `work` give up once the work is no
    /// longer wanted.
    pub fn heeded<R>(&self, work: impl FnOnce() -> R) -> R {
        let _heeding = self.heed();
        work()
    }

    /// Installs this token for the thread until the returned value is dropped. Of nested tokens
    /// only the innermost counts.
    pub fn heed(&self) -> Heeding {
        self.install(false)
    }

    /// As [`Self::heed`], but waits for a device give up, too, and the work fails then (I3). This
    /// is for work that changes nothing on a volume, and for threads of a device.
    pub fn heed_fully(&self) -> Heeding {
        self.install(true)
    }

    fn install(&self, is_full: bool) -> Heeding {
        let before = HEEDED.replace(Some(Heeded { token: self.clone(), is_full }));
        Heeding { before, stays: PhantomData }
    }
}

impl Drop for Heeding {
    fn drop(&mut self) {
        HEEDED.set(self.before.take());
    }
}

/// Runs `work` without the token of this thread. This is for work with a result that other threads
/// need, so that an interrupt of this thread does not end the work.
pub fn shielded<R>(work: impl FnOnce() -> R) -> R {
    let _heeding = Heeding { before: HEEDED.take(), stays: PhantomData };
    work()
}

/// Returns whether this thread has a token.
#[must_use]
pub fn is_heeded() -> bool {
    HEEDED.with_borrow(Option::is_some)
}

/// Returns whether the work of this thread is no longer wanted.
#[must_use]
pub fn is_interrupted() -> bool {
    // The token is cloned instead of borrowed, because the asked function may install another
    // token.
    let heeded = HEEDED.with_borrow(Clone::clone);
    heeded.is_some_and(|heeded| heeded.token.is_raised())
}

/// Returns whether this thread may give up a wait for a device (I3). A thread that may not need not
/// check [`is_abandoned`] while it waits.
#[must_use]
pub fn may_abandon() -> bool {
    HEEDED.with_borrow(|heeded| heeded.as_ref().is_some_and(|heeded| heeded.is_full))
}

/// Returns whether this thread shall give up a wait for a device (I3).
#[must_use]
pub fn is_abandoned() -> bool {
    may_abandon() && is_interrupted()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I1: a token counts only for its thread and its call. Of nested tokens the inner one counts.
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

    /// I3: a wait for a device gives up only in work that allows it. A part of that work may run
    /// for other threads or change something; that part gives up no wait for a device.
    #[test]
    fn only_some_work_abandons_a_device() {
        let token = Interrupt::new();
        token.raise();
        token.heeded(|| assert!(is_interrupted() && !is_abandoned()));
        let _heeding = token.heed_fully();
        assert!(is_abandoned());
        shielded(|| assert!(!may_abandon() && !is_abandoned()));
        token.heeded(|| assert!(!is_abandoned()));
        assert!(is_abandoned());
    }

    /// A token from [`Interrupt::asked`] calls its function at each check.
    #[test]
    fn the_system_is_asked() {
        let even = Interrupt::asked(|number| number.is_multiple_of(2), 4);
        even.raise();
        assert!(even.heeded(is_interrupted));
        assert!(!Interrupt::asked(|number| number.is_multiple_of(2), 5).heeded(is_interrupted));
    }
}
