//! Devices that record their requests. From a record, a test gets the states that a power cut could
//! leave.
//!
//! # Place
//!
//! All devices of a test share one [`Log`], so the order of events between them is known. A test
//! runs its workload once, then goes through the log. A power cut at an event leaves, on each
//! device, the flushed content and any subset of the pieces written since the flush.
//!
//! # Invariants
//!
//! - **S1** Data written before a flush of the same device is in every state after that flush. A
//!   durable write is in every later state, but guarantees nothing about earlier writes, like a
//!   write with FUA.
//! - **S2** A piece (512 bytes of a disk, 8 of persistent memory) is never torn: it has the flushed
//!   content, or the content of a later write. Pieces survive in any order, so an older piece may
//!   replace a newer one.
//!
//! # Faults, and why a correct engine survives them
//!
//! The device loses, tears and reorders unflushed writes, which were never reported as durable.
//! Discards are kept or lost like writes, and leave zeroes.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use buttress_base::{Rank, Ranked, Rng};
use buttress_block::{Class, Device, Error, Layer, MemoryDevice};

/// The number of a device within one log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId(pub usize);

#[derive(Debug)]
enum Event {
    Write {
        device: DeviceId,
        offset: u64,
        bytes: Arc<[u8]>,
    },
    Flush {
        device: DeviceId,
    },
    /// The write of this event is durable.
    Settled {
        write: usize,
    },
    Mark(u64),
}

/// The events of all devices of a test, in order.
#[derive(Debug)]
pub struct Log {
    inner: Ranked<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Copies of the devices at the start of recording.
    bases: Vec<MemoryDevice>,
    /// Bytes that survive or are lost together.
    atoms: Vec<usize>,
    events: Vec<Event>,
    recording: bool,
}

