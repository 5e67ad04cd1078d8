//! Opens an engine from a volume's superblock.
//!
//! # Failure
//!
//! The opening writes nothing. If the volume cannot be written correctly, it is opened read-only,
//! with the reason. If the volume cannot be read, the opening fails.

use std::{collections::BTreeMap, sync::Arc};

use buttress_format::{
    CompatRo, DeviceId, DeviceItem, Generation, Incompat, Key, Kind, RootItem, Superblock, TreeId,
};
use buttress_space::{Space, SpaceKind};
use buttress_tree::{Cursor, Expect, Geometry, NodePtr, NodeSource, Roots, Store, boot};
use buttress_volume::{DeviceSpace, Parity, Volume};

use crate::{
    Commits, Engine, Error, Result, Storage,
    commits::CommitState,
    engine::Parts,
    found_log,
    learn::{self, LoadedGroups},
    learning::{self, LazyGroups},
    options::EngineOptions,
    reserve::Reservations,
    transaction::DeviceChange,
    writable,
};

impl Engine {
    /// Opens the trees of a volume. If the engine cannot write the volume correctly, it opens the
    /// volume read-only, and [`Engine::read_only`] returns the reason.
    ///
    /// # Errors
    ///
    /// When a required tree is damaged or missing, or when there is an fsync log and the options do
    /// not ignore it.
    pub fn open(
        volume: Arc<Volume>,
        superblock: Superblock,
        options: EngineOptions,
    ) -> Result<Arc<Self>> {
        let has_log = found_log::has_log(&superblock) && !options.ignore_log;
        if has_log && !options.replay_log {
            return Err(Error::Log);
        }
        let store = open_store(&volume, &superblock, &options)?;
        let has_tree = superblock.compat_ro.has(CompatRo::FREE_SPACE_TREE);
        let is_stale = has_tree && !superblock.compat_ro.has(CompatRo::FREE_SPACE_TREE_VALID);
        let rebuild = is_stale || options.rebuild_free_space;
        let learning = LazyGroups::default();
        let chunk_tree = if learning::is_behind(options.groups, &superblock, has_log || rebuild) {
            learning.begin_chunk_lookups(&store, &superblock);
            for item in boot::load_devices(&store, &superblock)? {
                volume.update_device(item);
            }
            None
        } else {
            Some(boot::load_chunks(&store, &superblock)?)
        };
        let may_lack = options.ignore_bad_roots && options.read_only;
        let roots = read_roots(&store, &superblock, may_lack)?;
        match learn::read_device_stats(&store, &roots) {
            Err(error) if may_lack => tracing::warn!(%error, "no counts of failures"),
            read => read?,
        }
        let known = match &chunk_tree {
            Some(tree) => match LoadedGroups::read(&store, &superblock, &roots, tree, &|| Ok(())) {
                Err(error) if may_lack => {
                    tracing::warn!(%error, "the block groups stay unknown");
                    Some(LoadedGroups::default())
                }
                read => Some(read?),
            },
            None => None,
        };
        let mut read_only = options.read_only.then(|| "it was asked for".to_string());
        if read_only.is_none() {
            read_only = writable::obstacle(&volume, &store, &superblock, &roots)?;
        }
        if read_only.is_none() {
            read_only = known.as_ref().and_then(|known| known.obstacle.clone());
        }
        if let Some(why) = read_only.as_ref().filter(|_| has_log) {
            return Err(Error::LogStays(why.clone()));
        }
        let found = if has_log { Some(found_log::read(&store, &superblock)?) } else { None };
        let mut space = Space::new(superblock.sectorsize, superblock.nodesize)
            .choosing(options.alloc)
            .looking_up(options.lookup);
        if superblock.incompat.has(Incompat::MIXED_GROUPS) {
            space = space.mixed();
        }
        let space = Arc::new(space);
        let rebuild = rebuild && read_only.is_none();
        let height = roots.iter().map(|(_, root)| root.level).max().unwrap_or(0);
        let is_behind = known.is_none();
        let obstacle = known.as_ref().and_then(|known| known.obstacle.clone());
        let obstacle = obstacle.filter(|_| options.may_begin_writing);
        let (groups, mut devices) = match known {
            Some(known) => (known.groups, known.devices),
            None => (BTreeMap::new(), DeviceSpace::default()),
        };
        let sprout = options.sprout;
        if let Some(item) = sprout {
            devices.add_device(item, true);
        }
        if read_only.is_none() {
            volume.mend_torn_superblocks(&superblock)?;
            learn::add_groups(&space, &volume, &groups)?;
        }
        let first = first_generation(&volume, &devices, superblock.generation);
        let commit = CommitState { superblock, roots, groups };
        let engine = Self::join(Parts {
            store,
            space,
            options,
            read_only,
            commit,
            devices,
            learning,
            height,
            first,
        });
        if engine.commits().health().read_only().is_none() {
            engine.commits().take_up_replacement(engine.storage())?;
        }
        if is_behind {
            return Ok(engine);
        }
        engine.storage().learning().set_known();
        if let Some(why) = obstacle {
            engine.storage().learning().set_unfit(why);
        }
        if engine.commits().health().read_only().is_none() {
            let roots = engine.commits().lock().roots.clone();
            engine.reservations().look_at_trees(engine.storage().store(), &roots)?;
            engine.reservations().size_global_reserve();
        }
        if engine.commits().health().read_only().is_none() {
            engine.storage().make_room_for_nodes(engine.commits(), engine.reservations())?;
        }
        if let Some(item) = sprout {
            engine.commit_sprout(item)?;
        }
        if rebuild {
            engine.storage().rebuild_free_space(engine.commits());
        }
        if engine.commits().health().read_only().is_none() {
            engine.storage().load_rows(engine.commits(), engine.reservations());
        }
        if let Some(found) = found {
            engine.allocation().claim_log(engine.storage(), engine.commits(), found)?;
        } else if rebuild {
            engine.commit()?;
        }
        Ok(engine)
    }

