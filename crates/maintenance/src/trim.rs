//! Discards all free space on the devices.
//!
//! # Invariants
//!
//! - **M1** No other thread can allocate a range while it is discarded. Space of a block group is
//!   reserved in small parts. While space outside of the groups is discarded, no chunk is
//!   allocated. Space that is in use, pinned or under a superblock is never discarded.
//! - **M2** The trim never takes reserved space. For data the trim makes a reservation of its own.
//!   It takes free metadata space only if the space that stays free has room for twice the reserved
//!   metadata. Other space is skipped and counted.
//!
//! The trim works while the volume is in use.

use std::sync::Arc;

use buttress_format::{Extent, Logical};
use buttress_space::{Group, SpaceKind};

use buttress_txn::Result;

use crate::Maintenance;
use crate::bound::{name, steps_through};

/// The most bytes that one discard keeps from other users.
const PIECE_BYTES: u64 = 64 << 20;

/// The range to discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrimOptions {
    /// Where to begin, in addresses of the volume.
    pub from: Logical,
    /// Length of the range. Space outside of block groups is discarded only if the range covers the
    /// whole volume.
    pub len: u64,
    /// Free runs with fewer bytes are left out.
    pub least: u64,
}

impl Default for TrimOptions {
    fn default() -> Self {
        Self { from: Logical(0), len: u64::MAX, least: 0 }
    }
}

/// The progress of a trim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrimProgress {
    /// Discarded bytes of the devices, every copy counted.
    pub trimmed: u64,
    /// Free bytes of block groups that were left out, since they may be needed at any moment.
    pub left: u64,
    /// Free bytes that were examined, one copy counted.
    pub done: u64,
    /// Free bytes at the beginning, one copy counted.
    pub total: u64,
}

impl Maintenance {
    /// Commits, and then discards all free space. `watch` is often called with the progress, and
    /// the trim ends if it returns `false`.
    ///
    /// # Errors
    ///
    /// When a device refuses; as [`Engine::commit`](buttress_txn::Engine::commit).
    pub fn trim(
        &self,
        options: TrimOptions,
        watch: &mut dyn FnMut(&TrimProgress) -> bool,
    ) -> Result<TrimProgress> {
        self.engine().check_writable()?;
        // Data that was deleted before this call is free after the commit.
        self.engine().commit()?;
        self.engine().allocation().release_pinned(self.engine().storage());
        let end = Logical(options.from.0.saturating_add(options.len));
        let concerned = |group: &Arc<Group>| {
            group.start() < end
                && group.range().end() > options.from
                && !self.volume().is_never_rewritten(group.start())
        };
        let groups: Vec<_> =
            self.engine().storage().space().groups().into_iter().filter(concerned).collect();
        let whole = options.from == Logical(0) && end.0 == u64::MAX;
        let total = groups.iter().map(|group| group.usage().free).sum();
        let mut progress = TrimProgress { total, ..TrimProgress::default() };
        if whole {
            progress.total += self.engine().storage().unallocated();
        }
        for group in groups {
            self.engine().storage().load_or_exclude(self.engine().commits(), &group);
            let mut at = group.start().max(options.from);
            // Each step but the last discards at least a sector.
            let most = steps_through(group.len(), u64::from(self.geometry().sectorsize));
            let mut bound = self.loops().begin(name::TRIM_GROUP, most);
            loop {
                bound.step()?;
                let (piece, next) =
                    self.trim_piece(&group, at, end, options.least, &mut progress)?;
                if !watch(&progress) {
                    return Ok(progress);
                }
                if !piece {
                    break;
                }
                at = next;
            }
        }
        if whole {
            self.trim_unallocated(options.least, &mut progress, watch)?;
        }
        Ok(progress)
    }

    /// Discards the next free run of a group, or a part of it. Returns whether a free run was
    /// found, and where to continue.
    fn trim_piece(
        &self,
        group: &Group,
        from: Logical,
        end: Logical,
        least: u64,
        progress: &mut TrimProgress,
    ) -> Result<(bool, Logical)> {
        let kind = group.kind();
        let sector = u64::from(self.geometry().sectorsize);
        let account = self.engine().storage().space().account(kind);
        let all = |bytes: u64| bytes.min(PIECE_BYTES) / sector * sector;
        let (mut reservation, most) = match kind {
            SpaceKind::Data if !self.engine().storage().space().is_mixed() => {
                // The trim takes at most half of the available space, so that writers find space
                // during the discard.
                let most = all(account.available() / 2);
                (self.engine().storage().space().reserve_data(most).ok(), most)
            }
            // A commit may need system space during the discard, so only half is taken.
            SpaceKind::System => (None, all(account.free() / 2)),
            _ => {
                let most = all(account.free() / 8);
                (None, if self.engine().reservations().fits_without(most) { most } else { 0 })
            }
        };
        let reserved = kind != SpaceKind::Data
            || self.engine().storage().space().is_mixed()
            || reservation.is_some();
        if most == 0 || !reserved {
            progress.left += group.usage().free;
            return Ok((false, from));
        }
        let take = |reservation| {
            self.engine().storage().space().take_for_trim(
                group,
                reservation,
                from,
                least.max(1),
                most,
            )
        };
        let Some(extent) = take(reservation.as_mut()) else { return Ok((false, from)) };
        drop(reservation);
        let inside = extent.start < end;
        let cut = Extent {
            start: extent.start,
            len: extent.len.min(end.0.saturating_sub(extent.start.0)),
        };
        let told = if inside { self.volume().discard(cut) } else { Ok(()) };
        self.engine().storage().space().free(extent);
        self.engine().queues().serve_all();
        told?;
        if !inside {
            return Ok((false, from));
        }
        progress.done += cut.len;
        progress.trimmed += cut.len * u64::from(group.flags().copies());
        Ok((true, extent.end()))
    }

    fn trim_unallocated(
        &self,
        least: u64,
        progress: &mut TrimProgress,
        watch: &mut dyn FnMut(&TrimProgress) -> bool,
    ) -> Result<()> {
        for id in self.engine().storage().device_ids() {
            let mut at = 0;
            let len = self.engine().storage().device_item(id)?.total_bytes;
            let most = steps_through(len, u64::from(self.geometry().sectorsize));
            let mut bound = self.loops().begin(name::TRIM_DEVICE, most);
            // The allocation of a chunk waits for at most one piece (M1).
            while let Some((offset, len)) =
                self.engine().storage().discard_unallocated(id, at, least, PIECE_BYTES)?
            {
                bound.step()?;
                at = offset + len;
                progress.done += len;
                progress.trimmed += len;
                if !watch(progress) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