impl Log {
    /// Creates an empty log that does not record yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { inner: Ranked::new(Rank::SimLog, Inner::default()) })
    }

    /// Adds a device with the content of `base`; `atom` is the number of bytes that a crash does
    /// not tear.
    ///
    /// # Panics
    ///
    /// If `atom` is zero.
    pub fn device(self: &Arc<Self>, base: &MemoryDevice, atom: usize) -> Arc<Recorder> {
        assert!(atom > 0, "pieces have a length");
        let mut inner = self.inner.lock();
        let id = DeviceId(inner.bases.len());
        inner.bases.push(base.fork());
        inner.atoms.push(atom);
        Arc::new(Recorder { id, seen: base.fork(), log: Arc::clone(self) })
    }

    /// Begins to record. The present content of the devices counts as durable.
    pub fn start(&self, devices: &[&Recorder]) {
        let forks: Vec<_> = devices.iter().map(|device| (device.id, device.seen.fork())).collect();
        let mut inner = self.inner.lock();
        for (id, fork) in forks {
            inner.bases[id.0] = fork;
        }
        inner.events.clear();
        inner.recording = true;
    }

    /// Puts a mark of the test into the log, for example the number of operations acknowledged so
    /// far.
    pub fn mark(&self, value: u64) {
        let mut inner = self.inner.lock();
        if inner.recording {
            inner.events.push(Event::Mark(value));
        }
    }

    /// Returns the number of events.
    pub fn len(&self) -> usize {
        self.inner.lock().events.len()
    }

    /// Says whether nothing has been recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes written to one device since recording began, and the number of its
    /// flushes.
    pub fn totals(&self, device: DeviceId) -> (u64, u64) {
        let inner = self.inner.lock();
        inner.events.iter().fold((0, 0), |(bytes, flushes), event| match event {
            Event::Write { device: of, bytes: written, .. } if *of == device => {
                (bytes + written.len() as u64, flushes)
            }
            Event::Flush { device: of } if *of == device => (bytes, flushes + 1),
            _ => (bytes, flushes),
        })
    }

    /// Returns the offset and length of each write to one device, in order.
    pub fn writes(&self, device: DeviceId) -> Vec<(u64, u64)> {
        let inner = self.inner.lock();
        let of_device = inner.events.iter().filter_map(|event| match event {
            Event::Write { device: of, offset, bytes } if *of == device => {
                Some((*offset, bytes.len() as u64))
            }
            _ => None,
        });
        of_device.collect()
    }

    /// Returns a digest of the log: two logs with the same events in the same order have the same
    /// digest.
    pub fn digest(&self) -> u64 {
        let inner = self.inner.lock();
        let mut digest = 0xcbf2_9ce4_8422_2325_u64;
        let mut fold = |value: u64| {
            digest = (digest.rotate_left(5) ^ value).wrapping_mul(0x0100_0000_01b3);
        };
        for event in &inner.events {
            match event {
                Event::Write { device, offset, bytes } => {
                    fold(device.0 as u64);
                    fold(*offset);
                    for part in bytes.chunks(8) {
                        let mut word = [0; 8];
                        word[..part.len()].copy_from_slice(part);
                        fold(u64::from_le_bytes(word));
                    }
                }
                Event::Flush { device } => fold(!(device.0 as u64)),
                Event::Settled { write } => fold(!(*write as u64 | 1 << 62)),
                Event::Mark(value) => fold(*value | 1 << 63),
            }
        }
        digest
    }

    /// Stops recording and shows `check` the states that a power cut could have left. After an
    /// event the states have no unflushed write, all unflushed writes, or one of `draws` other
    /// subsets. Most of these subsets are random. The other subsets have only one write or piece,
    /// or all except one write or piece. Only events with an index that `stride` divides are used.
    ///
    /// Returns the number of shown states.
    pub fn crashes(
        &self,
        rng: &mut Rng,
        draws: usize,
        stride: usize,
        check: impl FnMut(&Crash),
    ) -> usize {
        let stride = stride.max(1);
        self.play(check, |at| {
            if !at.index.is_multiple_of(stride) {
                return Vec::new();
            }
            // With one piece there are no other subsets.
            let drawn = if at.pieces > 1 { draws } else { 0 };
            let mut subsets = vec![Subset::Nothing];
            subsets.extend((at.pieces > 0).then_some(Subset::All));
            subsets.extend((0..drawn).map(|_| Subset::Drawn(rng.next_u64())));
            subsets
        })
    }

    /// Stops recording and goes through the log from flush to flush, with the worst states of each
    /// interval. These states have no write, all writes, one write alone, all writes except one, or
    /// one of `draws` random subsets of pieces. For each write, one state has only this write, and
    /// one state lacks only this write. If an interval has more than `singles` writes, `singles`
    /// writes are chosen at random. The last write, the superblock of a commit, is always used.
    ///
    /// A power cut within an interval leaves no other states than a cut at the interval's end.
    /// Besides, nothing is reported as durable within an interval. So a property of these states
    /// holds after a cut at any point. Returns the number of states shown.
    pub fn intervals(
        &self,
        rng: &mut Rng,
        singles: usize,
        draws: usize,
        check: impl FnMut(&Crash),
    ) -> usize {
        self.play(check, |at| {
            if !at.ends {
                return Vec::new();
            }
            let mut subsets = vec![Subset::Nothing];
            let Some((last, others)) = at.writes.split_last() else { return subsets };
            subsets.push(Subset::All);
            let mut others = others.to_vec();
            if others.len() >= singles {
                rng.shuffle(&mut others);
                others.truncate(singles.saturating_sub(1));
            }
            // With a single write, the subsets `Nothing` and `All` are enough, except for states in
            // which the write is torn.
            if at.writes.len() > 1 {
                for write in others.into_iter().chain([*last]) {
                    subsets.extend([Subset::Only(write), Subset::AllBut(write)]);
                }
            }
            let drawn = if at.pieces > 1 { draws } else { 0 };
            subsets.extend((0..drawn).map(|_| Subset::Drawn(rng.next_u64())));
            subsets
        })
    }

    /// Stops recording, goes through all events, and shows the subsets that `choose` returns for
    /// each point.
    fn play(
        &self,
        mut check: impl FnMut(&Crash),
        mut choose: impl FnMut(&Point<'_>) -> Vec<Subset>,
    ) -> usize {
        let (bases, atoms, events) = {
            let mut inner = self.inner.lock();
            inner.recording = false;
            let bases: Vec<_> = inner.bases.iter().map(MemoryDevice::fork).collect();
            (bases, inner.atoms.clone(), std::mem::take(&mut inner.events))
        };
        let mut pending: Vec<Vec<Piece>> = bases.iter().map(|_| Vec::new()).collect();
        let mut writes = Vec::new();
        let (mut mark, mut shown) = (None, 0);
        for (index, event) in events.iter().enumerate() {
            match event {
                Event::Write { device, offset, bytes } => {
                    cut(&mut pending[device.0], *offset, bytes, atoms[device.0], index);
                    writes.push(index);
                }
                Event::Flush { device } => {
                    for piece in pending[device.0].drain(..) {
                        piece.apply(&bases[device.0]);
                    }
                    writes.retain(|write| {
                        !matches!(&events[*write], Event::Write { device: of, .. } if of == device)
                    });
                }
                Event::Settled { write } => {
                    if let Event::Write { device, offset, bytes } = &events[*write] {
                        settle(&mut pending[device.0], *write, *offset, bytes.len());
                        bases[device.0].write_at(*offset, bytes).expect("it was written before");
                    }
                    writes.retain(|other| other != write);
                }
                Event::Mark(value) => mark = Some(*value),
            }
            let next = events.get(index + 1);
            let next_flushes =
                matches!(next, None | Some(Event::Flush { .. } | Event::Settled { .. }));
            let pieces = pending.iter().map(Vec::len).sum();
            let at = Point { index, ends: next_flushes, writes: &writes, pieces };
            for (draw, subset) in choose(&at).into_iter().enumerate() {
                let devices = bases.iter().zip(&pending).enumerate();
                let devices = devices
                    .map(|(number, (base, pieces))| {
                        survive(base, pieces, subset.of_device(number as u64))
                    })
                    .collect();
                check(&Crash { devices, mark, event: index, draw });
                shown += 1;
            }
        }
        shown
    }
}

