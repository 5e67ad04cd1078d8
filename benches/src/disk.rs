//! A hard disk in simulated time: seek, rotation and transfer, and a queue with native ordering.
//! The module also slows a real file down to the speed of such a disk.
//!
//! # Invariants
//!
//! - **H1** Only the disk's work moves the simulated time: the same requests give the same times on
//!   every machine.
//!
//! The model: 7200 revolutions a minute and tracks of 1.25 MB (150 MB/s). A seek takes 0.8 ms to a
//! neighbour and 15 ms across a disk of 1 TB, growing with the square root of the distance. Up to
//! 32 writes wait in the disk. The disk takes the write that it can begin first, as disks with
//! native command queueing do.

use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use buttress_block::{Device, Error, FileDevice, Layer};

const REVOLUTION: f64 = 60.0 / 7200.0;
const TRACK: f64 = 1.25e6;
const DISK: f64 = 1e12;
const SEEK_MIN: f64 = 0.8e-3;
const SEEK_MAX: f64 = 15e-3;
const QUEUE: usize = 32;

/// One write that the disk has done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Seconds from the beginning.
    pub(crate) at: f64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug, Default)]
struct State {
    now: f64,
    head: u64,
    queue: Vec<(u64, u64)>,
    done: Vec<Done>,
}

/// A disk that stores nothing, but computes the time of each write.
#[derive(Debug)]
pub(crate) struct Disk {
    len: u64,
    state: Mutex<State>,
}

impl Disk {
    pub(crate) fn new(len: u64) -> Self {
        Self { len, state: Mutex::default() }
    }

    /// The time at the disk, in seconds.
    pub(crate) fn now(&self) -> f64 {
        self.state.lock().expect("not poisoned").now
    }

    /// Advances the time to `time`, if that is later.
    pub(crate) fn wait_until(&self, time: f64) {
        let mut state = self.state.lock().expect("not poisoned");
        state.now = state.now.max(time);
    }

    /// Takes a write.
    pub(crate) fn take(&self, offset: u64, len: u64) {
        let mut state = self.state.lock().expect("not poisoned");
        state.queue.push((offset, len));
        if state.queue.len() >= QUEUE {
            state.serve_one();
        }
    }

    /// Serves all writes that the disk has taken.
    pub(crate) fn settle(&self) {
        let mut state = self.state.lock().expect("not poisoned");
        while !state.queue.is_empty() {
            state.serve_one();
        }
    }

    /// Returns the writes since the last call.
    pub(crate) fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut self.state.lock().expect("not poisoned").done)
    }
}

impl State {
    /// Seconds until the disk can begin at `offset`.
    fn reach(&self, offset: u64) -> f64 {
        let track = |offset: u64| (offset as f64 / TRACK).floor();
        let seek = if track(offset) == track(self.head) {
            0.0
        } else {
            let distance = offset.abs_diff(self.head) as f64 / DISK;
            SEEK_MIN + (SEEK_MAX - SEEK_MIN) * distance.sqrt()
        };
        let angle_at = ((self.now + seek) / REVOLUTION).fract();
        let angle_of = (offset as f64 / TRACK).fract();
        let turn = (angle_of - angle_at).rem_euclid(1.0);
        // If the head is at the sector already, no revolution is needed.
        let turn = if turn > 1.0 - 1e-9 { 0.0 } else { turn };
        seek + turn * REVOLUTION
    }

    fn serve_one(&mut self) {
        let times = self.queue.iter().map(|&(offset, _)| self.reach(offset)).enumerate();
        let Some((index, time)) = times.min_by(|a, b| a.1.total_cmp(&b.1)) else { return };
        let (offset, len) = self.queue.swap_remove(index);
        self.now += time + len as f64 / TRACK * REVOLUTION;
        self.head = offset + len;
        self.done.push(Done { at: self.now, offset, len });
    }
}

impl Device for Disk {
    fn name(&self) -> String {
        "simulated disk".to_owned()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        buf.fill(0);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.take(offset, buf.len() as u64);
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        self.settle();
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// A real file with delayed writes. Each write takes as long as on the disk, or a fraction of that
/// time; the calling thread sleeps.
#[derive(Debug)]
pub(crate) struct Throttled {
    file: FileDevice,
    disk: Disk,
    /// How many times faster the file is than the disk.
    speed: f64,
    started: Instant,
}

impl Throttled {
    /// Makes the file, sparse.
    pub(crate) fn create(path: &Path, len: u64, speed: f64) -> Result<Self, Error> {
        let file = FileDevice::create(path, len)?;
        Ok(Self { file, disk: Disk::new(len), speed, started: Instant::now() })
    }

    /// The time of the disk, which follows the real clock.
    pub(crate) fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64() * self.speed
    }

    pub(crate) fn take_done(&self) -> Vec<Done> {
        self.disk.take_done()
    }

    /// Sleeps until the real time has reached the time of the model.
    fn catch_up(&self) {
        let ahead = self.disk.now() - self.now();
        if ahead > 0.0 {
            std::thread::sleep(Duration::from_secs_f64(ahead / self.speed));
        }
    }
}

impl Layer for Throttled {
    type Inner = FileDevice;

    fn inner(&self) -> &Self::Inner {
        &self.file
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.file.write_at(offset, buf)?;
        self.disk.wait_until(self.now());
        self.disk.take(offset, buf.len() as u64);
        self.catch_up();
        Ok(())
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.file.flush()?;
        self.disk.settle();
        self.catch_up();
        Ok(())
    }
}

/// A device that keeps only the data at its front and forgets the rest, for a cache with data that
/// is never read.
#[derive(Debug)]
pub(crate) struct Forgetful {
    front: buttress_block::MemoryDevice,
    len: u64,
}

impl Forgetful {
    pub(crate) fn new(front: u64, len: u64) -> Self {
        Self { front: buttress_block::MemoryDevice::new(front), len }
    }
}

impl Device for Forgetful {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        match offset + buf.len() as u64 <= self.front.len() {
            true => self.front.read_at(offset, buf),
            false => {
                buf.fill(0);
                Ok(())
            }
        }
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        match offset + buf.len() as u64 <= self.front.len() {
            true => self.front.write_at(offset, buf),
            false => Ok(()),
        }
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }
}
