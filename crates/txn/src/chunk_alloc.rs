//! New chunks: device space becomes logical space.
//!
//! # Invariants
//!
//! - **A1** A chunk belongs to the transaction that was running when it was made, and is recorded by
//!   its commit; a commit in progress never allocates from a younger one (T11).
//! - **A2** Device space and addresses of a removed chunk are used again only after its removal is
//!   durable.

use std::collections::BTreeMap;

use buttress_base::RangeSet;
use buttress_format::{
    BlockGroupFlags, Chunk, DevExtent, DeviceId, Extent, Logical, Stripe, ids, limits,
};
use buttress_space::{GroupInit, SpaceKind};

use crate::{
    Engine, Error, Result,
    transaction::{NewChunk, Transaction},
};

const MIB: u64 = 1 << 20;

/// Which parts of each device no chunk takes.
#[derive(Debug, Default)]
pub(crate) struct DeviceSpace {
    free: BTreeMap<DeviceId, RangeSet>,
    total: u64,
    /// Behind every chunk that was made since the volume was opened: the address of one that was
    /// removed is not used again before its removal is durable.
    next_logical: u64,
    /// Bytes that metadata was promised beyond its groups, until the next commit is durable.
    kept: u64,
}

impl DeviceSpace {
    /// A device of `len` bytes, all free but its front.
    pub(crate) fn add_device(&mut self, id: DeviceId, len: u64) {
        let mut free = RangeSet::default();
        if len > limits::DEVICE_RESERVED {
            free.insert(limits::DEVICE_RESERVED..len);
        }
        self.total += len;
        self.free.insert(id, free);
    }

    /// A part that a chunk takes.
    pub(crate) fn take(&mut self, id: DeviceId, offset: u64, len: u64) {
        if let Some(free) = self.free.get_mut(&id) {
            free.remove(offset..offset.saturating_add(len));
        }
    }

    /// A part that a chunk gave back.
    pub(crate) fn give(&mut self, id: DeviceId, offset: u64, len: u64) {
        if let Some(free) = self.free.get_mut(&id) {
            free.insert(offset..offset.saturating_add(len));
        }
    }

    /// Keeps so many bytes from data.
    pub(crate) fn keep_for_metadata(&mut self, bytes: u64) {
        self.kept = self.kept.max(bytes);
    }

    /// Nothing is promised beyond the groups any more.
    pub(crate) fn release_kept(&mut self) {
        self.kept = 0;
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn unallocated(&self) -> u64 {
        self.free.values().map(RangeSet::total).sum()
    }

    /// Places for `count` stripes of one device, each of the same length: the longest up to `want`
    /// that there is, in whole MiB.
    fn place(&self, count: u64, want: u64) -> Option<(DeviceId, u64, Vec<u64>)> {
        let id = *self.free.iter().max_by_key(|(_, free)| free.total())?.0;
        let free = self.free.get(&id)?;
        let mut len = want.max(MIB) / MIB * MIB;
        while len >= MIB {
            let mut starts = Vec::new();
            for range in free.iter() {
                let mut at = range.start.next_multiple_of(MIB);
                while at.saturating_add(len) <= range.end && (starts.len() as u64) < count {
                    starts.push(at);
                    at += len;
                }
            }
            if starts.len() as u64 == count {
                return Some((id, len, starts));
            }
            // The next length worth trying is what the longest holes can give.
            let longest = free.iter().map(|r| r.end - r.start).max().unwrap_or(0) / MIB * MIB;
            len = if len > longest { longest } else { (len / 2).max(1) / MIB * MIB };
        }
        None
    }
}

impl Engine {
    /// Adds a chunk in the running transaction. False when the devices have no room.
    pub(crate) fn add_chunk(&self, kind: SpaceKind) -> Result<bool> {
        let _gate = self.gate.read();
        let running = std::sync::Arc::clone(self.view.load().running());
        self.add_chunk_to(&running, kind)
    }

