//! A cache on a local disk for data that was read from objects. It is kept over restarts.
//!
//! # Invariants
//!
//! - **P1** A part of a line is used only if its checksum is right. The name of an object has an
//!   epoch and a number, and no name is used twice. A key has the epoch and the number, so a kept
//!   line never becomes wrong.
//! - **P2** The files take at most their budget, and the index in memory takes at most its own
//!   budget. After a change of the budget, the lines in the remaining slots are kept.
//! - **P4** Lines of an encrypted volume are sealed, each for its slot. The index names the objects
//!   of the lines, and shows nothing of their content: its checksums cover the sealed bytes.
//! - **P3** After a failure of the disk the cache is not used any more. The failure never fails a
//!   read.
//!
//! # Format
//!
//! `docs/format/remote.md`: `read/lines` has slots (`disk_slot`), and `read/index` an entry for
//! each slot. Both files are written without a sync. After a crash, a slot may hold another line
//! than its entry names. The checksums detect such a line.
//!
//! # Locks
//!
//! Takes [`Rank::Leaf`] for the index, and never holds it during I/O.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::{Rank, Ranked};
use buttress_block::LockFile;

use crate::cache_seal::{CacheSeal, DRAWN, TAG};
use crate::disk_index::{ENTRY, INDEX_HEAD, Index, Slot, read_index};
use crate::disk_slot::{self, Owner};
use crate::envelope::{VolumeId, wrap_lines};
use crate::lines::LINE_BYTES;
use crate::units::ObjectNumber;

/// Bytes of a slot with a sealed line.
const SLOT_SEALED: u64 = (LINE_BYTES + DRAWN + TAG) as u64;
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

