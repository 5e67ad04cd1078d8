//! The extents of a file in its log.
//!
//! # Invariants
//!
//! - **E1** The items of a file in its log tile every range that changed since the last commit:
//!   extent items where the file has extents now, hole items elsewhere. So replay leaves no older
//!   extent in such a range, and the items never overlap.
//! - **E2** The log has all extents after the file's length, because replay first truncates the
//!   file to that length.
//! - **E3** Every new extent comes with the checksums that its transaction has for it.
//! - **E4** Suppose another file has an extent as preallocated, in the last commit or in the log.
//!   If the extent was written since then, and the synced file shares the extent, the log must not
//!   bring the extent's checksums. After a crash the other file would still have the extent as
//!   preallocated, and a preallocated extent has no checksums. A commit is made instead.

use std::collections::BTreeSet;
use std::ops::Range;

use buttress_base::RangeSet;
use buttress_format::{
    Body, Compression, Extent, FileExtent, Ino, InodeItem, Key, Kind, Logical, Region, TreeId, ids,
    limits,
};

use buttress_txn::{CommitReason, DataRef, Error, LoggedId};

use crate::draft::Draft;
use crate::no_log::{LogResult, NoLog};

fn key(ino: u64, offset: u64) -> Key {
    Key::new(ino, Kind::EXTENT_DATA, offset)
}

fn parse(tree: TreeId, key: Key, item: &[u8]) -> LogResult<FileExtent> {
    Ok(FileExtent::parse(item).map_err(|source| Error::Item { tree, key, source })?)
}

/// Returns the offset after the last byte of an item.
fn end(offset: u64, extent: &FileExtent, sector: u64) -> u64 {
    let len = match &extent.body {
        Body::Inline(_) => extent.ram_bytes.next_multiple_of(sector).max(sector),
        Body::Regular(region) | Body::Prealloc(region) => region.len,
    };
    offset.saturating_add(len)
}

fn is_hole(extent: &FileExtent) -> bool {
    extent.region().is_some_and(Region::is_hole)
}

/// Logs the extents of a file that changed. `noted` has the keys that changed since the last log,
/// and whether the file still has the length in that log. Without `noted`, all keys that the
/// running transaction changed are looked at.
pub(super) fn log(
    draft: &mut Draft<'_>,
    (tree, ino): LoggedId,
    item: &InodeItem,
    noted: Option<(&BTreeSet<Key>, bool)>,
) -> LogResult<()> {
    let sector = u64::from(draft.view.store().geometry().sectorsize);
    let keys: Vec<Key> = match noted {
        Some((noted, _)) => noted.iter().copied().collect(),
        None => {
            let changes = draft.view.running_overlay().of_object(tree, ino);
            changes.into_iter().map(|(key, _)| key).collect()
        }
    };
    let mut changed = RangeSet::default();
    for at in keys.into_iter().filter(|key| key.kind == Kind::EXTENT_DATA) {
        let range = |item: &[u8]| -> LogResult<Range<u64>> {
            Ok(at.offset..end(at.offset, &parse(tree, at, item)?, sector))
        };
        let logged = draft.logged(tree, &at).map(range).transpose()?;
        let new = draft.view.get(tree, &at)?;
        if let Some(new) = &new {
            let covers = range(new)?;
            put(draft, tree, at, new)?;
            // The log had an item with the same range here. When the log got that item, the log
            // also covered the committed items of the range (E1).
            if logged.as_ref() == Some(&covers) {
                continue;
            }
            changed.insert(covers);
        } else {
            draft.set(tree, at, None);
        }
        if let Some(old) = draft.base.get(tree, &at)? {
            changed.insert(range(&old)?);
        }
        if let Some(old) = logged {
            changed.insert(old);
        }
    }
    if changed.is_empty() && noted.is_some_and(|(_, same_size)| same_size) {
        return Ok(());
    }
    // If the length has not changed, all extents past it are in the last log or were noted.
    if !noted.is_some_and(|(_, same_size)| same_size) {
        log_past_end(draft, (tree, ino), item, sector, &mut changed)?;
    }
    log_holes(draft, (tree, ino), item, sector, changed)
}

/// Puts an extent into the log, with its checksums.
fn put(draft: &mut Draft<'_>, tree: TreeId, at: Key, item: &[u8]) -> LogResult<()> {
    let extent = parse(tree, at, item)?;
    if let Some(region) = extent.region().filter(|region| !region.is_hole()) {
        // A chunk of this transaction is unknown after a crash.
        let group = draft.engine.storage().space().group_at(region.disk);
        let known = draft.base.committed_generation();
        if group.is_none_or(|group| group.birth() > known) {
            return Err(NoLog::Commit(CommitReason::NewChunk));
        }
        let offset = at.offset.wrapping_sub(region.offset);
        let user = DataRef { root: tree, ino: Ino(at.objectid), offset };
        let is_written = matches!(extent.body, Body::Regular(_));
        draft.view.tracked().log_extent(region.disk, user, !is_written);
        if is_written {
            let part = match extent.compression {
                Compression::None => Extent::new(region.disk.end(region.offset), region.len),
                _ => region.extent(),
            };
            if sums(draft, tree, part) && is_anothers_preallocated(draft, region.extent(), user)? {
                return Err(NoLog::Commit(CommitReason::SharedPreallocation));
            }
        }
    }
    draft.set(tree, at, Some(item));
    Ok(())
}

