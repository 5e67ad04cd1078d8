//! Submits several requests to one file through io_uring, and waits for all of them at once.
//!
//! Waking a thread on a sleeping processor costs more than a write to a fast device. An fsync
//! writes several short pieces, and a separate wait for each piece would wake the thread each time.
//! So several requests go to the kernel together where possible. A durable write replaces the
//! separate flush. For a separate flush, io_uring would have to wake a thread of its own (Linux
//! 6.18).
//!
//! # Invariants
//!
//! - **U1** [`Rings::run`] returns only after every request that it submitted has ended,
//!   successfully or not. So the kernel never uses a buffer after its borrow has ended.
//! - **U2** One thread at a time uses a ring. An idle ring has no requests.
//!
//! # Failure
//!
//! Where there is no io_uring (containers forbid it, old kernels lack it) there are no rings: the
//! caller makes one call after the other.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::squeue::Entry;
use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use parking_lot::Mutex;

use super::{Answer, Durable, ENTRIES};

/// `RWF_DSYNC`: the write ends when it is durable.
const DSYNC: i32 = 2;

/// Rings of one file. A thread that finds no idle ring makes a ring.
#[derive(Default)]
pub(crate) struct Rings {
    /// Unranked: a thread takes no other lock while it holds this one.
    idle: Mutex<Vec<IoUring>>,
    forbidden: AtomicBool,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings").finish_non_exhaustive()
    }
}

impl Rings {
    /// Whether a ring may be available. False after the first attempt to make a ring failed.
    pub(crate) fn may_be(&self) -> bool {
        !self.forbidden.load(Ordering::Relaxed)
    }

    /// Returns a ring that passed a trial.
    fn ring(&self) -> Option<IoUring> {
        if let Some(idle) = self.idle.lock().pop() {
            return Some(idle);
        }
        if self.forbidden.load(Ordering::Relaxed) {
            return None;
        }
        let made = IoUring::new(ENTRIES as u32).and_then(|mut ring| {
            let nothing = [opcode::Nop::new().build()];
            push(&mut ring, &nothing);
            ring.submit_and_wait(1)?;
            let answered = ring.completion().next().is_some();
            if answered { Ok(ring) } else { Err(io::ErrorKind::Unsupported.into()) }
        });
        match made {
            Ok(ring) => Some(ring),
            Err(error) => {
                tracing::debug!(%error, "no io_uring: one request after the other");
                self.forbidden.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Submits requests to the kernel and waits until all have ended (U1). `None` if there are no
    /// rings.
    ///
    /// Takes at most [`ENTRIES`] requests. The caller keeps their buffers borrowed until this
    /// function returns.
    fn run<const N: usize>(&self, requests: &[Entry]) -> Option<[i32; N]> {
        assert!(requests.len() <= N && N <= ENTRIES, "more requests than places");
        let mut ring = self.ring()?;
        let mut answers = [0; N];
        push(&mut ring, requests);
        let mut ended = 0;
        while ended < requests.len() {
            // Every submitted request ends at some time, so the loop waits again (U1). An error
            // here is most often a signal.
            if ring.submit_and_wait(requests.len() - ended).is_err() {
                std::thread::yield_now();
            }
            for answer in ring.completion() {
                answers[answer.user_data() as usize] = answer.result();
                ended += 1;
            }
        }
        self.idle.lock().push(ring);
        Some(answers)
    }

    /// Writes several runs of bytes at the same time, each in one request. A write may be partial.
    /// `None` if there are no rings.
    ///
    /// Takes at most [`ENTRIES`] writes, each with at most as many buffers as the kernel accepts.
    pub(crate) fn write(
        &self,
        file: &File,
        writes: &[(u64, &[IoSlice<'_>])],
        durable: Durable,
    ) -> Option<Vec<Answer>> {
        let fd = Fd(file.as_raw_fd());
        let flags = if durable == Durable::Yes { DSYNC } else { 0 };
        let request = |(index, (offset, bufs)): (usize, &(u64, &[IoSlice<'_>]))| {
            opcode::Writev::new(fd, bufs.as_ptr().cast(), bufs.len() as u32)
                .offset(*offset)
                .rw_flags(flags)
                .build()
                .user_data(index as u64)
        };
        let requests: Vec<_> = writes.iter().enumerate().map(request).collect();
        let answers = self.run::<ENTRIES>(&requests)?;
        Some(answers[..writes.len()].iter().copied().map(answer).collect())
    }
}

fn answer(result: i32) -> Answer {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// Puts requests into the empty queue of a ring.
#[expect(unsafe_code, reason = "the kernel reads buffers behind the back of the borrow checker")]
fn push(ring: &mut IoUring, requests: &[Entry]) {
    // SAFETY: this file makes all requests, from a borrowed file and borrowed buffers. Each
    // function that makes requests returns only after the kernel has finished all of them (U1).
    let pushed = unsafe { ring.submission().push_multiple(requests) };
    assert!(pushed.is_ok(), "U2: a ring in use");
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::os::unix::fs::FileExt;

    use super::*;

    const NO_RINGS: &str = "SKIPPED: no io_uring here";

    #[test]
    fn ring_writes_many_pieces_at_once() -> Result<(), Box<dyn Error>> {
        let file = tempfile::tempfile()?;
        let rings = Rings::default();
        let contents: Vec<Vec<u8>> = (0..20_u8).map(|n| vec![n; 100 + usize::from(n)]).collect();
        let bufs: Vec<_> = contents
            .iter()
            .map(|bytes| bytes.split_at(7))
            .map(|(left, right)| [IoSlice::new(left), IoSlice::new(right)])
            .collect();
        let writes: Vec<_> =
            bufs.iter().enumerate().map(|(n, bufs)| (n as u64 * 200, &bufs[..])).collect();
        for durable in [Durable::No, Durable::Yes] {
            file.set_len(0)?;
            let Some(answers) = rings.write(&file, &writes, durable) else {
                eprintln!("{NO_RINGS}");
                return Ok(());
            };
            for (n, (bytes, answer)) in contents.iter().zip(answers).enumerate() {
                assert_eq!(answer?, bytes.len());
                let mut found = vec![0; bytes.len()];
                file.read_exact_at(&mut found, n as u64 * 200)?;
                assert_eq!(found, *bytes);
            }
        }
        assert_eq!(rings.idle.lock().len(), 1, "U2");
        Ok(())
    }
}
