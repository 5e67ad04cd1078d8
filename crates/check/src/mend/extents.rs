//! Proposes repairs of the file extent items that say where a file's data lies.
//!
//! # Invariants
//!
//! - **MX1** Data that the extent tree still records for a file at an offset is given back to it. A
//!   gap becomes a hole only if there is no such record. If a record does not tell how the data was
//!   stored, the gap is not changed.

use buttress_format::{
    BackRef, Extent, ExtentItem, FileExtent, Generation, Ino, InodeFlags, Key, Kind, Logical,
    TreeId,
};

use crate::error::Result;
use crate::issue::Issue;
use crate::kinds::damaged_tree;
use crate::mend::editor::{Edit, Editor, Fix};
use crate::mend::inodes::put64;
use crate::mend::names;
use crate::report::Report;

/// The offset of the data's address in a file extent item.
const DISK_AT: usize = 21;
const REGULAR: u8 = 1;
const PREALLOC: u8 = 2;

/// The item of an extent that is used from its first byte to its last, not compressed.
fn regular(generation: Generation, at: Logical, len: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(53);
    bytes.extend(generation.0.to_le_bytes());
    bytes.extend(len.to_le_bytes());
    bytes.extend([0, 0, 0, 0, REGULAR]);
    for word in [at.0, len, 0, len] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// The extent of this length that the extent tree records for a file at this offset, and that the
/// file does not use.
fn recorded(
    editor: &Editor,
    report: &Report,
    tree: TreeId,
    ino: Ino,
    offset: u64,
    len: u64,
) -> Result<Option<(Extent, Generation)>> {
    let mut found = None;
    for issue in &report.issues {
        let at = match issue {
            Issue::ExtentUnused { extent } if extent.len == len => extent.start,
            Issue::BackrefUnused { extent, .. } => *extent,
            _ => continue,
        };
        let key = Key::new(at.0, Kind::EXTENT_ITEM, len);
        let Some(bytes) = editor.get(TreeId::EXTENT, &key)? else { continue };
        let Ok(item) = ExtentItem::parse(&key, &bytes) else { continue };
        let names_it = |reference: &BackRef| {
            matches!(reference, BackRef::Data { root, ino: its, offset: its_at, .. }
            if *root == tree && *its == ino && *its_at == offset)
        };
        let one = (Extent::new(at, len), item.generation);
        if item.inline.iter().any(names_it) && found != Some(one) {
            if found.is_some() {
                // There are two records for one place, and it is unknown which is right.
                return Ok(None);
            }
            found = Some(one);
        }
    }
    Ok(found)
}

/// Whether an extent that no file uses may belong to a file: the extent is recorded for the file,
/// or records are damaged or too many. Such a file gets no hole, since otherwise the extent would
/// be freed.
fn may_be_recorded(editor: &Editor, report: &Report, tree: TreeId, ino: Ino) -> Result<bool> {
    let is_cut =
        ["extent-unused", "backref-unused"].iter().any(|code| report.more.contains_key(code));
    let is_damaged = report.issues.iter().any(|issue| damaged_tree(issue) == Some(TreeId::EXTENT));
    if is_cut || is_damaged {
        return Ok(true);
    }
    for issue in &report.issues {
        let start = match issue {
            Issue::ExtentUnused { extent } => extent.start,
            Issue::BackrefUnused { extent, .. } => *extent,
            _ => continue,
        };
        for (key, bytes) in editor.items(TreeId::EXTENT, start.0, Kind::EXTENT_ITEM)? {
            let Ok(item) = ExtentItem::parse(&key, &bytes) else { return Ok(true) };
            let names_it = |reference: &BackRef| matches!(reference, BackRef::Data { root, ino: its, .. } if *root == tree && *its == ino);
            if item.inline.iter().any(names_it) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Whether the checksum tree has a checksum for the first sector of an extent.
fn has_sums(editor: &Editor, extent: Extent) -> Result<bool> {
    let sector = u64::from(editor.superblock.sectorsize);
    let size = editor.superblock.csum_type.size() as u64;
    let object = buttress_format::ids::EXTENT_CSUM;
    let after = Key::new(object, Kind::EXTENT_CSUM, extent.start.0 + 1);
    let Some(key) = editor.last_below(TreeId::CSUM, &after)? else { return Ok(false) };
    let bytes = editor.get(TreeId::CSUM, &key)?.unwrap_or_default();
    let end = key.offset.saturating_add(bytes.len() as u64 / size * sector);
    Ok(key.objectid == object && end > extent.start.0)
}

/// Replaces an impossible address by the address that the extent tree records.
pub(super) fn address(
    editor: &Editor,
    report: &Report,
    tree: TreeId,
    ino: Ino,
    offset: u64,
) -> Result<Option<Fix>> {
    let at = Key::new(ino.0, Kind::EXTENT_DATA, offset);
    let Some(mut bytes) = editor.get(tree, &at)? else { return Ok(None) };
    let Ok(item) = FileExtent::parse(&bytes) else { return Ok(None) };
    let Some(region) = item.region().cloned() else { return Ok(None) };
    let first = offset.wrapping_sub(region.offset);
    let found = recorded(editor, report, tree, ino, first, region.disk_len)?;
    let Some((extent, _)) = found else { return Ok(None) };
    put64(&mut bytes, DISK_AT, extent.start.0);
    let says = format!("{tree}: inode {ino} at {offset} uses extent {extent}");
    Ok(Some(Fix { says, edits: vec![Edit::Put(tree, at, bytes)] }))
}

/// Gives a hole the item that a volume of its kind needs.
pub(super) fn hole(
    editor: &Editor,
    report: &Report,
    tree: TreeId,
    ino: Ino,
    offset: u64,
) -> Result<Option<Fix>> {
    let Some(item) = names::inode(editor, tree, ino)? else { return Ok(None) };
    let sector = u64::from(editor.superblock.sectorsize);
    let Some(size_end) = item.size.checked_next_multiple_of(sector) else { return Ok(None) };
    let from = offset.next_multiple_of(sector);
    let extents = editor.items(tree, ino.0, Kind::EXTENT_DATA)?;
    let next = extents.iter().map(|(key, _)| key.offset).find(|at| *at >= from);
    let end = next.unwrap_or(size_end).min(size_end);
    if end <= from {
        return Ok(None);
    }
    let at = Key::new(ino.0, Kind::EXTENT_DATA, from);
    let is_packed = |(_, item): &(Key, Vec<u8>)| item.get(16).is_some_and(|kind| *kind != 0);
    let may_pack = item.flags & InodeFlags::COMPRESS != 0 || extents.iter().any(is_packed);
    let lacks_sums = item.flags & InodeFlags::NODATASUM != 0;
    let found = recorded(editor, report, tree, ino, from, end - from)?;
    if found.is_some() && (may_pack || lacks_sums) {
        // No item says whether the data was compressed, or written at all.
        return Ok(None);
    }
    if found.is_none() && may_be_recorded(editor, report, tree, ino)? {
        return Ok(None);
    }
    if let Some((extent, generation)) = found {
        // Data with checksums was written. An extent without checksums may be only preallocated, so
        // it reads as zeros, and its bytes stay on the device.
        let is_written = has_sums(editor, extent)?;
        let mut bytes = regular(generation, extent.start, extent.len);
        bytes[20] = if is_written { REGULAR } else { PREALLOC };
        let says = format!("{tree}: inode {ino} has extent {extent} at {from} again");
        return Ok(Some(Fix { says, edits: vec![Edit::Put(tree, at, bytes)] }));
    }
    let mut bytes = regular(editor.superblock.generation, Logical(0), end - from);
    bytes[DISK_AT..DISK_AT + 16].fill(0);
    let says = format!("{tree}: inode {ino} has a hole from {from} to {end}");
    Ok(Some(Fix { says, edits: vec![Edit::Put(tree, at, bytes)] }))
}

/// Sets the length of inline data to the number of bytes in the item.
pub(super) fn inline(editor: &Editor, tree: TreeId, ino: Ino, offset: u64) -> Result<Option<Fix>> {
    const HEAD: usize = 21;
    let at = Key::new(ino.0, Kind::EXTENT_DATA, offset);
    let bytes = editor.get(tree, &at)?;
    let Some(mut bytes) = bytes.filter(|bytes| bytes.len() > HEAD) else { return Ok(None) };
    // The item's length gives the length of the data only if the data is inline and not compressed.
    if bytes[16] != 0 || bytes[20] != 0 {
        return Ok(None);
    }
    let len = (bytes.len() - HEAD) as u64;
    put64(&mut bytes, 8, len);
    let says = format!("{tree}: inode {ino} has {len} bytes inline");
    Ok(Some(Fix { says, edits: vec![Edit::Put(tree, at, bytes)] }))
}
