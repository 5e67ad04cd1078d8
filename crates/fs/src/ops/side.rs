//! One side of a rename, and the steps that all renames share.
//!
//! # Invariants
//!
//! - **E1** Each subvolume has one batch, both for removed and for added names. So two changes of
//!   one item combine.

use std::sync::Arc;

use buttress_format::DirEntry;
use buttress_items::names::{self, Target};
use buttress_items::{Batch, Error, NameError, Result};
use buttress_txn::View;

use crate::cell::InodeCell;
use crate::inode::{DEPTH_MAX, Inode};
use crate::mount::Mount;

/// One side of a rename.
pub(super) struct Side<'a> {
    pub(super) of: &'a Inode,
    pub(super) dir: &'a Arc<InodeCell>,
    pub(super) name: &'a [u8],
}

impl<'a> Side<'a> {
    pub(super) fn mount(&self) -> &'a Arc<Mount> {
        self.of.mount()
    }

    pub(super) fn find(&self, view: &View) -> Result<Option<DirEntry>> {
        names::find(view, self.dir.id, self.name)
    }

    /// The inode of an entry. `None` if the name no longer leads to this entry's inode.
    pub(super) fn inode(&self, entry: &DirEntry) -> Result<Option<Inode>> {
        match names::target(&self.mount().engine.view(), self.dir.id, entry)? {
            Target::Inode(id) => match Inode::of(self.mount(), id) {
                Err(Error::Name(NameError::NotFound)) if self.of.is_moved_on(entry)? => Ok(None),
                found => found.map(Some),
            },
            // A subvolume that moves is handled earlier. A subvolume as a target is refused,
            // because nothing can replace it.
            Target::Subvolume(_) | Target::Stub => Err(NameError::NotEmpty.into()),
        }
    }
}

/// Refuses to move a directory into a directory below it.
pub(super) fn check_dir_way(
    mount: &Mount,
    moved: &Arc<InodeCell>,
    dir: &Arc<InodeCell>,
) -> Result<()> {
    let mut at = Arc::clone(dir);
    for _ in 0..DEPTH_MAX {
        if at.id == moved.id {
            return Err(Error::invalid("a directory cannot be moved below itself"));
        }
        let up = mount.above(&at)?;
        if up == at.id || up.tree != moved.tree() {
            return Ok(());
        }
        at = mount.inodes.cell(up)?;
    }
    Err(Error::Item { tree: dir.tree(), ino: dir.ino(), what: "the way up from it does not end" })
}

/// Collects the changes that remove a name.
pub(super) fn take(
    view: &View,
    side: &Side<'_>,
    cell: &InodeCell,
    batch: &mut Batch,
) -> Result<()> {
    let index = batch.remove_ref(view, cell.ino(), side.dir.ino(), side.name)?;
    batch.remove_name(view, side.dir.ino(), index, side.name)
}

/// Collects the changes that add a name.
pub(super) fn give(
    view: &View,
    side: &Side<'_>,
    cell: &InodeCell,
    batch: &mut Batch,
) -> Result<()> {
    let limits = side.mount().ref_limits();
    let index = side.dir.next_index(view)?;
    let entry = names::entry(side.name, cell.ino(), cell.kind);
    batch.add_name(view, side.dir.ino(), index, entry, limits.item_len_max)?;
    batch.add_ref(view, cell.ino(), side.dir.ino(), index, side.name, limits)
}
