//! Asking for metadata: at once, or by waiting while room is made.
//!
//! # Place
//!
//! [`Reservations`](crate::reserve::Reservations) says what fits. Here a caller waits, and room is
//! made by commits and chunks (`flush`).

use std::sync::Arc;

use buttress_format::{Generation, Ino, TreeId};
use buttress_space::{Pools, Reach, SpaceKind};

use crate::reserve::cost_of_copies;
use crate::{Accounts, Cost, Engine, InodeReserve, MetaReservation, Result, Urgency, View, held};

/// Bytes of items that may be uncounted when a snapshot asks for room.
const UNCOUNTED_MAX: u64 = 256 << 10;

impl Engine {
    /// Reserves metadata for one operation if it fits and no other waits, without making room.
    ///
    /// # Errors
    ///
    /// [`Error::ReadOnly`], [`Error::Aborted`]; not [`Error::NoSpace`], which is `None`.
    pub fn reserve_at_once(&self, cost: Cost, urgency: Urgency) -> Result<Option<MetaReservation>> {
        held::expect_none("reserve::P2: space is asked for");
        self.check_writable()?;
        self.pace()?;
        Ok(self.reservations.at_once(cost, urgency, Reach::All))
    }

    /// Reserves metadata for a thread on which writeback may wait: it holds a file's writeback
    /// claim, or is writing back. It goes before others, and makes room itself: by chunks and
    /// commits alone.
    ///
    /// # Errors
    ///
    /// [`Error::NoSpace`] when all that did not help; [`Error::ReadOnly`], [`Error::Aborted`].
    pub fn reserve(&self, cost: Cost, urgency: Urgency) -> Result<MetaReservation> {
        self.wait_for_metadata(cost, urgency, Reach::Commit)
    }

    /// Reserves metadata for a thread that can wait for everything: dirty data of all files is
    /// written back for it, too. It holds no claim of any file.
    ///
    /// # Errors
    ///
    /// As [`reserve`](Self::reserve).
    pub fn reserve_in_line(&self, cost: Cost, urgency: Urgency) -> Result<MetaReservation> {
        self.wait_for_metadata(cost, urgency, Reach::All)
    }

    fn wait_for_metadata(
        &self,
        cost: Cost,
        urgency: Urgency,
        reach: Reach,
    ) -> Result<MetaReservation> {
        self.check_writable()?;
        held::expect_none("reserve::P2: space is asked for");
        self.pace()?;
        // So that tests hold what is counted against what is made, wherever there is room.
        #[cfg(debug_assertions)]
        self.reservations.recount();
        if let Some(reservation) = self.reservations.at_once(cost, urgency, reach) {
            return Ok(reservation);
        }
        match self.reservations.ask(cost, urgency, reach) {
            Ok(reservation) => Ok(reservation),
            Err(mut ticket) => {
                let bytes = self.reservations.bytes_of(cost);
                let reach = ticket.reach(reach);
                self.wait_in_line(SpaceKind::Metadata, reach, bytes, &mut ticket)
            }
        }
    }

    /// Memory is bounded (T4): a full overlay is committed in the background, and once it holds
    /// twice as much a thread that wants to add waits for that commit.
    fn pace(&self) -> Result<()> {
        let held = self.view.load().running().bytes();
        let limit = self.options.overlay_max;
        if held > limit {
            self.commit.want(true);
        }
        if held > 2 * limit {
            self.commit()?;
        }
        Ok(())
    }

    /// Whether a reservation would fit now. Reserves nothing, and makes no room.
    #[must_use]
    pub fn may_reserve(&self, cost: Cost, urgency: Urgency) -> bool {
        self.reservations.may_reserve(cost, urgency)
    }

    /// What one inode's dirty data was reserved, for reservations that are bound to it
    /// ([`MetaReservation::bind`]).
    #[must_use]
    pub fn inode_reserve(&self, tree: TreeId, ino: Ino) -> Arc<InodeReserve> {
        self.reservations.inode_reserve(tree, ino)
    }

    /// All accounts as they are now.
    #[must_use]
    pub fn accounts(&self) -> Accounts {
        self.reservations.accounts()
    }

    /// What holds metadata now, for the thread that makes room ahead. `dirty` and `ordered` are
    /// what dirty data holds, and the part of it that is being written.
    #[must_use]
    pub fn pools(&self, dirty: u64, ordered: u64) -> Pools {
        self.reservations.pools(dirty, ordered)
    }

    /// Wakes the thread that makes room ahead, because it is to end.
    pub fn call_ahead(&self) {
        self.reservations.call_ahead();
    }

    /// Sleeps, at most so long, until reservations that count by themselves came to so many bytes
    /// more than now. That is the published rule of `reserve::policy`; by ours nothing wakes it.
    pub fn wait_for_promises(&self, more: Option<u64>, limit: std::time::Duration) {
        self.reservations.wait_for_promises(more, limit);
    }

    /// Outstanding reservations in thousandths of the metadata that is left to reserve. Nothing
    /// where that is no more than half, or a chunk can be added and no commit waits for dirty
    /// data.
    #[must_use]
    pub fn promise_pressure(&self) -> Option<u64> {
        self.reservations.promise_pressure()
    }

    /// Whether reservations that are held for long, as dirty data's are, should be used soon.
    #[must_use]
    pub fn is_tight(&self) -> bool {
        self.promise_pressure().is_some()
    }

    /// Counts with a subvolume's height from now on. One without work since the mount may be taller
    /// than the trees that are always known, and share nodes with others.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn know_height(&self, view: &View, tree: TreeId) -> Result<()> {
        self.reservations.know_height(view, tree)
    }

    /// Counts with shared nodes from now on: before a subvolume is cut, or where one is met that
    /// was.
    pub fn note_shared(&self, view: &View) {
        self.reservations.note_shared(view);
    }

    /// Whether the metadata that is reserved would fit twice without so many bytes: a group that is
    /// needed again at once is not worth removing.
    #[must_use]
    pub fn fits_without(&self, bytes: u64) -> bool {
        self.reservations.fits_without(bytes)
    }

    /// Bytes of metadata to reserve for a snapshot of a subvolume, so that they are there when what
    /// it shares is changed.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn room_for_snapshot(&self, source: TreeId, read_only: bool) -> Result<u64> {
        self.reservations.room_for_snapshot(source, read_only)
    }

    /// The same for a snapshot that could not be changed, and can be from now on.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn room_to_change(&self, tree: TreeId) -> Result<u64> {
        self.reservations.room_to_change(tree)
    }

    /// Keeps room for what a transaction shares from now on, which the caller has reserved: until
    /// root items say so.
    pub fn keep_until_published(&self, bytes: u64, by: Generation) {
        self.reservations.keep_until_published(bytes, by);
    }

    /// Commits where a snapshot would be refused for what is not counted yet: root items are of the
    /// last commit. Called without the locks of the snapshot.
    ///
    /// # Errors
    ///
    /// Those of a commit; when the root tree is damaged.
    pub fn prepare_snapshot(&self, source: TreeId, read_only: bool) -> Result<()> {
        if self.view.load().running().bytes() <= UNCOUNTED_MAX {
            return Ok(());
        }
        let asked = cost_of_copies(self.reservations.room_for_snapshot(source, read_only)?);
        if asked != Cost::default() && !self.may_reserve(asked, Urgency::Normal) {
            self.commit()?;
        }
        Ok(())
    }
}
