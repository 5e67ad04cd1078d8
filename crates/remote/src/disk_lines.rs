//! A cache on a local disk for data that was read from objects. It is kept over restarts.
//!
//! # Invariants
//!
//! - **P1** A line is used only if its checksum is right. The name of an object has an epoch and a
//!   number, and no name is used twice. A key has the epoch and the number, so a kept line never
//!   becomes wrong.
//! - **P2** The files take at most their budget, and the index in memory takes at most its own
//!   budget. After a change of the budget, the lines in the remaining slots are kept.
//! - **P4** Lines of an encrypted volume are sealed, each for its slot. The index names the objects
//!   of the lines, and shows nothing of their content: its checksums cover the sealed bytes.
//! - **P3** After a failure of the disk the cache is not used any more. The failure never fails a
//!   read.
//!
//! # Format
//!
//! `docs/format/remote.md`: `read/lines` has slots, and `read/index` an entry for each slot. Both
//! files are written without a sync. After a crash, a slot may hold another line than its entry
//! names. The checksum detects such a line.
//!
//! # Locks
//!
//! Takes [`Rank::Leaf`] for the index, and never holds it during I/O.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::{Rank, Ranked};
use buttress_block::LockFile;

use crate::cache_seal::{CacheSeal, DRAWN, TAG};
use crate::envelope::{self, Kind, VERSION_SEALED, VolumeId, u32_at, u64_at, unwrap, wrap_local};
use crate::lines::LINE_BYTES;
use crate::units::ObjectNumber;

/// Bytes of a slot, of a slot with a sealed line, and of an entry of the index.
const SLOT: u64 = LINE_BYTES as u64;
const SLOT_SEALED: u64 = SLOT + (DRAWN + TAG) as u64;
const ENTRY: usize = 40;
/// Bytes before the first entry: an envelope, and the number of slots.
const INDEX_HEAD: usize = envelope::LEN + 8;
/// How often the search for a slot passes over a line after the line's last use, before the search
/// takes the slot. The first number is for lines of data, the second for lines with nodes of trees.
const DATA_CHANCES: u8 = 1;
const NODE_CHANCES: u8 = 3;
/// The memory that a slot takes at most, in bytes: its entry, and its place in the table of keys.
const SLOT_MEMORY: u64 = 96;

/// The key of a line: the epoch and the number of its object, and the line's number within the
/// object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct DiskKey {
    pub(crate) epoch: u32,
    pub(crate) object: ObjectNumber,
    pub(crate) line: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    key: DiskKey,
    /// Bytes of the line; zero in a free slot.
    len: u32,
    crc: u32,
    is_node: bool,
    chances: u8,
}

#[derive(Debug)]
struct Index {
    places: HashMap<DiskKey, u32>,
    slots: Vec<Slot>,
    /// Bytes of all lines.
    bytes: u64,
    /// Where the search for a slot goes on.
    hand: usize,
}

/// The cache, opened by this process alone.
#[derive(Debug)]
pub(crate) struct DiskLines {
    /// The keys, if the volume is encrypted (P4).
    seal: Option<CacheSeal>,
    lines: File,
    index_file: File,
    index: Ranked<Index>,
    is_broken: AtomicBool,
    hits: AtomicU64,
    lock: LockFile,
}

