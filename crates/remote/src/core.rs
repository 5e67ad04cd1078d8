//! The state that the parts of an open volume share, and what its threads wait for.
//!
//! # Invariants
//!
//! - **C1** Written data is in the open segment, in a sealed segment, or in an object. A segment is
//!   a data object that is not in the store yet. A sealed segment is removed from the state only
//!   after its object is in the store. The segment is removed from memory earlier only if the local
//!   log has all of its frames.
//! - **C2** Segments are sealed in the order of their numbers. So a commit that has all segments up
//!   to a number has a prefix of all writes.
//! - **C3** After the first failure nothing more is written, and every later write fails with that
//!   failure.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use buttress_base::sync::Mutex;
use buttress_base::{Interrupt, Rank, Ranked, clock};

use crate::ahead::Ahead;
use crate::budget::Budget;
use crate::cache::Cache;
use crate::chain::Chain;
use crate::disk_lines::DiskLines;
use crate::envelope::VolumeId;
use crate::error::{Error, Result};
use crate::lines::Lines;
use crate::log::{Body, Log, Place, Tail};
use crate::manifest::{LocalLog, LogMark, Manifest, Recent, TablePart, Writer};
use crate::map::{Entry, Holds, Map};
use crate::names::AllNames;
use crate::options::Options;
use crate::segment::{Extent, Segment};
use crate::signals::Signals;
use crate::spare::Spare;
use crate::units::{CommitNumber, ObjectNumber, SECTOR};

/// A segment on its way to the store.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) whole: Kept,
    pub(crate) is_taken: bool,
}

/// Where a sealed segment is.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Memory(Arc<Segment>),
    Log(Arc<Logged>),
}

/// A sealed segment of which the local log has all frames.
#[derive(Debug)]
pub(crate) struct Logged {
    pub(crate) number: ObjectNumber,
    pub(crate) sectors: u32,
    pub(crate) extents: Vec<Extent>,
    /// In the order of the frames.
    pub(crate) places: Vec<Place>,
}

/// The segments that the local log lacks, and the segments that it has.
#[derive(Debug, Default)]
pub(crate) struct Logging {
    /// Parts of segments that the log lacks, in the order of the writes.
    pub(crate) tails: VecDeque<Tail>,
    /// Memory for the next copy of frames: new memory costs more than the copy.
    pub(crate) room: Vec<u8>,
    /// How many sealed segments the log lacks. Such a segment stays in memory until the log has it,
    /// even if its object is in the store already.
    pub(crate) sealed: usize,
    /// The places in the log of the frames of segments that are not in the store.
    pub(crate) places: BTreeMap<ObjectNumber, Vec<Place>>,
    /// All writes up to this position are durable: by a cut in the log, or in a commit that
    /// precedes the log.
    pub(crate) durable: u64,
}

/// Identifiers that nodes of a btrfs may have in their headers; zeroes stand for none.
pub(crate) type NodeIds = [[u8; 16]; 2];

/// The state that changes while a volume is open.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) map: Map,
    pub(crate) open: Segment,
    pub(crate) sealed: BTreeMap<ObjectNumber, Sealed>,
    /// The number of sealed segments in memory, with those that are read from the log to be sent.
    pub(crate) in_memory: usize,
    /// Data objects since the checkpoint, in order.
    pub(crate) recent: Vec<Recent>,
    pub(crate) tables: Vec<TablePart>,
    pub(crate) next_object: ObjectNumber,
    /// The number of writes so far.
    pub(crate) position: u64,
    /// The number of writes that the newest commit contains.
    pub(crate) committed: u64,
    /// The number of the last write that contained the primary superblock.
    pub(crate) superblock_at: u64,
    /// The position up to which a commit was deferred, and the time of the deferral. The keeper
    /// makes the commit within `max-lag`.
    pub(crate) deferred: Option<(u64, Instant)>,
    /// Whether the device holds a btrfs.
    pub(crate) is_btrfs: bool,
    /// The identifiers in the headers of the nodes of the btrfs.
    pub(crate) node_ids: NodeIds,
    /// The local log, if flushes wait for it.
    pub(crate) logging: Option<Logging>,
    /// Bytes written so far, and bytes that the newest commit contains.
    pub(crate) written_bytes: u64,
    pub(crate) committed_bytes: u64,
    /// The time of the first write that no commit contains.
    pub(crate) behind_since: Option<Instant>,
    /// For each replayed log, the position up to which the next commit has the log's writes.
    pub(crate) marks: Vec<LogMark>,
    /// Whether a log is being replayed, or this writer's own log has not begun. The collector makes
    /// no pass meanwhile.
    pub(crate) is_replaying: bool,
    /// Whether the last commit of this writer is being made, or is made. After that, writes fail.
    pub(crate) is_last: bool,
    /// The first failure (C3).
    pub(crate) failure: Option<Failure>,
    pub(crate) is_closing: bool,
    /// How many of the `sweep::PARTS` parts of the object names were swept.
    pub(crate) swept: u32,
}

