//! A store in memory with a latency, which counts requests.
//!
//! What must hold: a request waits for the latency outside of all locks, so requests of several
//! threads wait side by side. Parts that are requested together wait once for each [`TOGETHER`]
//! parts.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use buttress_remote::store::{Meta, Store, StoreError};
use bytes::Bytes;
use parking_lot::Mutex;

/// Requests that a client has under way at once.
const TOGETHER: usize = 64;

/// Requests and bytes since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) writes: u64,
    pub(super) reads: u64,
    pub(super) put_bytes: u64,
    pub(super) got_bytes: u64,
}

impl Counts {
    pub(super) fn since(self, before: Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
            put_bytes: self.put_bytes - before.put_bytes,
            got_bytes: self.got_bytes - before.got_bytes,
        }
    }
}

/// A store in memory.
#[derive(Debug, Default)]
pub(super) struct MemoryStore {
    /// Unranked: no other lock is taken under it.
    objects: Mutex<BTreeMap<String, (Bytes, u64)>>,
    latency_us: AtomicU64,
    clock: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
    put_bytes: AtomicU64,
    got_bytes: AtomicU64,
}

impl MemoryStore {
    pub(super) fn set_latency(&self, latency: Duration) {
        self.latency_us.store(latency.as_micros() as u64, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> Counts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            writes: load(&self.writes),
            reads: load(&self.reads),
            put_bytes: load(&self.put_bytes),
            got_bytes: load(&self.got_bytes),
        }
    }

    fn wait(&self) {
        let micros = self.latency_us.load(Ordering::Relaxed);
        if micros > 0 {
            thread::sleep(Duration::from_micros(micros));
        }
    }

    fn now_ms(&self) -> u64 {
        1_000_000 + self.clock.fetch_add(1, Ordering::Relaxed)
    }

    /// Keeps a copy, since a server has memory of its own, and the writer uses its memory again.
    fn write(&self, name: &str, body: &Bytes, only_new: bool) -> Result<(), StoreError> {
        self.wait();
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.put_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        let now_ms = self.now_ms();
        let mut objects = self.objects.lock();
        if only_new && objects.contains_key(name) {
            return Err(StoreError::Exists);
        }
        objects.insert(name.to_owned(), (Bytes::copy_from_slice(body), now_ms));
        Ok(())
    }

    fn read(&self, name: &str, range: Option<&Range<u64>>) -> Result<Bytes, StoreError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let (bytes, _) = self.objects.lock().get(name).cloned().ok_or(StoreError::NotFound)?;
        let len = bytes.len() as u64;
        let range = range.map_or(0..len, |range| range.start.min(len)..range.end.min(len));
        self.got_bytes.fetch_add(range.end - range.start, Ordering::Relaxed);
        Ok(bytes.slice(range.start as usize..range.end as usize))
    }
}

fn meta(name: &str, (bytes, modified_ms): &(Bytes, u64)) -> Meta {
    Meta { name: name.to_owned(), len: bytes.len() as u64, modified_ms: *modified_ms }
}

impl Store for MemoryStore {
    fn title(&self) -> String {
        "memory://".to_owned()
    }

    fn create(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.write(name, &body, true)
    }

    fn put(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.write(name, &body, false)
    }

    fn get(&self, name: &str) -> Result<Bytes, StoreError> {
        self.wait();
        self.read(name, None)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.wait();
        self.read(name, Some(&range))
    }

    fn get_many(&self, wants: &[(String, Range<u64>)]) -> Vec<Result<Bytes, StoreError>> {
        let each = |part: &[(String, Range<u64>)]| {
            self.wait();
            part.iter().map(|(name, range)| self.read(name, Some(range))).collect::<Vec<_>>()
        };
        wants.chunks(TOGETHER).flat_map(each).collect()
    }

    fn head(&self, name: &str) -> Result<Meta, StoreError> {
        self.wait();
        self.reads.fetch_add(1, Ordering::Relaxed);
        let objects = self.objects.lock();
        objects.get(name).map(|object| meta(name, object)).ok_or(StoreError::NotFound)
    }

    fn list(&self, folder: &str) -> Result<Vec<Meta>, StoreError> {
        self.wait();
        self.reads.fetch_add(1, Ordering::Relaxed);
        let prefix = format!("{folder}/");
        let objects = self.objects.lock();
        let from = objects.range(prefix.clone()..);
        let within = from.take_while(|(name, _)| name.starts_with(&prefix));
        Ok(within.map(|(name, object)| meta(name, object)).collect())
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.wait();
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.objects.lock().remove(name);
        Ok(())
    }
}
