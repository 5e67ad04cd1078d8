//! The master boot record, and the chain of records in an extended partition.

use std::ops::Range;

use super::{Kind, Partition, SECTOR, broken, sector, u32_at};
use crate::device::Device;
use crate::error::Error;

/// The most records in extended partitions. Linux stops at 256 partitions of a disk.
const LINKS_MAX: usize = 256;
/// The kind of the entry that says that there is a GPT.
const PROTECTIVE: u8 = 0xee;
/// The number of the first partition within an extended partition.
const FIRST_LOGICAL: u32 = 5;

/// One entry of a record; its numbers count sectors.
#[derive(Clone, Copy)]
struct Entry {
    status: u8,
    kind: u8,
    start: u32,
    count: u32,
}

impl Entry {
    fn is_used(self) -> bool {
        self.kind != 0 && self.count != 0
    }

    fn is_extended(self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }
}

/// The four entries of a sector that ends with the mark of a record.
pub(super) struct Record([Entry; 4]);

impl Record {
    /// Parses a sector, if it is a record. A boot sector of FAT has the same mark, but code or text
    /// in the place of the entries.
    pub(super) fn parse(sector: &[u8; SECTOR as usize]) -> Option<Self> {
        if sector[510..] != [0x55, 0xaa] {
            return None;
        }
        let entries = std::array::from_fn(|slot| {
            let bytes = &sector[446 + 16 * slot..];
            let (start, count) = (u32_at(bytes, 8), u32_at(bytes, 12));
            Entry { status: bytes[0], kind: bytes[4], start, count }
        });
        entries
            .iter()
            .all(|entry: &Entry| matches!(entry.status, 0 | 0x80))
            .then_some(Self(entries))
    }

    /// Whether the record has a protective entry, so that a GPT describes the disk. A hybrid record
    /// also lists some partitions for old machines. The GPT takes precedence over the entries of
    /// the record.
    pub(super) fn is_protective(&self) -> bool {
        self.0.iter().any(|entry| entry.kind == PROTECTIVE)
    }

    /// The bytes of the extended partitions.
    pub(super) fn extended(&self) -> Vec<Range<u64>> {
        let used = self.0.iter().filter(|entry| entry.is_used() && entry.is_extended());
        let bytes = |entry: &Entry| {
            let start = u64::from(entry.start);
            start * SECTOR..(start + u64::from(entry.count)) * SECTOR
        };
        used.map(bytes).collect()
    }
}

/// Reads the partitions of a disk with this first record.
pub(super) fn read(disk: &dyn Device, record: &Record) -> Result<Vec<Partition>, Error> {
    let mut found = Vec::new();
    let mut logical = Vec::new();
    for (number, entry) in (1..).zip(record.0) {
        if !entry.is_used() {
            continue;
        }
        if entry.start == 0 {
            return Err(broken(disk, format!("partition {number} lies over the partition table")));
        }
        match entry.is_extended() {
            true => chain(disk, entry, &mut logical)?,
            false => found.push(partition(number, u64::from(entry.start), entry)),
        }
    }
    found.extend(logical);
    Ok(found)
}

/// Reads the records of an extended partition. Each record describes one partition and says where
/// the next record is.
fn chain(disk: &dyn Device, extended: Entry, found: &mut Vec<Partition>) -> Result<(), Error> {
    let first = u64::from(extended.start);
    let end = first + u64::from(extended.count);
    let mut at = first;
    for _ in 0..LINKS_MAX {
        let past_end = || broken(disk, "the extended partition begins past the end of the disk");
        let bytes = sector(disk, at * SECTOR)?.ok_or_else(past_end)?;
        let record = match Record::parse(&bytes) {
            Some(record) => record,
            // An extended partition that was never used is empty.
            None if at == first => return Ok(()),
            None => return Err(broken(disk, "a record of the extended partition is no record")),
        };
        for (slot, entry) in record.0.into_iter().enumerate() {
            if !entry.is_used() || entry.is_extended() {
                continue;
            }
            let start = at + u64::from(entry.start);
            let is_inside = entry.start > 0 && start + u64::from(entry.count) <= end;
            // As in Linux, only the first two entries must lie inside the extended partition. The
            // last two may hold anything, and are ignored if they do not fit.
            match (is_inside, slot < 2) {
                (true, _) => {
                    found.push(partition(FIRST_LOGICAL + found.len() as u32, start, entry));
                }
                (false, true) => {
                    return Err(broken(disk, "a partition leaves its extended partition"));
                }
                (false, false) => {}
            }
        }
        match record.0.into_iter().find(|entry| entry.is_used() && entry.is_extended()) {
            None => return Ok(()),
            Some(next) => at = first + u64::from(next.start),
        }
        if at >= end {
            return Err(broken(disk, "the chain of the extended partition leaves it"));
        }
    }
    Err(broken(disk, "the chain of the extended partition has no end"))
}

fn partition(number: u32, start: u64, entry: Entry) -> Partition {
    Partition {
        number,
        start: start * SECTOR,
        len: u64::from(entry.count) * SECTOR,
        kind: Kind::Mbr(entry.kind),
        label: String::new(),
        id: None,
    }
}
