//! New chunks: device space becomes logical space.
//!
//! # Invariants
//!
//! - **A1** A chunk belongs to the transaction that was running when it was made, and is recorded by
//!   its commit; a commit in progress never allocates from a younger one (T11).
//! - **A2** Device space and addresses of a removed chunk are used again only after its removal is
//!   durable.
//! - **A3** A chunk that nobody needs, but would lie better in, is made only while a quarter of the devices is left: what
//!   metadata may need is not spent on it.

use std::collections::BTreeMap;

use buttress_base::RangeSet;
use buttress_format::{
    BlockGroupFlags, Chunk, DevExtent, DeviceId, DeviceItem, Extent, Incompat, Logical, Profile,
    Stripe, ids, limits,
};
use buttress_space::{GroupInit, SpaceKind};
use buttress_volume::place::{self, Limits, Room};

use crate::{
    Engine, Error, Result,
    transaction::{NewChunk, Transaction},
};

const MIB: u64 = 1 << 20;
/// Data is in pieces where what is wanted whole, or so much of it, is given in as many.
const WHOLE_MAX: u64 = 512 << 10;
const PIECES_MIN: u64 = 4;
/// A chunk for data in pieces leaves this part of the devices (A3).
const SPARE_PART: u64 = 4;

/// A device as the chunk tree knows it.
#[derive(Debug)]
struct KnownDevice {
    /// Its item, as of the last commit.
    item: DeviceItem,
    /// What no chunk takes.
    free: RangeSet,
    /// Whether new chunks may lie on it.
    usable: bool,
    /// Nothing is given out from here on.
    hidden: Option<u64>,
}

/// Which parts of each device no chunk takes, and how new chunks are to be spread.
#[derive(Debug, Default)]
pub(crate) struct DeviceSpace {
    devices: BTreeMap<DeviceId, KnownDevice>,
    /// How many block groups there are of each kind and profile.
    groups: BTreeMap<BlockGroupFlags, u64>,
    /// How new chunks of a kind are spread while they are converted.
    targets: BTreeMap<BlockGroupFlags, Profile>,
    /// Behind every chunk that was made or removed since the volume was opened: the address of one that was
    /// removed is not used again before its removal is durable.
    next_logical: u64,
    /// Bytes that metadata was promised beyond its groups, until the next commit is durable.
    kept: u64,
    /// Whether data is written with parity.
    rows: bool,
}

impl DeviceSpace {
    /// Without devices; whether data is written with parity.
    pub(crate) fn new(rows: bool) -> Self {
        Self { rows, ..Self::default() }
    }

    /// A device, all free but its front.
    pub(crate) fn add_device(&mut self, item: DeviceItem, usable: bool) {
        let mut free = RangeSet::default();
        if item.total_bytes > limits::DEVICE_RESERVED {
            free.insert(limits::DEVICE_RESERVED..item.total_bytes);
        }
        self.devices.insert(item.devid, KnownDevice { item, free, usable, hidden: None });
    }

