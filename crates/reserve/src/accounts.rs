//! All accounts of a volume at one moment. They are reported when space runs out, and shown to
//! operators.

use std::fmt;

use buttress_space::{Account, MetadataUse, SpaceKind};

use crate::Cost;
use crate::reservations::Reservations;

/// All accounts of a volume, and the queue of waiting requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accounts {
    /// The account of data.
    pub data: Account,
    /// The account of metadata. Here `may_use` also includes the bytes that the running
    /// transaction, the frozen transaction and all reservations may still need.
    pub metadata: Account,
    /// The account of the chunk tree.
    pub system: Account,
    /// Bytes that are dirty and will be written in place, with no data space reserved.
    pub unreserved: u64,
    /// The costs that operations have reserved and have not yet put into a transaction.
    pub outstanding: Cost,
    /// Items and bytes that the running transaction has in its overlay.
    pub running: (u64, u64),
    /// The level of the tallest tree that reservations take into account; a leaf has level 0.
    pub height: u8,
    /// Metadata that the frozen transaction may still take, in bytes.
    pub frozen: u64,
    /// Bytes of the devices that belong to no chunk.
    pub unallocated: u64,
    /// Bytes that are kept for copies of shared nodes, and for which no chunk is allocated yet.
    /// `metadata.for_copies` has the bytes kept in block groups.
    pub for_copies: u64,
    /// How many tickets wait for data, and for metadata.
    pub waiting: (usize, usize),
}

impl Accounts {
    /// Bytes of metadata kept for copies of shared nodes, in block groups and in chunks that are
    /// not allocated yet.
    #[must_use]
    pub fn all_for_copies(&self) -> u64 {
        self.metadata.for_copies + self.for_copies
    }
}

impl fmt::Display for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}; {}; {}; written in place {}, reserved {} items and {} bytes, running {} items and {} bytes, \
             {} levels above leaves, frozen {}, \
             unallocated {}, of that for copies {}, waiting for data {}, for metadata {}",
            self.data,
            self.metadata,
            self.system,
            self.unreserved,
            self.outstanding.all_items(),
            self.outstanding.bytes,
            self.running.0,
            self.running.1,
            self.height,
            self.frozen,
            self.unallocated,
            self.for_copies,
            self.waiting.0,
            self.waiting.1
        )
    }
}

impl Reservations {
    /// All accounts as they are now.
    #[must_use]
    pub fn accounts(&self) -> Accounts {
        let (outstanding, running) = (self.outstanding.lock().sum(), self.running_size());
        let frozen = self.frozen.left();
        let mut metadata = self.parts.space.account(SpaceKind::Metadata);
        let need = self.need(
            running.0 + outstanding.all_items(),
            running.1 + outstanding.bytes,
            metadata.used,
        );
        metadata.may_use = metadata.may_use.saturating_add(need).saturating_add(frozen);
        let (unallocated, for_copies) = {
            let devices = self.parts.devices.lock();
            (devices.unallocated(), devices.kept_for_copies())
        };
        Accounts {
            data: self.parts.space.account(SpaceKind::Data),
            metadata,
            system: self.parts.space.account(SpaceKind::System),
            unreserved: self.parts.space.unreserved(),
            outstanding,
            running,
            height: self.shape.height(),
            frozen,
            unallocated,
            for_copies,
            waiting: (self.parts.space.data_queue().len(), self.queue.len()),
        }
    }

    /// Items and bytes in the overlay of the running transaction.
    fn running_size(&self) -> (u64, u64) {
        let view = self.parts.view.load();
        (view.running().items(), view.running().bytes())
    }

    /// The present uses of metadata, by cause, for the preemptive flusher. `dirty` is the number of
    /// bytes of dirty data in memory, `ordered` the number of these bytes in ordered extents.
    #[must_use]
    pub fn pools(&self, dirty: u64, ordered: u64) -> MetadataUse {
        let (outstanding, running) = (self.outstanding.lock().sum(), self.running_size());
        let account = self.parts.space.account(SpaceKind::Metadata);
        let need = |items, bytes| match (items, bytes) {
            (0, 0) => 0,
            _ => self.need(items, bytes, account.used),
        };
        let overlay = need(running.0, running.1);
        let items = running.0 + outstanding.all_items();
        let reserved = need(items, running.1 + outstanding.bytes).saturating_sub(overlay);
        // Under the policy `Levels`, reservations take `apart` bytes, and writeback of dirty data
        // gives these bytes back. So a round of flushing can free these reservations, and they do
        // not count in `MetadataUse::paths`. Only the running transaction's items count as paths.
        let apart = self.parts.policy.alone(outstanding, self.nodesize());
        let paths = need(if apart == 0 { items } else { running.0 }, 0);
        let to_come = self.parts.devices.lock().reservable(self.metadata_flags());
        MetadataUse {
            total: account.total,
            used: account.used,
            reserved: account.reserved,
            read_only: account.read_only + account.super_bytes,
            pinned: account.pinned,
            global: account.global_reserve,
            to_come,
            overlay,
            frozen: self.frozen.left(),
            reservations: reserved.max(apart) + account.may_use,
            paths,
            dirty: dirty.saturating_sub(ordered),
            ordered,
            waiting: self.queue.is_waiting(),
        }
    }
}
