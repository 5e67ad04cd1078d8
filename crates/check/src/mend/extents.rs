//! Proposes repairs of the file extent items that say where a file's data lies.
//!
//! # Invariants
//!
//! - **MX1** Data that the extent tree still records for a file at an offset is given back to the
//!   file. A gap becomes a hole only if no such record exists. Nothing is changed if a record
//!   leaves open to which file the data belongs, how it was stored, or whether a part was
//!   overwritten.
//! - **MX2** All records of an extent count: those in its item, and those with keys of their own.

use std::rc::Rc;

use buttress_format::{
    BackRef, Body, Compression, Extent, ExtentItem, FileExtent, Generation, Ino, InodeFlags, Key,
    Kind, Logical, Region, TreeId,
};

use crate::error::Result;
use crate::kinds::damaged_tree;
use crate::mend::editor::{Edit, Editor, Fix};
use crate::mend::names;
use crate::report::Report;
use buttress_issue::Issue;

/// The most bytes of a file that one compressed extent can hold.
const PACKED_MAX: u64 = 128 << 10;

/// The record of the extent tree for an extent that is used less often than recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    extent: Extent,
    generation: Generation,
    references: Vec<BackRef>,
}

impl Record {
    /// Reads the item of the extent at an address, and its keyed references. `None` if any of them
    /// cannot be read (MX2).
    fn read(editor: &Editor, at: Logical) -> Result<Option<Self>> {
        let first = Key::new(at.0, Kind(0), 0);
        let (mut found, mut references) = (None, Vec::new());
        for (key, bytes) in editor.items_from(TreeId::EXTENT, first, |key| key.objectid == at.0)? {
            match key.kind {
                Kind::EXTENT_ITEM => {
                    let Ok(item) = ExtentItem::parse(&key, &bytes) else { return Ok(None) };
                    if found.is_some() {
                        return Ok(None);
                    }
                    found = Some((Extent::new(at, key.offset), item.generation));
                    references.extend(item.inline);
                }
                Kind::EXTENT_DATA_REF | Kind::SHARED_DATA_REF => {
                    let Ok(one) = BackRef::keyed_parse(&key, &bytes) else { return Ok(None) };
                    references.push(one);
                }
                // A node holds no data of a file.
                Kind::METADATA_ITEM => {
                    let (extent, generation) = (Extent::new(at, 0), Generation(0));
                    return Ok(Some(Self { extent, generation, references }));
                }
                _ => {}
            }
        }
        Ok(found.map(|(extent, generation)| Self { extent, generation, references }))
    }

    fn is_for(&self, is_it: impl Fn(TreeId, Ino, u64) -> bool) -> bool {
        self.references.iter().any(|reference| {
            matches!(reference, BackRef::Data { root, ino, offset, .. }
                if is_it(*root, *ino, *offset))
        })
    }

    /// Whether an inode may have had data of this extent between two offsets of its file.
    fn touches(&self, ino: Ino, from: u64, len: u64) -> bool {
        let span = i128::from(self.extent.len.max(PACKED_MAX));
        self.is_for(|_, its, at| {
            // The offset is the place of the extent's first byte in the file, and may be negative.
            let start = i128::from(at as i64);
            its == ino
                && start < i128::from(from) + i128::from(len)
                && start + span > i128::from(from)
        })
    }

    /// The number of items that use the extent for one inode.
    fn uses_of(&self, ino: Ino) -> u64 {
        let counts = self.references.iter().filter_map(|reference| match reference {
            BackRef::Data { ino: its, count, .. } if *its == ino => Some(u64::from(*count)),
            _ => None,
        });
        counts.sum()
    }

    /// Whether a reference names a leaf by its address. Such a reference may be for any file.
    fn is_shared(&self) -> bool {
        self.references.iter().any(|reference| matches!(reference, BackRef::SharedData { .. }))
    }
}

