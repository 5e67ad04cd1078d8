//! Orders about subvolumes, on a volume that this process opened or in the mount that has it open.
//!
//! # Invariants
//!
//! - **S1** A snapshot of a mounted subvolume has every write that was finished before the order.
//!   For this, the kernel first hands over its dirty data.
//! - **S2** The kernel is told of every name that is added or removed.

use std::collections::BTreeMap;
use std::time::Duration;

use buttress_base::{clock, text};
use buttress_fs::{
    Filesystem, Ino, Inode, InodeId, QuotaGroup, RootFlags, RootItem, SubvolumeInfo, TreeId,
};
use buttress_fuse::KernelSync;
use serde::Serialize;
use serde_json::{Value, json};

use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Access;
use crate::location;
use crate::order::{Act, PathInVolume, Shown, Step, Watch};
use crate::when;

/// The JSON of one subvolume, for scripts.
#[derive(Serialize)]
struct Document {
    id: u64,
    generation: u64,
    top_level: u64,
    path: String,
    uuid: String,
    parent_uuid: Option<String>,
    received_uuid: Option<String>,
    created: i64,
    created_generation: u64,
    read_only: bool,
}

impl Act {
    /// Returns the access to the volume that the act needs.
    pub fn access(&self) -> Access {
        match self {
            Self::Dying
            | Self::List
            | Self::Show { .. }
            | Self::Within { .. }
            | Self::GetDefault => Access::Read,
            _ => Access::Write,
        }
    }

    /// Carries out the act. `kernel_sync` is the mount, if the volume is mounted.
    pub fn carry_out(
        &self,
        fs: &Filesystem,
        kernel_sync: Option<&KernelSync>,
        watch: Watch<'_>,
    ) -> Result<Value> {
        let came = |dir: &Inode, name: &[u8]| {
            if let Some(kernel_sync) = kernel_sync {
                kernel_sync.note_created(dir.id(), name);
            }
        };
        match self {
            Self::Create { at, uid, gid, groups } => {
                let (dir, name) = at.parent(fs)?;
                let joined = joined(fs, groups)?;
                let made = dir.create_subvolume_in(&joined, name, (0o755, *uid, *gid));
                let made = made.context(|| at.show())?;
                came(&dir, name);
                // The limits of the groups count from the commit on.
                if !joined.is_empty() {
                    fs.commit().context(|| at.show())?;
                }
                Ok(json!({ "id": made.id().tree.0 }))
            }
            Self::Snapshot { source, target, read_only, groups } => {
                let joined = joined(fs, groups)?;
                let tree = source.subvolume(fs)?;
                // As with cp, a snapshot in an existing directory gets the name of its source.
                let (dir, name) = match target.inode(fs) {
                    Ok(dir) => (dir, source.parts().pop().unwrap_or(b"snapshot")),
                    Err(_) => target.parent(fs)?,
                };
                if let Some(kernel_sync) = kernel_sync {
                    kernel_sync.write_back().context(|| source.show())?;
                }
                let made = dir.snapshot_in(&joined, name, tree, *read_only);
                let made = made.context(|| target.show())?;
                came(&dir, name);
                Ok(json!({ "id": made.id().tree.0 }))
            }
            Self::Delete { at, wait } => {
                let tree = at.subvolume(fs)?;
                let (dir, name) = at.parent(fs)?;
                if let Some(kernel_sync) = kernel_sync {
                    // A deletion that is refused leaves the subvolume's own mount as it is.
                    dir.expect_deletable_subvolume(name).context(|| at.show())?;
                    kernel_sync.prepare_removal(tree);
                }
                let gone = dir.delete_subvolume(name);
                match kernel_sync {
                    Some(kernel_sync) if gone.is_ok() => {
                        kernel_sync.invalidate_name(dir.id(), name);
                    }
                    Some(kernel_sync) => kernel_sync.cancel_removal(),
                    None => {}
                }
                gone.context(|| at.show())?;
                fs.sync().context(|| at.show())?;
                let is_dropped = !*wait || wait_dropped(fs, at, tree, kernel_sync, watch)?;
                Ok(json!({ "id": tree.0, "in_use": !is_dropped }))
            }
            Self::List => shown(list(fs)?),
            Self::Show { at } => shown(show(fs, at)?),
            Self::Within { at } => Ok(json!({ "id": at.inode(fs)?.id().tree.0 })),
            Self::Dying => {
                let dying = fs.dying_subvolumes().context(|| "deleted subvolumes")?;
                let changed =
                    |tree: &TreeId| fs.subvolume_item(*tree).map_or(0, |item| item.generation.0);
                Ok(json!({
                    "dying": dying.iter().map(|tree| tree.0).collect::<Vec<_>>(),
                    "generations": dying.iter().map(changed).collect::<Vec<_>>(),
                }))
            }
            Self::GetDefault => shown(get_default(fs)?),
            Self::SetDefault { at } => set_default(fs, at.subvolume(fs)?),
            // As with btrfs: zero is the top level.
            Self::SetDefaultId { id: 0 } => set_default(fs, TreeId::FS),
            Self::SetDefaultId { id } => set_default(fs, TreeId(*id)),
        }
    }
}

