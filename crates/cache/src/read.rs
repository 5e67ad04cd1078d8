//! Reads blocks from the cache if it has them, and other blocks from the origin.
//!
//! # Invariants
//!
//! - **R1** A slot is read only inside the readers' gate, which is entered before the index lookup.
//!   So the slot cannot be given to another block meanwhile.
//!
//! # Locks
//!
//! A shard's lock is held during the index lookup, and no lock during I/O.

use crate::core::Core;
use crate::error::Error;
use crate::index::region_end;
use crate::units::{OriginBlock, Slot};

/// A part of a request that is contiguous on the cache or on the origin.
#[derive(Debug)]
struct Part {
    /// The slot, if the part is in the cache. `None` if it is on the origin.
    slot: Option<Slot>,
    /// Its first byte, as an offset on the origin.
    offset: u64,
    len: u64,
}

impl Core {
    /// Reads bytes that lie within the origin.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.counters.reads.add(1);
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let block = OriginBlock(at >> self.geometry.block_shift());
            let end = self.block_offset(region_end(block)).min(at + rest.len() as u64);
            let (piece, after) = rest.split_at_mut((end - at) as usize);
            self.read_region(at, piece)?;
            at = end;
            rest = after;
        }
        Ok(())
    }

    /// Reads bytes of one region.
    fn read_region(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let inside = self.readers.enter();
        let parts = self.locate(offset, buf.len() as u64);
        let place = |part: &Part| {
            let start = (part.offset - offset) as usize;
            start..start + part.len as usize
        };
        let mut is_hit = false;
        for part in &parts {
            if let Some(slot) = part.slot {
                is_hit = true;
                let into = part.offset & (self.geometry.block_size() - 1);
                self.medium
                    .read_at(self.geometry.slot_offset(slot) + into, &mut buf[place(part)])?;
            }
        }
        drop(inside);
        if is_hit {
            self.counters.read_hits.add(1);
        }
        for part in parts.iter().filter(|part| part.slot.is_none()) {
            self.origin.read_at(part.offset, &mut buf[place(part)])?;
        }
        Ok(())
    }

    /// Finds the places of the bytes of a range within one region. Joins adjacent places.
    fn locate(&self, offset: u64, len: u64) -> Vec<Part> {
        let shift = self.geometry.block_shift();
        let end = offset + len;
        let first = OriginBlock(offset >> shift);
        let last = OriginBlock((end - 1) >> shift);
        let mut parts: Vec<Part> = Vec::new();
        let mut at = offset;
        let shard = self.index.shard(first);
        for (block, versions) in shard.range(first, OriginBlock(last.0 + 1)) {
            let Some(version) = versions.readable() else { continue };
            let start = self.block_offset(block).max(offset);
            if start > at {
                parts.push(Part { slot: None, offset: at, len: start - at });
            }
            let stop = self.block_offset(OriginBlock(block.0 + 1)).min(end);
            match parts.last_mut() {
                Some(Part { slot: Some(slot), offset: from, len })
                    if *from + *len == start
                        && u64::from(slot.0) + (block.0 - (*from >> shift))
                            == u64::from(version.slot.0) =>
                {
                    *len += stop - start;
                }
                _ => {
                    parts.push(Part { slot: Some(version.slot), offset: start, len: stop - start });
                }
            }
            at = stop;
        }
        if at < end {
            parts.push(Part { slot: None, offset: at, len: end - at });
        }
        parts
    }
}
