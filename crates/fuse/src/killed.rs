//! Requests of killed programs: a request that waits for space gives up, as in Linux. So does one
//! that waits for a device: a store of objects may be away for long.
//!
//! # Why not `FUSE_INTERRUPT`
//!
//! `FUSE_INTERRUPT` says that some signal came. `dispatch` answers it with `ENOSYS`, after which
//! the kernel sends no more such requests. Once the server has read a request, the kernel waits for
//! its answer even if the task is killed. Only waits for space and for a store take long here. In
//! Linux, too, only a killed task gives up a wait for space. So the waiting thread itself checks in
//! `/proc` whether the task is about to die.
//!
//! # Invariants
//!
//! - **K1** Only requests of a task that has `SIGKILL` pending give up. The kernel makes `SIGKILL`
//!   pending for every thread of a process that a signal will end. The exception is a signal that
//!   dumps core: as in Linux, the process ends once its thread has the answer. If `/proc` hides the
//!   task, its request does not give up.
//! - **K2** A waiting thread checks the task every few hundredths of a second. A thread that writes
//!   data back because too much is dirty does the same. All other requests only store the number of
//!   the task.
//! - **K3** Writes and times from the kernel's cache never give up: the program was told that they
//!   succeeded. The kernel sends such writes for no task, and such times for the task that closes
//!   the file.
//! - **K4** A request gives up a wait for a device while it reads, before it changes anything. What
//!   has to finish goes on without it (`aside` in `fs`, which lists the waits that stay). No other
//!   request gets its error. Orders by `ioctl` give up only waits for space: they are work on a
//!   volume, in steps.

use std::fs;

use buttress_base::Interrupt;
use buttress_base::interrupt::CancelScope;
use buttress_protocol::WriteFlags;

/// `SIGKILL` in a set of signals as the kernel prints it.
const KILLED: u64 = 1 << (9 - 1);

/// Associates this thread with the task that the kernel's request names, until the returned value
/// is dropped. Requests of the kernel itself have no task.
pub(crate) fn enter(task: u32) -> Option<CancelScope> {
    (task != 0).then(|| Interrupt::asked(is_killed, task).enter())
}

/// As [`enter`], for a request that gives up its waits for devices, too (K4).
pub(crate) fn enter_fully(task: u32) -> Option<CancelScope> {
    (task != 0).then(|| Interrupt::asked(is_killed, task).enter_fully())
}

/// As [`enter_fully`], for a write (K3).
pub(crate) fn enter_write(task: u32, how: WriteFlags) -> Option<CancelScope> {
    if how.contains(WriteFlags::CACHE) { None } else { enter_fully(task) }
}

/// Whether a task is about to die of a signal.
fn is_killed(task: u32) -> bool {
    let status = fs::read(format!("/proc/{task}/status")).unwrap_or_default();
    pending(&status).is_some_and(|pending| pending & KILLED != 0)
}

/// Reads the pending signals of a thread from its `status`, which begins with a name of any bytes.
fn pending(status: &[u8]) -> Option<u64> {
    let status = String::from_utf8_lossy(status);
    let set = status.lines().find_map(|line| line.strip_prefix("SigPnd:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K1: pending signals are parsed as the kernel prints them. A task that does not exist does
    /// not count as killed.
    #[test]
    fn pending_signals_are_read() {
        let status = |set: &str| {
            let rest = format!("\nThreads:\t1\nSigPnd:\t{set}\nShdPnd:\t0100\n");
            [b"Name:\tcut off \xc3".as_slice(), rest.as_bytes()].concat()
        };
        assert_eq!(pending(&status("0000000000000100")), Some(KILLED));
        assert_eq!(
            pending(&status("0000000000004000")),
            Some(1 << 14),
            "SIGTERM, which it may handle"
        );
        assert_eq!(pending(b"Name:\tdd\n"), None);
        assert!(!is_killed(std::process::id()) && !is_killed(u32::MAX));
        assert!(enter(0).is_none(), "the kernel's own requests");
        assert!(enter_write(1, WriteFlags::CACHE).is_none(), "from its cache");
    }
}