impl State {
    /// Counts a write of `sectors` sectors.
    pub(crate) fn count(&mut self, sectors: u64) {
        self.position += 1;
        self.written_bytes += sectors * SECTOR;
        self.behind_since.get_or_insert_with(clock::now);
    }
}

/// The reason why the volume takes no more writes.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// Another writer has the volume.
    Fenced(Writer),
    /// The store failed for too long.
    Failed(String),
}

/// An open volume.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) chain: Chain,
    pub(crate) volume: VolumeId,
    /// The length of the device, in bytes. The length only grows, and changes only under the lock
    /// of the state (`grow`).
    pub(crate) len: AtomicU64,
    pub(crate) epoch: u32,
    pub(crate) writer: Writer,
    pub(crate) options: Options,
    pub(crate) budget: Budget,
    pub(crate) object_len: u64,
    /// The names of objects.
    pub(crate) names: AllNames,
    pub(crate) state: Ranked<State>,
    pub(crate) signals: Signals,
    /// Memory for segments to come.
    pub(crate) spare: Arc<Spare>,
    /// The newest manifest. Unranked: held across I/O, and taken before all other locks.
    pub(crate) last: Mutex<Manifest>,
    pub(crate) lines: Arc<Lines>,
    /// Reads ahead of sequential readers.
    pub(crate) ahead: Ahead,
    /// The cache on a local disk for data that was read.
    pub(crate) disk: Option<Arc<DiskLines>>,
    /// The lowest commit that a manifest, pin or lease needed at the collector's last pass.
    pub(crate) floor: Ranked<CommitNumber>,
    /// This writer's local log. It is set after a commit contains the writes of an earlier log.
    pub(crate) log: OnceLock<Log>,
    /// Raised when the wait for the store is given up. The threads of the volume check it.
    pub(crate) given_up: Interrupt,
    /// The folder of the local log, and the entry for it in manifests.
    pub(crate) cache: Option<Cache>,
    pub(crate) local: Option<LocalLog>,
}

impl Core {
    pub(crate) fn new(
        chain: Chain,
        volume: VolumeId,
        manifest: Manifest,
        writer: Writer,
        options: Options,
        cache: Option<Cache>,
    ) -> Self {
        let next_object = manifest.next_object;
        let with_log = cache.as_ref().filter(|_| options.is_local());
        let local = with_log.map(|cache| cache.mark(&writer.host));
        let budget = Budget::new(&options, manifest.object_len);
        let spare = Arc::new(Spare::new(manifest.object_len, budget.sealed + 1));
        let mut map = Map::default();
        map.window = CommitNumber(manifest.number.0 + 1);
        let state = State {
            map,
            open: if options.write {
                Segment::new(next_object, &spare)
            } else {
                Segment::empty(next_object)
            },
            sealed: BTreeMap::new(),
            in_memory: 0,
            recent: Vec::new(),
            tables: manifest.tables.clone(),
            next_object: ObjectNumber(next_object.0 + 1),
            position: 0,
            committed: 0,
            superblock_at: 0,
            deferred: None,
            is_btrfs: false,
            node_ids: NodeIds::default(),
            logging: None,
            written_bytes: 0,
            committed_bytes: 0,
            behind_since: None,
            marks: Vec::new(),
            is_replaying: options.is_local(),
            is_last: false,
            failure: None,
            is_closing: false,
            swept: 0,
        };
        let reading = budget.lines + budget.map + budget.index;
        let ahead = Ahead::new(reading, budget.lines, options.in_flight);
        let for_lines = budget.lines.saturating_sub(ahead.memory()).max(budget.lines / 2);
        // The close of this volume must not end the requests of another opening.
        let chain = Chain { store: chain.store.apart(), ..chain };
        let names = AllNames::new(chain.names.clone(), &manifest.bases);
        Self {
            chain,
            names,
            volume,
            len: AtomicU64::new(manifest.device_len),
            epoch: manifest.epoch,
            writer,
            object_len: manifest.object_len,
            lines: Arc::new(Lines::new(for_lines)),
            ahead,
            options,
            budget,
            floor: Ranked::new(Rank::Leaf, CommitNumber(0)),
            disk: None,
            given_up: Interrupt::new(),
            log: OnceLock::new(),
            local,
            cache,
            state: Ranked::new(Rank::RemoteState, state),
            signals: Signals::default(),
            spare,
            last: Mutex::new(manifest),
        }
    }