/// The point in a log at which the power fails.
struct Point<'a> {
    index: usize,
    /// Whether the next event is a flush or a durable write, or there is no next event.
    ends: bool,
    /// The events of all unflushed writes, in order.
    writes: &'a [usize],
    pieces: usize,
}

/// The unflushed pieces that survive.
#[derive(Clone, Copy, Debug)]
enum Subset {
    Nothing,
    All,
    /// Only the pieces of the write with this event. `AllBut` has all other pieces.
    Only(usize),
    AllBut(usize),
    /// A random subset.
    Drawn(u64),
}

impl Subset {
    /// Gives each device its own random seed.
    fn of_device(self, number: u64) -> Self {
        match self {
            Self::Drawn(seed) => Self::Drawn(seed.wrapping_add(number)),
            other => other,
        }
    }
}

/// The state after one power cut.
#[derive(Debug)]
pub struct Crash {
    /// The devices, in the order in which they joined.
    pub devices: Vec<MemoryDevice>,
    /// The last mark before the cut.
    pub mark: Option<u64>,
    /// The index of the last event before the cut.
    pub event: usize,
    /// The index of the subset at that event.
    pub draw: usize,
}

/// Bytes that survive or are lost together.
#[derive(Debug)]
struct Piece {
    offset: u64,
    /// The bytes of the write, and the range of this piece in them.
    bytes: Arc<[u8]>,
    part: Range<usize>,
    /// The event of the write.
    write: usize,
}

impl Piece {
    fn apply(&self, device: &MemoryDevice) {
        let bytes = &self.bytes[self.part.clone()];
        device.write_at(self.offset, bytes).expect("it was written before");
    }
}

/// Cuts a write at the boundaries of `atom`.
fn cut(pieces: &mut Vec<Piece>, offset: u64, bytes: &Arc<[u8]>, atom: usize, write: usize) {
    let mut at = 0;
    while at < bytes.len() {
        let into = (offset + at as u64) % atom as u64;
        let len = (atom - into as usize).min(bytes.len() - at);
        let (bytes, part) = (Arc::clone(bytes), at..at + len);
        pieces.push(Piece { offset: offset + at as u64, bytes, part, write });
        at += len;
    }
}