impl DiskLines {
    /// Opens the cache below a folder with at most `budget` bytes on the disk, and an index of at
    /// most `memory` bytes. `None` if another process has the cache open, or a budget is too small.
    pub(crate) fn open(
        dir: &Path,
        volume: VolumeId,
        seal: Option<CacheSeal>,
        budget: u64,
        memory: u64,
    ) -> io::Result<Option<Self>> {
        let slot = slot_len(seal.as_ref());
        let asked = budget / (slot + ENTRY as u64);
        let count = asked.min(memory / SLOT_MEMORY).min(u64::from(u32::MAX)) as usize;
        if (count as u64) < asked {
            let (kept, asked) = (count as u64 * slot, asked * slot);
            tracing::warn!(
                "the cache of what was read has {kept} bytes and not {asked}: its index would take \
                 more than {memory} bytes, a quarter of memory="
            );
        }
        if count == 0 {
            return Ok(None);
        }
        let folder = dir.join("read");
        std::fs::create_dir_all(&folder)?;
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(folder.join(name))
        };
        let Some(lock) = LockFile::try_lock(open("lock")?)? else { return Ok(None) };
        let (lines, index_file) = (open("lines")?, open("index")?);
        let is_sealed = seal.is_some();
        let mut slots = read_index(&index_file, volume, is_sealed, count)?;
        // Slots past the end of the budget are cut off (P2).
        for (file, len) in [
            (&lines, slots.len() as u64 * slot),
            (&index_file, INDEX_HEAD as u64 + slots.len() as u64 * ENTRY as u64),
        ] {
            file.set_len(file.metadata()?.len().min(len))?;
        }
        let body = (count as u64).to_le_bytes();
        let head = wrap_local(is_sealed, Kind::Cache, volume, (0, 0), &body);
        index_file.write_all_at(&head, 0)?;
        slots.resize(count, Slot::default());
        let used = slots.iter().zip(0_u32..).filter(|(slot, _)| slot.len > 0);
        let places = used.map(|(slot, place)| (slot.key, place)).collect();
        let bytes = slots.iter().map(|slot| u64::from(slot.len)).sum();
        let index = Ranked::new(Rank::Leaf, Index { places, slots, bytes, hand: 0 });
        let (is_broken, hits) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Some(Self { seal, lines, index_file, index, is_broken, hits, lock }))
    }

    /// Reads a line, if the cache has it and its checksum is right (P1).
    pub(crate) fn get(&self, key: DiskKey) -> Option<Vec<u8>> {
        if self.is_broken.load(Ordering::Relaxed) {
            return None;
        }
        let (place, slot) = {
            let mut index = self.index.lock();
            let place = *index.places.get(&key)?;
            let slot = index.slots.get_mut(place as usize)?;
            slot.chances = if slot.is_node { NODE_CHANCES } else { DATA_CHANCES };
            (place, *slot)
        };
        let added = self.slot_len() - SLOT;
        let mut line = vec![0; slot.len as usize + added as usize];
        self.lines.read_exact_at(&mut line, u64::from(place) * self.slot_len()).ok()?;
        if crc_fast::crc32_iscsi(&line) != slot.crc {
            return None;
        }
        if let Some(seal) = &self.seal {
            line = seal.open_line(&slot.place(place), &line)?;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(line)
    }

    /// Keeps a line. `is_node` says that the line has nodes of trees. Such lines stay longest.
    pub(crate) fn put(&self, key: DiskKey, line: &[u8], is_node: bool) {
        if self.is_broken.load(Ordering::Relaxed) || line.is_empty() || line.len() > LINE_BYTES {
            return;
        }
        let mut slot = Slot { key, len: line.len() as u32, crc: 0, is_node, chances: 0 };
        let place = self.index.lock().take(slot);
        let stored = match &self.seal {
            Some(seal) => Cow::Owned(seal.seal_line(&slot.place(place), line)),
            None => Cow::Borrowed(line),
        };
        // A read that finds the slot before the checksum is noted sees a wrong checksum, and goes
        // to the store.
        slot.crc = crc_fast::crc32_iscsi(&stored);
        self.index.lock().note_crc(place, slot);
        let at = u64::from(place) * self.slot_len();
        let written = self.lines.write_all_at(&stored, at).and_then(|()| {
            let at = INDEX_HEAD as u64 + u64::from(place) * ENTRY as u64;
            self.index_file.write_all_at(&slot.encode(), at)
        });
        if let Err(error) = written {
            tracing::warn!(%error, "the cache of what was read cannot be written any more");
            self.is_broken.store(true, Ordering::Relaxed);
        }
    }

    /// Unlocks the files, so that another process can use them. This process does not use them any
    /// more.
    pub(crate) fn release(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
        self.lock.release();
    }

    fn slot_len(&self) -> u64 {
        slot_len(self.seal.as_ref())
    }

    /// Whether the cache has a line.
    pub(crate) fn has(&self, key: DiskKey) -> bool {
        self.index.lock().places.contains_key(&key)
    }

    /// Bytes of all lines, and the number of reads that found a line.
    pub(crate) fn figures(&self) -> (u64, u64) {
        (self.index.lock().bytes, self.hits.load(Ordering::Relaxed))
    }
}

fn slot_len(seal: Option<&CacheSeal>) -> u64 {
    if seal.is_some() { SLOT_SEALED } else { SLOT }
}

impl Index {
    /// Notes the checksum of a line in its slot, unless the slot has another line by now.
    fn note_crc(&mut self, place: u32, slot: Slot) {
        if let Some(here) = self.slots.get_mut(place as usize).filter(|here| here.key == slot.key) {
            here.crc = slot.crc;
        }
    }

    /// Finds a slot for a line. If a slot has the line already, the line keeps that slot. Otherwise
    /// the line gets the next slot, in clock order, with a line that has no chances left.
    fn take(&mut self, slot: Slot) -> u32 {
        self.bytes += u64::from(slot.len);
        if let Some(&place) = self.places.get(&slot.key) {
            let was = std::mem::replace(&mut self.slots[place as usize], slot);
            self.bytes -= u64::from(was.len);
            return place;
        }
        loop {
            let place = self.hand;
            self.hand = (place + 1) % self.slots.len();
            let here = &mut self.slots[place];
            if here.len > 0 && here.chances > 0 {
                here.chances -= 1;
                continue;
            }
            if here.len > 0 {
                self.places.remove(&here.key);
                self.bytes -= u64::from(here.len);
            }
            *here = slot;
            self.places.insert(slot.key, place as u32);
            return place as u32;
        }
    }
}