    /// The length of the device, in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    /// Fails if writing has failed before (C3).
    pub(crate) fn check(&self, state: &State) -> Result<()> {
        let place = self.chain.place.clone();
        match &state.failure {
            None => Ok(()),
            Some(Failure::Fenced(writer)) => {
                Err(Error::Fenced { place, host: writer.host.clone(), pid: writer.pid })
            }
            Some(Failure::Failed(why)) => Err(Error::Latched { place, why: why.clone() }),
        }
    }

    /// Fails if writing has failed before, or the device is closing.
    pub(crate) fn check_open(&self, state: &State) -> Result<()> {
        self.check(state)?;
        if state.is_last {
            let (place, why) = (self.chain.place.clone(), "it is closed".to_owned());
            return Err(Error::Latched { place, why });
        }
        Ok(())
    }

    /// Ends all writing, unless it has already ended, and wakes all waiting threads (C3).
    pub(crate) fn fail(&self, failure: Failure) {
        tracing::error!(place = self.chain.place, ?failure, "nothing more is written");
        self.state.lock().failure.get_or_insert(failure);
        self.signals.all();
    }

    /// Ends all writing after an error, and returns the error.
    pub(crate) fn failed(&self, error: Error) -> Error {
        self.fail(Failure::Failed(error.to_string()));
        error
    }

    /// Puts the present leaves of the map into a manifest, with the epochs of their objects.
    pub(crate) fn name_leaves(state: &State, manifest: &mut Manifest) {
        manifest.leaves = state.map.leaves.iter().map(|(&leaf, &at)| (leaf, at)).collect();
        let objects: BTreeSet<_> = state.map.leaves.values().map(|at| at.object).collect();
        let epoch = |object| Some((object, state.map.table.get(object)?.epoch));
        manifest.leaf_epochs = objects.into_iter().filter_map(epoch).collect();
    }

    /// Returns the name of an object in the table.
    pub(crate) fn object_name(&self, state: &State, number: ObjectNumber) -> Option<String> {
        let entry = state.map.table.get(number)?;
        Some(self.names.of_entry(number, entry))
    }

    /// Adds the object of the open segment to the table.
    pub(crate) fn open_entry(&self, state: &mut State) {
        let mut entry = Entry::new(Holds::Data(state.open.shape()), self.epoch);
        entry.is_open = true;
        state.map.table.entries.insert(state.open.number, entry);
    }

    /// Seals the open segment, and opens the next one (C2).
    pub(crate) fn seal(&self, state: &mut State) {
        if state.open.is_empty() {
            return;
        }
        let next = Segment::new(state.next_object, &self.spare);
        state.next_object.0 += 1;
        let mut full = std::mem::replace(&mut state.open, next);
        let fixed = full.fix();
        full.seal(self.volume, self.epoch);
        let (number, shape) = (full.number, full.shape());
        let window = state.map.window;
        if let Some(entry) = state.map.table.entries.get_mut(&number) {
            entry.holds = Holds::Data(shape);
            entry.is_open = false;
            entry.dead_since = window;
        }
        let recent = Recent {
            object: number,
            epoch: self.epoch,
            sectors: shape.sectors,
            extents: shape.extents,
            crc: full.extents_crc(),
        };
        state.recent.push(recent);
        let full = Arc::new(full);
        let is_new = fixed.frames > 0 || !fixed.extents.is_empty();
        if let Some(logging) = state.logging.as_mut().filter(|_| is_new) {
            let (body, position) = (Body::Sealed(Arc::clone(&full)), state.position);
            logging.tails.push_back(Tail { object: number, fixed, body, position });
            logging.sealed += 1;
        }
        state.sealed.insert(number, Sealed { whole: Kept::Memory(full), is_taken: false });
        state.in_memory += 1;
        self.open_entry(state);
        self.signals.sealed.notify_all();
    }
}
