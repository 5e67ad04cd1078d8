//! A device that fails the n-th request.
//!
//! # Place
//!
//! Tests of misfortune: run a workload with no fault and count, then once for every n. One [`Faults`] may
//! be shared by several devices, so that n counts over all of them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_block::error::Operation;
use buttress_block::{Device, Error};

/// Which request fails, and how many there have been.
#[derive(Debug)]
pub struct Faults {
    count: AtomicU64,
    fail_at: AtomicU64,
    /// Whether every request after the failed one fails, too: a device that is gone.
    sticky: AtomicBool,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            fail_at: AtomicU64::new(u64::MAX),
            sticky: AtomicBool::new(false),
        }
    }
}

impl Faults {
    /// Fails nothing; only counts.
    #[must_use]
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// Counts from zero again, and fails request `n` (the first is zero); with `sticky`, all that
    /// follow, too.
    pub fn fail(&self, n: u64, sticky: bool) {
        self.sticky.store(sticky, Ordering::SeqCst);
        self.count.store(0, Ordering::SeqCst);
        self.fail_at.store(n, Ordering::SeqCst);
    }

    /// Fails nothing from now on.
    pub fn heal(&self) {
        self.fail_at.store(u64::MAX, Ordering::SeqCst);
    }

    /// Returns how many requests there were since counting began.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    fn hits(&self) -> bool {
        let n = self.count.fetch_add(1, Ordering::SeqCst);
        let at = self.fail_at.load(Ordering::SeqCst);
        n == at || (n > at && self.sticky.load(Ordering::SeqCst))
    }
}

/// A device whose requests fail as its [`Faults`] say.
#[derive(Debug)]
pub struct FaultDevice {
    inner: Arc<dyn Device>,
    faults: Arc<Faults>,
}

impl FaultDevice {
    /// Puts faults in front of a device.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, faults: &Arc<Faults>) -> Arc<Self> {
        Arc::new(Self { inner, faults: Arc::clone(faults) })
    }

    fn strike(&self, operation: Operation, offset: u64, len: u64) -> Result<(), Error> {
        if !self.faults.hits() {
            return Ok(());
        }
        let source = io::Error::other("a fault was asked for");
        Err(Error::Io { device: self.name(), operation, offset, len, source })
    }
}

impl Device for FaultDevice {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn writable(&self) -> bool {
        self.inner.writable()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.strike(Operation::Read, offset, buf.len() as u64)?;
        self.inner.read_at(offset, buf)
    }

    /// A write that fails has written its first half.
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        if let Err(error) = self.strike(Operation::Write, offset, buf.len() as u64) {
            let half = buf.len() / 2 / 512 * 512;
            self.inner.write_at(offset, &buf[..half])?;
            return Err(error);
        }
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), Error> {
        self.strike(Operation::Flush, 0, self.len())?;
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.strike(Operation::Discard, offset, len)?;
        self.inner.discard(offset, len)
    }
}