/// Whether another file would have the extent as preallocated after a crash, although the extent
/// has got checksums since the last commit (E4).
fn is_anothers_preallocated(draft: &Draft<'_>, extent: Extent, user: DataRef) -> LogResult<bool> {
    if draft.view.tracked().is_anothers_preallocated(extent.start, user) {
        return Ok(true);
    }
    // Only an inode that alone had the extent in the last commit may have written into the extent.
    // If the running transaction did not change the extent's users, that inode still is the only
    // user.
    if !draft.view.has_other_users(extent.start) {
        return Ok(false);
    }
    Ok(!buttress_txn::is_exclusive(&draft.view, extent, user)?)
}

/// Logs the checksums of this transaction that cover a range (E3). A run of checksums is logged as
/// a whole, even if `part` is shorter. Returns whether this transaction has such checksums.
fn sums(draft: &mut Draft<'_>, tree: TreeId, part: Extent) -> bool {
    let geometry = *draft.view.store().geometry();
    let size = geometry.csum.size();
    let sector = u64::from(geometry.sectorsize);
    let max = limits::csum_item_max(geometry.nodesize, size);
    let runs = draft.view.new_csums(part);
    let any = !runs.is_empty();
    for (run, sums) in runs {
        let mut at = run.start;
        for piece in sums.chunks(max) {
            let key = Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at.0);
            draft.set(tree, key, Some(piece));
            at = Logical(at.0 + (piece.len() / size) as u64 * sector);
        }
    }
    any
}

/// Logs the extents after the file's length that the log lacks (E2), and adds their ranges to
/// `changed`.
fn log_past_end(
    draft: &mut Draft<'_>,
    (tree, ino): LoggedId,
    item: &InodeItem,
    sector: u64,
    changed: &mut RangeSet,
) -> LogResult<()> {
    let from = item.size.next_multiple_of(sector);
    let low = key(ino, 0);
    let mut next = from;
    if let Some((at, _)) = draft.view.at_or_before(tree, &low, &key(ino, from))? {
        next = at.offset;
    }
    let view = std::sync::Arc::clone(&draft.view);
    for found in view.range(tree, key(ino, next), key(ino, u64::MAX)) {
        let (at, found) = found?;
        let extent = parse(tree, at, &found)?;
        let end = end(at.offset, &extent, sector);
        if end > from && !is_hole(&extent) && draft.logged(tree, &at).is_none() {
            changed.insert(at.offset..end);
            put(draft, tree, at, &found)?;
        }
    }
    Ok(())
}

/// Logs hole items for the parts of the changed ranges that no extent covers (E1). With `NO_HOLES`
/// this includes parts past the file's length, since the file may grow again without a hole item.
/// On other volumes, growing the file puts hole items.
fn log_holes(
    draft: &mut Draft<'_>,
    (tree, ino): LoggedId,
    item: &InodeItem,
    sector: u64,
    mut changed: RangeSet,
) -> LogResult<()> {
    // Hole items that were logged before are removed, and logged again if the holes still exist.
    let spans: Vec<_> = changed.iter().collect();
    let mut tiles = Vec::new();
    for span in &spans {
        for (at, logged) in around(draft, (tree, ino), span.start, span.end, sector)? {
            let extent = parse(tree, at, &logged)?;
            let real = draft.view.get(tree, &at)?.is_some_and(|item| item[..] == logged[..]);
            if is_hole(&extent) && !real {
                changed.insert(at.offset..end(at.offset, &extent, sector));
                draft.set(tree, at, None);
            }
        }
    }
    let spans: Vec<_> = changed.iter().collect();
    for span in &spans {
        let mut at = span.start;
        for (next, item) in around(draft, (tree, ino), span.start, span.end, sector)? {
            let extent = parse(tree, next, &item)?;
            if next.offset > at {
                tiles.push(at..next.offset);
            }
            at = at.max(end(next.offset, &extent, sector));
        }
        if at < span.end {
            tiles.push(at..span.end);
        }
    }
    let stop = if draft.no_holes { u64::MAX } else { item.size.next_multiple_of(sector) };
    for hole in tiles.into_iter().map(|hole| hole.start..hole.end.min(stop)) {
        if hole.is_empty() {
            continue;
        }
        let len = hole.end - hole.start;
        let region = Region { disk: Logical(0), disk_len: 0, offset: 0, len };
        let extent = FileExtent {
            generation: draft.view.generation(),
            ram_bytes: len,
            compression: Compression::None,
            body: Body::Regular(region),
        };
        draft.set(tree, key(ino, hole.start), Some(&extent.to_bytes()));
    }
    Ok(())
}

/// The items of a file in its log that touch a range.
fn around(
    draft: &Draft<'_>,
    (tree, ino): LoggedId,
    start: u64,
    stop: u64,
    sector: u64,
) -> LogResult<Vec<(Key, buttress_tree::Payload)>> {
    let mut found = Vec::new();
    let low = key(ino, 0);
    if let Some(left) = start.checked_sub(1)
        && let Some((at, item)) = draft.logged_before(tree, low, key(ino, left))
    {
        let extent = parse(tree, at, &item)?;
        if end(at.offset, &extent, sector) > start {
            found.push((at, item));
        }
    }
    found.extend(draft.logged_range(tree, key(ino, start), key(ino, stop.saturating_sub(1))));
    Ok(found)
}