    /// A part that a chunk takes.
    pub(crate) fn take(&mut self, id: DeviceId, offset: u64, len: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.free.remove(offset..offset.saturating_add(len));
        }
    }

    /// Says whether any of a part may become a new chunk's.
    pub(crate) fn may_give_out(&self, id: DeviceId, offset: u64, len: u64) -> bool {
        let range = offset..offset.saturating_add(len);
        self.devices.get(&id).is_some_and(|device| device.free.overlaps(&range))
    }

    /// A part that a chunk gave back.
    pub(crate) fn give(&mut self, id: DeviceId, offset: u64, len: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            let end = offset.saturating_add(len).min(device.hidden.unwrap_or(u64::MAX));
            if offset < end {
                device.free.insert(offset..end);
            }
        }
    }

    /// Says whether new chunks may lie on a device.
    pub(crate) fn set_usable(&mut self, id: DeviceId, usable: bool) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.usable = usable;
        }
    }

    /// A device's item, as of the last commit.
    pub(crate) fn item(&self, id: DeviceId) -> Result<DeviceItem> {
        let known = self.devices.get(&id);
        known
            .map(|device| device.item)
            .ok_or_else(|| Error::Malformed(format!("the chunk tree knows no device {id}")))
    }

    /// A commit is about to make this a device's item.
    pub(crate) fn set_item(&mut self, item: DeviceItem) {
        if let Some(device) = self.devices.get_mut(&item.devid) {
            device.item = item;
        }
    }

    /// Every device, here or not.
    pub(crate) fn ids(&self) -> Vec<DeviceId> {
        self.devices.keys().copied().collect()
    }

    /// A number that no device has.
    pub(crate) fn next_id(&self) -> DeviceId {
        DeviceId(self.devices.keys().next_back().map_or(1, |last| last.0 + 1))
    }

    /// Its end is where its item says.
    pub(crate) fn show(&mut self, id: DeviceId) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.hidden = None;
        }
    }

    /// Gives out nothing of a device from a place on: its end is about to be there.
    pub(crate) fn hide(&mut self, id: DeviceId, from: u64) {
        if let Some(device) = self.devices.get_mut(&id) {
            device.free.remove(from..u64::MAX);
            device.hidden = Some(from);
        }
    }

    /// Forgets a device.
    pub(crate) fn remove_device(&mut self, id: DeviceId) -> Result<()> {
        if self.devices.len() < 2 {
            return Err(Error::NoSpace("a volume without devices"));
        }
        self.item(id)?;
        self.devices.remove(&id);
        Ok(())
    }

    /// Spreads new chunks of a kind in this way, whatever the others are like; or like the others.
    pub(crate) fn set_target(&mut self, kind: BlockGroupFlags, profile: Option<Profile>) {
        match profile {
            Some(profile) => self.targets.insert(kind, profile),
            None => self.targets.remove(&kind),
        };
    }

    /// Whether a kind can have a profile with the devices that can be written.
    pub(crate) fn can_have(&self, kind: BlockGroupFlags, profile: Profile) -> bool {
        let usable = self.devices.values().filter(|device| device.usable).count();
        profile.spread().least <= usable && (profile.spread().parity == 0 || self.has_rows(kind))
    }

    /// Whether a kind is written with parity.
    fn has_rows(&self, kind: BlockGroupFlags) -> bool {
        self.rows && kind.kind() == BlockGroupFlags::DATA
    }

    /// A block group came.
    pub(crate) fn count_group(&mut self, flags: BlockGroupFlags) {
        *self.groups.entry(flags).or_default() += 1;
    }

    /// Lets nobody have the addresses of a chunk that is about to be removed (A2).
    pub(crate) fn keep_addresses(&mut self, group: Extent) {
        self.next_logical = self.next_logical.max(group.end().0);
    }

    /// A block group went.
    pub(crate) fn uncount_group(&mut self, flags: BlockGroupFlags) {
        if let Some(count) = self.groups.get_mut(&flags) {
            *count -= 1;
            if *count == 0 {
                self.groups.remove(&flags);
            }
        }
    }

    /// Whether any block group has parity.
    pub(crate) fn has_parity(&self) -> bool {
        let parity = |flags: &BlockGroupFlags| {
            matches!(Profile::of(*flags), Some(Profile::Raid5 | Profile::Raid6))
        };
        self.groups.keys().any(parity)
    }

    /// How the next chunk of a kind is spread: as the safest that there is, if the devices are
    /// enough for it.
    pub(crate) fn profile_of(&self, kind: BlockGroupFlags) -> Profile {
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

    /// What no chunk takes of a device at or behind `from`, superblocks left out: no more than `most`, of holes
    /// of at least `least`.
    pub(crate) fn unallocated_behind(
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

    /// Keeps so many bytes of metadata, one copy counted, from data.
    pub(crate) fn keep_for_metadata(&mut self, bytes: u64) {
        self.kept = self.kept.max(bytes);
    }

    /// Whether data lacks something that metadata was promised.
    pub(crate) fn keeps_for_metadata(&self) -> bool {
        self.kept > 0
    }

    /// Keeps so many, whatever was kept before.
    pub(crate) fn keep_exactly(&mut self, bytes: u64) {
        self.kept = bytes;
    }

    /// Bytes of all devices.
    pub(crate) fn total(&self) -> u64 {
        self.devices.values().map(|device| device.item.total_bytes).sum()
    }

    /// Bytes of all devices that no chunk takes.
    pub(crate) fn unallocated(&self) -> u64 {
        self.devices.values().map(|device| device.free.total()).sum()
    }

    /// Bytes that new chunks of a kind could have, one copy counted.
    pub(crate) fn available(&self, kind: BlockGroupFlags) -> u64 {
        let usable = self.devices.values().filter(|device| device.usable);
        place::capacity(self.profile_of(kind), usable.map(|device| device.free.total()))
    }

    fn place(&self, flags: BlockGroupFlags, profile: Profile) -> Option<place::Places> {
        let usable = self.devices.iter().filter(|(_, device)| device.usable);
        let rooms: Vec<_> =
            usable.map(|(id, known)| Room { device: *id, free: &known.free }).collect();
        let total = self.devices.values().filter(|device| device.usable);
        let total = total.map(|device| device.item.total_bytes).sum();
        place::place(profile, &rooms, Limits::of(flags, total))
    }
}

impl Engine {
    /// Adds a chunk in the running transaction. False when the devices have no room.
    pub(crate) fn add_chunk(&self, kind: SpaceKind) -> Result<bool> {
        let (_inside, running) = self.enter();
        self.add_chunk_to(&running, kind)
    }

    /// Adds a data chunk where nobody has more than small pieces for what is wanted whole, as Linux does before it cuts
    /// a write up: each piece is an extent, an item and a request of its own, and is in pieces again when it is
    /// overwritten. Only while the devices have a good part left, for what must have a chunk (A3).
    ///
    /// `groups` is how many there were before anything was looked for: who comes second finds what the first has added.
    pub(crate) fn grow_for_whole(&self, wanted: u64, got: u64, groups: usize) {
        let whole = wanted.min(WHOLE_MAX);
        if got > whole / PIECES_MIN || self.space.is_mixed() {
            return;
        }
        let has_spare = || {
            let devices = self.devices.lock();
            devices.unallocated() > devices.total() / SPARE_PART
        };
        let Some(_growing) = self.growing.try_lock() else { return };
        if self.space.count_of(SpaceKind::Data) != groups
            || self.space.may_load_run(SpaceKind::Data, whole)
            || !has_spare()
        {
            return;
        }
        // What was got is good, whatever comes of this.
        if let Err(error) = self.add_chunk(SpaceKind::Data) {
            tracing::debug!(%error, "no chunk for data that is in pieces");
        }
    }

    /// The bits of block groups that hold a kind.
    pub(crate) fn kind_flags(&self, kind: SpaceKind) -> BlockGroupFlags {
        match kind {
            SpaceKind::System => BlockGroupFlags::SYSTEM,
            _ if self.space.is_mixed() => BlockGroupFlags::DATA.with(BlockGroupFlags::METADATA),
            SpaceKind::Data => BlockGroupFlags::DATA,
            SpaceKind::Metadata => BlockGroupFlags::METADATA,
        }
    }

    /// Adds a chunk that a transaction will record.
    pub(crate) fn add_chunk_to(&self, transaction: &Transaction, kind: SpaceKind) -> Result<bool> {
        let mut devices = self.devices.lock();
        for lost in self.volume.devices().iter().filter(|device| device.is_lost()) {
            devices.set_usable(lost.id, false);
        }
        let flags = self.kind_flags(kind);
        let profile = devices.profile_of(flags);
        let flags = flags.with(profile.flags());
        let Some(places) = devices.place(flags, profile) else { return Ok(false) };
        let len = places.stripe_bytes;
        for (id, offset) in &places.stripes {
            devices.take(*id, *offset, len);
        }
        let metadata = self.kind_flags(SpaceKind::Metadata);
        if kind == SpaceKind::Data
            && !self.space.is_mixed()
            && devices.available(metadata) < devices.kept
        {
            for (id, offset) in &places.stripes {
                devices.give(*id, *offset, len);
            }
            return Ok(false);
        }
        let behind = self.volume.last_chunk().map_or(MIB, |c| c.logical.end(c.len).0);
        let logical = behind.max(devices.next_logical);
        let geometry = self.store.geometry();
        let mut stripes = Vec::with_capacity(places.stripes.len());
        for (device, offset) in &places.stripes {
            let dev_uuid = devices.item(*device)?.uuid;
            stripes.push(Stripe { device: *device, offset: *offset, dev_uuid });
        }
        let chunk = Chunk {
            logical: Logical(logical),
            len: places.len,
            owner: 2,
            stripe_len: limits::STRIPE_LEN,
            flags,
            io_align: limits::STRIPE_LEN as u32,
            io_width: limits::STRIPE_LEN as u32,
            sector_size: geometry.sectorsize,
            sub_stripes: profile.sub_stripes(),
            stripes,
        };
        let extent = DevExtent {
            chunk_tree: 3,
            chunk_objectid: ids::FIRST_CHUNK_TREE,
            chunk_offset: chunk.logical,
            length: len,
            chunk_tree_uuid: geometry.chunk_tree_uuid,
        };
        self.volume.add_chunk(chunk.clone())?;
        let row = crate::rows::given_out(&self.volume, flags, chunk.logical);
        self.note_row(row);
        self.space.add_group(GroupInit {
            range: Extent { start: chunk.logical, len: chunk.len },
            flags,
            used: 0,
            birth: transaction.generation,
            read_only: false,
            superblock_stripes: chunk.superblock_stripes(),
            row,
        })?;
        devices.next_logical = logical + chunk.len;
        devices.count_group(flags);
        match profile {
            Profile::Raid1c3 | Profile::Raid1c4 => self.need_feature(Incompat::RAID1C34),
            Profile::Raid5 | Profile::Raid6 => self.need_feature(Incompat::RAID56),
            _ => {}
        }
        tracing::info!(%flags, start = logical, len = chunk.len, "new chunk");
        let stripes = places.stripes.into_iter().map(|(id, offset)| (id, offset, extent)).collect();
        transaction.chunks.lock().push(NewChunk { chunk, flags, stripes });
        Ok(true)
    }
}
