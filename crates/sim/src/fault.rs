//! A device on which one request has the fault that a test chose.
//!
//! # Place
//!
//! Fault tests run a workload without faults and count its requests. Then they run the workload
//! once for each request number `n`, with a fault at request `n`. Several devices may share one
//! [`Faults`], so that `n` counts the requests of all of them.
//!
//! # Faults, and why a correct engine survives them
//!
//! [`FaultKind`] lists the faults. A failed request was not acknowledged. An acknowledged write
//! that never happens loses only its own content, and checksums detect the loss.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use buttress_base::{Rank, Ranked, thread};
use buttress_block::error::Operation;
use buttress_block::{Device, Error, Layer};

/// The fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// The request fails. A write has written its first half.
    Fails,
    /// This request fails, and so do all later ones: the device is gone.
    Gone,
    /// This request fails, and so do the given number of requests after it. Then the device works
    /// again.
    Away(u64),
    /// The write or flush is acknowledged but does not happen; a read is served.
    Lies,
    /// The request takes this much longer.
    Slow(Duration),
}

#[derive(Debug)]
struct Plan {
    count: u64,
    at: u64,
    /// The kind of requests that are counted; all if `None`.
    only: Option<Operation>,
    what: FaultKind,
}

/// The plan that gives one request a fault, and the number of requests so far.
#[derive(Debug)]
pub struct Faults {
    plan: Ranked<Plan>,
}

impl Default for Faults {
    fn default() -> Self {
        let plan = Plan { count: 0, at: u64::MAX, only: None, what: FaultKind::Fails };
        Self { plan: Ranked::new(Rank::Leaf, plan) }
    }
}

impl Faults {
    /// Makes a plan without a fault. It only counts requests.
    #[must_use]
    pub fn none() -> Arc<Self> {
        Arc::default()
    }

    /// Counts from zero again, and fails request `n` (the first is zero); with `sticky`, all later
    /// requests fail, too.
    pub fn fail(&self, n: u64, sticky: bool) {
        self.strike(n, None, if sticky { FaultKind::Gone } else { FaultKind::Fails });
    }

    /// Restarts the count, and counts only requests of the kind `only` if a kind is given. Request
    /// `n` of the counted requests gets the fault.
    pub fn strike(&self, n: u64, only: Option<Operation>, what: FaultKind) {
        *self.plan.lock() = Plan { count: 0, at: n, only, what };
    }

    /// Ends the faults: all later requests work.
    pub fn heal(&self) {
        self.plan.lock().at = u64::MAX;
    }

    /// Returns the number of requests since counting began.
    pub fn count(&self) -> u64 {
        self.plan.lock().count
    }

    fn next(&self, operation: Operation) -> Option<FaultKind> {
        let mut plan = self.plan.lock();
        if plan.only.is_some_and(|only| only != operation) {
            return None;
        }
        let n = plan.count;
        plan.count += 1;
        let hits = match plan.what {
            FaultKind::Gone => n >= plan.at,
            FaultKind::Away(more) => n >= plan.at && n - plan.at <= more,
            _ => n == plan.at,
        };
        hits.then_some(plan.what)
    }
}

/// A device with the faults that its [`Faults`] plan.
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

    /// Returns whether to carry the request out.
    fn strike(&self, operation: Operation, offset: u64, len: u64) -> Result<bool, Error> {
        match self.faults.next(operation) {
            None => Ok(true),
            Some(FaultKind::Slow(time)) => {
                thread::sleep(time);
                Ok(true)
            }
            Some(FaultKind::Lies) => Ok(operation == Operation::Read),
            Some(FaultKind::Fails | FaultKind::Gone | FaultKind::Away(_)) => {
                let source = io::Error::other("a fault was asked for");
                Err(Error::Io { device: self.name(), operation, offset, len, source })
            }
        }
    }
}

impl Layer for FaultDevice {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.inner
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.strike(Operation::Read, offset, buf.len() as u64)?;
        self.inner.read_at(offset, buf)
    }

    /// A write that fails has written its first half.
    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        match self.strike(Operation::Write, offset, buf.len() as u64) {
            Ok(true) => self.inner.write_at(offset, buf),
            Ok(false) => Ok(()),
            Err(error) => {
                let half = buf.len() / 2 / 512 * 512;
                self.inner.write_at(offset, &buf[..half])?;
                Err(error)
            }
        }
    }

    /// Returns true, because an fsync prepares its data (`prepared` in the crate `data`) only on
    /// devices that wait once for many writes. Tests must cover prepared data.
    fn takes_many(&self) -> bool {
        true
    }

    fn on_flush(&self) -> Result<(), Error> {
        match self.strike(Operation::Flush, 0, self.len())? {
            true => self.inner.flush(),
            false => Ok(()),
        }
    }

    fn on_discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        match self.strike(Operation::Discard, offset, len)? {
            true => self.inner.discard(offset, len),
            false => Ok(()),
        }
    }
}
