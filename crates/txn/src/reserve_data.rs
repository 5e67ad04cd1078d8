//! Reserves data space, for exactly the bytes that will be allocated.

use buttress_format::TreeId;
use buttress_space::{Priority, Reach, SpaceKind};

use crate::{Commits, DataReservation, Engine, Result, Storage};

impl Engine {
    /// Reserves data space without a wait. Returns `None` if a ticket waits for data, or if neither
    /// the groups nor a new chunk have enough space.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::Aborted`]; the failure of a chunk allocation.
    pub fn reserve_data_at_once(&self, bytes: u64) -> Result<Option<DataReservation>> {
        self.check_writable()?;
        let fits = || self.queues().data_leaves_metadata();
        let reserve = || {
            let reserved =
                self.storage().space().reserve_data_at_once(Priority::Normal, bytes, fits);
            reserved.ok().map(DataReservation::from)
        };
        if let Some(reservation) = reserve() {
            return Ok(Some(reservation));
        }
        if self.storage().space().data_queue().is_waiting() {
            return Ok(None);
        }
        if self.allocation().release_pinned(self.storage())
            && let Some(reservation) = reserve()
        {
            return Ok(Some(reservation));
        }
        Ok(if self.add_chunk(SpaceKind::Data)? { reserve() } else { None })
    }

    /// Reserves data space for a thread that writeback may wait for; see
    /// [`reserve`](Self::reserve).
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when no chunk or commit made enough room; [`Error::ReadOnly`],
    /// [`Error::Aborted`].
    pub fn reserve_data(&self, bytes: u64) -> Result<DataReservation> {
        self.wait_for_data(bytes, Priority::High, Reach::Commit)
    }

    /// Reserves data space for a caller that can wait for everything; see
    /// [`reserve_in_queue`](Self::reserve_in_queue).
    ///
    /// # Errors
    ///
    /// As [`reserve_data`](Self::reserve_data).
    pub fn reserve_data_in_queue(&self, bytes: u64) -> Result<DataReservation> {
        self.wait_for_data(bytes, Priority::Normal, Reach::All)
    }

    /// Reserves space for a subvolume's data, and `slack` bytes more. The caller has found that it
    /// cannot write this data in place. The data counts for the limits of quotas without a check,
    /// because it was accepted before.
    ///
    /// # Errors
    ///
    /// As [`reserve_data`](Self::reserve_data).
    pub fn exchange_in_place_token(
        &self,
        tree: TreeId,
        token: buttress_space::InPlaceToken,
        slack: u64,
    ) -> Result<DataReservation> {
        let bytes = token.bytes();
        let ask = |bytes| self.reserve_data(bytes + slack).map(|reserved| reserved.space);
        let reserved = DataReservation::from(token.exchange(ask)?);
        Ok(reserved.charged(self.quota_limits().force(tree, bytes)))
    }

    fn wait_for_data(
        &self,
        bytes: u64,
        priority: Priority,
        reach: Reach,
    ) -> Result<DataReservation> {
        self.check_writable()?;
        crate::open_handles::expect_none("reserve::P2: space is asked for");
        let fits = || self.queues().data_leaves_metadata();
        if let Ok(reservation) = self.storage().space().reserve_data_at_once(priority, bytes, fits)
        {
            return Ok(reservation.into());
        }
        let reserved = match self.storage().space().ask_data(priority, bytes, fits) {
            Ok(reservation) => reservation,
            Err(mut ticket) => self.wait_in_queue(SpaceKind::Data, reach, bytes, &mut ticket)?,
        };
        Ok(reserved.into())
    }
}

impl Storage {
    /// Whether a commit would make space for data: freed extents, the device space of removed
    /// chunks (`reclaim::G2`), or space that metadata reserved beyond its groups.
    pub(crate) fn commit_would_free_data(&self, commits: &Commits) -> bool {
        let view = commits.peek();
        let running = view.running();
        view.frozen().is_some()
            || !running.refs.is_empty()
            || !running.removed.lock().is_empty()
            || self.space().account(SpaceKind::Data).pinned > 0
            || (self.devices().keeps_for_metadata() && !running.is_empty())
    }
}
