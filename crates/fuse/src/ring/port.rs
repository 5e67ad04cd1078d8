//! Passes the entries of a queue to the kernel and back.
//!
//! # Invariants
//!
//! - **P1** Each completed entry wakes the thread that waits at a port. The bell, which other
//!   threads ring, wakes it too.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode};
use rustix::event::EventfdFlags;

use super::abi;

/// A ring with submissions that have room for a command of the kernel's FUSE.
pub(super) type Uring = IoUring<Entry128, cqueue::Entry>;

/// Where the two areas of an entry are: `iovec`s.
pub(super) type Areas = [[usize; 2]; abi::AREAS as usize];

/// An entry on its way to the kernel.
pub(super) struct Given<'a> {
    /// Its index in the queue.
    pub(super) index: u16,
    /// The processor for which the entry takes requests.
    pub(super) processor: u16,
    pub(super) command: u32,
    /// The kernel's id of the request that is answered.
    pub(super) commit_id: u64,
    pub(super) areas: &'a Areas,
}

/// The state of an entry that the kernel has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// The entry has a request.
    Request(u16),
    /// The kernel no longer uses the entry. The number is the error that the kernel gave as the
    /// reason, as a positive `errno`.
    Ended(i32),
}

/// The kernel, as the driver of a queue sees it.
pub(super) trait Port: Send {
    /// Queues an entry for the next [`Port::submit`].
    ///
    /// # Safety
    ///
    /// The areas live, and nothing else touches their memory, until the kernel is done with the
    /// entry.
    #[expect(unsafe_code, reason = "the kernel writes behind the back of the borrow checker")]
    unsafe fn give(&mut self, entry: Given<'_>);

    /// Submits the queued entries to the kernel.
    ///
    /// # Errors
    ///
    /// The errors of the system.
    fn submit(&mut self) -> io::Result<()>;

    /// As [`Port::submit`], and waits for a completed entry or the bell (P1). The wait may also end
    /// spuriously.
    fn wait(&mut self);

    /// Takes the next completed entry; does not wait.
    fn done(&mut self) -> Option<Done>;
}

/// Wakes the thread that waits at a port.
pub(super) trait Bell: Send + Sync {
    /// Rings the bell. A second ring has no further effect.
    fn ring(&self);
}

/// io_uring, and a FUSE device.
pub(super) struct UringPort {
    ring: Uring,
    device: Arc<OwnedFd>,
    bell: Arc<OwnedFd>,
}

struct Eventfd(Arc<OwnedFd>);

/// User data of the bell's completion.
const BELL: u64 = u64::MAX;
/// `POLLIN`.
const POLL_IN: u32 = 1;

impl UringPort {
    /// Makes a port and its bell. The ring has room for all entries and one more.
    pub(super) fn open(
        ring: Uring,
        device: Arc<OwnedFd>,
    ) -> io::Result<(Box<dyn Port>, Box<dyn Bell>)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = Arc::new(rustix::event::eventfd(0, flags)?);
        let mut kernel = Self { ring, device, bell: Arc::clone(&bell) };
        kernel.listen();
        Ok((Box::new(kernel), Box::new(Eventfd(bell))))
    }

    /// Adds a poll of the bell, so that the bell wakes the waiting thread.
    #[expect(unsafe_code, reason = "submissions name a descriptor")]
    fn listen(&mut self) {
        let poll = opcode::PollAdd::new(Fd(self.bell.as_raw_fd()), POLL_IN).multi(true);
        let entry = Entry128::from(poll.build().user_data(BELL));
        // SAFETY: the poll entry refers to no memory, and the descriptor lives as long as the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there is room for an entry of each slot and the bell");
    }
}

impl Port for UringPort {
    #[expect(unsafe_code, reason = "the kernel writes behind the back of the borrow checker")]
    unsafe fn give(&mut self, given: Given<'_>) {
        let Given { index, processor, command, commit_id, areas } = given;
        let areas = (command == abi::REGISTER).then_some(areas.as_ptr() as u64);
        let mut entry = opcode::UringCmd80::new(Fd(self.device.as_raw_fd()), command)
            .cmd(abi::command(commit_id, processor))
            .addr(areas)
            .build()
            .user_data(u64::from(index));
        if command == abi::REGISTER {
            // SAFETY: an `Entry128` is the kernel's `io_uring_sqe` of 128 bytes, in which a `u32`
            // at 24 is `len`; the library has no name for it in this kind of submission.
            unsafe {
                std::ptr::from_mut(&mut entry).cast::<u8>().add(24).cast::<u32>().write(abi::AREAS);
            }
        }
        // SAFETY: the caller guarantees the memory; the descriptor lives as long as the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("there is room for an entry of each slot and the bell");
    }

    fn submit(&mut self) -> io::Result<()> {
        self.ring.submit().map(drop)
    }

    fn wait(&mut self) {
        // An error mostly means that a signal came. In any case the caller waits again.
        if self.ring.submit_and_wait(1).is_err() {
            std::thread::yield_now();
        }
    }

    fn done(&mut self) -> Option<Done> {
        loop {
            let completion = self.ring.completion().next()?;
            let token = completion.user_data();
            if token != BELL {
                return Some(match completion.result() {
                    0 => Done::Request(token as u16),
                    error => Done::Ended(-error),
                });
            }
            if !cqueue::more(completion.flags()) {
                self.listen();
            }
        }
    }
}

impl Bell for Eventfd {
    fn ring(&self) {
        // If the counter is full, the write fails. In that case the bell is ringing already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}
