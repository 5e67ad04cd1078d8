//! Threads that have no descriptor of the process's, for calls that may end a mount.
//!
//! # Place
//!
//! The end of a mount of a block device waits for the server (`whole_mount::T4`), and no signal
//! ends the wait. If a thread of the server waits, and the process is killed, the thread would keep
//! the connection's descriptors open. Then the kernel would wait forever.
//!
//! # Invariants
//!
//! - **AP1** The thread has a table of descriptors of its own. Closing them there closes none of
//!   the process's.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::sync_channel;

/// The first descriptor behind the standard ones, which the threads keep.
const FIRST: u32 = 3;

/// Runs `call` on such a thread, and waits for it.
///
/// # Errors
///
/// When no thread can be started, or the kernel cannot give it a table of descriptors. Then `call`
/// did not run.
pub(crate) fn run<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let work = move || {
        own_table(None)?;
        Ok(call())
    };
    let thread = std::thread::Builder::new().name("apart".to_owned()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended in a panic")))
}

/// Closes a descriptor that may be the last one of a mount, and waits until it is closed. The
/// thread closes a copy last.
///
/// Without a thread the descriptor is closed here.
pub(crate) fn close(descriptor: OwnedFd) {
    let number = descriptor.as_raw_fd();
    let (has_copy, is_copied) = sync_channel(1);
    let (go, may_go) = sync_channel::<()>(1);
    let work = move || {
        let copied = own_table(Some(number));
        let has_copy = has_copy.send(copied.is_ok());
        if copied.is_ok() && has_copy.is_ok() && may_go.recv().is_ok() {
            close_number(number);
        }
    };
    let thread = std::thread::Builder::new().name("apart".to_owned()).spawn(work);
    // An error means that there is no thread, or that it has no table: it holds no copy.
    if thread.is_err() || !is_copied.recv().unwrap_or(false) {
        return drop(descriptor);
    }
    drop(descriptor);
    let _ = go.send(());
    drop(thread.map(std::thread::JoinHandle::join));
}

/// Gives this thread a table of its own, with the standard descriptors and `kept` (AP1).
#[expect(unsafe_code, reason = "rustix has no close_range")]
fn own_table(kept: Option<RawFd>) -> io::Result<()> {
    let close = |first: u32, last: u32, flags: u32| {
        // SAFETY: the first call makes a table for this thread alone, and the second one follows
        // it. What runs on this thread afterwards uses none of the descriptors that are closed.
        let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    };
    let Some(kept) = kept.map(RawFd::cast_unsigned) else {
        return close(FIRST, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
    };
    close(kept + 1, u32::MAX, libc::CLOSE_RANGE_UNSHARE)?;
    if kept > FIRST { close(FIRST, kept - 1, 0) } else { Ok(()) }
}

/// Closes a descriptor of this thread's own table.
#[expect(unsafe_code, reason = "the owner is in another table")]
fn close_number(number: RawFd) {
    // SAFETY: in this thread's table nothing owns the number.
    unsafe { libc::close(number) };
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;

    use super::*;

    /// A thread apart has the standard descriptors, and the process keeps all of its own.
    #[test]
    fn a_thread_apart_has_no_descriptors() {
        let mut file = File::open("/proc/self/stat").expect("it is there");
        let count = || std::fs::read_dir("/proc/thread-self/fd").map_or(0, Iterator::count);
        // The standard ones, and the one that lists them.
        assert!(run(count).expect("Linux") <= 4);
        assert!(file.read(&mut [0]).is_ok_and(|len| len == 1), "the process has its own");
    }

    /// When the call returns, nothing has the descriptor open any more: the other end of a pipe is
    /// at its end.
    #[test]
    fn a_descriptor_is_closed_everywhere() {
        let (mut reader, writer) = io::pipe().expect("Linux");
        let number = writer.as_raw_fd();
        close(writer.into());
        assert_eq!(reader.read(&mut [0]).expect("a pipe"), 0, "{number} is open");
    }
}
