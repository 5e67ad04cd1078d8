//! Data where there is parity: whole rows, shared by what one call writes.
//!
//! # Invariants
//!
//! - **P1** A row is written in one call, before anything in it is referenced by a transaction. It
//!   is not written again until nothing reaches any of it: no reader, and nothing that a crash
//!   could bring back.
//!
//! `space` gives out no part of a row in which something is reserved, used or pinned; `volume`
//! refuses what would begin in the middle of one.

use buttress_format::{BlockGroupFlags, Logical};
use buttress_space::{Rows, SpaceKind};
use buttress_volume::{Parity, Volume};

use crate::{Engine, Result};

/// What is left of the rows that one call's writes have; given back when dropped. Dropped before
/// any of the extents is given back unwritten, or a later one could come to lie behind a gap.
#[derive(Debug)]
pub struct SharedRows<'e> {
    engine: &'e Engine,
    rows: Rows,
}

impl SharedRows<'_> {
    pub(crate) fn get(&mut self) -> &mut Rows {
        &mut self.rows
    }

    /// What comes begins with another row.
    pub fn close(&mut self) {
        self.engine.space.close_rows(&mut self.rows);
    }
}

impl Drop for SharedRows<'_> {
    fn drop(&mut self) {
        self.close();
    }
}

/// What was tried already for an allocation that found no whole rows.
#[derive(Debug, Default)]
pub(crate) struct RoomForRows {
    steps: u32,
}

impl Engine {
    /// Begins a batch of extents that one call writes.
    #[must_use]
    pub fn begin_rows(&self) -> SharedRows<'_> {
        SharedRows { engine: self, rows: Rows::default() }
    }

    /// What a reservation of data has to hold beside the data for each piece that is written by
    /// itself: the rest of its last row.
    #[must_use]
    pub fn row_slack(&self) -> u64 {
        self.groups.row_bytes()
    }

    /// Data will be given out in rows of so many bytes, too.
    pub(crate) fn note_row(&self, row: Option<u64>) {
        self.groups.note_row(row.unwrap_or(0));
    }

    /// Makes room when no whole row is left, although one was reserved: the free pieces between
    /// extents are too short. Returns whether it did something.
    pub(crate) fn make_room_for_rows(&self, room: &mut RoomForRows) -> Result<bool> {
        while self.row_slack() > 0 && room.steps < 3 {
            room.steps += 1;
            let done = match room.steps {
                1 => self.release_pinned(),
                2 => self.add_chunk(SpaceKind::Data)?,
                _ if self.commit_would_free_data() => {
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

    /// What is free in groups with parity is learnt when the volume is opened. Until then it is not
    /// known how much of it is whole rows, so that none of it can be reserved.
    pub(crate) fn load_rows(&self) {
        for group in self.space.groups().iter().filter(|group| group.row().is_some()) {
            self.note_row(group.row());
            self.load_or_leave(group);
        }
    }
}

/// The rows that data is given out in, where a block group begins; nothing where none is given
/// out, or without parity.
pub(crate) fn given_out(volume: &Volume, flags: BlockGroupFlags, start: Logical) -> Option<u64> {
    let is_data = flags.kind() == BlockGroupFlags::DATA;
    volume.row_bytes(start).filter(|_| is_data && volume.parity() == Parity::Rows)
}
