//! Proposes repairs of the sizes of devices, in the chunk tree and in superblocks.
//!
//! # Invariants
//!
//! - **MD1** Sizes are only made smaller, so that no byte past the end of a device is counted.

use buttress_format::{DeviceId, DeviceItem, Key, Kind, TreeId, ids};

use crate::error::Result;
use crate::mend::editor::{Edit, Editor, Fix};

/// Where fields lie in a superblock.
const TOTAL_BYTES_AT: usize = 112;
const NUM_DEVICES_AT: usize = 136;
const OWN_TOTAL_BYTES_AT: usize = 209;

fn items(editor: &Editor) -> Result<Vec<(Key, DeviceItem)>> {
    let items = editor.items(TreeId::CHUNK, ids::DEV_ITEMS, Kind::DEV_ITEM)?;
    let parse = |(key, bytes): (Key, Vec<u8>)| Some((key, DeviceItem::parse(&bytes).ok()?));
    Ok(items.into_iter().filter_map(parse).collect())
}

/// Proposes to set the used bytes of a device.
pub(super) fn used(editor: &Editor, device: DeviceId, used: u64) -> Result<Option<Fix>> {
    let found = items(editor)?.into_iter().find(|(key, _)| key.offset == device.0);
    let Some((key, item)) = found else { return Ok(None) };
    let item = DeviceItem { bytes_used: used, ..item };
    let says = format!("device {device}: {used} bytes used");
    Ok(Some(Fix { says, edits: vec![Edit::Put(TreeId::CHUNK, key, item.to_bytes())] }))
}

/// Proposes to set the number of devices.
pub(super) fn count(editor: &Editor, count: u64) -> Result<Option<Fix>> {
    if items(editor)?.len() as u64 != count || editor.devices.len() as u64 != count {
        return Ok(None);
    }
    let says = format!("superblock: {count} devices");
    let edit = Edit::Super(0, NUM_DEVICES_AT, count.to_le_bytes().to_vec());
    Ok(Some(Fix { says, edits: vec![edit] }))
}

/// Proposes to round the sizes of devices down to whole sectors, and to set the size of the volume
/// to their sum.
pub(super) fn total(editor: &Editor) -> Result<Option<Fix>> {
    let sector = u64::from(editor.superblock.sectorsize);
    let mut edits = Vec::new();
    let mut sum = 0_u64;
    for (key, item) in items(editor)? {
        let whole = item.total_bytes - item.total_bytes % sector;
        sum = sum.saturating_add(whole);
        if whole != item.total_bytes {
            let own = whole.to_le_bytes().to_vec();
            let item = DeviceItem { total_bytes: whole, ..item };
            edits.push(Edit::Put(TreeId::CHUNK, key, item.to_bytes()));
            edits.push(Edit::Super(key.offset, OWN_TOTAL_BYTES_AT, own));
        }
    }
    edits.push(Edit::Super(0, TOTAL_BYTES_AT, sum.to_le_bytes().to_vec()));
    let says = format!("superblock: {sum} bytes in all");
    Ok(Some(Fix { says, edits }))
}
