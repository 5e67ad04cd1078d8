//! Reserves metadata: at once, or by waiting while room is made.
//!
//! # Place
//!
//! [`Reservations`](crate::reserve::Reservations) decides whether a request fits. In this module a
//! caller waits while commits and chunks make room (`flush`).

use buttress_format::TreeId;
use buttress_space::{Reach, SpaceKind};

use crate::reserve::cost_of_copies;
use crate::{Cost, Engine, MetaReservation, ReserveClass, Result, open_handles};

/// A snapshot commits first if the running transaction holds more than this many bytes.
const UNCOUNTED_MAX: u64 = 256 << 10;

impl Engine {
    /// Reserves metadata for one operation without making room, if the request fits and no ticket
    /// waits.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::Aborted`]. A lack of space is no error: the result is then
    /// `None`.
    pub fn reserve_at_once(
        &self,
        cost: Cost,
        class: ReserveClass,
    ) -> Result<Option<MetaReservation>> {
        self.check_and_pace()?;
        Ok(self.reservations().at_once(cost, class, Reach::All))
    }

    /// Reserves metadata for a thread that writeback may wait for. Such a thread holds the
    /// writeback claim of a file, or is writing back. The thread's request goes before others, and
    /// only chunks and commits make room for the request.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when no chunk or commit makes enough room; [`Error::ReadOnly`],
    /// [`Error::Aborted`].
    pub fn reserve(&self, cost: Cost, class: ReserveClass) -> Result<MetaReservation> {
        self.wait_for_metadata(cost, class, Reach::Commit)
    }

    /// Reserves metadata for a thread that can wait for every flush state, including writeback of
    /// all dirty data. Such a thread holds no claim of any file.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub fn reserve_in_queue(&self, cost: Cost, class: ReserveClass) -> Result<MetaReservation> {
        self.wait_for_metadata(cost, class, Reach::All)
    }

    fn wait_for_metadata(
        &self,
        cost: Cost,
        class: ReserveClass,
        reach: Reach,
    ) -> Result<MetaReservation> {
        self.check_and_pace()?;
        // In debug builds, recounts the nodes, so that tests compare the estimate with the nodes
        // made.
        #[cfg(debug_assertions)]
        self.reservations().recount();
        if let Some(reservation) = self.reservations().at_once(cost, class, reach) {
            return Ok(reservation);
        }
        match self.reservations().ask(cost, class, reach) {
            Ok(reservation) => Ok(reservation),
            Err(mut ticket) => {
                let bytes = self.reservations().bytes_of(cost);
                let reach = ticket.reach(reach);
                self.wait_in_queue(SpaceKind::Metadata, reach, bytes, &mut ticket)
            }
        }
    }

    /// Checks that the thread may reserve, and limits memory (`txn::T4`): a full overlay is
    /// committed in the background. If the overlay holds twice the limit, a thread that adds to it
    /// waits for that commit.
    fn check_and_pace(&self) -> Result<()> {
        open_handles::expect_none("reserve::P2: space is asked for");
        self.check_writable()?;
        let held = self.commits().peek().running().bytes();
        let limit = self.storage().options().overlay_max;
        if held > limit {
            self.commits().set_wanted(true);
        }
        if held > 2 * limit {
            self.commit()?;
        }
        Ok(())
    }

    /// Commits if a snapshot would be refused only because of changes since the last commit. The
    /// need of the snapshot follows from the root items of the last commit. The caller holds no
    /// lock for the snapshot.
    ///
    /// # Errors
    ///
    /// The errors of a commit. Also fails when the root tree is damaged.
    pub fn prepare_snapshot(&self, source: TreeId, read_only: bool) -> Result<()> {
        if self.commits().peek().running().bytes() <= UNCOUNTED_MAX {
            return Ok(());
        }
        let asked = cost_of_copies(self.reservations().room_for_snapshot(source, read_only)?);
        if asked != Cost::default() && !self.reservations().may_reserve(asked, ReserveClass::Normal)
        {
            self.commit()?;
        }
        Ok(())
    }
}
