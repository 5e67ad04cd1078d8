//! The unallocated space of the devices, and the space that new chunks of each kind could get from
//! it.
//!
//! # Invariants
//!
//! - **D1** Chunks can be made for all bytes that metadata has reserved beyond its groups. Metadata
//!   reserves only as much as chunks can hold for any layout of the holes. Data takes no space that
//!   these chunks need.
//! - **A2** (of `chunk_alloc`) Space and addresses of a removed chunk are used again only after its
//!   removal is durable.

use std::collections::BTreeMap;

use buttress_base::RangeSet;
use buttress_format::{BlockGroupFlags, DeviceId, DeviceItem, Extent, Profile, limits};

use crate::place::{self, Limits, Room};

/// A device as the chunk tree knows it.
#[derive(Debug)]
struct KnownDevice {
    /// The device's item, as of the last commit.
    item: DeviceItem,
    /// The unallocated space.
    free: RangeSet,
    /// Whether new chunks may lie on the device.
    usable: bool,
    /// No space at or after this offset is allocated.
    hidden: Option<u64>,
}

/// The unallocated space of each device, and the profiles of new chunks.
#[derive(Debug, Default)]
pub struct DeviceSpace {
    devices: BTreeMap<DeviceId, KnownDevice>,
    /// Number of block groups of each kind and profile.
    groups: BTreeMap<BlockGroupFlags, u64>,
    /// Profiles of new chunks of a kind during its conversion.
    targets: BTreeMap<BlockGroupFlags, Profile>,
    /// An address after every chunk that was made or removed since the volume was opened. The
    /// address of a removed chunk is not used again before the removal is durable.
    pub next_logical: u64,
    /// Bytes that metadata has reserved beyond its groups, until the next commit is durable.
    kept_for_metadata: u64,
    /// Bytes that are kept for copies of nodes that trees share (`reserve::copies::Y3`).
    kept_for_copies: u64,
    /// Whether data and nodes are written with parity.
    rows: bool,
}

impl DeviceSpace {
    /// Device space without devices. `rows`: whether data and nodes are written with parity.
    pub fn new(rows: bool) -> Self {
        Self { rows, ..Self::default() }
    }

    /// Adds a device. All space of the device is free except the reserved bytes at its start.
    pub fn add_device(&mut self, item: DeviceItem, usable: bool) {
        let mut free = RangeSet::default();
        if item.total_bytes > limits::DEVICE_RESERVED {
            free.insert(limits::DEVICE_RESERVED..item.total_bytes);
        }
        self.devices.insert(item.devid, KnownDevice { item, free, usable, hidden: None });
    }

