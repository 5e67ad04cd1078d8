//! From a volume's superblock to an engine.
//!
//! # Failure
//!
//! Nothing is written while a volume is opened. Whatever keeps us from writing it rightly makes it
//! read-only, with the reason; whatever keeps us from reading it is an error.

use std::{collections::BTreeMap, sync::Arc};

use buttress_format::{
    BlockGroupItem, CompatRo, DevExtent, DevStats, DeviceId, Extent, Incompat, Key, Kind, Logical,
    RootItem, Stripe, Superblock, TreeId, ids,
};
use buttress_space::{AllocPolicy, GroupInit, LookupPolicy, Space, SpaceKind};
use buttress_tree::{Cursor, Expect, Geometry, NodePtr, NodeSource, Roots, Store, boot};
use buttress_volume::{Parity, Volume};

use crate::{
    Engine, Error, PromisePolicy, Result,
    chunk_alloc::DeviceSpace,
    commit::{CommitState, GroupRecord},
    engine::Parts,
    log::{self, LogCopies},
    rows, writable,
};

/// How an engine is opened.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Open for reading only.
    pub read_only: bool,
    /// Tell the devices about freed space.
    pub discard: bool,
    /// Memory for tree nodes, in bytes.
    pub cache_bytes: u64,
    /// Memory that a running transaction may hold before a commit starts on its own, in bytes.
    pub overlay_max: u64,
    /// Record all free space anew, in a free-space tree, also where there was none.
    pub rebuild_free_space: bool,
    /// Open read-only although there is a log of fsync that was not replayed.
    pub ignore_log: bool,
    /// fsync writes a log; without, it commits.
    pub tree_log: bool,
    /// Which copies of a log an fsync waits for.
    pub log_copies: LogCopies,
    /// Whoever opens will replay a log of fsync; see [`Engine::take_log`].
    pub replay_log: bool,
    /// How block groups are chosen for allocations.
    pub alloc: AllocPolicy,
    /// How the block group of an address is found.
    pub lookup: LookupPolicy,
    /// How much metadata a promise takes.
    pub promise: PromisePolicy,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            discard: false,
            cache_bytes: 256 << 20,
            overlay_max: 192 << 20,
            rebuild_free_space: false,
            ignore_log: false,
            tree_log: true,
            log_copies: LogCopies::default(),
            replay_log: false,
            alloc: AllocPolicy::default(),
            lookup: LookupPolicy::default(),
            promise: PromisePolicy::default(),
        }
    }
}

impl Engine {
    /// Opens the trees of a volume. Where it cannot be written rightly it is opened read-only, and
    /// [`Engine::read_only`] says why.
    ///
    /// # Errors
    ///
    /// When trees that everything rests on are damaged or missing, or there is an fsync log and
    /// nobody said to ignore it.
    pub fn open(
        volume: Arc<Volume>,
        superblock: Superblock,
        options: EngineOptions,
    ) -> Result<Arc<Self>> {
        let has_log = log::has_log(&superblock) && !options.ignore_log;
        if has_log && !options.replay_log {
            return Err(Error::Log);
        }
        let store = open_store(&volume, &superblock, options.cache_bytes)?;
        let chunk_tree = boot::load_chunks(&store, &superblock)?;
        let roots = read_roots(&store, &superblock)?;
        let groups = read_groups(&store, &superblock, &roots, &volume)?;
        let mut devices = DeviceSpace::new(volume.parity() == Parity::Rows);
        for item in &chunk_tree.devices {
            // The chunk tree is right about a device; its own superblock may be older.
            volume.update_device(*item);
            devices.add_device(*item, volume.device(item.devid).is_some());
        }
        for record in groups.values() {
            devices.count_group(record.flags);
        }
        read_device_tree(&store, &roots, &volume, &mut devices)?;
        let mut read_only = options.read_only.then(|| "it was asked for".to_string());
        if read_only.is_none() {
            read_only = writable::obstacle(&volume, &store, &superblock, &roots)?;
        }
        if read_only.is_none() {
            read_only = unrecorded_stripe(&volume, &devices);
        }
        if let Some(why) = read_only.as_ref().filter(|_| has_log) {
            return Err(Error::LogStays(why.clone()));
        }
        let found = if has_log { Some(log::read(&store, &superblock)?) } else { None };
        let mut space = Space::new(superblock.sectorsize, superblock.nodesize)
            .choosing(options.alloc)
            .looking_up(options.lookup);
        if superblock.incompat.has(Incompat::MIXED_GROUPS) {
            space = space.mixed();
        }
        let space = Arc::new(space);
        if read_only.is_none() {
            add_groups(&space, &volume, &groups)?;
        }
        let has_tree = superblock.compat_ro.has(CompatRo::FREE_SPACE_TREE);
        let is_stale = has_tree && !superblock.compat_ro.has(CompatRo::FREE_SPACE_TREE_VALID);
        let rebuild = (is_stale || options.rebuild_free_space) && read_only.is_none();
        let height = roots.iter().map(|(_, root)| root.level).max().unwrap_or(0);
        let commit = CommitState { superblock, roots, groups };
        let engine =
            Self::join(Parts { volume, store, space, options, read_only, commit, devices, height });
        if engine.read_only.is_none() {
            engine.size_global_reserve();
        }
        if engine.read_only.is_none() && engine.volume.parity() == Parity::Mirror {
            engine.make_room_beside_parity()?;
        }
        if rebuild {
            engine.rebuild_free_space();
        }
        if engine.read_only.is_none() {
            engine.load_rows();
        }
        if let Some(found) = found {
            engine.claim_log(found)?;
        } else if rebuild {
            engine.commit()?;
        }
        Ok(engine)
    }
}

