//! Reads the data that grows with the number of block groups: chunks, the groups' items and the
//! device extents.
//!
//! # Place
//!
//! Reading all groups of a volume with a million groups takes seconds, but a reader of one file
//! needs three groups. So if the chunk tree is larger than one leaf, the opening reads no groups.
//! After the opening, the first thread that needs the groups reads them: a writer, or the
//! background thread. Until then chunks are looked up one by one.
//!
//! # Invariants
//!
//! - **K1** No reservation, put, allocation or commit happens before the groups are known. Every
//!   such call first calls `Engine::check_writable`, which waits until the groups are known.
//! - **K2** One thread at a time reads the groups, from the commit that was found at opening. By K1
//!   there is no later commit yet.
//! - **K3** If damage is found for which the opening would have failed, the volume becomes
//!   read-only, with the reason. Nothing was written before, and nothing is written afterwards.
//!
//! # Locks
//!
//! `turn` is a long lock, held across I/O. A thread that holds the commit lock has called
//! `check_writable` before, so it does not take `turn`.

use std::collections::BTreeMap;

use buttress_base::{clock, interrupt};
use buttress_format::{
    BlockGroupItem, CompatRo, DevExtent, DevStats, DeviceId, Extent, Key, Kind, Logical, Stripe,
    Superblock, TreeId, ids,
};
use buttress_space::{GroupInit, Space};
use buttress_tree::boot::{self, ChunkTree};
use buttress_tree::{Cursor, Roots, Store};
use buttress_volume::{Parity, Volume};

use crate::commits::GroupRecord;
use crate::reserve::Reservations;
use crate::{Commits, Error, Result, Storage, rows};
use buttress_volume::DeviceSpace;

/// Number of items between two checks for a stop.
const STRIDE: usize = 4096;

/// All data that this module reads.
#[derive(Default)]
pub(crate) struct LoadedGroups {
    pub(crate) groups: BTreeMap<Logical, GroupRecord>,
    pub(crate) devices: DeviceSpace,
    /// The reason why the volume must not be written, if there is one.
    pub(crate) obstacle: Option<String>,
}

impl LoadedGroups {
    /// Reads groups and device extents, once all chunks are in the map. An error of `tick` stops
    /// the reading.
    pub(crate) fn read(
        store: &Store,
        sb: &Superblock,
        roots: &Roots,
        chunk_tree: &ChunkTree,
        tick: &dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        let volume = store.volume();
        let groups = read_groups(store, sb, roots, volume, tick)?;
        let mut devices = DeviceSpace::new(volume.parity() == Parity::Rows);
        for item in &chunk_tree.devices {
            // The chunk tree has the valid device item; the copy in the device's superblock may be
            // older.
            volume.update_device(*item);
            let here = volume.device(item.devid);
            let is_seed = here.as_ref().is_some_and(|device| device.is_seed());
            devices.add_device(*item, here.is_some() && !is_seed);
            if is_seed {
                devices.hide(item.devid, 0);
            }
        }
        for record in groups.values() {
            devices.count_group(record.flags);
        }
        read_device_extents(store, roots, &mut devices, tick)?;
        let obstacle = volume.read_only_reason().or_else(|| unrecorded_stripe(volume, &devices));
        Ok(Self { groups, devices, obstacle })
    }
}

impl Storage {
    /// Waits until the block groups are known, and reads them if no other thread does. A volume
    /// that was opened without its groups has empty accounts until then.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`] after [`Self::stop_learning`]. A failure to read the groups is no error
    /// here. It makes the volume read-only, and `Engine::read_only` returns the reason.
    pub(crate) fn know_groups(&self, commits: &Commits, reservations: &Reservations) -> Result<()> {
        if self.learning().is_known() { Ok(()) } else { self.learn(commits, reservations) }
    }

    /// Every change passes this check first (K1).
    pub(crate) fn check_writable(
        &self,
        commits: &Commits,
        reservations: &Reservations,
    ) -> Result<()> {
        commits.check_unlatched()?;
        self.know_groups(commits, reservations)?;
        match self.learning().unfit() {
            Some(why) => Err(Error::ReadOnly(why.clone())),
            None => Ok(()),
        }
    }

    /// Stops the reading of block groups permanently, because the volume is about to be closed. By
    /// K1 nothing was written before.
    pub fn stop_learning(&self) {
        self.learning().stop();
    }

    #[cold]
    fn learn(&self, commits: &Commits, reservations: &Reservations) -> Result<()> {
        let _turn = self.learning().take_turn();
        if self.learning().is_known() {
            return Ok(());
        }
        let begun = clock::now();
        // A caller that gives up must not make the volume read-only (K3).
        match interrupt::without_cancel(|| self.learn_all(commits, reservations)) {
            Ok(groups) => {
                let millis = clock::since(begun).as_millis() as u64;
                tracing::info!(groups, millis, "the block groups are known");
            }
            Err(Error::Stopped) => return Err(Error::Stopped),
            Err(error) => {
                tracing::error!(%error, "the block groups cannot be read");
                self.learning().set_unfit(error.to_string());
            }
        }
        self.learning().set_known();
        Ok(())
    }

