//! Finds older versions of files that still exist.
//!
//! # Invariants
//!
//! - **VE1** A version is given only if its content differs from that of the next newer version
//!   that was found. The first one is compared with the present file.
//! - **VE2** Files without checksums have no versions: their extents are overwritten in place, so
//!   an old item may refer to new content.
//! - **VE3** An extent that a newer version still has was in use all the time between. So checksums
//!   of that time count for the older version, too.

use std::collections::HashMap;

use buttress_format::{FileExtent, Generation, Ino, InodeFlags, Logical, TreeId};

use crate::deleted::{DeletedInodes, DeletedItems, LiveSubvolume};
use crate::inode_items::InodeItems;
use crate::last_use::LastUse;
use crate::old_logs::OldLogs;
use crate::salvage::Salvage;

/// The sources of versions.
pub(crate) struct Versions<'v> {
    pub(crate) salvage: &'v Salvage,
    pub(crate) deleted: &'v DeletedInodes,
    pub(crate) logs: &'v OldLogs,
    pub(crate) last_use: &'v LastUse,
    /// The transaction of the present trees.
    pub(crate) now: Generation,
}

/// The last transaction in which each extent was surely in use, by address and first transaction.
type InUse = HashMap<(Logical, Generation), Generation>;

/// What the content of a file follows from.
#[derive(PartialEq, Eq)]
struct Content {
    size: u64,
    extents: Vec<(u64, Option<FileExtent>)>,
}

impl Content {
    fn of(parts: &InodeItems) -> Self {
        let pieces = parts.pieces.iter();
        let extents = pieces.map(|piece| (piece.offset, piece.extent.clone().ok())).collect();
        Self { size: parts.size(), extents }
    }
}

impl Versions<'_> {
    /// The older versions of a live file, the newest first, with the transactions that wrote them.
    pub(crate) fn of(
        &self,
        subvolume: &LiveSubvolume,
        at: (TreeId, Ino),
    ) -> Vec<(Generation, DeletedItems)> {
        let present = InodeItems::read(self.salvage, &subvolume.tree, at.1, self.now);
        let Some(item) = present.item else { return Vec::new() };
        if item.flags & InodeFlags::NODATASUM != 0 {
            return Vec::new();
        }
        let mut in_use = InUse::new();
        extend(&mut in_use, &present);
        let mut newer = Content::of(&present);
        let mut found: Vec<(Generation, DeletedItems)> = Vec::new();
        for (generation, mut body) in self.all(at) {
            let Some(old) = body.parts.item.as_mut() else { continue };
            // A number is given to one inode after another only if a log was lost.
            if old.generation != item.generation || old.flags & InodeFlags::NODATASUM != 0 {
                continue;
            }
            // Each version is a file of its own.
            old.nlink = 1;
            for piece in &mut body.parts.pieces {
                let Ok(extent) = &piece.extent else { continue };
                if let Some(key) = extent.region().map(|region| (region.disk, extent.generation))
                    && let Some(last) = in_use.get(&key)
                {
                    piece.life.until = piece.life.until.max(*last);
                }
            }
            extend(&mut in_use, &body.parts);
            let content = Content::of(&body.parts);
            let is_again = found.last().is_some_and(|(last, _)| *last == generation);
            if content != newer && !is_again {
                found.push((generation, body));
            }
            newer = content;
        }
        found
    }

    /// All versions that trees and logs have, the newest first. Of one transaction, a tree is newer
    /// than a log, and takes its place.
    fn all(&self, at: (TreeId, Ino)) -> Vec<(Generation, DeletedItems)> {
        let mut all: Vec<_> = self.deleted.versions(self.salvage, self.last_use, at).collect();
        let sector = u64::from(self.salvage.superblock().sectorsize);
        for generation in self.logs.generations(at) {
            let older = all.iter().find(|(changed, _)| *changed < generation);
            let older = older.map(|(_, body)| body.clone());
            let logged = self.logs.logged(self.salvage, at, generation);
            let body = logged.and_then(|logged| DeletedItems::of_log(older, &logged, sector));
            // Without any extent it only says that there was a version.
            let body = body.filter(|body| body.parts.bytes() > 0 || body.parts.has_all_bytes());
            all.extend(body.map(|body| (generation, body)));
        }
        // The sort is stable: trees stay before logs.
        all.sort_by_key(|(generation, _)| std::cmp::Reverse(*generation));
        all
    }
}

/// Each extent counts as in use as long as its own leaf proves it.
fn extend(in_use: &mut InUse, parts: &InodeItems) {
    for piece in &parts.pieces {
        let (Ok(extent), until) = (&piece.extent, piece.life.until) else { continue };
        if let Some(region) = extent.region().filter(|region| !region.is_hole()) {
            let last = in_use.entry((region.disk, extent.generation)).or_insert(until);
            *last = (*last).max(until);
        }
    }
}

#[cfg(test)]
mod tests {
    use buttress_format::{Body, Compression, Region};

    use super::*;
    use crate::inode_items::FileItem;
    use crate::sums::Life;

    /// Pieces of one version may come from leaves with different proofs of use.
    #[test]
    fn each_extent_has_its_own_last_use() {
        let piece = |disk: u64, until: u64| {
            let region = Region { disk: Logical(disk), disk_len: 4096, offset: 0, len: 4096 };
            let extent = FileExtent {
                generation: Generation(3),
                ram_bytes: 4096,
                compression: Compression::None,
                body: Body::Regular(region),
            };
            let life = Life { from: extent.generation, until: Generation(until) };
            FileItem { offset: disk, extent: Ok(extent), life }
        };
        let pieces = vec![piece(4096, 5), piece(8192, 9), piece(12288, 4), piece(12288, 6)];
        let mut in_use = InUse::new();
        extend(&mut in_use, &InodeItems { pieces, ..InodeItems::default() });
        let last = |disk: u64| in_use[&(Logical(disk), Generation(3))].0;
        assert_eq!([last(4096), last(8192), last(12288)], [5, 9, 6]);
    }
}