/// The quota groups that a new subvolume joins. Without quotas there is nothing to join.
fn joined(fs: &Filesystem, groups: &[u64]) -> Result<Vec<QuotaGroup>> {
    let quotas = if groups.is_empty() { None } else { fs.quotas().context(|| "quotas")? };
    let Some(quotas) = quotas else { return Ok(Vec::new()) };
    let known = |group: &u64| {
        let group = QuotaGroup(*group);
        quotas.group(group).map(|_| group).ok_or_else(|| {
            let what = format!("quota group {group}: No such file or directory");
            Failure::new(Exit::Failure, what)
        })
    };
    groups.iter().map(known).collect()
}

impl PathInVolume {
    fn show(&self) -> String {
        self.text.clone()
    }

    fn parts(&self) -> Vec<&[u8]> {
        let parts = self.path.split(|&byte| byte == b'/');
        parts.filter(|part| !part.is_empty() && *part != b".").collect()
    }

    /// Returns the inode at this place.
    pub(super) fn inode(&self, fs: &Filesystem) -> Result<Inode> {
        self.walk(fs, &self.parts()).context(|| self.show())
    }

    fn walk(&self, fs: &Filesystem, parts: &[&[u8]]) -> buttress_fs::Result<Inode> {
        let default = if self.is_from_top { TreeId::FS } else { fs.default_subvolume()? };
        if self.is_mounted && !self.is_from_top || fs.root().id().tree == default {
            return fs.resolve(parts.join(&b'/'));
        }
        let mut at = fs.inode(InodeId { tree: default, ino: Ino::ROOT_DIR })?;
        for name in parts {
            at = at.lookup(name)?;
        }
        Ok(at)
    }

    /// Returns the directory of this place, and the name in it.
    pub(super) fn parent(&self, fs: &Filesystem) -> Result<(Inode, &[u8])> {
        let mut parts = self.parts();
        let Some(name) = parts.pop().filter(|name| *name != b"..") else {
            let what = format!("{}: names no entry of a directory", self.show());
            return Err(Failure::new(Exit::Usage, what));
        };
        Ok((self.walk(fs, &parts).context(|| self.show())?, name))
    }

    /// Returns the subvolume that has its top directory at this place.
    pub(super) fn subvolume(&self, fs: &Filesystem) -> Result<TreeId> {
        let inode = self.inode(fs)?;
        if inode.id().ino != Ino::ROOT_DIR {
            let what = format!("{}: not a subvolume", self.show());
            return Err(Failure::new(Exit::Failure, what));
        }
        Ok(inode.id().tree)
    }
}

fn shown(shown: Shown) -> Result<Value> {
    serde_json::to_value(shown).context(|| "the answer")
}