/// Removes the pending pieces of a write that is now durable, and older pieces at its place, which
/// can no longer survive.
fn settle(pieces: &mut Vec<Piece>, write: usize, offset: u64, len: usize) {
    let end = offset + len as u64;
    pieces.retain(|piece| {
        let is_under = piece.offset >= offset && piece.offset + piece.part.len() as u64 <= end;
        piece.write != write && !(piece.write < write && is_under)
    });
}

fn survive(base: &MemoryDevice, pieces: &[Piece], subset: Subset) -> MemoryDevice {
    let device = base.fork();
    let keep = |keeps: &mut dyn FnMut(&Piece) -> bool| {
        pieces.iter().filter(|piece| keeps(piece)).for_each(|piece| piece.apply(&device));
    };
    match subset {
        Subset::Nothing => {}
        Subset::All => keep(&mut |_| true),
        Subset::Only(write) => keep(&mut |piece| piece.write == write),
        Subset::AllBut(write) => keep(&mut |piece| piece.write != write),
        Subset::Drawn(seed) => {
            let rng = &mut Rng::new(seed);
            let Some(one) = rng.choose(pieces) else { return device };
            match rng.below(10) {
                0 => keep(&mut |piece| piece.write != one.write),
                1 => keep(&mut |piece| piece.write == one.write),
                2 => keep(&mut |piece| !std::ptr::eq(piece, one)),
                3 => keep(&mut |piece| std::ptr::eq(piece, one)),
                _ => {
                    let tenths = *rng.choose(&[1, 3, 5, 7, 9]).expect("not empty");
                    let mut kept: Vec<_> =
                        pieces.iter().filter(|_| rng.chance(tenths, 10)).collect();
                    // Writes to one place may reach the medium in another order than they were
                    // issued.
                    if rng.chance(1, 2) {
                        rng.shuffle(&mut kept);
                    }
                    kept.iter().for_each(|piece| piece.apply(&device));
                }
            }
        }
    }
    device
}

/// A device in memory that records its requests in a [`Log`].
#[derive(Debug)]
pub struct Recorder {
    id: DeviceId,
    seen: MemoryDevice,
    log: Arc<Log>,
}

impl Recorder {
    /// Which device of its log this is.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// Copies the device as it looks to its users.
    #[must_use]
    pub fn fork(&self) -> MemoryDevice {
        self.seen.fork()
    }

    /// Records an event; returns its index.
    fn record(&self, event: impl FnOnce() -> Event) -> Option<usize> {
        let mut inner = self.log.inner.lock();
        if !inner.recording {
            return None;
        }
        let event = event();
        inner.events.push(event);
        Some(inner.events.len() - 1)
    }

    fn write(&self, offset: u64, buf: &[u8]) -> Result<Option<usize>, Error> {
        self.seen.write_at(offset, buf)?;
        Ok(self.record(|| Event::Write { device: self.id, offset, bytes: buf.into() }))
    }
}

impl Layer for Recorder {
    type Inner = MemoryDevice;

    fn inner(&self) -> &Self::Inner {
        &self.seen
    }

    fn title(&self) -> String {
        format!("recorder {}", self.id.0)
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.write(offset, buf).map(drop)
    }

    /// Writes durably, as a device with FUA does.
    fn on_write_durably(&self, offset: u64, buf: &[u8], _class: Class) -> Result<(), Error> {
        if let Some(write) = self.write(offset, buf)? {
            self.record(|| Event::Settled { write });
        }
        Ok(())
    }

    /// Records one write with all its buffers as one event.
    fn on_write_classed(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        _class: Class,
    ) -> Result<(), Error> {
        let whole: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
        self.on_write(offset, &whole)
    }

    /// Returns true, because an fsync prepares its data (`prepared` in the crate `data`) only on
    /// devices that wait once for many writes. Tests must cover prepared data.
    fn takes_many(&self) -> bool {
        true
    }

