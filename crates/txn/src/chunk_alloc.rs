//! New chunks: device space becomes logical space.
//!
//! # Invariants
//!
//! - **A1** A chunk belongs to the transaction that was running when the chunk was made, and that
//!   transaction's commit records the chunk. A commit in progress never allocates from a chunk of a
//!   younger transaction (`txn::T11`). So a younger transaction makes no chunk while the commit may
//!   still need the remaining device space.
//! - **A2** Device space and addresses of a removed chunk are used again only after its removal is
//!   durable.
//! - **A3** Some chunks are made only so that data gets extents in one piece. Such a chunk is made
//!   only while more than a quarter of the device space is unallocated, so that metadata can use
//!   the rest.
//! - **A4** A balance may move extents in one piece. The chunk for these extents gets the length
//!   `whole`, if all its devices have holes of this length. `whole` may exceed the usual length of
//!   a new chunk, because the old chunk may have been made under other limits.

use buttress_format::{
    BlockGroupFlags, Chunk, DevExtent, Extent, Incompat, Logical, Profile, Stripe, ids, limits,
};
use buttress_space::{GroupInit, SpaceKind};

use crate::devices::known_item;
use crate::{
    Commits, Result, Storage,
    reserve::{self, Reservations},
    transaction::{NewChunk, Transaction},
};

const MIB: u64 = 1 << 20;
/// Data counts as *in pieces* if one allocation got at most 1/`PIECES_MIN` of the wanted bytes.
/// More than `WHOLE_MAX` wanted bytes count as `WHOLE_MAX`.
const WHOLE_MAX: u64 = 512 << 10;
const PIECES_MIN: u64 = 4;
/// A chunk for data in pieces is made only while more than 1/`SPARE_PART` of the device space is
/// unallocated (A3).
const SPARE_PART: u64 = 4;

impl Storage {
    /// Adds a chunk in the running transaction. False when the devices have no room.
    pub(crate) fn add_chunk(
        &self,
        commits: &Commits,
        reservations: &Reservations,
        kind: SpaceKind,
    ) -> Result<bool> {
        self.add_chunk_for(commits, reservations, kind, 0)
    }

    /// As [`add_chunk`](Self::add_chunk). The chunk has at least `whole` bytes if the devices have
    /// a hole of that length (A4).
    pub fn add_chunk_for(
        &self,
        commits: &Commits,
        reservations: &Reservations,
        kind: SpaceKind,
        whole: u64,
    ) -> Result<bool> {
        let (_inside, running) = commits.enter();
        self.add_chunk_to(commits, reservations, &running, kind, whole)
    }

    /// Adds a data chunk if all groups have only small pieces for an allocation that should be in
    /// one piece. Linux also adds a chunk before it splits a write. Each piece costs an extent, an
    /// item and a request, and is split again when it is overwritten. The chunk is made only while
    /// much device space is unallocated (A3).
    ///
    /// `groups` is the number of data groups before the allocation searched them. If the number has
    /// changed, another thread has added a chunk, and this call adds none.
    pub(crate) fn grow_for_whole(
        &self,
        commits: &Commits,
        reservations: &Reservations,
        wanted: u64,
        got: u64,
        groups: usize,
    ) {
        let whole = wanted.min(WHOLE_MAX);
        if got > whole / PIECES_MIN || self.space().is_mixed() {
            return;
        }
        let has_spare = || {
            let devices = self.devices();
            devices.unallocated() > devices.total() / SPARE_PART
        };
        let Some(_growing) = self.groups().try_grow() else { return };
        if self.space().count_of(SpaceKind::Data) != groups
            || self.space().may_load_run(SpaceKind::Data, whole)
            || !has_spare()
        {
            return;
        }
        // A failure here is no error: the caller can use the extent that it got.
        if let Err(error) = self.add_chunk(commits, reservations, SpaceKind::Data) {
            tracing::debug!(%error, "no chunk for data that is in pieces");
        }
    }

    /// The bits of block groups that hold a kind.
    #[must_use]
    pub fn kind_flags(&self, kind: SpaceKind) -> BlockGroupFlags {
        reserve::kind_flags(self.space(), kind)
    }

