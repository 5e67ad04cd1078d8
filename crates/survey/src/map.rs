//! A map of a volume: its devices, its block groups, and the extents in them.
//!
//! # What must hold
//!
//! - The size is limited. A block group has at most [`GROUP_CELLS_MAX`] cells. All groups together
//!   have about [`CELLS_MAX`] cells. A volume with many groups has more, because each group has at
//!   least [`GROUP_CELLS_MIN`] cells.

use buttress_format::{
    BackRef, Chunk, DeviceItem, ExtentFlags, ExtentItem, Ino, Key, Kind, TreeId, ids,
};
use buttress_tree::Result;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::find::names;
use crate::progress::{Reports, Watch, share_of};
use crate::trees::{Trees, malformed};

/// The most cells of one block group.
pub(crate) const GROUP_CELLS_MAX: usize = 512;
/// The least number of cells of one block group.
const GROUP_CELLS_MIN: usize = 64;
/// The least bytes of a cell.
const CELL_LEN_MIN: u64 = 64 << 10;
/// Cells of a volume.
pub(crate) const CELLS_MAX: usize = 32_768;
/// The most files that have a name in the map.
const NAMES_MAX: usize = 8192;

/// A device, and its allocated parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapDevice {
    /// Its number.
    pub id: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Stripes: where each begins, its bytes, and the number of its block group in the map.
    pub stripes: Vec<(u64, u64, usize)>,
}

/// A part of a block group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapCell {
    /// Bytes in use.
    pub used: u64,
    /// The part of `used` with several references.
    pub shared: u64,
    /// Extents that begin in the cell.
    pub extents: u32,
    /// The file of the largest extent in the cell, as an index into [`Map::names`].
    pub name: Option<u32>,
}

/// A block group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapGroup {
    /// Its address.
    pub start: u64,
    /// Its bytes, one copy counted.
    pub len: u64,
    /// Data, Metadata, System, or Data+Metadata.
    pub kind: String,
    /// The name of the profile, as mkfs accepts it.
    pub profile: String,
    /// Bytes in use.
    pub used: u64,
    /// Extents.
    pub extents: u64,
    /// The number of pieces of free space.
    pub free_pieces: u64,
    /// Bytes of the largest piece of free space.
    pub free_largest: u64,
    /// Its parts, in order. All have the same length, except that the last one may be longer.
    pub cells: Vec<MapCell>,
}

/// The whole map; sizes and places in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Map {
    /// The devices.
    pub devices: Vec<MapDevice>,
    /// The block groups, by address.
    pub groups: Vec<MapGroup>,
    /// Names of files, each with the number of its subvolume.
    pub names: Vec<(u64, Vec<u8>)>,
}

/// The file of the largest extent that a cell has so far.
#[derive(Clone, Copy, Default)]
struct Owner {
    file: Option<(TreeId, Ino)>,
    len: u64,
}

/// The map of the extents that have been read so far.
#[derive(Default)]
struct Filling {
    map: Map,
    owners: Vec<Vec<Owner>>,
    /// Where the last extent of the current group ended.
    end: u64,
    at: usize,
}

/// Reads the chunk tree and the extent tree once, then the names of the files that cells show.
/// `used` is the number of bytes that extents have in all.
///
/// # Errors
///
/// A tree is damaged, or `watch` does not go on.
pub fn map(trees: &Trees<'_>, used: u64, watch: Watch<'_>) -> Result<Map> {
    let mut reports = Reports::to(watch);
    let mut filling = Filling { map: chunks(trees)?, ..Filling::default() };
    let groups = &mut filling.map.groups;
    let each = (CELLS_MAX / groups.len().max(1)).clamp(GROUP_CELLS_MIN, GROUP_CELLS_MAX);
    for group in groups.iter_mut() {
        let cells = each.min((group.len / CELL_LEN_MIN).max(1) as usize);
        group.cells = vec![MapCell::default(); cells];
        filling.owners.push(vec![Owner::default(); cells]);
    }
    filling.end = filling.map.groups.first().map_or(0, |group| group.start);
    trees.each(TreeId::EXTENT, (Key::MIN, Key::MAX), |key, item| {
        let Some(len) = trees.extent_len(key) else { return Ok(()) };
        let extent = ExtentItem::parse(key, item).map_err(malformed(TreeId::EXTENT, *key))?;
        filling.add(key.objectid, len, &extent);
        reports.add(share_of(len, used))
    })?;
    reports.end()?;
    filling.skip_to(u64::MAX);
    filling.name(trees)
}