impl Engine {
    /// Where all groups of nodes have parity, which is not written, others come first: data must not take
    /// the room, and a commit must not be the one to find out.
    fn make_room_beside_parity(&self) -> Result<()> {
        for kind in [SpaceKind::System, SpaceKind::Metadata] {
            let groups = self.space.groups_of(kind);
            let is_left = groups.iter().all(|group| self.volume.has_parity(group.start()));
            if is_left && !self.add_chunk(kind)? {
                return Err(Error::NoSpace("metadata beside block groups with parity"));
            }
        }
        Ok(())
    }
}

/// The chunk tree's uuid is in its root node alone; what it says is needed for every node we write.
fn open_store(volume: &Arc<Volume>, sb: &Superblock, cache_bytes: u64) -> Result<Arc<Store>> {
    let mut geometry = Geometry {
        nodesize: sb.nodesize,
        sectorsize: sb.sectorsize,
        csum: sb.csum_type,
        fsid: sb.tree_fsid(),
        chunk_tree_uuid: [0; 16],
    };
    let first = Store::new(Arc::clone(volume), geometry, 0);
    let root = first.root(TreeId::CHUNK, boot::chunk_root(sb))?;
    geometry.chunk_tree_uuid = root.header().chunk_tree_uuid;
    Ok(Arc::new(Store::new(Arc::clone(volume), geometry, cache_bytes)))
}

fn read_roots(store: &Store, sb: &Superblock) -> Result<Roots> {
    let mut roots = Roots::new(sb.generation);
    let root_tree = boot::root_tree_root(sb);
    roots.set(TreeId::ROOT, root_tree);
    roots.set(TreeId::CHUNK, boot::chunk_root(sb));
    let needed = [TreeId::EXTENT, TreeId::DEV, TreeId::CSUM, TreeId::FS];
    let mut wanted = needed.to_vec();
    wanted.extend([TreeId::UUID, TreeId::QUOTA]);
    if sb.compat_ro.has(CompatRo::FREE_SPACE_TREE) {
        wanted.push(TreeId::FREE_SPACE);
    }
    if sb.compat_ro.has(CompatRo::BLOCK_GROUP_TREE) {
        wanted.push(TreeId::BLOCK_GROUP);
    }
    for tree in wanted {
        let last = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
        let cursor = Cursor::seek_before(store, TreeId::ROOT, root_tree, &last)?;
        let found = cursor
            .key()
            .zip(cursor.item())
            .filter(|(key, _)| key.objectid == tree.0 && key.kind == Kind::ROOT_ITEM);
        let Some((key, item)) = found else {
            if needed.contains(&tree) {
                return Err(buttress_tree::Error::NoTree(tree).into());
            }
            continue;
        };
        let item = RootItem::parse(item).map_err(|source| Error::Item {
            tree: TreeId::ROOT,
            key,
            source,
        })?;
        let ptr = NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
        // A root that cannot be read is found now, not in the middle of an operation.
        store.node(tree, &Expect::root(ptr))?;
        roots.set(tree, ptr);
    }
    Ok(roots)
}

/// Every block group's item. Where they have a tree of their own that is one walk over its leaves; in the extent tree
/// a search for each, but for those that share a leaf.
fn read_groups(
    store: &Store,
    sb: &Superblock,
    roots: &Roots,
    volume: &Volume,
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
    for chunk in chunks.iter() {
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

/// What chunks take of each device, and what earlier sessions counted of its failures.
fn read_device_tree(
    store: &Store,
    roots: &Roots,
    volume: &Volume,
    devices: &mut DeviceSpace,
) -> Result<()> {
    let root = roots.find(TreeId::DEV).ok_or(buttress_tree::Error::NoTree(TreeId::DEV))?;
    let mut cursor = Cursor::seek(store, TreeId::DEV, root, &Key::MIN)?;
    while let Some((key, item)) = cursor.key().zip(cursor.item()) {
        if key.kind == Kind::DEV_EXTENT {
            let extent = DevExtent::parse(item).map_err(|source| Error::Item {
                tree: TreeId::DEV,
                key,
                source,
            })?;
            devices.take(DeviceId(key.objectid), key.offset, extent.length);
        }
        if key.kind == Kind::PERSISTENT_ITEM
            && key.objectid == ids::DEV_STATS
            && let Some(device) = volume.device(DeviceId(key.offset))
        {
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

/// Why nothing may be written, if a chunk lies where the device tree has none: the next new one would be put over it.
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

fn add_groups(
    space: &Space,
    volume: &Volume,
    groups: &BTreeMap<Logical, GroupRecord>,
) -> Result<()> {
    let mut inits = Vec::with_capacity(groups.len());
    for ((start, record), chunk) in groups.iter().zip(volume.chunks().iter()) {
        assert!(*start == chunk.logical, "every chunk has its record, and no other is there");
        let stripes = chunk.superblock_stripes();
        let row = rows::given_out(volume, record.flags, *start);
        inits.push(GroupInit {
            range: Extent { start: *start, len: record.len },
            flags: record.flags,
            used: record.used,
            birth: buttress_format::Generation(0),
            // What would be written beside parity, but not in rows, goes elsewhere.
            read_only: volume.has_parity(*start) && row.is_none(),
            superblock_stripes: stripes,
            row,
        });
    }
    space.add_groups(inits)?;
    Ok(())
}
