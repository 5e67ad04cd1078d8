//! Which parts of the devices no chunk takes, and what new chunks of a kind could have of them.
//!
//! # Invariants
//!
//! - **D1** Chunks can be made of all that metadata has reserved beyond its groups. No more is
//!   reserved than chunks take whatever the holes are like, and data takes nothing of it.
//! - **A2** of `chunk_alloc`.

use std::collections::BTreeMap;

use buttress_base::RangeSet;
use buttress_format::{BlockGroupFlags, DeviceId, DeviceItem, Extent, Profile, limits};

use crate::place::{self, Limits, Room};

/// A device as the chunk tree knows it.
#[derive(Debug)]
struct KnownDevice {
    /// Its item, as of the last commit.
    item: DeviceItem,
    /// What no chunk takes.
    free: RangeSet,
    /// Whether new chunks may lie on it.
    usable: bool,
    /// Nothing at or behind this place is given out.
    hidden: Option<u64>,
}

/// Which parts of each device no chunk takes, and how new chunks are to be spread.
#[derive(Debug, Default)]
pub struct DeviceSpace {
    devices: BTreeMap<DeviceId, KnownDevice>,
    /// How many block groups there are of each kind and profile.
    groups: BTreeMap<BlockGroupFlags, u64>,
    /// How new chunks of a kind are spread while they are converted.
    targets: BTreeMap<BlockGroupFlags, Profile>,
    /// Behind every chunk that was made or removed since the volume was opened: the address of
    /// one that was removed is not used again before its removal is durable.
    pub next_logical: u64,
    /// Bytes that metadata has reserved beyond its groups, until the next commit is durable.
    kept: u64,
    /// Bytes that are kept for copies of nodes that trees share (Y3 of `reserve::copies`).
    room: u64,
    /// Whether data is written with parity.
    rows: bool,
}

impl DeviceSpace {
    /// Device space without devices. `rows`: whether data is written with parity.
    pub fn new(rows: bool) -> Self {
        Self { rows, ..Self::default() }
    }

    /// Adds a device, all free but its front.
    pub fn add_device(&mut self, item: DeviceItem, usable: bool) {
        let mut free = RangeSet::default();
        if item.total_bytes > limits::DEVICE_RESERVED {
            free.insert(limits::DEVICE_RESERVED..item.total_bytes);
        }
        self.devices.insert(item.devid, KnownDevice { item, free, usable, hidden: None });
    }