/// The devices and block groups, without their content.
fn chunks(trees: &Trees<'_>) -> Result<Map> {
    let mut map = Map::default();
    trees.each(TreeId::CHUNK, (Key::MIN, Key::MAX), |key, item| {
        match key.kind {
            Kind::DEV_ITEM => {
                let device = DeviceItem::parse(item).map_err(malformed(TreeId::CHUNK, *key))?;
                let (id, bytes) = (device.devid.0, device.total_bytes);
                map.devices.push(MapDevice { id, bytes, stripes: Vec::new() });
            }
            Kind::CHUNK_ITEM if key.objectid == ids::FIRST_CHUNK_TREE => {
                let chunk = Chunk::parse(key, item).map_err(malformed(TreeId::CHUNK, *key))?;
                for stripe in &chunk.stripes {
                    let is_its = |device: &&mut MapDevice| device.id == stripe.device.0;
                    if let Some(device) = map.devices.iter_mut().find(is_its) {
                        let bytes = chunk.stripe_bytes();
                        device.stripes.push((stripe.offset, bytes, map.groups.len()));
                    }
                }
                map.groups.push(MapGroup {
                    start: chunk.logical.0,
                    len: chunk.len,
                    kind: chunk.flags.kind_name().to_owned(),
                    profile: chunk.flags.profile_name().to_owned(),
                    ..MapGroup::default()
                });
            }
            _ => {}
        }
        Ok(())
    })?;
    for device in &mut map.devices {
        device.stripes.sort_unstable();
    }
    Ok(map)
}

impl Filling {
    /// Notes the free space up to an address, and goes on to the group that contains the address.
    fn skip_to(&mut self, address: u64) {
        while let Some(group) = self.map.groups.get_mut(self.at) {
            let behind = group.start.saturating_add(group.len);
            let free = address.min(behind).saturating_sub(self.end);
            if free > 0 {
                group.free_pieces += 1;
                group.free_largest = group.free_largest.max(free);
            }
            if address < behind {
                return;
            }
            self.at += 1;
            self.end = self.map.groups.get(self.at).map_or(0, |next| next.start);
        }
    }

    fn add(&mut self, start: u64, len: u64, extent: &ExtentItem) {
        self.skip_to(start);
        let Some(group) = self.map.groups.get_mut(self.at) else { return };
        // On a damaged volume, an extent may be outside of all groups. Such an extent is left out.
        let Some(begin) = start.checked_sub(group.start) else { return };
        let len = len.min(group.len - begin);
        self.end = self.end.max(start.saturating_add(len));
        group.used += len;
        group.extents += 1;
        let step = (group.len / group.cells.len() as u64).max(1);
        let last = group.cells.len() - 1;
        let file = extent.inline.iter().find_map(|reference| match reference {
            BackRef::Data { root, ino, .. } => Some((*root, *ino)),
            _ => None,
        });
        let is_shared = extent.refs > 1 && extent.flags & ExtentFlags::DATA != 0;
        let (mut at, end) = (begin, begin + len);
        group.cells[((begin / step) as usize).min(last)].extents += 1;
        while at < end {
            let number = ((at / step) as usize).min(last);
            let edge = if number == last { group.len } else { (number as u64 + 1) * step };
            let part = edge.min(end) - at;
            let cell = &mut group.cells[number];
            cell.used += part;
            cell.shared += if is_shared { part } else { 0 };
            let owner = &mut self.owners[self.at][number];
            if file.is_some() && part > owner.len {
                *owner = Owner { file, len: part };
            }
            at += part;
        }
    }

    /// Gives the cells the names of their files.
    fn name(mut self, trees: &Trees<'_>) -> Result<Map> {
        let mut known: FxHashMap<(TreeId, Ino), Option<u32>> = FxHashMap::default();
        let cells = self.map.groups.iter_mut().flat_map(|group| &mut group.cells);
        for (cell, owner) in cells.zip(self.owners.iter().flatten()) {
            let Some((tree, ino)) = owner.file else { continue };
            if let Some(number) = known.get(&(tree, ino)) {
                cell.name = *number;
                continue;
            }
            if self.map.names.len() >= NAMES_MAX {
                continue;
            }
            let first = names(trees, tree, ino)?.into_iter().next();
            let number = self.map.names.len() as u32;
            let number = first.map(|path| {
                self.map.names.push((tree.0, path));
                number
            });
            known.insert((tree, ino), number);
            cell.name = number;
        }
        Ok(self.map)
    }
}