    /// Adds a chunk that a transaction will record.
    pub(crate) fn add_chunk_to(&self, transaction: &Transaction, kind: SpaceKind) -> Result<bool> {
        let mut devices = self.devices.lock();
        let flags = self.profile_of(kind);
        let want = chunk_len(kind, devices.total());
        let copies = if flags.has(BlockGroupFlags::DUP) { 2 } else { 1 };
        let Some((id, len, starts)) = devices.place(copies, want) else { return Ok(false) };
        if kind == SpaceKind::Data && devices.unallocated() - len * copies < devices.kept {
            return Ok(false);
        }
        let chunks = self.volume.chunks();
        let behind = chunks.last().map_or(MIB, |c| c.logical.end(c.len).0);
        let logical = behind.max(devices.next_logical);
        let device = self
            .volume
            .device(id)
            .ok_or_else(|| Error::Malformed(format!("device {id} is missing")))?;
        let geometry = self.store.geometry();
        let chunk = Chunk {
            logical: Logical(logical),
            len,
            owner: 2,
            stripe_len: limits::STRIPE_LEN,
            flags,
            io_align: limits::STRIPE_LEN as u32,
            io_width: limits::STRIPE_LEN as u32,
            sector_size: geometry.sectorsize,
            sub_stripes: 1,
            stripes: starts
                .iter()
                .map(|offset| Stripe { device: id, offset: *offset, dev_uuid: device.uuid })
                .collect(),
        };
        let extent = DevExtent {
            chunk_tree: 3,
            chunk_objectid: ids::FIRST_CHUNK_TREE,
            chunk_offset: chunk.logical,
            length: len,
            chunk_tree_uuid: geometry.chunk_tree_uuid,
        };
        self.volume.add_chunk(chunk.clone())?;
        self.space.add_group(GroupInit {
            range: Extent { start: chunk.logical, len },
            flags,
            used: 0,
            birth: transaction.generation,
            read_only: false,
            superblock_stripes: superblock_stripes(&chunk),
        })?;
        devices.next_logical = logical + len;
        for offset in &starts {
            devices.take(id, *offset, len);
        }
        tracing::info!(%flags, start = logical, len, "new chunk");
        let stripes = starts.into_iter().map(|offset| (id, offset, extent)).collect();
        transaction.chunks.lock().push(NewChunk { chunk, flags, stripes });
        Ok(true)
    }

    /// New chunks are like the last one of their kind.
    fn profile_of(&self, kind: SpaceKind) -> BlockGroupFlags {
        let wanted = match kind {
            SpaceKind::Data => BlockGroupFlags::DATA,
            SpaceKind::Metadata => BlockGroupFlags::METADATA,
            SpaceKind::System => BlockGroupFlags::SYSTEM,
        };
        self.space.groups_of(kind).last().map_or(wanted, |group| group.flags())
    }
}

/// How long a chunk should be: as Linux makes them.
fn chunk_len(kind: SpaceKind, volume: u64) -> u64 {
    let wish = match kind {
        SpaceKind::Data => 1 << 30,
        SpaceKind::Metadata if volume > 50 << 30 => 1 << 30,
        SpaceKind::Metadata => 256 * MIB,
        SpaceKind::System => 32 * MIB,
    };
    wish.min(volume / 10).max(MIB)
}

/// Where superblocks lie in a chunk, in logical addresses: the whole stripe around each is left
/// alone, as Linux does.
pub(crate) fn superblock_stripes(chunk: &Chunk) -> Vec<Extent> {
    let mut found = Vec::new();
    let per_device = chunk.stripe_bytes();
    for stripe in &chunk.stripes {
        for at in limits::SUPER_OFFSETS {
            if at < stripe.offset || at >= stripe.offset.saturating_add(per_device) {
                continue;
            }
            let into = (at - stripe.offset) / limits::STRIPE_LEN * limits::STRIPE_LEN;
            // Only single and DUP chunks are written, whose stripes hold the chunk in order.
            let start = chunk.logical.end(into);
            found.push(Extent { start, len: limits::STRIPE_LEN });
        }
    }
    found
}