    fn learn_all(&self, commits: &Commits, reservations: &Reservations) -> Result<usize> {
        let tick = || match self.learning().is_stopped() {
            true => Err(Error::Stopped),
            false => Ok(()),
        };
        tick()?;
        let (superblock, roots) = {
            let state = commits.lock();
            (state.superblock.clone(), state.roots.clone())
        };
        let chunk_tree = boot::load_chunks(self.store(), &superblock)?;
        self.learning().end_chunk_lookups();
        let known = LoadedGroups::read(self.store(), &superblock, &roots, &chunk_tree, &tick)?;
        let count = known.groups.len();
        let may_write = commits.health().read_only().is_none();
        if let Some(why) = known.obstacle.filter(|_| may_write || self.options().may_begin_writing)
        {
            self.learning().set_unfit(why);
        } else if may_write {
            add_groups(self.space(), self.volume(), &known.groups)?;
        }
        *self.devices() = known.devices;
        commits.lock().groups = known.groups;
        if may_write {
            reservations.look_at_trees(self.store(), &roots)?;
            reservations.size_global_reserve();
        }
        Ok(count)
    }
}

/// Reads every block group's item. If the items have a tree of their own, one walk over its leaves
/// reads them. In the extent tree each group needs a search, except for items in the same leaf.
fn read_groups(
    store: &Store,
    sb: &Superblock,
    roots: &Roots,
    volume: &Volume,
    tick: &dyn Fn() -> Result<()>,
) -> Result<BTreeMap<Logical, GroupRecord>> {
    let tree = if sb.compat_ro.has(CompatRo::BLOCK_GROUP_TREE) {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    };
    let root = roots.find(tree).ok_or(buttress_tree::Error::NoTree(tree))?;
    let chunks = volume.chunks();
    let mut records = Vec::with_capacity(chunks.len());
    let mut cursor = Cursor::seek(store, tree, root, &Key::MIN)?;
    for (count, chunk) in chunks.iter().enumerate() {
        if count.is_multiple_of(STRIDE) {
            tick()?;
        }
        let key = Key::new(chunk.logical.0, Kind::BLOCK_GROUP_ITEM, chunk.len);
        cursor.seek_on(&key)?;
        let Some((node, slot)) = cursor.current().filter(|(node, slot)| node.key(*slot) == key)
        else {
            let at = chunk.logical;
            return Err(Error::Malformed(format!("the chunk at {at} has no block group item")));
        };
        let item = BlockGroupItem::parse(node.item(slot)).map_err(|source| Error::Item {
            tree,
            key,
            source,
        })?;
        let record = GroupRecord { len: chunk.len, flags: chunk.flags, used: item.used };
        records.push((chunk.logical, record));
    }
    // Sorted: the map is built in one pass.
    Ok(records.into_iter().collect())
}

/// Reads, for each device, the extents that belong to chunks.
fn read_device_extents(
    store: &Store,
    roots: &Roots,
    devices: &mut DeviceSpace,
    tick: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let root = roots.find(TreeId::DEV).ok_or(buttress_tree::Error::NoTree(TreeId::DEV))?;
    let mut cursor = Cursor::seek(store, TreeId::DEV, root, &Key::MIN)?;
    let mut count = 0_usize;
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        if key.kind == Kind::DEV_EXTENT {
            let extent = DevExtent::parse(item).map_err(|source| Error::Item {
                tree: TreeId::DEV,
                key,
                source,
            })?;
            devices.take(DeviceId(key.objectid), key.offset, extent.length);
        }
        cursor.advance()?;
        count += 1;
        if count.is_multiple_of(STRIDE) {
            tick()?;
        }
    }
    Ok(())
}

/// Reads the error counts that earlier sessions stored for each device. The counts are at the start
/// of the device tree.
pub(crate) fn read_device_stats(store: &Store, roots: &Roots) -> Result<()> {
    let root = roots.find(TreeId::DEV).ok_or(buttress_tree::Error::NoTree(TreeId::DEV))?;
    let from = Key::new(ids::DEV_STATS, Kind::PERSISTENT_ITEM, 0);
    let mut cursor = Cursor::seek(store, TreeId::DEV, root, &from)?;
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        if (key.objectid, key.kind) != (ids::DEV_STATS, Kind::PERSISTENT_ITEM) {
            break;
        }
        if let Some(device) = store.volume().device(DeviceId(key.offset)) {
            let stats = DevStats::parse(item).map_err(|source| Error::Item {
                tree: TreeId::DEV,
                key,
                source,
            })?;
            device.load_stats(&stats);
        }
        cursor.advance()?;
    }
    Ok(())
}

/// Returns why the volume must not be written if the device tree lacks the extent of a chunk. The
/// next new chunk could overwrite the data in that extent.
fn unrecorded_stripe(volume: &Volume, devices: &DeviceSpace) -> Option<String> {
    volume.chunks().iter().find_map(|chunk| {
        let len = chunk.stripe_bytes();
        let is_open = |at: &&Stripe| devices.may_give_out(at.device, at.offset, len);
        let at = chunk.stripes.iter().find(is_open)?;
        Some(format!(
            "chunk {} lies on device {}, at {}, where the device tree knows of none",
            chunk.logical, at.device, at.offset
        ))
    })
}

pub(crate) fn add_groups(
    space: &Space,
    volume: &Volume,
    groups: &BTreeMap<Logical, GroupRecord>,
) -> Result<()> {
    let mut inits = Vec::with_capacity(groups.len());
    for ((start, record), chunk) in groups.iter().zip(volume.chunks().iter()) {
        assert!(*start == chunk.logical, "every chunk has its record, and no other is there");
        let stripes = chunk.superblock_stripes();
        let row = rows::row_of(volume, record.flags, *start);
        inits.push(GroupInit {
            range: Extent { start: *start, len: record.len },
            flags: record.flags,
            used: record.used,
            birth: buttress_format::Generation(0),
            // Nothing is allocated in a group on a seed, or in a group with parity in which writes
            // cannot be whole rows.
            read_only: volume.is_never_rewritten(*start) && row.is_none(),
            superblock_stripes: stripes,
            row,
        });
    }
    space.add_groups(inits)?;
    Ok(())
}