fn set_default(fs: &Filesystem, tree: TreeId) -> Result<Value> {
    fs.set_default_subvolume(tree).context(|| format!("subvolume {}", tree.0))?;
    Ok(json!({ "id": tree.0 }))
}

/// How long to wait for programs that use a deleted subvolume, and for a kernel that keeps inodes
/// of the subvolume.
const USED_MAX: Duration = Duration::from_secs(2);

/// Waits until the cleaner has freed the space of a subvolume. Waits at most [`USED_MAX`] for
/// programs that use the subvolume. Returns false if programs still use the subvolume, or if the
/// client goes away earlier. In both cases the cleaner continues by itself. Fails if the volume
/// becomes read-only: then the next mount that is writable frees the space.
fn wait_dropped(
    fs: &Filesystem,
    at: &PathInVolume,
    tree: TreeId,
    kernel_sync: Option<&KernelSync>,
    watch: Watch<'_>,
) -> Result<bool> {
    let free = || fs.statfs().context(|| at.show());
    let first = free()?.blocks_free;
    let mut freed = 0;
    let (mut used_since, mut looks) = (None, 0_u32);
    while fs.dying_subvolumes().context(|| at.show())?.contains(&tree) {
        if let Some(why) = fs.read_only_reason() {
            let place = at.show();
            let what = format!("{place}: deleted, but its space is not freed: read-only: {why}");
            return Err(Failure::new(Exit::Failure, what));
        }
        std::thread::sleep(Duration::from_millis(20));
        let stat = free()?;
        freed = freed.max(stat.blocks_free.saturating_sub(first) * u64::from(stat.block_size));
        if !watch(&Step { done: freed, ..Step::default() }) {
            return Ok(false);
        }
        if !fs.is_subvolume_used(tree) {
            used_since = None;
            continue;
        }
        looks += 1;
        if let Some(kernel_sync) = kernel_sync.filter(|_| looks % 8 == 1) {
            kernel_sync.forget_subvolume(tree);
        }
        if clock::since(*used_since.get_or_insert_with(clock::now)) >= USED_MAX {
            return Ok(false);
        }
    }
    Ok(true)
}

fn list(fs: &Filesystem) -> Result<Shown> {
    let mut all = fs.subvolumes().context(|| "the list of subvolumes")?;
    all.retain(|info| info.parent.is_some());
    all.sort_by_key(|info| info.tree);
    let documents: Result<Vec<_>> = all.iter().map(|info| document(fs, info)).collect();
    Ok(Shown { document: json!(documents?), lines: all.iter().map(line_of).collect() })
}

fn show(fs: &Filesystem, at: &PathInVolume) -> Result<Shown> {
    let tree = at.subvolume(fs)?;
    let all = fs.subvolumes().context(|| at.show())?;
    let Some(info) = all.iter().find(|info| info.tree == tree) else {
        return Err(Failure::new(Exit::Failure, format!("{}: it has no name", at.show())));
    };
    let item = fs.subvolume_item(tree).context(|| at.show())?;
    let path = if info.path.is_empty() { "/".into() } else { location::show(&info.path) };
    let name = info.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let name = if name.is_empty() { "<FS_TREE>".into() } else { location::show(name) };
    let top = info.parent.map_or(0, |parent| parent.0);
    let mut lines = vec![path];
    let facts = facts(&item, &name, tree, top);
    lines.extend(facts.iter().map(|(what, value)| format!("\t{what}: {}{value}", tabs(what))));
    lines.push("\tSnapshot(s):".to_owned());
    let is_snapshot = |other: &&SubvolumeInfo| other.parent_uuid == Some(info.uuid);
    let mut snapshots: Vec<_> = all.iter().filter(is_snapshot).collect();
    // The order of `btrfs`: a subvolume, then the subvolumes inside it, then its neighbours.
    let parents = all.iter().map(|info| (info.tree, info.parent)).collect();
    snapshots.sort_by_cached_key(|info| way_to(&parents, info.tree));
    lines.extend(
        snapshots.into_iter().map(|other| format!("\t\t\t\t{}", location::show(&other.path))),
    );
    Ok(Shown { document: json!(document(fs, info)?), lines })
}