impl Slot {
    /// The associated data of a sealed line: its object, its place in the object, its length, and
    /// its slot.
    fn place(&self, slot: u32) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.key.object.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.epoch.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.key.line.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..].copy_from_slice(&slot.to_le_bytes());
        bytes
    }

    fn encode(&self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.key.object.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.epoch.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.key.line.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.crc.to_le_bytes());
        bytes[24..28].copy_from_slice(&u32::from(self.is_node).to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes);
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut raw: [u8; ENTRY] = bytes.try_into().ok()?;
        raw[36..].fill(0);
        let len = u32_at(bytes, 16);
        if crc_fast::crc32_iscsi(&raw) != u32_at(bytes, 36) || len as usize > LINE_BYTES {
            return None;
        }
        let key = DiskKey {
            object: ObjectNumber(u64_at(bytes, 0)),
            epoch: u32_at(bytes, 8),
            line: u32_at(bytes, 12),
        };
        let is_node = u32_at(bytes, 24) != 0;
        Some(Self { key, len, crc: u32_at(bytes, 20), is_node, chances: 0 })
    }
}

/// Reads at most `count` slots of an index. `None` if the index does not belong to this volume.
fn read_index(
    file: &File,
    volume: VolumeId,
    is_sealed: bool,
    count: usize,
) -> io::Result<Vec<Slot>> {
    let len = file.metadata()?.len().min((INDEX_HEAD + count * ENTRY) as u64);
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let Some((head, entries)) = bytes.split_at_checked(INDEX_HEAD) else { return Ok(Vec::new()) };
    // Lines in clear text of an encrypted volume are dropped, and so are lines of a later version.
    let is_right = unwrap("the index", Kind::Cache, head).is_ok_and(|(envelope, _)| {
        envelope.volume == volume && (envelope.version == VERSION_SEALED) == is_sealed
    });
    if !is_right {
        return Ok(Vec::new());
    }
    let slots = entries.chunks_exact(ENTRY).map(|raw| Slot::decode(raw).unwrap_or_default());
    Ok(slots.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u64) -> DiskKey {
        DiskKey { epoch: 1, object: ObjectNumber(number), line: 0 }
    }

    /// Lines are kept over a restart. Lines that were used stay longer than others, and nodes stay
    /// longer than data. A damaged line is not used.
    #[test]
    fn lines_are_kept_by_use_and_over_restarts() {
        let dir = tempfile::tempdir().expect("tempdir");
        let budget = 8 * (SLOT + ENTRY as u64);
        let open = || {
            DiskLines::open(dir.path(), VolumeId::default(), None, budget, u64::MAX)
                .expect("a disk")
        };
        let lines = open().expect("not in use");
        assert!(open().is_none(), "another has it");
        for number in 0..8 {
            lines.put(key(number), &[number as u8; LINE_BYTES], number == 0);
        }
        for number in [0, 1] {
            assert_eq!(lines.get(key(number)).expect("kept")[0], number as u8);
        }
        for number in 8..16 {
            lines.put(key(number), &[number as u8; 100], false);
        }
        assert!(lines.has(key(0)), "a node that was used stays longest");
        assert!(!lines.has(key(2)) && lines.has(key(15)));
        drop(lines);
        let lines = open().expect("not in use");
        assert_eq!(lines.get(key(15)).expect("kept"), [15; 100]);
        assert_eq!(lines.get(key(0)).expect("kept"), [0; LINE_BYTES]);
        let at = u64::from(lines.index.lock().places[&key(0)]) * SLOT;
        lines.lines.write_all_at(&[1], at + 50_000).expect("a disk");
        assert!(lines.get(key(0)).is_none(), "it is damaged");
        drop(lines);
        let other =
            DiskLines::open(dir.path(), VolumeId([1; 16]), None, budget, u64::MAX).expect("a disk");
        assert!(!other.expect("not in use").has(key(15)), "of another volume");
    }

    /// After a change of the budget, the lines in the remaining slots are kept, and the sum of
    /// their bytes is right. The files stay within the new budget, and the index within its memory.
    #[test]
    fn another_budget_keeps_the_lines_that_fit() {
        let dir = tempfile::tempdir().expect("tempdir");
        let open = |slots: u64, memory: u64| {
            let budget = slots.saturating_mul(SLOT + ENTRY as u64);
            let lines = DiskLines::open(dir.path(), VolumeId::default(), None, budget, memory);
            lines.expect("a disk").expect("not in use")
        };
        let lines = open(8, u64::MAX);
        (0..8).for_each(|number| lines.put(key(number), &[number as u8; 1000], false));
        lines.put(key(3), &[3; 500], false);
        assert_eq!(lines.figures().0, 7500);
        drop(lines);
        for (slots, memory, kept) in
            [(16, u64::MAX, 8), (u64::MAX, 6 * SLOT_MEMORY, 6), (4, 1 << 20, 4)]
        {
            let lines = open(slots, memory);
            for number in 0..8 {
                assert_eq!(lines.get(key(number)).is_some(), number < kept, "{slots}: {number}");
            }
            assert_eq!(lines.figures().0, kept * 1000 - 500);
            let bound = slots.min(memory / SLOT_MEMORY).min(16);
            assert!(lines.lines.metadata().expect("a file").len() <= bound * SLOT);
        }
    }
}
