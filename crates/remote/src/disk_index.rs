//! The index of the cache on a local disk: what each slot has.
//!
//! # Format
//!
//! `docs/format/remote.md`: an envelope, the number of slots, then an entry for each slot.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::disk_lines::DiskKey;
use crate::envelope::{self, Kind, VolumeId, lines_version, u32_at, u64_at, unwrap};
use crate::lines::LINE_BYTES;
use crate::units::ObjectNumber;

/// Bytes of an entry.
pub(crate) const ENTRY: usize = 40;
/// Bytes before the first entry: an envelope, and the number of slots.
pub(crate) const INDEX_HEAD: usize = envelope::LEN + 8;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    pub(crate) key: DiskKey,
    /// Bytes of the line; zero in a free slot.
    pub(crate) len: u32,
    /// The checksum of a sealed line. The pieces of other lines have their own.
    pub(crate) crc: u32,
    pub(crate) is_node: bool,
    pub(crate) chances: u8,
    /// When the line was kept: the number of lines that were kept before it. Zero in indexes of
    /// earlier programs.
    pub(crate) kept: u64,
}

#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) places: HashMap<DiskKey, u32>,
    pub(crate) slots: Vec<Slot>,
    /// Bytes of all lines.
    pub(crate) bytes: u64,
    /// Where the search for a slot goes on.
    pub(crate) hand: usize,
    /// The number of the next line that is kept.
    pub(crate) next: u64,
}

impl Index {
    /// The index of slots that were kept. New lines get the free slots behind the last used slot
    /// first. If there are none, the search goes on behind the line that was kept last. A search
    /// from the first slot would replace what the run before has just read. A line with nodes of
    /// trees has a chance from the start, as the clock begins anew.
    pub(crate) fn new(mut slots: Vec<Slot>) -> Self {
        let used = slots.iter().zip(0_u32..).filter(|(slot, _)| slot.len > 0);
        let places = used.map(|(slot, place)| (slot.key, place)).collect();
        let bytes = slots.iter().map(|slot| u64::from(slot.len)).sum();
        let behind = slots.iter().rposition(|slot| slot.len > 0).map_or(0, |last| last + 1);
        let newest = slots.iter().zip(0..).max_by_key(|(slot, place)| (slot.kept, *place));
        let (next, newest) =
            newest.map_or((0, 0), |(slot, place)| (slot.kept.saturating_add(1), place));
        let hand = if behind < slots.len() { behind } else { (newest + 1) % slots.len().max(1) };
        slots.iter_mut().for_each(|slot| slot.chances = u8::from(slot.is_node));
        Self { places, slots, bytes, hand, next }
    }

    /// Notes the checksum of a line in its slot, unless the slot has another line by now.
    pub(crate) fn note_crc(&mut self, place: u32, slot: Slot) {
        if let Some(here) = self.slots.get_mut(place as usize).filter(|here| here.key == slot.key) {
            here.crc = slot.crc;
        }
    }

    /// Finds a slot for a line. If a slot has the line already, the line keeps that slot. Otherwise
    /// the line gets the next slot, in clock order, with a line that has no chances left.
    pub(crate) fn take(&mut self, slot: &mut Slot) -> u32 {
        self.bytes += u64::from(slot.len);
        if let Some(&place) = self.places.get(&slot.key) {
            // The clock does not move, so the line keeps its number.
            let here = &mut self.slots[place as usize];
            slot.kept = here.kept;
            self.bytes -= u64::from(here.len);
            *here = *slot;
            return place;
        }
        slot.kept = self.next;
        self.next = self.next.saturating_add(1);
        let slot = *slot;
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
    pub(crate) fn place(&self, slot: u32) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.key.object.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.epoch.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.key.line.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..].copy_from_slice(&slot.to_le_bytes());
        bytes
    }

    pub(crate) fn encode(&self) -> [u8; ENTRY] {
        let mut bytes = [0; ENTRY];
        bytes[..8].copy_from_slice(&self.key.object.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.epoch.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.key.line.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.len.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.crc.to_le_bytes());
        bytes[24..28].copy_from_slice(&u32::from(self.is_node).to_le_bytes());
        bytes[28..36].copy_from_slice(&self.kept.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&bytes);
        bytes[36..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
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
        let (crc, kept) = (u32_at(bytes, 20), u64_at(bytes, 28));
        Some(Self { key, len, crc, is_node, chances: 0, kept })
    }
}

/// Reads at most `count` slots of an index. `None` if the index does not belong to this volume.
pub(crate) fn read_index(
    file: &File,
    volume: VolumeId,
    is_sealed: bool,
    count: usize,
) -> io::Result<Vec<Slot>> {
    let len = file.metadata()?.len().min((INDEX_HEAD + count * ENTRY) as u64);
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    let Some((head, entries)) = bytes.split_at_checked(INDEX_HEAD) else { return Ok(Vec::new()) };
    // Lines in clear text of an encrypted volume are dropped, and so are lines of another version.
    let is_right = unwrap("the index", Kind::Cache, head).is_ok_and(|(envelope, _)| {
        envelope.volume == volume && envelope.version == lines_version(is_sealed)
    });
    if !is_right {
        return Ok(Vec::new());
    }
    let slots = entries.chunks_exact(ENTRY).map(|raw| Slot::decode(raw).unwrap_or_default());
    Ok(slots.collect())
}
