//! Inodes without names: found at mount, removed when their last user is gone.
//!
//! # Invariants
//!
//! - **N1** Whoever takes the last name of an inode puts its orphan item in the same handle; whoever removes
//!   the inode item removes the orphan item with it. A crash in between leaves an orphan item that names
//!   an inode, which the next mount removes.
//! - **N2** Nothing is removed that has a user.

use std::sync::Arc;

use buttress_data::File;
use buttress_format::{Ino, Key, Kind, TreeId, ids};
use buttress_txn::{Cost, Handle, Urgency, View};

use crate::attr::InodeId;
use crate::error::Result;
use crate::shared::{Shared, read_item};

/// The key under which an inode without names is found.
pub(crate) fn key(ino: Ino) -> Key {
    Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, ino.0)
}

/// The orphans of a subvolume.
pub(crate) fn list(view: &View, tree: TreeId) -> Result<Vec<InodeId>> {
    let items = view.range(tree, key(Ino(0)), key(Ino(u64::MAX)));
    items.map(|found| Ok(InodeId { tree, ino: Ino(found?.0.offset) })).collect()
}

/// Removes an inode that has neither names nor users; of one that has names, the orphan item only, which
/// old writers left when a cut was not finished.
pub(crate) fn clean(shared: &Arc<Shared>, id: InodeId) -> Result<()> {
    if shared.cache.find(id).is_ok() {
        // Its last user will ask again (N2).
        return Ok(());
    }
    // Of a deleted subvolume everything goes with the tree, which may be gone already.
    if shared.tree_info(&shared.engine.view(), id.tree).is_err() {
        return Ok(());
    }
    remove(shared, id)
}

/// As [`clean`], of an inode that nobody can become a user of.
pub(crate) fn remove(shared: &Arc<Shared>, id: InodeId) -> Result<()> {
    // No view is held while space is asked for: it would keep back what earlier commits freed.
    let found = read_item(&shared.engine.view(), id)?;
    let item = match found {
        Some(item) if item.nlink == 0 => item,
        found => {
            if let Some(item) = found {
                let _removing = shared.upkeep.removing.lock();
                let file = File::new(id.tree, id.ino, item);
                shared.files.cut_leftovers(&file)?;
            }
            let cost = Cost::of(1, 0);
            let handle = shared.engine.begin(shared.engine.reserve(cost, Urgency::Frees)?);
            handle.delete(id.tree, key(id.ino));
            return Ok(());
        }
    };
    let file = File::new(id.tree, id.ino, item);
    loop {
        let _removing = shared.upkeep.removing.lock();
        let last = |handle: &Handle<'_>| handle.delete(id.tree, key(id.ino));
        if shared.files.remove_step(&file, last)?.is_break() {
            return Ok(());
        }
    }
}
