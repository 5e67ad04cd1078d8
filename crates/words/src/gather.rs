//! Collects the content of `info`, from the superblock and the trees.

use std::collections::BTreeMap;

use buttress_base::text;
use buttress_format::{BlockGroupItem, CompatRo, Key, Kind, RootFlags, RootRef, TreeId, ids};
use buttress_tree::boot;
use buttress_volume::Uuid;
use serde::Serialize;

use crate::exit::{Context, Result};
use crate::inspect::Inspect;

/// The deepest nesting of subvolumes. A deeper path counts as a cycle and is not followed.
const DEPTH_MAX: usize = 256;

/// Everything that is shown; sizes are in bytes.
///
/// Plain data: what a reader found.
#[derive(Debug, Serialize)]
pub struct Document {
    /// The label, in the form of `buttress_base::text`.
    pub label: String,
    /// The identifier.
    pub uuid: String,
    /// The generation of the last commit.
    pub generation: u64,
    /// The sizes of all devices.
    pub total_bytes: u64,
    /// Used bytes of all block groups; only one copy is counted.
    pub bytes_used: u64,
    /// The kind of checksum.
    pub csum: String,
    /// Bytes of a node.
    pub nodesize: u32,
    /// Bytes of a sector.
    pub sectorsize: u32,
    /// Names of the features that a reader must know.
    pub incompat: Vec<String>,
    /// Names of the features that a writer must know.
    pub compat_ro: Vec<String>,
    /// Whether a log of fsync waits to be replayed.
    pub has_log: bool,
    /// All devices.
    pub devices: Vec<DeviceRow>,
    /// The block groups by kind and profile.
    pub space: Vec<SpaceRow>,
    /// All trees of the root tree.
    pub trees: Vec<TreeRow>,
}

/// One device.
///
/// Plain data: what a reader found.
#[derive(Debug, Serialize)]
pub struct DeviceRow {
    /// Its number.
    pub id: u64,
    /// Its identifier.
    pub uuid: String,
    /// Its size.
    pub total_bytes: u64,
    /// Bytes that chunks take on it.
    pub bytes_used: u64,
    /// `None` for a device that was not given.
    pub path: Option<String>,
}

/// All block groups of one kind and profile. Only one copy is counted.
///
/// Plain data: what a reader found.
#[derive(Debug, Serialize)]
pub struct SpaceRow {
    /// The kind of block group.
    pub kind: &'static str,
    /// The profile, in small letters.
    pub profile: &'static str,
    /// Bytes of the block groups.
    pub total: u64,
    /// Used bytes.
    pub used: u64,
    /// The number of block groups.
    pub groups: u64,
}

/// One tree.
///
/// Plain data: what a reader found.
#[derive(Debug, Serialize)]
pub struct TreeRow {
    /// Its number.
    pub id: u64,
    /// Its name.
    pub name: String,
    /// The level of its root node.
    pub level: u8,
    /// Bytes of its nodes.
    pub bytes: u64,
    /// The generation of its root node.
    pub generation: u64,
    /// Whether it is a read-only subvolume.
    pub read_only: bool,
    /// Path of a subvolume below the top level.
    pub path: Option<String>,
}

impl Document {
    /// Reads everything that is shown of a volume.
    ///
    /// # Errors
    ///
    /// Trees that cannot be read.
    pub fn gather(inspect: &Inspect) -> Result<Self> {
        let superblock = &inspect.superblock;
        Ok(Self {
            label: text::encode(superblock.label_bytes()),
            uuid: Uuid(superblock.fsid).to_string(),
            generation: superblock.generation.0,
            total_bytes: superblock.total_bytes,
            bytes_used: superblock.bytes_used,
            csum: superblock.csum_type.name().to_owned(),
            nodesize: superblock.nodesize,
            sectorsize: superblock.sectorsize,
            incompat: superblock.incompat.names(),
            compat_ro: superblock.compat_ro.names(),
            has_log: superblock.log_root.0 != 0,
            devices: devices(inspect),
            space: space(inspect)?,
            trees: trees(inspect)?,
        })
    }
}

