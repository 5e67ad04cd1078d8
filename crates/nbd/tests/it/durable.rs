//! Tests which writes a flush makes durable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_block::{Device, Error, MemoryDevice, Operation};
use parking_lot::{Condvar, Mutex};

use crate::Served;
use crate::client::{Body, FLUSH, FUA, READ, TRIM, WRITE, WRITE_ZEROES};

const LEN: u64 = 1 << 20;

/// A device that loses unflushed writes at a crash, and can fail or wait on demand.
#[derive(Debug)]
struct Volatile {
    now: MemoryDevice,
    durable: Mutex<MemoryDevice>,
    flushes: AtomicU64,
    fail_flush: AtomicBool,
    fail_read_at: AtomicU64,
    /// Flushes wait while the gate is closed.
    gate: Mutex<bool>,
    opened: Condvar,
}

impl Volatile {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            now: MemoryDevice::new(LEN),
            durable: Mutex::new(MemoryDevice::new(LEN)),
            flushes: AtomicU64::new(0),
            fail_flush: AtomicBool::new(false),
            fail_read_at: AtomicU64::new(u64::MAX),
            gate: Mutex::new(true),
            opened: Condvar::new(),
        })
    }

    fn survives(&self, at: u64) -> u8 {
        let mut byte = [0];
        self.durable.lock().read_at(at, &mut byte).expect("within the device");
        byte[0]
    }

    fn set_gate(&self, open: bool) {
        *self.gate.lock() = open;
        self.opened.notify_all();
    }

    fn failure(&self, operation: Operation, offset: u64, len: u64) -> Error {
        let source = std::io::Error::other("a test");
        Error::Io { device: self.name(), operation, offset, len, source }
    }
}

impl Device for Volatile {
    fn name(&self) -> String {
        "volatile".to_owned()
    }

    fn len(&self) -> u64 {
        LEN
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let bad = self.fail_read_at.load(Ordering::SeqCst);
        if (offset..offset + buf.len() as u64).contains(&bad) {
            return Err(self.failure(Operation::Read, offset, buf.len() as u64));
        }
        self.now.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.now.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), Error> {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        let copy = self.now.fork();
        let mut gate = self.gate.lock();
        while !*gate {
            self.opened.wait(&mut gate);
        }
        drop(gate);
        if self.fail_flush.load(Ordering::SeqCst) {
            return Err(self.failure(Operation::Flush, 0, LEN));
        }
        *self.durable.lock() = copy;
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.now.discard(offset, len)
    }
}

/// A flush over one connection covers answers over another connection, and nothing is durable
/// before the flush.
#[test]
fn one_flush_covers_all_connections() {
    let device = Volatile::new();
    let served = Served::new(device.clone());
    let mut clients: Vec<_> = (0..3).map(|_| served.client()).collect();
    for round in 1..20_u8 {
        for (number, client) in clients.iter_mut().enumerate() {
            let at = number as u64 * 1000;
            assert_eq!(client.call(WRITE, 0, at, Body::Bytes(&[round])).error, 0);
            assert_eq!(device.survives(at), round - 1);
        }
        let flusher = &mut clients[usize::from(round) % 3];
        assert_eq!(flusher.call(FLUSH, 0, 0, Body::Len(0)).error, 0);
        assert!((0..3).all(|number| device.survives(number * 1000) == round));
    }
}

/// Every change can be made durable with its answer.
#[test]
fn unit_access_is_durable() {
    let device = Volatile::new();
    let served = Served::new(device.clone());
    let mut client = served.client();
    assert_eq!(client.call(WRITE, FUA, 5, Body::Bytes(&[9; 100])).error, 0);
    assert_eq!(device.survives(50), 9);
    assert_eq!(client.call(WRITE_ZEROES, FUA, 50, Body::Len(1)).error, 0);
    assert_eq!(device.survives(50), 0);
    assert_eq!(device.survives(49), 9);
    assert_eq!(client.call(TRIM, FUA, 49, Body::Len(1)).error, 0);
    assert_eq!(device.survives(49), 0);
    let before = device.flushes.load(Ordering::SeqCst);
    assert_eq!(client.call(READ, FUA, 49, Body::Len(1)).error, 0);
    assert_eq!(device.flushes.load(Ordering::SeqCst), before);
}

/// Flushes that arrive during a device flush share the next device flush. No flush is answered by a
/// device flush that began earlier.
#[test]
fn flushes_are_shared_and_not_too_early() {
    let device = Volatile::new();
    let served = Served::new(device.clone());
    let mut first = served.client();
    device.set_gate(false);
    first.send(FLUSH, 0, 0, Body::Len(0));
    while device.flushes.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    // The first flush covers none of the writes below.
    let mut others: Vec<_> = (0..6).map(|_| served.client()).collect();
    for (number, other) in others.iter_mut().enumerate() {
        assert_eq!(other.call(WRITE, 0, number as u64, Body::Bytes(&[1])).error, 0);
        other.send(FLUSH, 0, 0, Body::Len(0));
    }
    while served.export.figures().flushes_waiting < 6 {
        std::thread::yield_now();
    }
    device.set_gate(true);
    first.next();
    for (number, other) in others.iter_mut().enumerate() {
        assert_eq!(other.next().1.error, 0);
        assert_eq!(device.survives(number as u64), 1);
    }
    assert_eq!(device.flushes.load(Ordering::SeqCst), 2, "for seven");
}

/// After a failed flush all later flushes fail, and so does the server: lost writes stay lost.
#[test]
fn a_failed_flush_is_for_good() {
    let device = Volatile::new();
    let served = Served::new(device.clone());
    let (mut first, mut second) = (served.client(), served.client());
    device.fail_flush.store(true, Ordering::SeqCst);
    assert_eq!(first.call(FLUSH, 0, 0, Body::Len(0)).error, 5);
    device.fail_flush.store(false, Ordering::SeqCst);
    assert_eq!(second.call(FLUSH, 0, 0, Body::Len(0)).error, 5);
    assert_eq!(second.call(WRITE, FUA, 0, Body::Bytes(b"x")).error, 5);
    assert_eq!(second.call(READ, 0, 0, Body::Len(1)).data, b"x");
    let error = served.stop().expect_err("not durable");
    assert!(matches!(error, buttress_nbd::Error::Flush(_)), "{error}");
}

/// A failed read is an error as long as the answer can still report it, and the connection goes on.
#[test]
fn failed_reads_are_told() {
    let device = Volatile::new();
    let served = Served::new(device.clone());
    device.fail_read_at.store(700_000, Ordering::SeqCst);
    for structured in [true, false] {
        let mut client = crate::client::Client::negotiate(&served.socket(), structured);
        assert_eq!(client.call(READ, 0, 600_000, Body::Len(200_000)).error, 5);
        assert_eq!(client.call(READ, 0, 0, Body::Len(600_000)).error, 0);
    }
}
