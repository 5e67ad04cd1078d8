//! Figures of an open volume.

use std::sync::atomic::Ordering;

use buttress_base::clock;

use crate::core::Core;
use crate::log::Log;
use crate::map::Holds;
use crate::units::CommitNumber;

/// The figures of an open volume. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Status {
    /// The newest known commit.
    pub commit: CommitNumber,
    /// The epoch of the writer.
    pub epoch: u32,
    /// Objects of the volume and of its bases.
    pub objects: u64,
    /// The length of these objects.
    pub object_bytes: u64,
    /// The live content of the device.
    pub live_bytes: u64,
    /// The part of [`Status::object_bytes`] in objects of bases.
    pub shared_bytes: u64,
    /// Writes that are in no commit yet. These writes are the lag.
    pub lag_writes: u64,
    /// Bytes that were written and are in no commit yet.
    pub lag_bytes: u64,
    /// The time since the first write of the lag, in microseconds.
    pub lag_us: u64,
    /// Bytes of the local log.
    pub log_bytes: u64,
    /// Bytes in the cache on a local disk for data that was read from objects.
    pub disk_bytes: u64,
    /// Reads that the cache on the local disk answered, in cache lines.
    pub disk_hits: u64,
    /// Segments on their way to the store.
    pub in_flight: u64,
    /// Bytes in the cache in memory for data that was read from objects.
    pub cached_bytes: u64,
    /// Reads that the cache in memory answered, in cache lines.
    pub cached_hits: u64,
    /// Reads that it did not answer. The local disk answered [`Status::disk_hits`] of them, and the
    /// store the others.
    pub cached_misses: u64,
    /// Requests that wrote an object.
    pub puts: u64,
    /// Requests that read.
    pub gets: u64,
    /// Requests that listed.
    pub lists: u64,
    /// Requests that deleted.
    pub deletes: u64,
    /// Repeated requests.
    pub retries: u64,
    /// Bytes sent.
    pub put_bytes: u64,
    /// Bytes received.
    pub got_bytes: u64,
}

impl Status {
    pub(crate) fn of(core: &Core) -> Self {
        let counts = core.chain.store.counts();
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let (disk_bytes, disk_hits) = core.disk.as_ref().map_or((0, 0), |disk| disk.figures());
        let (cached_hits, cached_misses) = core.lines.lookups();
        let state = core.state.lock();
        let entries = || state.map.table.entries.values().filter(|entry| !entry.is_open);
        let shared = state.map.table.entries.iter();
        let shared = shared.filter(|(number, _)| core.names.is_shared(**number));
        let live = entries().filter(|entry| matches!(entry.holds, Holds::Data(_)));
        Self {
            commit: CommitNumber(state.map.window.0 - 1),
            epoch: core.epoch,
            objects: entries().count() as u64,
            object_bytes: entries().map(|entry| entry.len()).sum(),
            live_bytes: live.map(|entry| u64::from(entry.live) * 4096).sum(),
            shared_bytes: shared.map(|(_, entry)| entry.len()).sum(),
            lag_writes: state.position - state.committed,
            lag_bytes: state.written_bytes - state.committed_bytes,
            lag_us: state.behind_since.map_or(0, |then| clock::since(then).as_micros() as u64),
            log_bytes: core.log.get().map_or(0, Log::bytes),
            disk_bytes,
            disk_hits,
            in_flight: state.sealed.len() as u64,
            cached_bytes: core.lines.bytes(),
            cached_hits,
            cached_misses,
            puts: load(&counts.puts),
            gets: load(&counts.gets),
            lists: load(&counts.lists),
            deletes: load(&counts.deletes),
            retries: load(&counts.retries),
            put_bytes: load(&counts.put_bytes),
            got_bytes: load(&counts.got_bytes),
        }
    }
}
