//! Proposes repairs of checksum items that overlap.
//!
//! # How
//!
//! Items that overlap form a group, which covers one range without gaps. Each sector of the range
//! gets one checksum. The items keep their keys: each item then ends where the next item begins.
//!
//! # Invariants
//!
//! - **CS1** A sector keeps its checksum if all items of the group agree on it. Otherwise its data
//!   decides: the checksum that each copy of the sector matches is right. If the data matches none
//!   of the checksums, or if two copies match different checksums, nothing is proposed.
//! - **CS2** The range that has checksums stays the same, and no item is added or removed.

use buttress_format::{Key, Kind, Logical, TreeId, ids};

use crate::error::Result;
use crate::mend::editor::{Edit, Editor, Fix};

fn key(at: u64) -> Key {
    Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at)
}

/// Items that overlap: their starts, and the checksums that they have for each sector.
struct Group {
    starts: Vec<u64>,
    /// For each sector from the first start on, the checksums of all items, each once.
    sums: Vec<Vec<Vec<u8>>>,
}

/// Proposes a fix for the checksum item at an address, which overlaps the items before it.
pub(super) fn overlapping(editor: &Editor, at: Logical) -> Result<Option<Fix>> {
    let (size, sector) = (editor.geometry.csum.size(), u64::from(editor.geometry.sectorsize));
    let Some(group) = group(editor, at.0, size, sector)? else { return Ok(None) };
    let mut sums: Vec<&[u8]> = Vec::with_capacity(group.sums.len());
    let mut disputed = 0;
    for (index, found) in group.sums.iter().enumerate() {
        let right = match &found[..] {
            [] => return Ok(None),
            [only] => only,
            several => {
                disputed += 1;
                let address = Logical(group.starts[0] + index as u64 * sector);
                match decided(editor, address, several, sector) {
                    Some(right) => right,
                    None => return Ok(None),
                }
            }
        };
        sums.push(right);
    }
    let mut edits = Vec::new();
    for (number, start) in group.starts.iter().enumerate() {
        let place = |at: u64| ((at - group.starts[0]) / sector) as usize;
        let end = group.starts.get(number + 1).map_or(sums.len(), |next| place(*next));
        edits.push(Edit::Put(TreeId::CSUM, key(*start), sums[place(*start)..end].concat()));
    }
    let (first, count) = (group.starts[0], group.starts.len());
    let data = match disputed {
        0 => String::new(),
        count => format!("; the data of {count} sectors says which checksum is right"),
    };
    let says = format!("checksums: {count} items from {first} on do not overlap any more{data}");
    Ok(Some(Fix { says, edits }))
}

/// The items that overlap the item at an address, and those that overlap these.
fn group(editor: &Editor, at: u64, size: usize, sector: u64) -> Result<Option<Group>> {
    // No item is longer than a leaf.
    let reach = (editor.geometry.leaf_room() / size) as u64 * sector;
    let mut starts = Vec::new();
    let mut sums: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut end = 0;
    let is_sum = |key: &Key| key.objectid == ids::EXTENT_CSUM && key.kind == Kind::EXTENT_CSUM;
    let len = |bytes: &[u8]| (bytes.len() / size) as u64 * sector;
    let mut from = at;
    // The group may begin several items before the address.
    loop {
        let is_before = |key: &Key| is_sum(key) && key.offset < from;
        let near = editor.items_from(TreeId::CSUM, key(from.saturating_sub(reach)), is_before)?;
        let reaches = |(key, bytes): &&(Key, Vec<u8>)| key.offset.saturating_add(len(bytes)) > from;
        match near.iter().find(reaches) {
            Some((key, _)) => from = key.offset,
            None => break,
        }
    }
    let is_in = |key: &Key| is_sum(key) && key.offset < at.saturating_add(reach * 2);
    for (key, bytes) in editor.items_from(TreeId::CSUM, key(from), is_in)? {
        if key.offset >= end {
            if end > at {
                break;
            }
            starts.clear();
            sums.clear();
        }
        let first = *starts.first().unwrap_or(&key.offset);
        starts.push(key.offset);
        for (index, sum) in bytes.chunks_exact(size).enumerate() {
            let place = ((key.offset - first) / sector) as usize + index;
            if sums.len() <= place {
                sums.resize(place + 1, Vec::new());
            }
            if !sums[place].iter().any(|known| known == sum) {
                sums[place].push(sum.to_vec());
            }
        }
        end = end.max(key.offset.saturating_add(len(&bytes)));
    }
    let is_it = starts.len() > 1 && starts.contains(&at);
    Ok(is_it.then_some(Group { starts, sums }))
}

/// The checksum that the data of a sector matches in every copy that matches any (CS1).
fn decided<'s>(
    editor: &Editor,
    at: Logical,
    several: &'s [Vec<u8>],
    sector: u64,
) -> Option<&'s Vec<u8>> {
    let csum = editor.geometry.csum;
    let mut right = None;
    for mirror in 0..editor.volume.mirrors(at) {
        let mut data = vec![0; sector as usize];
        if editor.volume.read_mirror(at, &mut data, mirror).is_err() {
            continue;
        }
        let digest = csum.digest(&data);
        let matches = several.iter().find(|sum| digest[..csum.size()] == sum[..]);
        match (right, matches) {
            (None, found) => right = found,
            (Some(known), Some(found)) if known != found => return None,
            _ => {}
        }
    }
    right
}
