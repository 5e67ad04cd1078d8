//! Several requests to one file with one wait, by io_uring.
//!
//! Waking a thread on a processor that sleeps costs more than a write to a fast device, and a log of fsync is nothing but
//! short writes that wait for one another. So what may go at once goes at once, and what has to wait for a flush waits
//! for it in the kernel.
//!
//! # Invariants
//!
//! - **U1** [`Rings::run`] returns when every request that it gave to the kernel has ended, however that went: the
//!   kernel never has a buffer whose borrow is over.
//! - **U2** A ring is one thread's while it is in use, and has no requests when it is not.
//!
//! # Failure
//!
//! Where there is no io_uring (containers forbid it, old kernels lack it) there are no rings: the caller does the same
//! with one call after the other.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{IoUring, opcode};
use parking_lot::Mutex;

/// Requests that a ring takes at once.
pub(crate) const ENTRIES: usize = 32;
/// `RWF_DSYNC`: the write ends when it is durable.
const DSYNC: i32 = 2;

/// Rings of one file, made as threads need them.
#[derive(Default)]
pub(crate) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    forbidden: AtomicBool,
}

impl std::fmt::Debug for Rings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rings").finish_non_exhaustive()
    }
}

/// What became of a request: bytes, or why not.
type Answer = io::Result<usize>;

impl Rings {
    /// A ring that was seen to work.
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

    /// Gives requests to the kernel and waits until all have ended (U1). None where there are no rings.
    ///
    /// At most [`ENTRIES`] requests, all of `'a`: what they point to is borrowed until this returns.
    fn run<const N: usize>(&self, requests: &[Entry]) -> Option<[i32; N]> {
        assert!(requests.len() <= N && N <= ENTRIES, "more requests than places");
        let mut ring = self.ring()?;
        let mut answers = [0; N];
        push(&mut ring, requests);
        let mut ended = 0;
        while ended < requests.len() {
            // Whatever it says, what was given to the kernel ends: nothing is to be done but to wait (U1). What it
            // says is mostly that a signal came.
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

    /// Writes several runs of bytes at once, as far as each goes with one request. None where there are no rings.
    ///
    /// At most [`ENTRIES`] of them, of at most as many buffers each as the kernel takes.
    pub(crate) fn write(
        &self,
        file: &File,
        writes: &[(u64, &[IoSlice<'_>])],
    ) -> Option<Vec<Answer>> {
        let fd = Fd(file.as_raw_fd());
        let request = |(index, (offset, bufs)): (usize, &(u64, &[IoSlice<'_>]))| {
            opcode::Writev::new(fd, bufs.as_ptr().cast(), bufs.len() as u32)
                .offset(*offset)
                .build()
                .user_data(index as u64)
        };
        let requests: Vec<_> = writes.iter().enumerate().map(request).collect();
        let answers = self.run::<ENTRIES>(&requests)?;
        Some(answers[..writes.len()].iter().copied().map(answer).collect())
    }

    /// Flushes `file`; if that goes well, writes `buf` so that it is durable. None where there are no rings.
    ///
    /// The two are not linked: the kernel (6.18) goes on behind a flush that failed.
    pub(crate) fn flush_and_write(
        &self,
        file: &File,
        offset: u64,
        buf: &[u8],
    ) -> Option<(Answer, Answer)> {
        let fd = Fd(file.as_raw_fd());
        let len = u32::try_from(buf.len()).ok()?;
        let flush = opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build();
        let [flushed] = self.run(&[flush])?.map(answer);
        if flushed.is_err() {
            return Some((flushed, Ok(0)));
        }
        let write = opcode::Write::new(fd, buf.as_ptr(), len).offset(offset).rw_flags(DSYNC);
        let [written] = self.run(&[write.build()])?.map(answer);
        Some((flushed, written))
    }
}

fn answer(result: i32) -> Answer {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// Puts requests into the queue of a ring that has none.
#[expect(unsafe_code, reason = "the kernel reads buffers behind the back of the borrow checker")]
fn push(ring: &mut IoUring, requests: &[Entry]) {
    // SAFETY: all requests are made in this file, of a borrowed file and borrowed buffers, and the functions that make
    // them return when the kernel is done with all of them (U1).
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
    fn what_is_written_at_once_is_there() -> Result<(), Box<dyn Error>> {
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
        let Some(answers) = rings.write(&file, &writes) else {
            eprintln!("{NO_RINGS}");
            return Ok(());
        };
        for (n, (bytes, answer)) in contents.iter().zip(answers).enumerate() {
            assert_eq!(answer?, bytes.len());
            let mut found = vec![0; bytes.len()];
            file.read_exact_at(&mut found, n as u64 * 200)?;
            assert_eq!(found, *bytes);
        }
        assert_eq!(rings.idle.lock().len(), 1, "U2");
        Ok(())
    }

    #[test]
    fn nothing_is_written_behind_a_flush_that_fails() -> Result<(), Box<dyn Error>> {
        let rings = Rings::default();
        // A pipe takes bytes, but cannot be flushed.
        let (reader, writer) = io::pipe()?;
        let writer = File::from(std::os::fd::OwnedFd::from(writer));
        let Some((flushed, _)) = rings.flush_and_write(&writer, 0, b"never") else {
            eprintln!("{NO_RINGS}");
            return Ok(());
        };
        assert!(flushed.is_err(), "{flushed:?}");
        drop(writer);
        assert_eq!(io::read_to_string(reader)?, "");

        let file = tempfile::tempfile()?;
        let (flushed, written) = rings.flush_and_write(&file, 3, b"there").ok_or(NO_RINGS)?;
        assert!(flushed.is_ok());
        assert_eq!(written?, 5);
        let mut found = [0; 5];
        file.read_exact_at(&mut found, 3)?;
        assert_eq!(&found, b"there");
        Ok(())
    }
}