/// Records of all extents that something uses less often than recorded. `None` if some records are
/// not known: the report is cut, or the extent tree is damaged.
fn records(editor: &Editor, report: &Report) -> Option<Rc<[Record]>> {
    let read = || {
        let codes = ["extent-unused", "backref-unused", "backref-count"];
        let is_cut = codes.iter().any(|code| report.more.contains_key(code));
        let is_damaged =
            report.issues.iter().any(|issue| damaged_tree(issue) == Some(TreeId::EXTENT));
        if is_cut || is_damaged {
            return None;
        }
        let mut places: Vec<Logical> = report.issues.iter().filter_map(less_used).collect();
        places.sort_unstable();
        places.dedup();
        let each = places.into_iter().map(|at| Record::read(editor, at).ok().flatten());
        each.collect::<Option<Rc<[Record]>>>()
    };
    editor.records.get_or_init(read).clone()
}

/// The extent of an issue, if the issue says that the extent has fewer uses than recorded.
fn less_used(issue: &Issue) -> Option<Logical> {
    match issue {
        Issue::ExtentUnused { extent } => Some(extent.start),
        Issue::BackrefUnused { extent, .. } => Some(*extent),
        Issue::BackrefCount { extent, recorded, uses, .. } if recorded > uses => Some(*extent),
        _ => None,
    }
}

/// The records for a place in a file.
enum Recorded {
    /// One extent of the wanted length, for this place alone, and how often the inode used it.
    One(Extent, Generation, u64),
    /// A record that may be for this file, but does not tell which data lies at this place.
    Unclear,
    /// No record that can be for this file.
    Nothing,
}

/// Returns the record of the extent tree for a file at an offset that the file does not use (MX1).
fn recorded(
    editor: &Editor,
    report: &Report,
    tree: TreeId,
    ino: Ino,
    offset: u64,
    len: u64,
) -> Recorded {
    let Some(all) = records(editor, report) else { return Recorded::Unclear };
    // Another subvolume can share the leaf, and the record names the first owner of the leaf.
    let may_be = |record: &&Record| record.is_shared() || record.is_for(|_, its, _| its == ino);
    let is_it = |record: &&Record| {
        let is_for = record.is_for(|root, its, at| root == tree && its == ino && at == offset);
        record.extent.len == len && is_for
    };
    let mut ours = all.iter().filter(is_it);
    match (ours.next(), ours.next()) {
        (Some(one), None)
            if !all.iter().any(Record::is_shared)
                && all.iter().filter(|record| record.touches(ino, offset, len)).count() == 1 =>
        {
            Recorded::One(one.extent, one.generation, one.uses_of(ino))
        }
        // Two records are for one place, or for parts of this place. Neither record is known to be
        // right.
        (Some(_), _) => Recorded::Unclear,
        (None, _) if all.iter().any(|record| may_be(&record)) => Recorded::Unclear,
        (None, _) => Recorded::Nothing,
    }
}