fn devices(inspect: &Inspect) -> Vec<DeviceRow> {
    let items = inspect.chunks.devices.iter();
    let rows = items.map(|item| DeviceRow {
        id: item.devid.0,
        uuid: Uuid(item.uuid).to_string(),
        total_bytes: item.total_bytes,
        bytes_used: item.bytes_used,
        path: inspect.volume.device(item.devid).map(|device| device.device.name()),
    });
    rows.collect()
}

fn space(inspect: &Inspect) -> Result<Vec<SpaceRow>> {
    let mut rows: BTreeMap<u64, SpaceRow> = BTreeMap::new();
    for chunk in &inspect.chunks.chunks {
        let row = rows.entry(chunk.flags.0).or_insert_with(|| SpaceRow {
            kind: chunk.flags.kind_name(),
            profile: chunk.flags.profile_name(),
            total: 0,
            used: 0,
            groups: 0,
        });
        row.total = row.total.saturating_add(chunk.len);
        row.groups += 1;
    }
    let has_own_tree = inspect.superblock.compat_ro.has(CompatRo::BLOCK_GROUP_TREE);
    if has_own_tree {
        let root = inspect.tree(TreeId::BLOCK_GROUP)?;
        inspect.each(TreeId::BLOCK_GROUP, root, |key, bytes| group(key, bytes, &mut rows))?;
    } else {
        // In the extent tree, block group items are spread among the extent items. The chunks give
        // the keys of the block group items, so that the tree need not be read as a whole.
        let root = inspect.tree(TreeId::EXTENT)?;
        for chunk in &inspect.chunks.chunks {
            let key = Key::new(chunk.logical.0, Kind::BLOCK_GROUP_ITEM, chunk.len);
            if let Some(bytes) = inspect.find(TreeId::EXTENT, root, &key)? {
                group(key, &bytes, &mut rows)?;
            }
        }
    }
    Ok(rows.into_values().collect())
}

fn group(key: Key, bytes: &[u8], rows: &mut BTreeMap<u64, SpaceRow>) -> Result<()> {
    if key.kind != Kind::BLOCK_GROUP_ITEM {
        return Ok(());
    }
    let item = BlockGroupItem::parse(bytes).context(|| format!("block group {key}"))?;
    if let Some(row) = rows.get_mut(&item.flags.0) {
        row.used = row.used.saturating_add(item.used);
    }
    Ok(())
}

/// The trees of the root tree, subvolumes with their paths.
fn trees(inspect: &Inspect) -> Result<Vec<TreeRow>> {
    let mut names: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
    inspect.each(TreeId::ROOT, boot::root_tree_root(&inspect.superblock), |key, bytes| {
        if key.kind == Kind::ROOT_BACKREF {
            let reference = RootRef::parse(bytes).context(|| format!("root tree, {key}"))?;
            names.insert(key.objectid, (key.offset, reference.name));
        }
        Ok(())
    })?;
    let rows = inspect.trees()?.into_iter().map(|tree| TreeRow {
        id: tree.key.objectid,
        name: ids::objectid_name(tree.key.objectid, Kind::ROOT_ITEM),
        level: tree.item.level,
        bytes: tree.item.bytes_used,
        generation: tree.item.generation.0,
        read_only: tree.item.flags & RootFlags::READONLY != 0,
        path: path(tree.key.objectid, &names),
    });
    Ok(rows.collect())
}

/// Names from the top level down to a subvolume. The directories between two subvolumes are left
/// out, because their names lie in other trees.
fn path(tree: u64, names: &BTreeMap<u64, (u64, Vec<u8>)>) -> Option<String> {
    let mut parts = Vec::new();
    let mut at = tree;
    while let Some((parent, name)) = names.get(&at) {
        parts.push(name.as_slice());
        at = *parent;
        if parts.len() > DEPTH_MAX {
            return None;
        }
    }
    parts.reverse();
    (!parts.is_empty()).then(|| text::encode(&parts.join(&b'/')))
}