    fn on_flush(&self) -> Result<(), Error> {
        self.record(|| Event::Flush { device: self.id });
        Ok(())
    }

    fn on_discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.seen.discard(offset, len)?;
        self.record(|| Event::Write {
            device: self.id,
            offset,
            bytes: vec![0; len as usize].into(),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// S1 and S2: flushed bytes are in every state; other bytes survive or are lost by whole
    /// sectors.
    #[test]
    fn keeps_what_was_flushed() {
        let log = Log::new();
        let device = log.device(&MemoryDevice::new(4096), 512);
        log.start(&[&device]);
        device.write_at(0, &[1; 512]).expect("memory");
        device.flush().expect("memory");
        log.mark(7);
        device.write_at(256, &[2; 1024]).expect("memory");
        let (mut some, mut mixed) = (false, false);
        log.crashes(&mut Rng::new(1), 40, 1, |crash| {
            let mut bytes = [0; 2048];
            crash.devices[0].read_at(0, &mut bytes).expect("memory");
            if crash.mark == Some(7) {
                assert!(bytes[..256].iter().all(|&byte| byte == 1), "S1");
                let sectors = [bytes[256], bytes[512], bytes[1024]].map(|byte| byte == 2);
                assert!(bytes[512..1024].iter().all(|&byte| byte == bytes[512]), "S2");
                some |= sectors.contains(&true);
                mixed |= sectors.contains(&true) && sectors.contains(&false);
            }
        });
        assert!(some && mixed);
    }
    /// Three writes before a flush give these states: no write, all writes, each write alone, and
    /// each write lost. After the flush there is only one state.
    #[test]
    fn intervals_have_each_write_alone_and_lost() {
        let log = Log::new();
        let device = log.device(&MemoryDevice::new(4096), 512);
        log.start(&[&device]);
        for at in 0..3 {
            device.write_at(at * 512, &[at as u8 + 1; 512]).expect("memory");
        }
        device.flush().expect("memory");
        log.mark(1);
        let mut seen = Vec::new();
        let shown = log.intervals(&mut Rng::new(1), 8, 0, |crash| {
            let mut bytes = [0; 1536];
            crash.devices[0].read_at(0, &mut bytes).expect("memory");
            seen.push((crash.mark, [bytes[0], bytes[512], bytes[1024]]));
        });
        let (none, all) = ([0, 0, 0], [1, 2, 3]);
        let before = [none, all, [1, 0, 0], [0, 2, 3], [0, 2, 0], [1, 0, 3], [0, 0, 3], [1, 2, 0]];
        let mut expected: Vec<_> = before.map(|found| (None, found)).to_vec();
        expected.push((Some(1), all));
        assert_eq!((seen, shown), (expected, 9));
    }

    /// A durable write is in every later state, and replaces earlier writes at its place. Writes to
    /// other places may still be lost.
    #[test]
    fn a_durable_write_says_nothing_of_others() {
        let log = Log::new();
        let device = log.device(&MemoryDevice::new(4096), 512);
        log.start(&[&device]);
        device.write_at(0, &[1; 512]).expect("memory");
        device.write_at(512, &[2; 512]).expect("memory");
        device.write_durably(512, &[3; 512], Class::Metadata).expect("memory");
        log.mark(1);
        let mut seen = BTreeSet::new();
        log.crashes(&mut Rng::new(1), 40, 1, |crash| {
            let mut bytes = [0; 1024];
            crash.devices[0].read_at(0, &mut bytes).expect("memory");
            seen.insert((crash.mark, bytes[0], bytes[512]));
        });
        let after: Vec<_> = seen.iter().filter(|(mark, ..)| mark.is_some()).copied().collect();
        assert_eq!(after, [(Some(1), 0, 3), (Some(1), 1, 3)]);
        let before: BTreeSet<_> = seen.iter().filter(|(mark, ..)| mark.is_none()).collect();
        assert!(before.contains(&(None, 0, 2)) && before.contains(&(None, 1, 3)), "{before:?}");
    }
}
