//! What the inode cache of old kernels left in subvolumes, removed.
//!
//! Linux before 5.11 could record which inode numbers of a subvolume were free: in a file without a
//! name, and in a header for it. No newer kernel reads or removes them.

use buttress_format::{Body, Extent, FileExtent, Ino, Key, Kind, TreeId, ids};
use buttress_txn::{Cost, DataRef, Error, ReserveClass, Result, View};

use crate::Maintenance;

/// Items that one handle deletes.
const ITEMS_AT_ONCE: usize = 64;

/// Items of the cache, and the extents that they refer to.
#[derive(Default)]
struct Found {
    keys: Vec<Key>,
    extents: Vec<(Extent, u64)>,
}

/// Some items of the cache of a subvolume.
fn find(view: &View, tree: TreeId) -> Result<Found> {
    // The file has the lower number, so nothing else lies between its items and the header.
    let from = Key::new(ids::FREE_INO, Kind(0), 0);
    let to = Key::new(ids::FREE_SPACE_V1, Kind(u8::MAX), u64::MAX);
    let mut found = Found::default();
    for item in view.range(tree, from, to).take(ITEMS_AT_ONCE) {
        let (key, bytes) = item?;
        if key.kind == Kind::EXTENT_DATA {
            let item =
                FileExtent::parse(&bytes).map_err(|source| Error::Item { tree, key, source })?;
            if let Body::Regular(region) | Body::Prealloc(region) = &item.body
                && region.disk.0 != 0
            {
                let extent = Extent::new(region.disk, region.disk_len);
                found.extents.push((extent, key.offset.wrapping_sub(region.offset)));
            }
        }
        found.keys.push(key);
    }
    Ok(found)
}

impl Maintenance {
    /// Deletes what the inode cache left in a subvolume, and returns the number of items. The next
    /// commit makes this durable. The caller excludes changes of subvolumes.
    ///
    /// # Errors
    ///
    /// An error from reading the tree, lack of space.
    pub fn clear_inode_cache(&self, tree: TreeId) -> Result<u64> {
        self.engine().check_writable()?;
        let mut deleted = 0;
        loop {
            let view = self.engine().view();
            let found = find(&view, tree)?;
            drop(view);
            if found.keys.is_empty() {
                return Ok(deleted);
            }
            deleted += found.keys.len() as u64;
            let (items, refs) = (found.keys.len() as u64, found.extents.len() as u64);
            let cost = Cost { items, commit_items: 3 * refs, bytes: 64 * refs };
            let handle = self.engine().begin(self.engine().reserve(cost, ReserveClass::Free)?);
            for key in found.keys {
                handle.delete(tree, key);
            }
            for (extent, offset) in found.extents {
                let user = DataRef { root: tree, ino: Ino(ids::FREE_INO), offset };
                handle.drop_data_ref(extent, user);
            }
        }
    }
}