/// Returns the subvolumes on the path from the top level to the subvolume `tree`, including `tree`
/// itself.
fn way_to(parents: &BTreeMap<TreeId, Option<TreeId>>, tree: TreeId) -> Vec<TreeId> {
    let mut way = vec![tree];
    // The path is bounded by the number of subvolumes, because a damaged volume may have a cycle.
    while let Some(Some(parent)) = way.last().and_then(|tree| parents.get(tree))
        && way.len() <= parents.len()
    {
        way.push(*parent);
    }
    way.reverse();
    way
}

fn get_default(fs: &Filesystem) -> Result<Shown> {
    let tree = fs.default_subvolume().context(|| "the default subvolume")?;
    let info = fs.subvolume(tree).context(|| format!("subvolume {}", tree.0))?;
    let line = match info.as_ref().filter(|_| tree != TreeId::FS) {
        None => format!("ID {} (FS_TREE)", tree.0),
        Some(info) => line_of(info),
    };
    let document = info.map(|info| document(fs, &info)).transpose()?;
    Ok(Shown { document: json!(document), lines: vec![line] })
}

fn line_of(info: &SubvolumeInfo) -> String {
    let (id, top) = (info.tree.0, info.parent.map_or(0, |parent| parent.0));
    let path = location::show(&info.path);
    format!("ID {id} gen {} top level {top} path {path}", info.generation)
}

fn document(fs: &Filesystem, info: &SubvolumeInfo) -> Result<Document> {
    let item = fs.subvolume_item(info.tree).context(|| format!("subvolume {}", info.tree.0))?;
    Ok(Document {
        id: info.tree.0,
        generation: item.generation.0,
        top_level: info.parent.map_or(0, |parent| parent.0),
        path: text::encode(&info.path),
        uuid: uuid(&item.uuid).unwrap_or_default(),
        parent_uuid: uuid(&item.parent_uuid),
        received_uuid: uuid(&item.received_uuid),
        created: item.otime.sec,
        created_generation: item.otransid.0,
        read_only: item.flags & RootFlags::READONLY != 0,
    })
}

fn facts(item: &RootItem, name: &str, tree: TreeId, top: u64) -> Vec<(&'static str, String)> {
    let or_none = |bytes| uuid(bytes).unwrap_or_else(|| "-".into());
    let time = |time: buttress_fs::Timespec| match time.sec {
        0 => "-".into(),
        sec => format!("{} +0000", when::date_time(sec)),
    };
    let read_only = item.flags & RootFlags::READONLY != 0;
    vec![
        ("Name", name.to_owned()),
        ("UUID", or_none(&item.uuid)),
        ("Parent UUID", or_none(&item.parent_uuid)),
        ("Received UUID", or_none(&item.received_uuid)),
        ("Creation time", time(item.otime)),
        ("Subvolume ID", tree.0.to_string()),
        ("Generation", item.generation.0.to_string()),
        ("Gen at creation", item.otransid.0.to_string()),
        ("Parent ID", top.to_string()),
        ("Top level ID", top.to_string()),
        ("Flags", if read_only { "readonly" } else { "-" }.to_owned()),
        ("Send transid", item.stransid.0.to_string()),
        ("Send time", time(item.stime)),
        ("Receive transid", item.rtransid.0.to_string()),
        ("Receive time", time(item.rtime)),
    ]
}

/// Returns the tabs after a name and a colon, so that values are in one column, as in `btrfs`.
fn tabs(what: &str) -> String {
    const COLUMN: usize = 32;
    let behind = 8 + what.len() + ": ".len();
    "\t".repeat(COLUMN.saturating_sub(behind).div_ceil(8))
}

fn uuid(bytes: &[u8; 16]) -> Option<String> {
    (*bytes != [0; 16]).then(|| uuid::Uuid::from_bytes(*bytes).to_string())
}
