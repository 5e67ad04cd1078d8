//! A device for tests that holds writes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_block::{Device, Error, Layer};

/// A device that holds back some writes. A write that consists of one byte value waits until the
/// gate of that byte is open. A flush waits, too, if a test has closed the gate of flushes.
#[derive(Debug)]
pub(crate) struct GatedDevice<D: ?Sized> {
    pub(crate) below: Arc<D>,
    gates: Vec<(u8, Gate)>,
    pub(crate) flush: Gate,
    pub(crate) flush_is_barred: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Gate {
    pub(crate) reached: AtomicBool,
    open: AtomicBool,
}

impl<D: ?Sized> GatedDevice<D> {
    /// A gate for each of these bytes, all closed.
    pub(crate) fn new(below: Arc<D>, gates: &[u8]) -> Arc<Self> {
        let gates = gates.iter().map(|byte| (*byte, Gate::default())).collect();
        let (flush, flush_is_barred) = (Gate::default(), AtomicBool::new(false));
        Arc::new(Self { below, gates, flush, flush_is_barred })
    }

    pub(crate) fn gate(&self, byte: u8) -> &Gate {
        &self.gates.iter().find(|(which, _)| *which == byte).expect("a gate").1
    }
}

impl Gate {
    fn pass(&self) {
        self.reached.store(true, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn wait_until_reached(&self) {
        while !self.reached.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

impl<D: Device + ?Sized> Layer for GatedDevice<D> {
    type Inner = D;

    fn inner(&self) -> &Self::Inner {
        &self.below
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        for (_, gate) in self.gates.iter().filter(|(byte, _)| buf.iter().all(|b| b == byte)) {
            gate.pass();
        }
        self.below.write_at(offset, buf)
    }

    fn on_flush(&self) -> Result<(), Error> {
        if self.flush_is_barred.load(Ordering::SeqCst) {
            self.flush.pass();
        }
        self.below.flush()
    }
}
