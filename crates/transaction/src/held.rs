//! Which handles a thread holds (`txn::handle::H2`): looked at in debug builds.

#[cfg(debug_assertions)]
thread_local! {
    /// They never change threads: the gate's guard does not.
    static HELD: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// This thread holds one handle more.
pub fn open() {
    #[cfg(debug_assertions)]
    HELD.set(HELD.get() + 1);
}

/// This thread holds one handle less.
pub fn close() {
    #[cfg(debug_assertions)]
    HELD.set(HELD.get() - 1);
}

/// A thread that is about to wait holds no handle: the commit would wait for it.
#[track_caller]
pub fn expect_none(what: &str) {
    #[cfg(debug_assertions)]
    assert_eq!(HELD.get(), 0, "{what} with a handle in hand");
    #[cfg(not(debug_assertions))]
    let _ = what;
}
