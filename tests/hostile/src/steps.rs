//! A device that fails after a number of requests, so that endless reads are found without a clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_block::{Device, Error, Layer, Operation};

/// A device that fails every request after a limit.
#[derive(Debug)]
pub struct Steps {
    device: Arc<dyn Device>,
    requests_left: AtomicU64,
}

impl Steps {
    /// Makes a device that lets `requests` requests through.
    #[must_use]
    pub fn new(device: Arc<dyn Device>, requests: u64) -> Self {
        Self { device, requests_left: AtomicU64::new(requests) }
    }

    /// Whether the limit of requests was reached.
    #[must_use]
    pub fn is_worn_out(&self) -> bool {
        self.requests_left.load(Ordering::Relaxed) == 0
    }

    fn step(&self, operation: Operation, offset: u64, len: u64) -> Result<(), Error> {
        let left = |left: u64| left.checked_sub(1);
        match self.requests_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            Ok(_) => Ok(()),
            Err(_) => {
                let source = std::io::Error::other("too many requests for what there is to read");
                Err(Error::Io { device: self.name(), operation, offset, len, source })
            }
        }
    }
}

impl Layer for Steps {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.step(Operation::Read, offset, buf.len() as u64)?;
        self.device.read_at(offset, buf)
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.step(Operation::Write, offset, buf.len() as u64)?;
        self.device.write_at(offset, buf)
    }
}
