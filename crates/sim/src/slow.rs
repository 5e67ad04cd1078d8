//! A device as slow as a disk or a network volume, by the engine's clock. All its users share its
//! speed.
//!
//! # Invariants
//!
//! - **S1** All requests share one clock. Bytes are transferred one after the other. At most
//!   `depth` requests wait for their latency at the same time. A depth of one is like the arm of a
//!   disk, and a larger depth is like a network volume.
//! - **S2** A request is answered when a real device of this speed would have answered. The time
//!   that the inner device takes for the request counts as part of the simulated time. A thread
//!   that sleeps too long does not slow the device for other threads.
//! - **S3** A flush is answered after all requests that came before it.
//!
//! A discard costs as much as a request without bytes. The same holds for zeroes that are not sent
//! as bytes. Until [`Slow::begin`] the device is as fast as the device below, so that a test can
//! fill a volume quickly.

use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use buttress_base::{clock, sync::Mutex, thread};
use buttress_block::{Class, Device, Error, FailedWrite, Layer, Space, Write};

/// How slow a device is.
#[derive(Clone, Copy, Debug)]
pub struct Slowness {
    /// MiB a second, over all requests; `None` is unlimited.
    pub mib_s: Option<f64>,
    /// Time from a request to its first byte.
    pub latency: Duration,
    /// The number of requests that wait for their latency at the same time.
    pub depth: usize,
    /// Whether data is dropped, as with Linux's `null_blk`. A real disk fetches data by DMA;
    /// copying it to an image would take processor time from the measured threads. Nothing may read
    /// the data.
    pub forgets_data: bool,
}

/// When the transfer line and the latency slots become free, in seconds from the beginning.
#[derive(Debug)]
struct Queue {
    line: f64,
    places: Vec<f64>,
    last: f64,
}

/// The requests since the device became slow.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Bytes of data.
    pub data: u64,
    /// Bytes of metadata.
    pub metadata: u64,
}

/// A device that is slow.
#[derive(Debug)]
pub struct Slow<D> {
    inner: D,
    slowness: Slowness,
    began: AtomicBool,
    since: Instant,
    queue: Mutex<Queue>,
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    data: AtomicU64,
    metadata: AtomicU64,
}

impl Queue {
    /// The time at which a request that comes at `now` is answered.
    fn take(&mut self, now: f64, len: u64, slowness: &Slowness) -> f64 {
        let latency = slowness.latency.as_secs_f64();
        let rate = slowness.mib_s.map_or(f64::INFINITY, |mib| mib * f64::from(1 << 20));
        let free = |a: &&mut f64, b: &&mut f64| a.total_cmp(b);
        let Some(place) = self.places.iter_mut().min_by(free) else { return now };
        let ready = place.max(now) + latency;
        let done = ready.max(self.line) + len as f64 / rate;
        *place = done;
        if len > 0 {
            self.line = done;
        }
        self.last = self.last.max(done);
        done
    }
}

impl<D: Device> Slow<D> {
    /// Makes a device that is as fast as `inner` until [`begin`](Self::begin).
    #[must_use]
    pub fn new(inner: D, slowness: Slowness) -> Self {
        let places = vec![0.0; slowness.depth.max(1)];
        Self {
            inner,
            slowness,
            began: AtomicBool::new(false),
            since: clock::now(),
            queue: Mutex::new(Queue { line: 0.0, places, last: 0.0 }),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            data: AtomicU64::new(0),
            metadata: AtomicU64::new(0),
        }
    }

    /// Makes the device slow from now on.
    pub fn begin(&self) {
        self.began.store(true, Ordering::Release);
    }

    /// The requests since [`begin`](Self::begin).
    pub fn request_counts(&self) -> RequestCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        RequestCounts {
            reads: of(&self.reads),
            writes: of(&self.writes),
            flushes: of(&self.flushes),
            data: of(&self.data),
            metadata: of(&self.metadata),
        }
    }

    /// Takes concurrent requests with these lengths. Returns the time at which the last request is
    /// answered, or `None` before [`begin`](Self::begin).
    fn take(&self, lens: impl IntoIterator<Item = u64>) -> Option<f64> {
        if !self.began.load(Ordering::Acquire) {
            return None;
        }
        let mut queue = self.queue.lock();
        let now = clock::since(self.since).as_secs_f64();
        lens.into_iter().map(|len| queue.take(now, len, &self.slowness)).reduce(f64::max)
    }

    fn forgets(&self, class: Class) -> bool {
        class == Class::Data && self.slowness.forgets_data && self.began.load(Ordering::Relaxed)
    }

    fn sleep_until(&self, time: Option<f64>) {
        let Some(time) = time else { return };
        let left = time - clock::since(self.since).as_secs_f64();
        if left > 0.0 {
            thread::sleep(Duration::from_secs_f64(left));
        }
    }

    fn count(&self, len: u64, class: Class) {
        if self.began.load(Ordering::Relaxed) {
            self.writes.fetch_add(1, Ordering::Relaxed);
            let bytes = if class == Class::Data { &self.data } else { &self.metadata };
            bytes.fetch_add(len, Ordering::Relaxed);
        }
    }
}

