//! Cancellation: tells a thread whether its work is still wanted. Inside a kernel, the signals of a
//! task have this purpose.
//!
//! # Place
//!
//! A caller of the engine installs a token for its thread ([`Interrupt::run`]). Code with long
//! waits calls [`is_interrupted`], and gives up if that loses nothing. No function in between
//! passes the token on.
//!
//! # Invariants
//!
//! - **I1** A token belongs to one thread for the duration of one call. A thread of the engine has
//!   no token, even while a thread with a token waits for it. Work that a thread does for other
//!   threads runs without the token ([`without_cancel`]).
//! - **I2** [`is_interrupted`] changes no state and may be called in any loop. Without a token, the
//!   call costs one read of a cell.
//! - **I3** A wait for a device gives up only in a read, in work that may fail at each of its reads
//!   ([`Interrupt::enter_fully`]). An operation that changes something reads before it begins to
//!   change. What has to finish runs without the token ([`suspend_cancel`]): writes and flushes of
//!   devices, commits, logs and writeback. So does a read with a failure that would outlast the
//!   call.
//! - **I4** Work that has to finish and may wait long runs on a thread of its own while the caller
//!   may give up ([`outlived`]). The caller gives up its wait, and the work goes on.

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::activity::{self, Cause};
use crate::sync::{Condvar, Mutex};
use crate::thread;

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
struct ThreadToken {
    token: Interrupt,
    /// Whether waits for a device give up, too (I3).
    is_full: bool,
}

thread_local! {
    static TOKEN: RefCell<Option<ThreadToken>> = const { RefCell::new(None) };
}

/// Keeps a token installed for the thread that made this value, until the value is dropped.
#[derive(Debug)]
#[must_use = "the token counts no more once it is dropped"]
pub struct CancelScope {
    before: Option<ThreadToken>,
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
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        let _scope = self.enter();
        work()
    }

    /// Installs this token for the thread until the returned value is dropped. Of nested tokens
    /// only the innermost counts.
    pub fn enter(&self) -> CancelScope {
        self.install(false)
    }

    /// As [`Self::enter`], but waits for a device give up, too, and the work fails then (I3). This
    /// is for operations on names and files, and for threads of a device.
    pub fn enter_fully(&self) -> CancelScope {
        self.install(true)
    }

    fn install(&self, is_full: bool) -> CancelScope {
        let before = TOKEN.replace(Some(ThreadToken { token: self.clone(), is_full }));
        CancelScope { before, stays: PhantomData }
    }
}

impl Drop for CancelScope {
    fn drop(&mut self) {
        TOKEN.set(self.before.take());
    }
}

/// Runs `work` without the token of this thread. This is for work with a result that other threads
/// need, so that an interrupt of this thread does not end the work.
pub fn without_cancel<R>(work: impl FnOnce() -> R) -> R {
    let _suspended = suspend_cancel();
    work()
}

/// As [`without_cancel`], until the returned value is dropped.
pub fn suspend_cancel() -> CancelScope {
    CancelScope { before: TOKEN.take(), stays: PhantomData }
}

/// Runs `work` with the token of this thread, but waits for a device do not give up: the work
/// changes something from its begin on.
pub fn keeping_devices<R>(work: impl FnOnce() -> R) -> R {
    let before = TOKEN.take();
    TOKEN.set(before.clone().map(|own| ThreadToken { is_full: false, ..own }));
    let _scope = CancelScope { before, stays: PhantomData };
    work()
}

