//! The table of a volume's objects: the kind of each object's content, and the live part of this
//! content.

use std::collections::BTreeMap;

use crate::envelope::{damaged, u32_at, u64_at};
use crate::error::Result;
use crate::segment::Shape;
use crate::units::{CommitNumber, ObjectNumber};

const ENTRY: usize = 40;
/// Objects in one part of the table.
pub(crate) const PIECE: usize = 16 << 10;

/// The content of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// Sectors of the device.
    Data(Shape),
    /// Parts of the map, and their length in bytes.
    Map(u32),
}

/// The facts about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) holds: Holds,
    /// The epoch of the object's writer, which is a part of the object's name.
    pub(crate) epoch: u32,
    /// Live sectors of a data object, or live bytes of a map object.
    pub(crate) live: u32,
    /// The first commit that does not need the object, if nothing in it is live.
    pub(crate) dead_since: CommitNumber,
    /// Whether the object still grows. While it grows, it does not count as dead.
    pub(crate) is_open: bool,
}

impl Entry {
    pub(crate) fn new(holds: Holds, epoch: u32) -> Self {
        let dead_since = CommitNumber(0);
        Self { holds, epoch, live: 0, dead_since, is_open: false }
    }

    /// The length of the object in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self.holds {
            Holds::Data(shape) => shape.len(),
            Holds::Map(len) => u64::from(len),
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.live == 0 && !self.is_open
    }

    /// The live part, in thousandths.
    pub(crate) fn live_permille(&self) -> u64 {
        let whole = match self.holds {
            Holds::Data(shape) => u64::from(shape.sectors),
            Holds::Map(len) => u64::from(len),
        };
        u64::from(self.live) * 1000 / whole.max(1)
    }
}

/// All objects by number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) entries: BTreeMap<ObjectNumber, Entry>,
}

impl Table {
    pub(crate) fn get(&self, number: ObjectNumber) -> Option<&Entry> {
        self.entries.get(&number)
    }

    /// Adds to the live count of an object.
    pub(crate) fn more(&mut self, number: ObjectNumber, count: u32) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.live = entry.live.saturating_add(count);
        }
    }

    /// Subtracts from the live count of an object. At zero, the object is dead from commit `window`
    /// on.
    pub(crate) fn less(&mut self, number: ObjectNumber, count: u32, window: CommitNumber) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.live = entry.live.saturating_sub(count);
            if entry.is_dead() {
                entry.dead_since = window;
            }
        }
    }

    /// The table as parts of at most [`PIECE`] objects.
    pub(crate) fn encode(&self) -> Vec<Vec<u8>> {
        let sealed: Vec<_> = self.entries.iter().filter(|(_, entry)| !entry.is_open).collect();
        let each = |piece: &[(&ObjectNumber, &Entry)]| {
            let mut bytes = Vec::with_capacity(piece.len() * ENTRY);
            for (number, entry) in piece {
                let (kind, size, extents) = match entry.holds {
                    Holds::Data(shape) => (0_u32, shape.sectors, shape.extents),
                    Holds::Map(len) => (1, len, 0),
                };
                bytes.extend_from_slice(&number.0.to_le_bytes());
                bytes.extend_from_slice(&entry.dead_since.0.to_le_bytes());
                bytes.extend_from_slice(&entry.epoch.to_le_bytes());
                bytes.extend_from_slice(&kind.to_le_bytes());
                for value in [size, extents, entry.live, 0] {
                    bytes.extend_from_slice(&value.to_le_bytes());
                }
            }
            bytes
        };
        sealed.chunks(PIECE).map(each).collect()
    }

    /// Reads the objects of a part.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Vec<(ObjectNumber, Entry)>> {
        if !bytes.len().is_multiple_of(ENTRY) {
            return Err(damaged(name, "the table of objects has half an entry".to_owned()));
        }
        let mut entries = Vec::with_capacity(bytes.len() / ENTRY);
        for raw in bytes.chunks_exact(ENTRY) {
            let size = u32_at(raw, 24);
            let holds = match u32_at(raw, 20) {
                0 => Holds::Data(Shape { sectors: size, extents: u32_at(raw, 28) }),
                1 => Holds::Map(size),
                _ => return Err(damaged(name, "an object is of no known kind".to_owned())),
            };
            let entry = Entry {
                holds,
                dead_since: CommitNumber(u64_at(raw, 8)),
                epoch: u32_at(raw, 16),
                live: u32_at(raw, 32),
                is_open: false,
            };
            entries.push((ObjectNumber(u64_at(raw, 0)), entry));
        }
        Ok(entries)
    }
}