fn len_of(bufs: &[IoSlice<'_>]) -> u64 {
    bufs.iter().map(|buf| buf.len() as u64).sum()
}

impl<D: Device> Layer for Slow<D> {
    type Inner = D;

    fn inner(&self) -> &Self::Inner {
        &self.inner
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let done = self.take([buf.len() as u64]);
        if done.is_some() {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        let found = self.inner.read_at(offset, buf);
        self.sleep_until(done);
        found
    }

    fn on_write_classed(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        class: Class,
    ) -> Result<(), Error> {
        let len = len_of(bufs);
        let done = self.take([len]);
        self.count(len, class);
        let written = match self.forgets(class) {
            true => Ok(()),
            false => self.inner.write_classed_at(offset, bufs, class),
        };
        self.sleep_until(done);
        written
    }

    fn on_write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        let done = self.take(writes.iter().map(|write| len_of(&write.bufs)));
        for write in writes {
            self.count(len_of(&write.bufs), write.class);
        }
        let written = match writes.iter().all(|write| self.forgets(write.class)) {
            true => Ok(()),
            false => self.inner.write_many(writes),
        };
        self.sleep_until(done);
        written
    }

    fn on_flush(&self) -> Result<(), Error> {
        let done = self.take([0]).map(|done| done.max(self.queue.lock().last));
        if done.is_some() {
            self.flushes.fetch_add(1, Ordering::Relaxed);
        }
        let flushed = self.inner.flush();
        self.sleep_until(done);
        flushed
    }

    fn on_discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        let done = self.take([0]);
        let discarded = self.inner.discard(offset, len);
        self.sleep_until(done);
        discarded
    }

    fn on_write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), Error> {
        let done = self.take([0]);
        let written = self.inner.write_zeroes(offset, len, space);
        self.sleep_until(done);
        written
    }
}

#[cfg(test)]
mod tests {
    use buttress_block::MemoryDevice;

    use super::*;

    /// S1: requests share the transfer line, and at most `depth` requests wait for their latency at
    /// once.
    #[test]
    fn requests_share_one_clock() {
        let latency = Duration::from_secs(1);
        let slow = |depth| Slowness { mib_s: Some(1.0), latency, depth, forgets_data: false };
        let queue = |depth: usize| Queue { line: 0.0, places: vec![0.0; depth], last: 0.0 };
        let mut deep = queue(2);
        let ends: Vec<_> = (0..3).map(|_| deep.take(0.0, 1 << 20, &slow(2))).collect();
        assert_eq!(
            ends,
            [2.0, 3.0, 4.0],
            "the third waits for its latency while the second is sent"
        );
        let mut arm = queue(1);
        let ends: Vec<_> = (0..3).map(|_| arm.take(0.0, 1 << 20, &slow(1))).collect();
        assert_eq!(ends, [2.0, 4.0, 6.0]);
        assert_eq!(arm.take(9.0, 0, &slow(1)), 10.0, "it was idle, and that is not saved up");
    }

    /// Metadata is always kept, and so is data written before the device became slow.
    #[test]
    fn data_alone_is_forgotten() {
        let slowness =
            Slowness { mib_s: None, latency: Duration::ZERO, depth: 1, forgets_data: true };
        let slow = Slow::new(MemoryDevice::new(1 << 20), slowness);
        let write = |class, byte| {
            let buf = [byte; 4096];
            slow.write_classed_at(0, &[IoSlice::new(&buf)], class).expect("it is taken");
            let bufs = vec![IoSlice::new(&buf)];
            slow.write_many(&[Write { offset: 4096, bufs, class }]).expect("it is taken");
            let mut found = [0; 8192];
            slow.read_at(0, &mut found).expect("it reads");
            (found[0], found[4096])
        };
        assert_eq!(write(Class::Data, 1), (1, 1));
        slow.begin();
        assert_eq!(write(Class::Data, 2), (1, 1));
        assert_eq!(write(Class::Metadata, 3), (3, 3));
        assert_eq!(slow.request_counts().data, 8192);
    }
}
