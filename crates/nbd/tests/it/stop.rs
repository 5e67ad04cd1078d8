//! How a server ends.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use buttress_block::{Device, Error, Layer, MemoryDevice};
use buttress_nbd::Options;
use parking_lot::{Condvar, Mutex};

use crate::Served;
use crate::client::{Body, READ, WRITE};

const LEN: u64 = 4 << 20;

/// A device that writes only when its gate is open.
#[derive(Debug)]
struct Slow {
    memory: MemoryDevice,
    begun: Mutex<u32>,
    begins: Condvar,
    open: Mutex<bool>,
    opens: Condvar,
}

impl Layer for Slow {
    type Inner = MemoryDevice;

    fn inner(&self) -> &MemoryDevice {
        &self.memory
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        *self.begun.lock() += 1;
        self.begins.notify_all();
        let mut open = self.open.lock();
        while !*open {
            self.opens.wait(&mut open);
        }
        self.memory.write_at(offset, buf)
    }

    fn on_flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn on_discard(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// Writes under way at the stop are done and answered, in parallel and in any order.
#[test]
fn stop_answers_writes_under_way() {
    let device = Arc::new(Slow {
        memory: MemoryDevice::new(LEN),
        begun: Mutex::new(0),
        begins: Condvar::new(),
        open: Mutex::new(false),
        opens: Condvar::new(),
    });
    let served = Served::new(device.clone());
    let mut client = served.client();
    for number in 0..8 {
        client.send(WRITE, 0, number * 4096, Body::Bytes(&[1; 4096]));
    }
    let mut begun = device.begun.lock();
    while *begun < 8 {
        device.begins.wait(&mut begun);
    }
    drop(begun);
    // A read is answered before all of these writes.
    assert_eq!(client.call(READ, 0, LEN - 1, Body::Len(1)).data, [0]);

    let socket = served.socket();
    let stopped = std::thread::spawn(move || served.stop());
    while socket.exists() {
        std::thread::yield_now();
    }
    *device.open.lock() = true;
    device.opens.notify_all();
    let mut answered: Vec<u64> = (0..8)
        .map(|_| {
            let (cookie, answer) = client.next();
            assert_eq!(answer.error, 0);
            cookie
        })
        .collect();
    answered.sort_unstable();
    assert_eq!(answered, (1..=8).collect::<Vec<_>>());
    assert_eq!(client.stream.read(&mut [0]).expect("a clean end"), 0);
    let figures = stopped.join().expect("no panic").expect("flushed");
    assert_eq!(figures.written_bytes, 8 * 4096);
}

/// A client that never takes its answers does not keep the server from ending.
#[test]
fn a_dead_client_does_not_keep_it() {
    let options = Options { drain: Duration::from_millis(200), ..Options::default() };
    let served = Served::with(Arc::new(MemoryDevice::new(LEN)), false, options);
    let mut client = served.client();
    client.call(WRITE, 0, 0, Body::Bytes(&vec![1; LEN as usize]));
    for _ in 0..20 {
        client.send(READ, 0, 0, Body::Len(LEN as u32));
    }
    served.stop().expect("flushed");
}