    /// Takes a part for a chunk.
    pub fn take(&mut self, id: DeviceId, offset: u64, len: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.free.remove(offset..offset.saturating_add(len));
        }
    }

    /// Says whether any of a part may become a new chunk's.
    pub fn may_give_out(&self, id: DeviceId, offset: u64, len: u64) -> bool {
        let range = offset..offset.saturating_add(len);
        self.devices.get(&id).is_some_and(|device| device.free.overlaps(&range))
    }

    /// Takes back a part that a chunk gave up.
    pub fn give(&mut self, id: DeviceId, offset: u64, len: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            let end = offset.saturating_add(len).min(device.hidden.unwrap_or(u64::MAX));
            if offset < end {
                device.free.insert(offset..end);
            }
        }
    }

    /// Says whether new chunks may lie on a device.
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

    /// Sets a device's item, as a commit is about to write it.
    pub fn set_item(&mut self, item: DeviceItem) {
        if let Some(device) = self.devices.get_mut(&item.devid) {
            device.item = item;
        }
    }

    /// Every device, here or not.
    pub fn ids(&self) -> Vec<DeviceId> {
        self.devices.keys().copied().collect()
    }

    /// A number that no device has.
    pub fn next_id(&self) -> DeviceId {
        DeviceId(self.devices.keys().next_back().map_or(1, |last| last.0 + 1))
    }

    /// Undoes `hide`: the end of a device is where its item says.
    pub fn show(&mut self, id: DeviceId) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.hidden = None;
        }
    }

    /// Gives out nothing of a device from a place on: its end is about to be there.
    pub fn hide(&mut self, id: DeviceId, from: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.free.remove(from..u64::MAX);
            device.hidden = Some(from);
        }
    }

    /// Forgets a device, unless it is the last. Says whether it did.
    pub fn remove_device(&mut self, id: DeviceId) -> bool {
        self.devices.len() > 1 && self.devices.remove(&id).is_some()
    }

    /// Spreads new chunks of a kind in this way, whatever the others are like; or like the others.
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
        self.rows && kind.kind() == BlockGroupFlags::DATA
    }

    /// Counts a new block group.
    pub fn count_group(&mut self, flags: BlockGroupFlags) {
        *self.groups.entry(flags).or_default() += 1;
    }

    /// Withholds the addresses of a chunk that is about to be removed (`chunk_alloc::A2`).
    pub fn keep_addresses(&mut self, group: Extent) {
        self.next_logical = self.next_logical.max(group.end().0);
    }

    /// Takes a removed block group off the count.
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

    /// How the next chunk of a kind is spread: as the safest that there is, if the devices are
    /// enough for it.
    pub fn profile_of(&self, kind: BlockGroupFlags) -> Profile {
        if let Some(target) = self.targets.get(&kind) {
            return *target;
        }
        let mine = self.groups.keys().filter(|flags| flags.kind() == kind);
        // Where nothing is written with parity, mirrors that stand as many losses take its place.
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

    /// What no chunk takes of a device at or behind `from`, superblocks left out: no more than
    /// `most`, of holes of at least `least`.
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

    /// Keeps so many bytes of metadata for copies of nodes, from data and from the reservations of
    /// writers that fill.
    pub fn keep_room(&mut self, bytes: u64) {
        self.room = bytes;
    }

    /// Returns how many of the bytes kept for copies lie in a new chunk of so many bytes from now
    /// on.
    pub fn move_room(&mut self, chunk: u64) -> u64 {
        let moved = self.room.min(chunk);
        self.room -= moved;
        moved
    }

    /// Bytes that are kept for copies of nodes.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Keeps so many bytes of metadata, one copy counted, from data.
    pub fn keep_for_metadata(&mut self, bytes: u64) {
        self.kept = self.kept.max(bytes);
    }

    /// Whether chunks could be made of all that metadata has reserved beyond its groups. Data may
    /// take only what leaves this true.
    pub fn leaves_kept(&self, metadata: BlockGroupFlags) -> bool {
        let kept = self.kept.saturating_add(self.room);
        kept == 0 || self.has(metadata, kept)
    }

    /// Whether data lacks something that metadata has reserved.
    pub fn keeps_for_metadata(&self) -> bool {
        self.kept > 0
    }

    /// Keeps exactly so many bytes, whatever was kept before.
    pub fn keep_exactly(&mut self, bytes: u64) {
        self.kept = bytes;
    }

    /// Bytes of all devices.
    pub fn total(&self) -> u64 {
        self.devices.values().map(|device| device.item.total_bytes).sum()
    }

    /// Bytes of all devices that no chunk takes.
    pub fn unallocated(&self) -> u64 {
        self.devices.values().map(|device| device.free.total()).sum()
    }

    /// Bytes that new chunks of a kind could have, one copy counted.
    pub fn available(&self, kind: BlockGroupFlags) -> u64 {
        let usable = self.devices.values().filter(|device| device.usable);
        place::capacity(self.profile_of(kind), usable.map(|device| device.free.total()))
    }

    /// The same for data, without what is kept for copies of nodes.
    pub fn available_to_data(&self, data: BlockGroupFlags, metadata: BlockGroupFlags) -> u64 {
        let copies = |kind| u64::from(self.profile_of(kind).flags().copies()).max(1);
        let kept = self.room.saturating_mul(copies(metadata)) / copies(data);
        self.available(data).saturating_sub(kept)
    }

    /// What metadata may reserve of it at most: half.
    pub fn reservable(&self, kind: BlockGroupFlags) -> u64 {
        self.available(kind) / 2
    }

    /// Whether so many bytes of metadata may be reserved beyond its groups (D1): no more than half
    /// of what is left, beside what is kept for copies of nodes. An operation that frees space may
    /// have all of it, that included.
    pub fn may_reserve(&self, kind: BlockGroupFlags, bytes: u64, frees: bool) -> bool {
        if frees && self.room > 0 {
            return self.has(kind, bytes);
        }
        bytes <= self.reservable(kind) && self.has(kind, bytes.saturating_add(self.room))
    }

    /// Bytes that chunks of a kind could have, no more than are wanted.
    pub fn could_keep(&self, kind: BlockGroupFlags, wanted: u64) -> u64 {
        if wanted <= self.surely(kind) { wanted } else { self.make(kind, wanted).min(wanted) }
    }

    /// Whether chunks of so many bytes can be made.
    pub fn has(&self, kind: BlockGroupFlags, bytes: u64) -> bool {
        self.could_keep(kind, bytes) == bytes
    }

    /// What chunks of a kind can have, whatever the holes are like. Where holes are short,
    /// [`place::capacity`] may say too much: as many times as there are copies, and some holes are
    /// too short for any. Beyond half of that part it is tried.
    fn surely(&self, kind: BlockGroupFlags) -> u64 {
        self.available(kind) / self.profile_of(kind).spread().copies as u64 / 2
    }

    /// Where a chunk would lie that begins now, as long as is usual or `whole` bytes, whichever
    /// is more, but not longer than holes are; nothing where devices have no room.
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

    /// How many bytes, one copy counted, chunks of a kind have when no more can be made, or when
    /// they have so many. It makes them in a plan, which costs a look at every hole for each.
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
