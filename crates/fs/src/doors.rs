//! A device for tests that holds writes back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_block::{Device, Error, Layer};

/// A device that holds back some writes. A write that consists of one byte value waits until the
/// door of that byte is open. A flush waits, too, if a test has closed the door of flushes.
#[derive(Debug)]
pub(crate) struct Doors<D: ?Sized> {
    pub(crate) below: Arc<D>,
    doors: Vec<(u8, Door)>,
    pub(crate) flush: Door,
    pub(crate) flush_is_barred: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Door {
    pub(crate) knocked: AtomicBool,
    open: AtomicBool,
}

impl<D: ?Sized> Doors<D> {
    /// A door for each of these bytes, all closed.
    pub(crate) fn new(below: Arc<D>, doors: &[u8]) -> Arc<Self> {
        let doors = doors.iter().map(|byte| (*byte, Door::default())).collect();
        let (flush, flush_is_barred) = (Door::default(), AtomicBool::new(false));
        Arc::new(Self { below, doors, flush, flush_is_barred })
    }

    pub(crate) fn door(&self, byte: u8) -> &Door {
        &self.doors.iter().find(|(which, _)| *which == byte).expect("a door").1
    }
}

impl Door {
    fn pass(&self) {
        self.knocked.store(true, Ordering::SeqCst);
        while !self.open.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn wait_for_knock(&self) {
        while !self.knocked.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

impl<D: Device + ?Sized> Layer for Doors<D> {
    type Inner = D;

    fn inner(&self) -> &Self::Inner {
        &self.below
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        for (_, door) in self.doors.iter().filter(|(byte, _)| buf.iter().all(|b| b == byte)) {
            door.pass();
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