/// The cache, opened by this process alone.
#[derive(Debug)]
pub(crate) struct DiskLines {
    volume: VolumeId,
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
        let head = wrap_lines(is_sealed, volume, &body);
        index_file.write_all_at(&head, 0)?;
        slots.resize(count, Slot::default());
        let index = Ranked::new(Rank::Leaf, Index::new(slots));
        let (is_broken, hits) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Some(Self { volume, seal, lines, index_file, index, is_broken, hits, lock }))
    }

    /// Finds a line, and notes its use. Returns the slot, and where it begins in the file.
    fn find(&self, key: DiskKey) -> Option<(u32, Slot, u64)> {
        if self.is_broken.load(Ordering::Relaxed) {
            return None;
        }
        let mut index = self.index.lock();
        let place = *index.places.get(&key)?;
        let slot = index.slots.get_mut(place as usize)?;
        slot.chances = if slot.is_node { NODE_CHANCES } else { DATA_CHANCES };
        Some((place, *slot, u64::from(place) * self.slot_len()))
    }

    /// Reads a line, if the cache has it and its checksums are right (P1).
    pub(crate) fn get(&self, key: DiskKey) -> Option<Vec<u8>> {
        let (place, slot, at) = self.find(key)?;
        let mut line = vec![0; slot.len as usize];
        if let Some(seal) = &self.seal {
            line.resize(line.len() + DRAWN + TAG, 0);
            self.lines.read_exact_at(&mut line, at).ok()?;
            if crc_fast::crc32_iscsi(&line) != slot.crc {
                return None;
            }
            line = seal.open_line(&slot.place(place), &line)?;
        } else if !disk_slot::read(&self.lines, at, self.owner(key), 0, &mut line) {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(line)
    }

    /// Reads whole sectors of a line from byte `skip` on into `to`, and no other part of the line.
    /// Returns false if the cache lacks them, or if a checksum is wrong (P1). A sealed line is only
    /// read as a whole, so the answer is false there.
    pub(crate) fn read(&self, key: DiskKey, skip: usize, to: &mut [u8]) -> bool {
        if self.seal.is_some() {
            return false;
        }
        let Some((_, slot, at)) = self.find(key) else { return false };
        let found = skip + to.len() <= slot.len as usize
            && disk_slot::read(&self.lines, at, self.owner(key), skip, to);
        self.hits.fetch_add(u64::from(found), Ordering::Relaxed);
        found
    }

    /// Keeps a line. `is_node` says that the line has nodes of trees. Such lines stay longest.
    pub(crate) fn put(&self, key: DiskKey, line: &[u8], is_node: bool) {
        if self.is_broken.load(Ordering::Relaxed) || line.is_empty() || line.len() > LINE_BYTES {
            return;
        }
        let mut slot = Slot { key, len: line.len() as u32, crc: 0, is_node, chances: 0, kept: 0 };
        // A read that finds the slot before its content is written sees a wrong checksum, and goes
        // to the store.
        let place = self.index.lock().take(&mut slot);
        let at = u64::from(place) * self.slot_len();
        let written = match &self.seal {
            Some(seal) => {
                let stored = seal.seal_line(&slot.place(place), line);
                slot.crc = crc_fast::crc32_iscsi(&stored);
                self.index.lock().note_crc(place, slot);
                self.lines.write_all_at(&stored, at)
            }
            None => disk_slot::write(&self.lines, at, self.owner(key), line),
        };
        let written = written.and_then(|()| {
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

    fn owner(&self, key: DiskKey) -> Owner {
        Owner { volume: self.volume, key }
    }

    fn slot_len(&self) -> u64 {
        slot_len(self.seal.as_ref())
    }

    /// Whether the cache has a line.
    pub(crate) fn has(&self, key: DiskKey) -> bool {
        !self.is_broken.load(Ordering::Relaxed) && self.index.lock().places.contains_key(&key)
    }

    /// Bytes of all lines, and the number of reads that found a line.
    pub(crate) fn figures(&self) -> (u64, u64) {
        (self.index.lock().bytes, self.hits.load(Ordering::Relaxed))
    }
}

fn slot_len(seal: Option<&CacheSeal>) -> u64 {
    if seal.is_some() { SLOT_SEALED } else { disk_slot::SLOT }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_slot::SLOT;

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
        let mut sectors = [1; 8192];
        assert!(lines.read(key(0), 4096, &mut sectors) && sectors == [0; 8192]);
        assert!(!lines.read(key(15), 0, &mut sectors), "the line is shorter");
        let at = u64::from(lines.index.lock().places[&key(0)]) * SLOT;
        lines.lines.write_all_at(&[1], at + 50_000).expect("a disk");
        assert!(lines.get(key(0)).is_none(), "it is damaged");
        drop(lines);
        let other =
            DiskLines::open(dir.path(), VolumeId([1; 16]), None, budget, u64::MAX).expect("a disk");
        assert!(!other.expect("not in use").has(key(15)), "of another volume");
    }

    /// After a restart, new lines take the free slots first. When all slots are used, lines with
    /// nodes stay longer than lines with data, also if nothing used them since the restart.
    #[test]
    fn kept_lines_stay_while_slots_are_free() {
        let dir = tempfile::tempdir().expect("tempdir");
        let budget = 12 * (SLOT + ENTRY as u64);
        let open = || {
            let lines = DiskLines::open(dir.path(), VolumeId::default(), None, budget, u64::MAX);
            lines.expect("a disk").expect("not in use")
        };
        for round in 0..3 {
            let lines = open();
            for number in round * 4..round * 4 + 4 {
                lines.put(key(number), &[number as u8; 1000], number == 0);
            }
            let kept = 0..round * 4 + 4;
            assert!(kept.into_iter().all(|number| lines.has(key(number))), "round {round}");
        }
        let lines = open();
        (12..23).for_each(|number| lines.put(key(number), &[number as u8; 1000], false));
        assert_eq!(lines.get(key(0)).expect("a line with nodes"), [0; 1000]);
        assert!((12..23).all(|number| lines.has(key(number))), "no new line replaces another");
        drop(lines);
        // Short runs replace the oldest lines, and not what the run before has read.
        for number in 23..29 {
            let lines = open();
            // A line that is kept already does not move the clock.
            lines.put(key(number - 9), &[0; 900], false);
            lines.put(key(number), &[number as u8; 1000], false);
            let newest = number - 10..=number;
            assert!(newest.into_iter().all(|kept| lines.has(key(kept))), "{number}");
        }
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
