//! Opens a volume: devices, trees, the subvolume to show, and the threads.

use std::sync::Arc;

use buttress_block::Device;
use buttress_data::{Files, FilesOptions};
use buttress_format::{CompatRo, Incompat, RootBackup, TreeId};
use buttress_items::names::{self, Target};
use buttress_items::subvolume_items::default_subvolume;
use buttress_items::{Error, ErrorKind, InodeId, NameError, Result, orphan};
use buttress_tree::{Geometry, Store, boot};
use buttress_txn::{Engine, EngineOptions, GroupsRead, View};
use buttress_volume::{OpenOptions, Volume};

use crate::background;
use crate::mount::Mount;
use crate::options::MountOptions;
use crate::replay;

/// Opens a volume. Returns the mount, and the top directory of the subvolume to show.
pub(crate) fn open(
    devices: Vec<Arc<dyn Device>>,
    options: MountOptions,
) -> Result<(Arc<Mount>, InodeId)> {
    let newest = open_at(devices.clone(), options.clone(), None);
    let Err(error) = &newest else { return newest };
    if !options.use_backup_root || error.kind() != ErrorKind::Corrupt {
        return newest;
    }
    if !options.read_only {
        let why = format!("works together with ro only where the newest root is damaged: {error}");
        return Err(Error::Option { option: "usebackuproot".to_owned(), why });
    }
    let open = OpenOptions { degraded: options.degraded, ..OpenOptions::default() };
    let (_, superblock) = Volume::open(devices.clone(), open)?;
    for backup in boot::backups(&superblock) {
        match open_at(devices.clone(), options.clone(), Some(&backup)) {
            Ok(opened) => {
                let generation = backup.tree_root_gen.0;
                tracing::warn!(generation, newest = superblock.generation.0, "an older root");
                return Ok(opened);
            }
            Err(error) => tracing::debug!(%error, "a backup root that cannot be read either"),
        }
    }
    newest
}

/// Refuses a volume with extents that this build cannot unpack.
fn expect_codecs(incompat: Incompat) -> Result<()> {
    if !cfg!(feature = "zstd") && incompat.has(Incompat::COMPRESS_ZSTD) {
        return Err(Error::unsupported("zstd, which this build is without"));
    }
    if !cfg!(feature = "lzo") && incompat.has(Incompat::COMPRESS_LZO) {
        return Err(Error::unsupported("LZO, which this build is without"));
    }
    Ok(())
}

/// Opens a volume at its newest root, or at an older root.
fn open_at(
    devices: Vec<Arc<dyn Device>>,
    options: MountOptions,
    backup: Option<&RootBackup>,
) -> Result<(Arc<Mount>, InodeId)> {
    let is_for_rescue =
        options.ignore_bad_roots || options.ignore_data_csums || options.ignore_meta_csums;
    let may_begin_writing =
        options.read_only && options.may_begin_writing && !is_for_rescue && backup.is_none();
    let open = OpenOptions {
        writable: !options.read_only,
        may_begin_writing,
        degraded: options.degraded,
        parity: options.parity,
        repairs: false,
    };
    let (volume, mut superblock) =
        Volume::open(devices.clone(), open).map_err(|error| name_missing(error, devices))?;
    if let Some(backup) = backup {
        boot::go_back(&mut superblock, backup);
    }
    let volume = Arc::new(volume);
    let engine_options = EngineOptions {
        read_only: options.read_only,
        may_begin_writing,
        discard: options.discard,
        ignore_log: options.nologreplay,
        replay_log: !options.read_only,
        alloc: options.baselines.alloc,
        sprout: None,
        rebuild_free_space: !options.read_only
            && (superblock.compat_ro.has(CompatRo::FREE_SPACE_TREE) && options.clear_cache
                || !superblock.compat_ro.has(CompatRo::FREE_SPACE_TREE) && options.space_cache_v2),
        lookup: options.baselines.bg_lookup,
        // With `reclaim_below`, the close needs to know how full each group is, and no thread reads
        // groups at that time. So the groups are read when the volume is opened.
        groups: match options.reclaim_below {
            0 => options.baselines.bg_read,
            _ => GroupsRead::First,
        },
        policy: options.baselines.reserve,
        delete_room: options.delete_room,
        cache_bytes: options.node_cache_bytes.unwrap_or(EngineOptions::default().cache_bytes),
        overlay_max: options.overlay_bytes_max.unwrap_or(EngineOptions::default().overlay_max),
        ignore_bad_roots: options.ignore_bad_roots,
        ignore_meta_csums: options.ignore_meta_csums,
    };
    expect_codecs(superblock.incompat)?;
    let engine = Engine::open(Arc::clone(&volume), superblock.clone(), engine_options)?;
    // As in Linux, files can be read even if the checksum tree cannot be read.
    let lacks_csums =
        options.ignore_bad_roots && engine.view().roots().find(TreeId::CSUM).is_none();
    let files_options = FilesOptions {
        max_inline: options.max_inline,
        no_holes: superblock.incompat.has(Incompat::NO_HOLES),
        has_stripe_tree: superblock.incompat.has(Incompat::RAID_STRIPE_TREE),
        compress: options.compress,
        compress_force: options.compress_force,
        page_cache_bytes: options.page_cache_bytes,
        read_batch: options.baselines.read_batch,
        nocow_check: options.baselines.nocow_check,
        helpers: options.background,
        ignore_csums: options.ignore_data_csums || lacks_csums,
    };
    let files = Files::new(Arc::clone(&engine), volume, files_options);
    let mount = Arc::new(Mount::new(engine, files, superblock, options));
    replay::replay(&mount.engine, &mount.files, &mount.superblock)?;
    let view = mount.engine.view();
    let root = root(&mount, &view, &mount.options)?;
    let _ = mount.root.set(root);
    if mount.status.read_only_reason().is_none() {
        begin_work(&mount)?;
    }
    Ok((mount, root))
}

