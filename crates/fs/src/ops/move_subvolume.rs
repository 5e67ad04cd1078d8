//! Moving a subvolume: its name goes to another directory, of its own subvolume or of another one.
//!
//! # Invariants
//!
//! - **M1** A subvolume never comes to lie below itself: nothing else moves meanwhile (`Shared::moving`), and
//!   the way up from the new place, from subvolume to subvolume, is walked first.
//! - **M2** Entry, reference and reference back go over in one transaction (S1 of subvolumes).

use buttress_format::{DirEntry, Key, Kind, TreeId};
use buttress_txn::{Cost, Urgency, View};

use super::rename::Side;
use super::subvolume::{add_refs, named, remove_refs, unnamed};
use crate::batch::{Batch, NOW};
use crate::clock::now;
use crate::error::{Error, NameError, Result};
use crate::inode::{DEPTH_MAX, RenameFlags};
use crate::lock_set::LockSet;
use crate::names::{self, Target};
use crate::trees;

/// Moves a subvolume that has its name on one side to a name that is free on the other.
pub(super) fn move_subvolume(
    source: &Side<'_>,
    target: &Side<'_>,
    tree: TreeId,
    flags: RenameFlags,
) -> Result<()> {
    let shared = &source.dir.shared;
    if flags.exchange {
        return Err(Error::unsupported("exchanging a subvolume's name with another"));
    }
    let home = shared.tree_info(&shared.engine.view(), tree)?;
    if source.dir.id != target.dir.id && home.is_read_only() {
        // What moves to another directory has another `..`: as Linux sees it, a change of it.
        return Err(Error::read_only("the subvolume", "its read-only flag is set"));
    }
    let _changing = shared.trees.changing.lock();
    let _locks = LockSet::new([Some(source.dir), Some(target.dir), None, None]);
    let view = shared.engine.view();
    let found = source.find(&view)?.ok_or(NameError::NotFound)?;
    if names::target(&view, source.dir.id, &found)? != Target::Subvolume(tree) {
        return Err(NameError::NotFound.into());
    }
    target.dir.expect_linked()?;
    source.dir.expect_removable()?;
    target.dir.expect_mutable()?;
    if let Some(there) = target.find(&view)? {
        return match names::target(&view, target.dir.id, &there)? {
            Target::Subvolume(same) if same == tree => Ok(()),
            _ if flags.no_replace => Err(NameError::Exists.into()),
            Target::Inode(_) if names::kind(&there) != Some(crate::attr::FileKind::Directory) => {
                Err(NameError::NotDir.into())
            }
            _ => Err(NameError::NotEmpty.into()),
        };
    }
    check_way(&view, tree, target.dir.tree())?;

    let mut roots = Batch::new(TreeId::ROOT);
    let index = remove_refs(&view, &mut roots, tree, source.dir.tree())?;
    let mut taken = Batch::new(source.dir.tree());
    taken.remove_name(&view, source.dir.ino(), index, source.name)?;
    let index = target.dir.next_index(&view)?;
    add_refs(&mut roots, tree, target.dir.id, index, target.name);
    let entry = DirEntry {
        location: Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX),
        transid: NOW,
        kind: buttress_format::FileKind::Directory,
        name: target.name.to_vec(),
        data: Vec::new(),
    };
    let item_len_max = shared.ref_limits().item_len_max;
    let same_tree = source.dir.tree() == target.dir.tree();
    let mut given = Batch::new(target.dir.tree());
    // Two names whose hashes collide share an item: one batch must see both.
    let into = if same_tree { &mut taken } else { &mut given };
    into.add_name(&view, target.dir.ino(), index, entry, item_len_max)?;
    drop(view);
    let mut cost = Cost { items: 2, bytes: 512 };
    for part in [&taken, &given, &roots] {
        let more = part.cost(0);
        cost = Cost { items: cost.items + more.items, bytes: cost.bytes + more.bytes };
    }
    let stamp = now();
    let handle = shared.engine.begin(shared.reserve(cost, Urgency::Normal)?);
    for part in [taken, given, roots] {
        part.apply(&handle);
    }
    source.dir.file.update(&handle, |item| unnamed(item, source.name, stamp));
    target.dir.file.update(&handle, |item| named(item, target.name, stamp));
    Ok(())
}

/// Refuses a place that lies in the subvolume itself (M1).
fn check_way(view: &View, moved: TreeId, into: TreeId) -> Result<()> {
    let mut at = into;
    for _ in 0..DEPTH_MAX {
        if at == moved {
            return Err(Error::invalid("a subvolume cannot be moved below itself"));
        }
        match trees::place(view, at)? {
            Some((dir, _)) => at = dir.tree,
            None => return Ok(()),
        }
    }
    Err(Error::Item {
        tree: into,
        ino: buttress_format::Ino::ROOT_DIR,
        what: "the way up from it does not end",
    })
}
