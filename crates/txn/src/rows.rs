//! Data and nodes with parity: the writes of one call share whole rows (full stripes).
//!
//! # Invariants
//!
//! - **P1** A row is written in one call, before a transaction references any part of it. The row
//!   is not written again while a reader can reach any part of it, or while a crash could bring any
//!   part back.
//! - **P2** One commit, or one log of fsync, writes a row of nodes: its nodes and zeros. Nothing
//!   else of the row is in use; debug builds check this.
//!
//! `space` allocates no part of a row in which space is reserved, used or pinned. `volume` refuses
//! a write that begins in the middle of a row.

use buttress_format::{BlockGroupFlags, Logical};
use buttress_space::{Rows, Space, SpaceKind};
use buttress_volume::{Parity, RowGaps, Volume};

use crate::reserve::Reservations;
use crate::{Commits, Engine, Result, Storage};

/// The unused rest of the rows that one call writes; freed on drop. Drop this value before any
/// extent of the call is freed unwritten. Otherwise a later extent of the row could lie after a
/// gap.
#[derive(Debug)]
pub struct SharedRows<'e> {
    space: &'e Space,
    rows: Rows,
}

impl SharedRows<'_> {
    pub(crate) fn get(&mut self) -> &mut Rows {
        &mut self.rows
    }

    /// Ends the row; the next extent begins another row.
    pub fn close(&mut self) {
        self.space.close_rows(&mut self.rows);
    }
}

impl Drop for SharedRows<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// The steps already tried for an allocation that found no whole rows.
#[derive(Debug, Default)]
pub(crate) struct RoomForRows {
    steps: u32,
}

impl Storage {
    /// Begins a batch of extents that one call writes.
    #[must_use]
    pub fn begin_rows(&self) -> SharedRows<'_> {
        SharedRows { space: self.space(), rows: Rows::default() }
    }

    /// Bytes that a data reservation needs for each separate write beyond the data: the rest of the
    /// write's last row.
    #[must_use]
    pub fn row_slack(&self) -> u64 {
        self.groups().row_bytes()
    }

    /// Notes that data or nodes will also be allocated in rows of `row` bytes.
    pub(crate) fn note_row(
        &self,
        reservations: &Reservations,
        flags: BlockGroupFlags,
        row: Option<u64>,
    ) {
        match row {
            Some(row) if flags.has(BlockGroupFlags::DATA) => self.groups().note_row(row),
            Some(row) => reservations.note_row(row),
            None => {}
        }
    }

    /// Zeros for the bytes that new nodes leave out of their rows (P2).
    #[must_use]
    pub fn row_gaps(&self, nodes: &[(Logical, &[u8])]) -> RowGaps {
        #[cfg(debug_assertions)]
        self.space().expect_own_rows(nodes);
        self.volume().gaps_in_rows(nodes)
    }

    /// Reads the free space of groups with parity when the volume is opened. Until then, the number
    /// of whole rows is unknown, so no rows can be reserved.
    pub(crate) fn load_rows(&self, commits: &Commits, reservations: &Reservations) {
        for group in self.space().groups().iter().filter(|group| group.row().is_some()) {
            self.note_row(reservations, group.flags(), group.row());
            self.load_or_exclude(commits, group);
        }
    }
}

impl Engine {
    /// Makes room when a row was reserved but the free pieces are too short for a whole row.
    /// Returns whether a step was taken.
    pub(crate) fn make_room_for_rows(&self, room: &mut RoomForRows) -> Result<bool> {
        while self.storage().row_slack() > 0 && room.steps < 3 {
            room.steps += 1;
            let done = match room.steps {
                1 => self.allocation().release_pinned(self.storage()),
                2 => self.add_chunk(SpaceKind::Data)?,
                _ if self.storage().commit_would_free_data(self.commits()) => {
                    self.commit()?;
                    true
                }
                _ => false,
            };
            if done {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The row length in the block group at `start`. `None` if the group has no parity, or if it is not
/// written in rows.
pub(crate) fn row_of(volume: &Volume, flags: BlockGroupFlags, start: Logical) -> Option<u64> {
    let is_mixed = flags.kind() == BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA);
    let is_written = !is_mixed && volume.parity() == Parity::Rows && !volume.is_on_seed(start);
    volume.row_bytes(start).filter(|_| is_written)
}