/// Removes inodes that earlier mounts left behind, gives deleted subvolumes to the cleaner, and
/// starts the threads. Called for a volume that can be written.
fn begin_work(mount: &Arc<Mount>) -> Result<()> {
    mount.engine.commit_replacement_anew()?;
    mount.maintenance.leave_missing_behind()?;
    mount.engine.commits().count_subvolumes()?;
    mount.maintenance.drop_leftovers()?;
    for id in orphan::list(&mount.engine.view(), TreeId::DATA_RELOC)? {
        // An interrupted balance of Linux copied data into this inode.
        mount.cleaner.remove(id)?;
    }
    for tree in mount.maintenance.dead_subvolumes()? {
        mount.inodes.cleaning().drop_later(tree);
    }
    if mount.options.background {
        background::start(mount);
    }
    Ok(())
}

/// Makes a volume writable that was opened for reading ([`MountOptions::may_begin_writing`]).
pub(crate) fn begin_writing(mount: &Arc<Mount>) -> Result<()> {
    // If two callers come at once, the second finds that writing has begun.
    let _turn = mount.moving.lock();
    if !mount.status.is_opened_for_reading() {
        return Ok(());
    }
    mount.engine.begin_writing()?;
    // The threads check this state, so set it before they begin.
    mount.status.set_opened_for_reading(false);
    // If this fails, the mount stays read-only for good: the engine has begun writing, and does not
    // begin a second time.
    begin_work(mount).inspect_err(|_| mount.status.set_opened_for_reading(true))
}

/// Lists the missing devices from the chunk tree, because the superblock has only some of them.
fn name_missing(
    error: buttress_volume::Error,
    devices: Vec<Arc<dyn Device>>,
) -> buttress_volume::Error {
    use buttress_volume::Error::MissingDevices;
    let MissingDevices { fsid, expected, found, missing } = error else { return error };
    let known = || {
        let degraded = OpenOptions { degraded: true, ..OpenOptions::default() };
        let (volume, superblock) = Volume::open(devices, degraded).ok()?;
        let geometry = Geometry::of(&superblock);
        let store = Store::new(Arc::new(volume), geometry, 0);
        let items = boot::load_chunks(&store, &superblock).ok()?.devices;
        Some(items.iter().map(|item| item.devid).filter(|id| !found.contains(id)).collect())
    };
    let missing = known().unwrap_or(missing);
    MissingDevices { fsid, expected, found, missing }
}

/// The top directory of the subvolume that the options select.
pub(crate) fn root(mount: &Mount, view: &View, options: &MountOptions) -> Result<InodeId> {
    if let Some(path) = &options.subvol {
        return walk(mount, view, path);
    }
    let tree = match options.subvolid {
        Some(tree) => tree,
        None => default_subvolume(view)?,
    };
    top(mount, view, tree)
}

fn top(mount: &Mount, view: &View, tree: TreeId) -> Result<InodeId> {
    Ok(InodeId { tree, ino: mount.inodes.tree_info(view, tree)?.root_dir })
}

/// Follows a path of names from the top level; it must end at the top of a subvolume.
fn walk(mount: &Mount, view: &View, path: &[u8]) -> Result<InodeId> {
    let mut at = top(mount, view, TreeId::FS)?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let entry = names::find(view, at, name)?.ok_or(NameError::NotFound)?;
        at = match names::target(view, at, &entry)? {
            Target::Inode(id) => id,
            Target::Subvolume(tree) => top(mount, view, tree)?,
            Target::Stub => return Err(NameError::NotFound.into()),
        };
    }
    if at.ino != mount.inodes.tree_info(view, at.tree)?.root_dir {
        return Err(Error::invalid("subvol= names a directory that is no subvolume"));
    }
    Ok(at)
}
