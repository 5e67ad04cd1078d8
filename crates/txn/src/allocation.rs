//! Space that is given out or kept back, in ways that no commit has recorded yet.

use buttress_format::{Extent, Logical};
use buttress_transaction::stamps::{Stamp, Stamps};

use crate::log_space::LogSpace;
use crate::pinned::Pinned;
use crate::scrub_hold::ScrubHold;
use crate::storage::Storage;
use crate::unreferenced::Unreferenced;
use crate::unwritten::UnwrittenCount;
use crate::window::Windows;

/// Extents on their way from free space to a commit, and back.
#[derive(Debug, Default)]
pub struct Allocation {
    /// The number of threads that put extents before the data of these extents is written.
    unwritten: UnwrittenCount,
    /// Extents allocated and not yet referenced. The first reference of an extent makes the
    /// extent's item.
    unreferenced: Unreferenced,
    windows: Windows,
    scrub_hold: ScrubHold,
    /// The stamps that show whether a result about users of extents still holds.
    stamps: Stamps,
    pinned: Pinned,
    log_space: LogSpace,
}

impl Allocation {
    pub(crate) fn unwritten(&self) -> &UnwrittenCount {
        &self.unwritten
    }

    pub(crate) fn unreferenced(&self) -> &Unreferenced {
        &self.unreferenced
    }

    pub(crate) fn windows(&self) -> &Windows {
        &self.windows
    }

    pub(crate) fn scrub_hold(&self) -> &ScrubHold {
        &self.scrub_hold
    }

    pub(crate) fn stamps(&self) -> &Stamps {
        &self.stamps
    }

    pub(crate) fn pinned(&self) -> &Pinned {
        &self.pinned
    }

    pub(crate) fn log_space(&self) -> &LogSpace {
        &self.log_space
    }

    /// Number of data extents that became free as soon as they lost their last reference, because
    /// the same transaction had allocated them. No view keeps their space from reuse. A reader that
    /// did not hold the file's extents may therefore have read another file's data. The count rises
    /// before the space is free.
    #[must_use]
    pub fn freed_at_once(&self) -> u64 {
        self.stamps.freed_at_once()
    }

    /// The stamp of the extent that begins at `at`. Take the stamp before you take the view in
    /// which you look at the extent. Take the stamp again before you rely on the result.
    #[must_use]
    pub fn stamp(&self, at: Logical) -> Stamp {
        self.stamps.stamp(at)
    }

    /// Frees the pinned space of earlier commits that no view can reach any more (`engine::E3`),
    /// and the space that windows hold. The space of the oldest commit is freed first: a view that
    /// keeps one commit's space pinned also pins the space of every later commit. Returns whether
    /// any space was freed.
    pub fn release_pinned(&self, storage: &Storage) -> bool {
        let had_windows = self.close_windows();
        let nodesize = u64::from(storage.store().geometry().nodesize);
        let released = self.pinned.release(|extent| {
            // No thread reads such a node any more, and in the cache it would displace other nodes.
            // If the extent is data of the same length, it is not in the cache, and the call does
            // nothing.
            if extent.len == nodesize {
                storage.store().forget(extent.start);
            }
            // Discard before the space can be allocated: a later discard would destroy new data.
            if storage.options().discard
                // Discard is a hint: its failure loses nothing.
                && let Err(error) = storage.volume().discard(extent)
            {
                tracing::debug!(%extent, %error, "discard failed");
            }
            storage.space().unpin(extent);
            storage.note_freed(extent.start);
        });
        had_windows | released
    }

    /// Frees the space that windows hold. Returns whether a window held space.
    pub fn close_windows(&self) -> bool {
        self.windows.close()
    }

    /// Gives back an extent that never got a reference: its write failed.
    pub fn free_unused_data(&self, storage: &Storage, extent: Extent) {
        let unreferenced = self.unreferenced.remove(extent.start);
        assert!(
            unreferenced.is_some(),
            "an extent with references is dropped, not given back: {extent}"
        );
        storage.space().free(extent);
    }
}
