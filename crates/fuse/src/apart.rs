//! Threads without the descriptors of the process, for calls that may end a mount.
//!
//! # Place
//!
//! The end of a mount of a block device waits for the server (`whole_mount::T4`), and no signal
//! ends the wait. Suppose that a thread of the server waits for this end, and the process is
//! killed. The thread would keep the connection's descriptors open, and the kernel would wait
//! forever.
//!
//! # Invariants
//!
//! - **AP1** The thread has its own table of descriptors. A close in this table closes no
//!   descriptor of the process.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::mpsc::sync_channel;

/// The first descriptor after stdin, stdout and stderr, which the threads keep.
const FIRST: u32 = 3;

/// Runs `call` on a thread without the process's descriptors, and waits for the thread.
///
/// # Errors
///
/// When no thread can be started, or the kernel cannot give it a table of descriptors. In that case
/// `call` did not run.
pub(crate) fn run<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let work = move || {
        own_table(None)?;
        Ok(call())
    };
    let thread = std::thread::Builder::new().name("apart".to_owned()).spawn(work)?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread ended in a panic")))
}

/// Closes a descriptor that may be the last one of a mount, and waits until it is closed. This
/// thread closes the descriptor first, and then another thread closes a copy.
///
/// If no thread can be started, only this thread closes the descriptor.
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
    // After an error there is no thread, or the thread has no table of its own: there is no copy.
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
        // SAFETY: the first call gives this thread its own table, and the second call closes
        // descriptors of that table alone. Code that runs on this thread afterwards uses no closed
        // descriptor.
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

    /// A thread apart has only the standard descriptors, and the process keeps all of its
    /// descriptors.
    #[test]
    fn a_thread_apart_has_no_descriptors() {
        let mut file = File::open("/proc/self/stat").expect("it is there");
        let count = || std::fs::read_dir("/proc/thread-self/fd").map_or(0, Iterator::count);
        // The standard descriptors, and the descriptor that lists them.
        assert!(run(count).expect("Linux") <= 4);
        assert!(file.read(&mut [0]).is_ok_and(|len| len == 1), "the process has its own");
    }

    /// After the call no thread has the descriptor open: a read from the other end of the pipe
    /// finds the end of the data.
    #[test]
    fn a_descriptor_is_closed_everywhere() {
        let (mut reader, writer) = io::pipe().expect("Linux");
        let number = writer.as_raw_fd();
        close(writer.into());
        assert_eq!(reader.read(&mut [0]).expect("a pipe"), 0, "{number} is open");
    }
}