    /// Adds a chunk that `transaction` will record. It has at least `whole` bytes if the devices
    /// have a hole of that length. Returns false when the devices have no room for a chunk.
    pub(crate) fn add_chunk_to(
        &self,
        commits: &Commits,
        reservations: &Reservations,
        transaction: &Transaction,
        kind: SpaceKind,
        whole: u64,
    ) -> Result<bool> {
        let mut devices = self.devices();
        for lost in self.volume().devices().iter().filter(|device| device.is_lost()) {
            devices.set_usable(lost.id, false);
        }
        let flags = self.kind_flags(kind);
        let profile = devices.profile_of(flags);
        let flags = flags.with(profile.flags());
        let Some(places) = devices.place(flags, profile, whole) else { return Ok(false) };
        let len = places.stripe_bytes;
        for (id, offset) in &places.stripes {
            devices.take(*id, *offset, len);
        }
        let metadata = self.kind_flags(SpaceKind::Metadata);
        let is_data = kind == SpaceKind::Data && !self.space().is_mixed();
        if (is_data && !devices.leaves_kept(metadata))
            || !reservations.leaves_frozen(transaction, &devices)
        {
            for (id, offset) in &places.stripes {
                devices.give(*id, *offset, len);
            }
            return Ok(false);
        }
        let behind = self.volume().last_chunk().map_or(MIB, |c| c.logical.end(c.len).0);
        let logical = behind.max(devices.next_logical);
        let geometry = self.store().geometry();
        let mut stripes = Vec::with_capacity(places.stripes.len());
        for (device, offset) in &places.stripes {
            let dev_uuid = known_item(&devices, *device)?.uuid;
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
        if kind == SpaceKind::Metadata {
            // The bytes kept for copies move into the chunk before other threads can see the new
            // space.
            self.space().add_for_copies(devices.move_kept_for_copies(chunk.len));
        }
        self.volume().add_chunk(chunk.clone())?;
        let row = crate::rows::row_of(self.volume(), flags, chunk.logical);
        self.note_row(reservations, flags, row);
        self.space().add_group(GroupInit {
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
            Profile::Raid1c3 | Profile::Raid1c4 => commits.need_feature(Incompat::RAID1C34),
            Profile::Raid5 | Profile::Raid6 => commits.need_feature(Incompat::RAID56),
            _ => {}
        }
        tracing::info!(%flags, start = logical, len = chunk.len, "new chunk");
        let stripes = places.stripes.into_iter().map(|(id, offset)| (id, offset, extent)).collect();
        transaction.chunks.lock().push(NewChunk { chunk, flags, stripes });
        Ok(true)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use buttress_block::MemoryDevice;
    use buttress_fs::make::{MakeOptions, make};
    use buttress_volume::{OpenOptions, Volume};

    use super::*;
    use crate::{Engine, EngineOptions};

    /// An engine over an empty volume in memory.
    pub(crate) fn engine(mib: u64) -> Arc<Engine> {
        let device = Arc::new(MemoryDevice::new(mib << 20));
        make(&*device, &MakeOptions { seed: Some(1), ..MakeOptions::default() }).expect("a volume");
        let options = OpenOptions { writable: true, ..OpenOptions::default() };
        let (volume, superblock) = Volume::open(vec![device], options).expect("a volume");
        Engine::open(Arc::new(volume), superblock, EngineOptions::default()).expect("it opens")
    }

    /// A1: a younger transaction takes no device space that the commit in progress may still need,
    /// because that commit cannot use the younger transaction's groups. The commit itself may take
    /// this space.
    #[test]
    fn chunks_of_a_commit_are_left_to_it() {
        let engine = engine(256);
        let kind = engine.storage().kind_flags(SpaceKind::Metadata);
        let left = || engine.storage().devices().available(kind);
        let free = || engine.storage().space().account(SpaceKind::Metadata).free();
        let may = |kind| engine.add_chunk(kind).expect("no failure");
        let frozen = crate::commit::Owners::of(&engine).freeze();
        let there = free();
        engine.reservations().frozen().begin(there + left() / 4);
        while may(SpaceKind::Metadata) {}
        assert!(free() > there, "some was made");
        let need = engine.reservations().frozen().left() - there;
        assert!(left() >= need, "{} are left, and {need} needed", left());
        assert!(!may(SpaceKind::Data));
        let mut made = 0;
        while made < need {
            let before = free();
            let is_made = engine.storage().add_chunk_to(
                engine.commits(),
                engine.reservations(),
                &frozen,
                SpaceKind::Metadata,
                0,
            );
            assert!(is_made.expect("no failure"), "{made} of {need}");
            made += free() - before;
        }
        engine.reservations().frozen().begin(0);
        while may(SpaceKind::Metadata) {}
        assert!(left() < MIB);
    }

    /// `reserve::copies::Y3`: bytes kept for copies are still kept after they moved from the
    /// devices into a chunk.
    #[test]
    fn room_moves_into_the_chunk() {
        let engine = engine(256);
        const ROOM: u64 = 40 * MIB;
        engine.storage().devices().keep_for_copies(ROOM);
        let kept = || {
            let account = engine.storage().space().account(SpaceKind::Metadata);
            let taken = account.global_reserve - account.for_copies;
            (engine.storage().devices().kept_for_copies(), account.for_copies, taken)
        };
        let (_, _, reserve) = kept();
        let mut chunks = 0;
        while kept().0 > 0 {
            assert!(engine.add_chunk(SpaceKind::Metadata).expect("no failure"));
            let (on_devices, in_groups, others) = kept();
            assert_eq!((on_devices + in_groups, others), (ROOM, reserve));
            chunks += 1;
        }
        assert!(chunks > 1, "not all at once");
    }
}
