//! Writes sectors into the open segment, and changes the map accordingly.
//!
//! # Invariants
//!
//! - **X1** A write of at most 1 MiB is in the segments whole or not at all, unless a segment fills
//!   up during the write.
//! - **X2** A writer waits while memory holds one sealed segment more than its budget, and the open
//!   segment is empty. These segments are still to be sent to the store or logged. A writer also
//!   waits while the local log is full.

use buttress_base::activity::{self, Cause};
use buttress_base::{RankedGuard, clock};

use crate::core::{Core, NodeIds, State};
use crate::error::Result;
use crate::log::Log;
use crate::map::PAGE_SECTORS;
use crate::units::{Location, SECTOR, Sector};

/// The place of the primary superblock of btrfs, and the place of its magic.
pub(crate) const SUPERBLOCK: Sector = Sector((64 << 10) / SECTOR);
const MAGIC_AT: usize = 64;
const MAGIC: &[u8; 8] = b"_BHRfS_M";
/// `FSID_AT` is the offset of the volume's identifier in superblocks and headers of nodes. A
/// superblock may have a separate identifier for nodes, at `METADATA_UUID_AT`.
const FSID_AT: usize = 0x20;
const METADATA_UUID_AT: usize = 0x23b;

/// Sectors that are written under one lock.
const STEP: usize = 256;

/// Says whether a sector is a superblock of btrfs.
pub(crate) fn is_btrfs(sector: &[u8]) -> bool {
    sector.get(MAGIC_AT..MAGIC_AT + MAGIC.len()) == Some(MAGIC)
}

/// Reads the identifiers of nodes from a primary superblock. Returns zeroes if the sector is no
/// superblock of btrfs.
pub(crate) fn node_ids(superblock: &[u8]) -> NodeIds {
    let id = |at: usize| {
        let raw = superblock.get(at..at + 16).filter(|_| is_btrfs(superblock));
        raw.and_then(|raw| raw.try_into().ok()).unwrap_or_default()
    };
    [id(FSID_AT), id(METADATA_UUID_AT)]
}

/// Says whether some sectors have the header of a node.
pub(crate) fn has_nodes(sectors: &[u8], ids: NodeIds) -> bool {
    let is_node = |sector: &[u8]| {
        let found = sector.get(FSID_AT..FSID_AT + 16);
        ids.iter().any(|id| *id != [0; 16] && found == Some(id))
    };
    sectors.chunks(SECTOR as usize).any(is_node)
}

impl Core {
    /// Writes whole sectors.
    pub(crate) fn write_sectors(&self, first: Sector, content: &[u8]) -> Result<()> {
        let steps = content.chunks(STEP * SECTOR as usize);
        let mut at = first;
        for step in steps {
            let count = step.len() as u64 / SECTOR;
            self.write_step(at, step, count)?;
            at.0 += count;
        }
        Ok(())
    }

    fn write_step(&self, first: Sector, content: &[u8], count: u64) -> Result<()> {
        let mut held = self.room(first, count)?;
        let state = &mut *held;
        state.count(count);
        let mut run: Option<(Sector, u64, Location)> = None;
        for (at, sector) in (first.0..).zip(content.chunks_exact(SECTOR as usize)) {
            let at = Sector(at);
            if at == SUPERBLOCK {
                state.superblock_at = state.position;
                state.is_btrfs = is_btrfs(sector);
                state.node_ids = node_ids(sector);
            }
            if state.open.overwrite(at, sector) {
                flush_run(state, run.take());
                continue;
            }
            let frame = state.open.push(at, sector);
            match &mut run {
                Some((_, count, _)) => *count += 1,
                None => run = Some((at, 1, Location { object: state.open.number, frame })),
            }
            if u64::from(state.open.sectors()) * SECTOR >= self.object_len {
                flush_run(state, run.take());
                self.seal(state);
            }
        }
        flush_run(state, run.take());
        drop(held);
        self.pace(count);
        Ok(())
    }

    /// Writes sectors that are still at the place `from` to a new place, and returns their number.
    pub(crate) fn rewrite(&self, first: Sector, content: &[u8], from: Location) -> Result<u64> {
        let count = content.len() as u64 / SECTOR;
        let mut state = self.room(first, count)?;
        let state = &mut *state;
        let mut moved = 0;
        for (step, sector) in (0..).zip(content.chunks_exact(SECTOR as usize)) {
            let at = Sector(first.0 + u64::from(step));
            let expected = Some(Location { frame: from.frame + step, ..from });
            if state.map.find(at, 1).is_ok_and(|piece| piece.location == expected) {
                let frame = state.open.push(at, sector);
                state.map.set(at, 1, Some(Location { object: state.open.number, frame }));
                moved += 1;
                if u64::from(state.open.sectors()) * SECTOR >= self.object_len {
                    self.seal(state);
                }
            }
        }
        if moved > 0 {
            state.count(moved);
            state.deferred.get_or_insert((state.position, clock::now()));
        }
        Ok(moved)
    }

    /// Makes a range read as zeroes.
    pub(crate) fn write_hole(&self, first: Sector, count: u64) -> Result<()> {
        let mut at = first.0;
        let end = first.0 + count;
        while at < end {
            let step = (PAGE_SECTORS - at % PAGE_SECTORS).min(end - at);
            let mut state = self.room(Sector(at), step)?;
            if !state.map.is_hole(Sector(at), step) {
                state.count(0);
                state.open.hole(Sector(at), step);
                state.map.set(Sector(at), step, None);
                if (at..at + step).contains(&SUPERBLOCK.0) {
                    state.superblock_at = state.position;
                    state.is_btrfs = false;
                }
            }
            at += step;
        }
        Ok(())
    }

    /// Waits until there is room for a write (X2), with its pages in memory.
    fn room(&self, first: Sector, count: u64) -> Result<RankedGuard<'_, State>> {
        let mut has_asked = false;
        let mut waiting = None;
        loop {
            let mut state = self.with_pages(first, count)?;
            self.check_open(&state)?;
            let is_full = state.logging.is_some() && self.log.get().is_some_and(Log::is_full);
            let unlogged = state.logging.as_ref().map_or(0, |logging| logging.sealed);
            if state.in_memory.max(unlogged) <= self.budget.sealed && !is_full {
                return Ok(state);
            }
            if is_full && !has_asked {
                // The keeper makes the log shorter by a commit.
                self.signals.due.notify_all();
                has_asked = true;
            }
            waiting.get_or_insert_with(|| activity::wait(Cause::Store));
            state.wait(&self.signals.room);
        }
    }
}

fn flush_run(state: &mut State, run: Option<(Sector, u64, Location)>) {
    if let Some((first, count, location)) = run {
        state.map.set(first, count, Some(location));
    }
}