    /// Removes the range of a new chunk from the unallocated space.
    pub fn take(&mut self, id: DeviceId, offset: u64, len: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.free.remove(offset..offset.saturating_add(len));
        }
    }

    /// Whether a new chunk may use a part of this range.
    pub fn may_give_out(&self, id: DeviceId, offset: u64, len: u64) -> bool {
        let range = offset..offset.saturating_add(len);
        self.devices.get(&id).is_some_and(|device| device.free.overlaps(&range))
    }

    /// Returns the range of a removed chunk to the unallocated space.
    pub fn give(&mut self, id: DeviceId, offset: u64, len: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            let end = offset.saturating_add(len).min(device.hidden.unwrap_or(u64::MAX));
            if offset < end {
                device.free.insert(offset..end);
            }
        }
    }

    /// Allows or forbids new chunks on a device.
    pub fn set_usable(&mut self, id: DeviceId, usable: bool) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.usable = usable;
        }
    }

    /// A device's item, as of the last commit.
    #[must_use]
    pub fn item(&self, id: DeviceId) -> Option<DeviceItem> {
        self.devices.get(&id).map(|device| device.item)
    }

    /// Sets a device's item to the one that a commit is about to write.
    pub fn set_item(&mut self, item: DeviceItem) {
        if let Some(device) = self.devices.get_mut(&item.devid) {
            device.item = item;
        }
    }

    /// The numbers of all devices, including missing ones.
    pub fn ids(&self) -> Vec<DeviceId> {
        self.devices.keys().copied().collect()
    }

    /// A free device number.
    pub fn next_id(&self) -> DeviceId {
        DeviceId(self.devices.keys().next_back().map_or(1, |last| last.0 + 1))
    }

    /// Undoes `hide`: all space up to the size in the device's item can be allocated again.
    pub fn show(&mut self, id: DeviceId) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.hidden = None;
        }
    }

    /// Stops allocation on a device at and after `from`, because the device is about to be shrunk
    /// to that size.
    pub fn hide(&mut self, id: DeviceId, from: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.free.remove(from..u64::MAX);
            device.hidden = Some(from);
        }
    }

    /// Removes a device, unless it is the last one. Returns whether the device was removed.
    pub fn remove_device(&mut self, id: DeviceId) -> bool {
        self.devices.len() > 1 && self.devices.remove(&id).is_some()
    }

    /// Sets the profile of new chunks of a kind, even if existing groups have another profile.
    /// `None` restores the profile of the existing groups.
    pub fn set_target(&mut self, kind: BlockGroupFlags, profile: Option<Profile>) {
        match profile {
            Some(profile) => self.targets.insert(kind, profile),
            None => self.targets.remove(&kind),
        };
    }

    /// Whether a kind can have a profile with the devices that can be written.
    pub fn can_have(&self, kind: BlockGroupFlags, profile: Profile) -> bool {
        let usable = self.devices.values().filter(|device| device.usable).count();
        profile.spread().least <= usable && (profile.spread().parity == 0 || self.has_rows(kind))
    }

    /// Whether a kind is written with parity.
    fn has_rows(&self, kind: BlockGroupFlags) -> bool {
        let mixed = BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA);
        self.rows && kind.kind() != mixed
    }

    /// Counts a new block group.
    pub fn count_group(&mut self, flags: BlockGroupFlags) {
        *self.groups.entry(flags).or_default() += 1;
    }

    /// Prevents reuse of the addresses of a chunk that is about to be removed
    /// (`txn::chunk_alloc::A2`).
    pub fn keep_addresses(&mut self, group: Extent) {
        self.next_logical = self.next_logical.max(group.end().0);
    }

    /// Subtracts a removed block group from the count.
    pub fn uncount_group(&mut self, flags: BlockGroupFlags) {
        if let Some(count) = self.groups.get_mut(&flags) {
            *count -= 1;
            if *count == 0 {
                self.groups.remove(&flags);
            }
        }
    }

    /// Whether any block group has parity.
    pub fn has_parity(&self) -> bool {
        let parity = |flags: &BlockGroupFlags| {
            matches!(Profile::of(*flags), Some(Profile::Raid5 | Profile::Raid6))
        };
        self.groups.keys().any(parity)
    }

    /// The profile of the next chunk of a kind. It is the safest profile in use for which there are
    /// enough devices.
    pub fn profile_of(&self, kind: BlockGroupFlags) -> Profile {
        if let Some(target) = self.targets.get(&kind) {
            return *target;
        }
        let mine = self.groups.keys().filter(|flags| flags.kind() == kind);
        // If the kind is not written with parity, a mirrored profile that survives as many losses
        // replaces RAID5 and RAID6.
        let has_rows = self.has_rows(kind);
        let mirrored = |profile| match profile {
            _ if has_rows => profile,
            Profile::Raid5 => Profile::Raid1,
            Profile::Raid6 => Profile::Raid1c3,
            other => other,
        };
        let usable = self.devices.values().filter(|device| device.usable).count();
        let metadata = !kind.has(BlockGroupFlags::DATA);
        let mine = mine.filter_map(|flags| Profile::of(*flags)).map(mirrored);
        Profile::best(mine, usable, metadata)
    }

    /// A piece of unallocated space of a device at or after `from`, without superblocks. It has at
    /// most `most` bytes and lies in a hole of at least `least` bytes.
    pub fn unallocated_behind(
        &self,
        id: DeviceId,
        from: u64,
        least: u64,
        most: u64,
    ) -> Option<(u64, u64)> {
        let free = &self.devices.get(&id)?.free;
        for hole in free.iter().filter(|hole| hole.end > from && hole.end - hole.start >= least) {
            let mut at = hole.start.max(from);
            while at < hole.end {
                let supers = limits::SUPER_OFFSETS.map(|start| start..start + limits::STRIPE_LEN);
                match supers.iter().find(|range| range.contains(&at)) {
                    Some(range) => at = range.end,
                    None => {
                        let next = supers.iter().map(|range| range.start).find(|start| *start > at);
                        let end =
                            hole.end.min(next.unwrap_or(u64::MAX)).min(at.saturating_add(most));
                        return Some((at, end - at));
                    }
                }
            }
        }
        None
    }

    /// Keeps `bytes` of metadata for copies of nodes. Data, and reservations of writers that fill
    /// the volume, may not use these bytes.
    pub fn keep_for_copies(&mut self, bytes: u64) {
        self.kept_for_copies = bytes;
    }

    /// Moves bytes kept for copies into a new chunk of `chunk` bytes. Returns the number of moved
    /// bytes.
    pub fn move_kept_for_copies(&mut self, chunk: u64) -> u64 {
        let moved = self.kept_for_copies.min(chunk);
        self.kept_for_copies -= moved;
        moved
    }

    /// Bytes that are kept for copies of nodes.
    pub fn kept_for_copies(&self) -> u64 {
        self.kept_for_copies
    }

    /// Keeps space for at least `bytes` of metadata, one copy counted, which data may not use.
    pub fn keep_for_metadata(&mut self, bytes: u64) {
        self.kept_for_metadata = self.kept_for_metadata.max(bytes);
    }

    /// Whether chunks could be made for all bytes that metadata has reserved beyond its groups. An
    /// allocation of data must keep this true.
    pub fn leaves_kept(&self, metadata: BlockGroupFlags) -> bool {
        let kept = self.kept_for_metadata.saturating_add(self.kept_for_copies);
        kept == 0 || self.has(metadata, kept)
    }

    /// Whether data may not use some space, because metadata has reserved it.
    pub fn keeps_for_metadata(&self) -> bool {
        self.kept_for_metadata > 0
    }

    /// Sets the number of bytes kept for metadata, also to fewer than before.
    pub fn keep_exactly(&mut self, bytes: u64) {
        self.kept_for_metadata = bytes;
    }

    /// Bytes of all devices.
    pub fn total(&self) -> u64 {
        self.devices.values().map(|device| device.item.total_bytes).sum()
    }

    /// Bytes on all devices that belong to no chunk.
    pub fn unallocated(&self) -> u64 {
        self.devices.values().map(|device| device.free.total()).sum()
    }

    /// Bytes that new chunks of a kind could have, one copy counted.
    pub fn available(&self, kind: BlockGroupFlags) -> u64 {
        let usable = self.devices.values().filter(|device| device.usable);
        place::capacity(self.profile_of(kind), usable.map(|device| device.free.total()))
    }

    /// As `available` for data, without the bytes that are kept for copies of nodes.
    pub fn available_to_data(&self, data: BlockGroupFlags, metadata: BlockGroupFlags) -> u64 {
        let copies = |kind| u64::from(self.profile_of(kind).flags().copies()).max(1);
        let kept = self.kept_for_copies.saturating_mul(copies(metadata)) / copies(data);
        self.available(data).saturating_sub(kept)
    }

    /// The most that metadata may reserve of the available bytes: half.
    pub fn reservable(&self, kind: BlockGroupFlags) -> u64 {
        self.available(kind) / 2
    }

    /// Whether `bytes` of metadata may be reserved beyond its groups (D1). While bytes are kept for
    /// copies of nodes, an operation that frees space may use all available space, including the
    /// kept bytes. Any other operation may use half of the available space, and none of the kept
    /// bytes.
    pub fn may_reserve(&self, kind: BlockGroupFlags, bytes: u64, frees: bool) -> bool {
        if frees && self.kept_for_copies > 0 {
            return self.has(kind, bytes);
        }
        bytes <= self.reservable(kind) && self.has(kind, bytes.saturating_add(self.kept_for_copies))
    }

    /// Bytes that chunks of a kind could have, at most `wanted`.
    pub fn could_keep(&self, kind: BlockGroupFlags, wanted: u64) -> u64 {
        if wanted <= self.surely(kind) { wanted } else { self.make(kind, wanted).min(wanted) }
    }

    /// Whether chunks with `bytes` in total can be made.
    pub fn has(&self, kind: BlockGroupFlags, bytes: u64) -> bool {
        self.could_keep(kind, bytes) == bytes
    }

    /// A number of bytes that chunks of a kind can have for any layout of the holes. With short
    /// holes, [`place::capacity`] may be too high by a factor equal to the number of copies. Some
    /// holes are too short for any chunk. So the capacity is divided by the copies and halved. If a
    /// caller needs more, it plans the chunks (`make`).
    fn surely(&self, kind: BlockGroupFlags) -> u64 {
        self.available(kind) / self.profile_of(kind).spread().copies as u64 / 2
    }

    /// The place of a chunk that is made now. It has the usual length or `whole` bytes, whichever
    /// is more, but is not longer than the holes. Returns `None` when the devices have no space.
    pub fn place(
        &self,
        flags: BlockGroupFlags,
        profile: Profile,
        whole: u64,
    ) -> Option<place::Places> {
        let usable = self.devices.iter().filter(|(_, device)| device.usable);
        let rooms: Vec<_> =
            usable.map(|(id, known)| Room { device: *id, free: &known.free }).collect();
        let limits = self.limits(flags);
        place::place(profile, &rooms, Limits { chunk: limits.chunk.max(whole), ..limits })
    }

    fn limits(&self, flags: BlockGroupFlags) -> Limits {
        let usable = self.devices.values().filter(|device| device.usable);
        Limits::of(flags, usable.map(|device| device.item.total_bytes).sum())
    }

    /// The bytes, one copy counted, of all chunks of a kind that could be made. The plan stops at
    /// `bytes`. The cost is a look at every hole for each planned chunk.
    fn make(&self, kind: BlockGroupFlags, bytes: u64) -> u64 {
        let profile = self.profile_of(kind);
        let limits = self.limits(kind.with(profile.flags()));
        let usable = self.devices.iter().filter(|(_, device)| device.usable);
        let mut free: BTreeMap<_, _> =
            usable.map(|(id, device)| (*id, device.free.clone())).collect();
        let mut made = 0;
        while made < bytes {
            let rooms: Vec<_> =
                free.iter().map(|(device, free)| Room { device: *device, free }).collect();
            let Some(places) = place::place(profile, &rooms, limits) else { break };
            for (id, offset) in &places.stripes {
                let taken = *offset..offset.saturating_add(places.stripe_bytes);
                free.get_mut(id).expect("a room").remove(taken);
            }
            made += places.len;
        }
        made
    }
}

#[cfg(test)]
mod tests;