/// Runs work that has to finish, and waits for its result while this thread's work is wanted (I4).
/// Returns `None` if the wait was given up: the work then goes on, on a thread named `name`, and
/// `unwanted` gets its result there. A thread that may not abandon a device, and one without a
/// helper, does the work itself.
///
/// # Panics
///
/// If the work panics.
pub fn outlived<R: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> R + Send + 'static,
    unwanted: impl FnOnce(R) + Send + 'static,
) -> Option<R> {
    if !may_abandon() {
        return Some(without_cancel(work));
    }
    let shared = Arc::new(Outlived {
        work: Mutex::new(Some((work, unwanted))),
        end: Mutex::new(End::Awaited),
        ended: Condvar::new(),
    });
    let helper = Arc::clone(&shared);
    if spawn(name, activity::carried(move || helper.run())).is_err() {
        without_cancel(|| shared.run());
    }
    let _waiting = activity::wait(Cause::Helper);
    let mut end = shared.end.lock();
    loop {
        match std::mem::replace(&mut *end, End::Awaited) {
            End::Here(Ok(result)) => return Some(result),
            End::Here(Err(panic)) => resume_unwind(panic),
            _ if is_abandoned() => {
                *end = End::Unwanted;
                return None;
            }
            _ => drop(shared.ended.wait_for(&mut end, LOOK)),
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Work that may outlive the wait for its result.
struct Outlived<W, U, R> {
    /// The work, and what gets its result if the wait was given up. Unranked: no lock is taken
    /// under it.
    work: Mutex<Option<(W, U)>>,
    /// Unranked: no lock is taken under it.
    end: Mutex<End<R>>,
    ended: Condvar,
}

enum End<R> {
    Awaited,
    /// The wait was given up.
    Unwanted,
    Here(std::thread::Result<R>),
}

impl<W: FnOnce() -> R, U: FnOnce(R), R> Outlived<W, U, R> {
    fn run(&self) {
        let Some((work, unwanted)) = self.work.lock().take() else { return };
        let result = catch_unwind(AssertUnwindSafe(work));
        let mut end = self.end.lock();
        match (&*end, result) {
            (End::Unwanted, Ok(result)) => {
                drop(end);
                unwanted(result);
            }
            (End::Unwanted, Err(panic)) => {
                drop(end);
                resume_unwind(panic);
            }
            (_, result) => {
                *end = End::Here(result);
                self.ended.notify_all();
            }
        }
    }
}

/// Returns whether this thread has a token.
#[must_use]
pub fn has_token() -> bool {
    TOKEN.with_borrow(Option::is_some)
}

/// Returns whether the work of this thread is no longer wanted.
#[must_use]
pub fn is_interrupted() -> bool {
    // The token is cloned instead of borrowed, because the asked function may install another
    // token.
    let own = TOKEN.with_borrow(Clone::clone);
    own.is_some_and(|own| own.token.is_raised())
}

/// Returns whether this thread may give up a wait for a device (I3). A thread that may not need not
/// check [`is_abandoned`] while it waits.
#[must_use]
pub fn may_abandon() -> bool {
    TOKEN.with_borrow(|own| own.as_ref().is_some_and(|own| own.is_full))
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
        assert!(!is_interrupted(), "no token is installed");
        outer.run(|| {
            assert!(is_interrupted());
            inner.run(|| assert!(!is_interrupted()));
            without_cancel(|| assert!(!is_interrupted()));
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
        token.run(|| assert!(is_interrupted() && !is_abandoned()));
        let _scope = token.enter_fully();
        assert!(is_abandoned());
        without_cancel(|| assert!(!may_abandon() && !is_abandoned()));
        token.run(|| assert!(!is_abandoned()));
        assert!(is_abandoned());
    }

    /// I4: work outlives the wait for it, and finishes. Without a token, and with one that gives up
    /// no wait for a device, this thread does the work itself.
    #[test]
    fn work_outlives_the_wait_for_it() {
        let here = std::thread::current().id();
        let by = || std::thread::current().id();
        let token = Interrupt::new();
        assert_eq!(outlived("helper", by, drop), Some(here));
        assert_eq!(token.run(|| outlived("helper", by, drop)), Some(here));
        let _scope = token.enter_fully();
        assert_ne!(outlived("helper", by, drop).expect("it is wanted"), here);
        assert!(!keeping_devices(may_abandon) && may_abandon());
        let (go, waits) = std::sync::mpsc::channel::<()>();
        let (end, ended) = std::sync::mpsc::channel();
        token.raise();
        let work = move || {
            waits.recv().expect("it comes");
            is_interrupted()
        };
        let unwanted = move |result| end.send(result).expect("it is waited for");
        let given_up = outlived("helper", work, unwanted);
        assert_eq!(given_up, None);
        go.send(()).expect("it waits");
        assert!(!ended.recv().expect("its result is not lost"), "it has no token");
    }

    /// A token from [`Interrupt::asked`] calls its function at each check.
    #[test]
    fn the_system_is_asked() {
        let even = Interrupt::asked(|number| number.is_multiple_of(2), 4);
        even.raise();
        assert!(even.run(is_interrupted));
        assert!(!Interrupt::asked(|number| number.is_multiple_of(2), 5).run(is_interrupted));
    }
}