    /// Makes the first commit of a sprout. The sprout's chunk tree gets the new device, and names
    /// the generations of the seeds, which Linux compares.
    fn commit_sprout(&self, item: DeviceItem) -> Result<()> {
        self.commits().change_device(DeviceChange::Set(item));
        for device in self.storage().volume().devices().iter() {
            if let Some(generation) = device.seed {
                let item = DeviceItem { generation, ..self.storage().device_item(device.id)? };
                self.storage().devices().set_item(item);
                self.commits().change_device(DeviceChange::Set(item));
            }
        }
        self.commit()?;
        self.settle_superblocks()
    }
}

impl Storage {
    /// Adds a chunk for nodes if all metadata or system groups have parity or belong to a seed.
    /// Nodes are not written to such groups. The opening adds the chunk: later, data could take the
    /// space, and a commit would fail.
    pub(crate) fn make_room_for_nodes(
        &self,
        commits: &Commits,
        reservations: &Reservations,
    ) -> Result<()> {
        if self.volume().parity() != Parity::Mirror && !self.volume().has_seeds() {
            return Ok(());
        }
        for kind in [SpaceKind::System, SpaceKind::Metadata] {
            let groups = self.space().groups_of(kind);
            let is_fixed = |start| self.volume().is_never_rewritten(start);
            let is_left = groups.iter().all(|group| is_fixed(group.start()));
            if is_left && !self.add_chunk(commits, reservations, kind)? {
                return Err(Error::NoSpace("metadata beside what is never rewritten"));
            }
        }
        Ok(())
    }
}

/// The generation of the first transaction. If devices are missing, it leaves two out. So a missing
/// device is two behind as soon as it lacks anything, even if a power cut left it one ahead. Then
/// it is not taken for one that a power cut left between two superblocks. The first transaction may
/// be the replay of a log.
fn first_generation(volume: &Volume, devices: &DeviceSpace, last: Generation) -> Generation {
    let is_missing = |id: &DeviceId| volume.device(*id).is_none();
    let lacks = volume.is_degraded() && devices.ids().iter().any(is_missing);
    if lacks { last.next().next().next() } else { last.next() }
}

/// Opens the store. The chunk tree's uuid, which every new node carries, is read from the root node
/// of that tree.
fn open_store(
    volume: &Arc<Volume>,
    sb: &Superblock,
    options: &EngineOptions,
) -> Result<Arc<Store>> {
    let mut geometry = Geometry::of(sb);
    let ignores = options.ignore_meta_csums && options.read_only;
    let store = |geometry, cache_bytes| {
        Store::new(Arc::clone(volume), geometry, cache_bytes).ignoring_csums(ignores)
    };
    let first = store(geometry, 0);
    let root = first.root(TreeId::CHUNK, boot::chunk_root(sb))?;
    geometry.chunk_tree_uuid = root.header().chunk_tree_uuid;
    Ok(Arc::new(store(geometry, options.cache_bytes)))
}

/// The roots of the trees that the engine uses. With `may_lack`, a tree that cannot be read is left
/// out. The root tree and the top-level subvolume must be readable even then.
fn read_roots(store: &Store, sb: &Superblock, may_lack: bool) -> Result<Roots> {
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
    if sb.incompat.has(Incompat::RAID_STRIPE_TREE) {
        wanted.push(TreeId::RAID_STRIPE);
    }
    store.node(TreeId::ROOT, &Expect::root(root_tree))?;
    for tree in wanted {
        let is_needed = needed.contains(&tree);
        match read_root(store, root_tree, tree) {
            Ok(Some(ptr)) => roots.set(tree, ptr),
            Ok(None) if is_needed && !(may_lack && tree != TreeId::FS) => {
                return Err(buttress_tree::Error::NoTree(tree).into());
            }
            Ok(None) => {}
            Err(error) if may_lack && tree != TreeId::FS => {
                tracing::warn!(%tree, %error, "going on without a tree");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(roots)
}

/// The root of a tree that the root tree lists, or `None`. Also reads the root node, so that a
/// damaged root node is found now and not in the middle of an operation.
fn read_root(store: &Store, root_tree: NodePtr, tree: TreeId) -> Result<Option<NodePtr>> {
    let last = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
    let cursor = Cursor::seek_before(store, TreeId::ROOT, root_tree, &last)?;
    let found = cursor
        .key()
        .zip(cursor.item())
        .filter(|(key, _)| key.objectid == tree.0 && key.kind == Kind::ROOT_ITEM);
    let Some((key, item)) = found else { return Ok(None) };
    let item =
        RootItem::parse(item).map_err(|source| Error::Item { tree: TreeId::ROOT, key, source })?;
    let ptr = NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
    store.node(tree, &Expect::root(ptr))?;
    Ok(Some(ptr))
}