/// Whether an extent that is used less often than recorded may have data of an inode.
pub(super) fn may_be_recorded(editor: &Editor, report: &Report, ino: Ino) -> bool {
    records(editor, report).is_none_or(|all| {
        all.iter().any(|record| record.is_shared() || record.is_for(|_, its, _| its == ino))
    })
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

/// The item of a file at an offset, if it is there and can be read.
fn item(editor: &Editor, tree: TreeId, at: &Key) -> Result<Option<FileExtent>> {
    Ok(editor.get(tree, at)?.and_then(|bytes| FileExtent::parse(&bytes).ok()))
}

fn put(tree: TreeId, at: Key, item: &FileExtent, says: String) -> Option<Fix> {
    Some(Fix { says, edits: vec![Edit::Put(tree, at, item.to_bytes())] })
}

/// Sets an impossible address to the address that the extent tree records.
pub(super) fn address(
    editor: &Editor,
    report: &Report,
    tree: TreeId,
    ino: Ino,
    offset: u64,
) -> Result<Option<Fix>> {
    let at = Key::new(ino.0, Kind::EXTENT_DATA, offset);
    let Some(mut item) = item(editor, tree, &at)? else { return Ok(None) };
    let (Body::Regular(region) | Body::Prealloc(region)) = &mut item.body else {
        return Ok(None);
    };
    let first = offset.wrapping_sub(region.offset);
    let found = recorded(editor, report, tree, ino, first, region.disk_len);
    let Recorded::One(extent, ..) = found else { return Ok(None) };
    region.disk = extent.start;
    let says = format!("{tree}: inode {ino} at {offset} uses extent {extent}");
    Ok(put(tree, at, &item, says))
}

/// Fills a gap in a file with an item: with lost data that is still recorded, or else with a hole.
pub(super) fn hole(
    editor: &Editor,
    report: &Report,
    tree: TreeId,
    ino: Ino,
    offset: u64,
) -> Result<Option<Fix>> {
    let Some(inode) = names::inode(editor, tree, ino)? else { return Ok(None) };
    let sector = u64::from(editor.superblock.sectorsize);
    let Some(size_end) = inode.size.checked_next_multiple_of(sector) else { return Ok(None) };
    let Some(from) = offset.checked_next_multiple_of(sector) else { return Ok(None) };
    let extents = editor.items(tree, ino.0, Kind::EXTENT_DATA)?;
    let next = extents.iter().map(|(key, _)| key.offset).find(|at| *at >= from);
    let end = next.unwrap_or(size_end).min(size_end);
    if end <= from {
        return Ok(None);
    }
    let len = end - from;
    let at = Key::new(ino.0, Kind::EXTENT_DATA, from);
    let mut item = FileExtent {
        generation: editor.superblock.generation,
        ram_bytes: len,
        compression: Compression::None,
        body: Body::Regular(Region { disk: Logical(0), disk_len: 0, offset: 0, len }),
    };
    let (extent, generation) = match recorded(editor, report, tree, ino, from, len) {
        Recorded::Unclear => return Ok(None),
        Recorded::Nothing => {
            let says = format!("{tree}: inode {ino} has a hole from {from} to {end}");
            return Ok(put(tree, at, &item, says));
        }
        // If the file used several parts of the extent, the bytes between these parts were
        // overwritten. The extent has old bytes there.
        Recorded::One(_, _, uses) if uses != 1 => return Ok(None),
        Recorded::One(extent, generation, _) => (extent, generation),
    };
    let held = |bytes: &[u8]| match FileExtent::parse(bytes) {
        Ok(FileExtent { body: Body::Inline(_), ram_bytes, .. }) => ram_bytes,
        Ok(one) => one.region().filter(|region| region.disk.0 != 0).map_or(0, |region| region.len),
        Err(_) => 0,
    };
    let held = extents.iter().map(|(_, bytes)| held(bytes)).fold(0, u64::saturating_add);
    if held.saturating_add(extent.len) > inode.nbytes {
        // The inode's count of bytes has no room for the extent, so this was a hole. The record is
        // a leftover.
        return Ok(None);
    }
    let is_plain = |bytes: &[u8]| {
        FileExtent::parse(bytes).is_ok_and(|one| one.compression == Compression::None)
    };
    let may_pack = inode.flags & InodeFlags::COMPRESS != 0
        || !extents.iter().all(|(_, bytes)| is_plain(bytes));
    if may_pack || inode.flags & InodeFlags::NODATASUM != 0 {
        // Nothing says whether the data was compressed, or whether it was written at all.
        return Ok(None);
    }
    // Data with checksums was written. Data without checksums may be preallocated space. So data
    // without checksums becomes a preallocated extent: the file reads zeros there, and the bytes
    // stay on the device.
    let region = Region { disk: extent.start, disk_len: extent.len, offset: 0, len: extent.len };
    item.generation = generation;
    item.body = match has_sums(editor, extent)? {
        true => Body::Regular(region),
        false => Body::Prealloc(region),
    };
    let says = format!("{tree}: inode {ino} has extent {extent} at {from} again");
    Ok(put(tree, at, &item, says))
}

/// Sets the length of inline data to the number of bytes in the item.
pub(super) fn inline(editor: &Editor, tree: TreeId, ino: Ino, offset: u64) -> Result<Option<Fix>> {
    let at = Key::new(ino.0, Kind::EXTENT_DATA, offset);
    let Some(mut item) = item(editor, tree, &at)? else { return Ok(None) };
    let Body::Inline(data) = &item.body else { return Ok(None) };
    // Only plain inline data states its own length twice.
    if data.is_empty() || item.compression != Compression::None {
        return Ok(None);
    }
    item.ram_bytes = data.len() as u64;
    let says = format!("{tree}: inode {ino} has {} bytes inline", data.len());
    Ok(put(tree, at, &item, says))
}
