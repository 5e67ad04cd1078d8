//! Counts the requests of a volume since it was opened.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters as they were at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Read requests to devices.
    pub reads: u64,
    /// Bytes read by these requests.
    pub read_bytes: u64,
    /// Write requests to devices.
    pub writes: u64,
    /// Bytes written by these requests, every copy counted.
    pub write_bytes: u64,
    /// Flushes of a device.
    pub flushes: u64,
    /// Discarded bytes, every copy counted.
    pub discard_bytes: u64,
    /// Requests that a device failed.
    pub io_failures: u64,
    /// Copies that were read with wrong content.
    pub csum_failures: u64,
    /// Copies rewritten from a good one.
    pub repairs: u64,
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "reads {} ({} bytes), writes {} ({} bytes), flushes {}, discarded {} bytes, \
             I/O failures {}, checksum failures {}, repairs {}",
            self.reads,
            self.read_bytes,
            self.writes,
            self.write_bytes,
            self.flushes,
            self.discard_bytes,
            self.io_failures,
            self.csum_failures,
            self.repairs
        )
    }
}

/// Totals of all dropped volumes: read requests, then bytes written.
static GONE: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// The read requests to devices, and the bytes written to devices, by all volumes that this process
/// has dropped. So a caller can count the requests of a whole program.
#[must_use]
pub fn io_of_gone_volumes() -> (u64, u64) {
    (GONE[0].load(Ordering::Relaxed), GONE[1].load(Ordering::Relaxed))
}

impl Drop for Counters {
    fn drop(&mut self) {
        let Stats { reads, write_bytes, .. } = self.snapshot();
        add(&GONE[0], reads);
        add(&GONE[1], write_bytes);
    }
}

/// The counters. Each counter is exact, but counters that are read together may be of different
/// moments.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    discard_bytes: AtomicU64,
    io_failures: AtomicU64,
    csum_failures: AtomicU64,
    repairs: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.read_bytes, bytes);
    }

    pub(crate) fn write(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.write_bytes, bytes);
    }

    pub(crate) fn flush(&self) {
        add(&self.flushes, 1);
    }

    pub(crate) fn discard(&self, bytes: u64) {
        add(&self.discard_bytes, bytes);
    }

    pub(crate) fn io_failure(&self) {
        add(&self.io_failures, 1);
    }

    pub(crate) fn csum_failure(&self) {
        add(&self.csum_failures, 1);
    }

    pub(crate) fn repair(&self) {
        add(&self.repairs, 1);
    }

    pub(crate) fn repairs(&self) -> u64 {
        self.repairs.load(Ordering::Relaxed)
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            reads: of(&self.reads),
            read_bytes: of(&self.read_bytes),
            writes: of(&self.writes),
            write_bytes: of(&self.write_bytes),
            flushes: of(&self.flushes),
            discard_bytes: of(&self.discard_bytes),
            io_failures: of(&self.io_failures),
            csum_failures: of(&self.csum_failures),
            repairs: of(&self.repairs),
        }
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}
