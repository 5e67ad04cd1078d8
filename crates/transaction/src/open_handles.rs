//! Counts the handles that a thread holds (`txn::handle::H2`), in debug builds only.

#[cfg(debug_assertions)]
thread_local! {
    /// A handle stays on one thread, because it contains the gate's guard, which stays on one
    /// thread.
    static OPEN: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Notes that this thread holds one more handle.
pub fn open() {
    #[cfg(debug_assertions)]
    OPEN.set(OPEN.get() + 1);
}

/// Notes that this thread holds one handle less.
pub fn close() {
    #[cfg(debug_assertions)]
    OPEN.set(OPEN.get() - 1);
}

/// Checks that a thread holds no handle before it waits, since a commit would wait for the handle.
#[track_caller]
pub fn expect_none(what: &str) {
    #[cfg(debug_assertions)]
    assert_eq!(OPEN.get(), 0, "{what} with a handle in hand");
    #[cfg(not(debug_assertions))]
    let _ = what;
}
