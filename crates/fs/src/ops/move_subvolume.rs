//! Moves a subvolume: its name moves to another directory, in the same or another subvolume.
//!
//! # Invariants
//!
//! - **M1** A subvolume never gets below itself. No other directory or subvolume moves meanwhile
//!   (`Mount::moving`). Before the move, the thread follows the path from the new directory up,
//!   from subvolume to subvolume.
//! - **M2** The entry, the reference and the back reference move in one transaction (S1 of
//!   subvolumes).

use std::sync::Arc;

use buttress_format::{DirEntry, Key, Kind, TreeId};
use buttress_items::names::{self, Target};
use buttress_items::subvolume_items::{add_refs, remove_refs};
use buttress_items::{Batch, Error, FileKind, NOW, NameError, Result, roots};
use buttress_txn::{Cost, ReserveClass, View};

use super::side::{Side, check_dir_way, give, take};
use super::subvolume::{count_name, uncount_name};
use super::unlink::{is_empty, orphan_if_last_name};
use crate::cell::InodeCell;
use crate::inode::{DEPTH_MAX, Inode, RenameFlags};
use crate::lock_set::LockSet;
use buttress_make::clock::now;

/// Moves a subvolume from its name on the source side to a name on the target side. The target name
/// is free, or belongs to an empty directory.
pub(super) fn move_subvolume(
    source: &Side<'_>,
    target: &Side<'_>,
    tree: TreeId,
    flags: RenameFlags,
) -> Result<()> {
    let mount = source.mount();
    expect_movable(source, target, tree)?;
    loop {
        let view = mount.engine.view();
        let replaced = match target.find(&view)? {
            None => None,
            Some(there) => match names::target(&view, target.dir.id, &there)? {
                Target::Subvolume(same) if same == tree => return Ok(()),
                _ if flags.no_replace => return Err(NameError::Exists.into()),
                Target::Inode(_) if names::kind(&there) != Some(FileKind::Directory) => {
                    return Err(NameError::NotDir.into());
                }
                _ => match target.inode(&there)? {
                    None => continue,
                    found => found,
                },
            },
        };
        drop(view);
        let replaced = replaced.as_ref().map(|inode| &inode.cell);
        let _changing = mount.inodes.trees().changing.lock();
        let _locks = LockSet::new([Some(source.dir), Some(target.dir), replaced, None]);
        let view = mount.engine.view();
        expect_subvolume(&view, source, tree)?;
        let there = match target.find(&view)? {
            None => None,
            Some(entry) => Some(names::target(&view, target.dir.id, &entry)?),
        };
        if there != replaced.map(|cell| Target::Inode(cell.id)) {
            continue;
        }
        target.dir.expect_linked()?;
        source.dir.expect_removable()?;
        target.dir.expect_mutable()?;
        if let Some(replaced) = replaced {
            target.dir.expect_removable()?;
            replaced.expect_removable()?;
            if !is_empty(&view, replaced)? {
                return Err(NameError::NotEmpty.into());
            }
        }
        check_way(&view, tree, target.dir.tree())?;
        let mut changes = Changes::new(source, target);
        if let Some(replaced) = replaced {
            let batch = changes.of(target);
            let dir = target.dir.ino();
            let index = batch.remove_ref(&view, replaced.ino(), dir, target.name)?;
            batch.remove_name(&view, dir, index, target.name)?;
            orphan_if_last_name(replaced, batch);
        }
        changes.take(&view, source, tree)?;
        changes.give(&view, target, tree)?;
        drop(view);
        let class = if replaced.is_some() { ReserveClass::Free } else { ReserveClass::Normal };
        let stamp = now();
        let handle = mount.engine.begin(mount.space.reserve(changes.cost(), class)?);
        changes.apply(&handle);
        source.dir.file.update(&handle, |item| uncount_name(item, source.name, stamp));
        target.dir.file.update(&handle, |item| {
            if replaced.is_some() {
                (item.mtime, item.ctime) = (stamp, stamp);
            } else {
                count_name(item, target.name, stamp);
            }
        });
        if let Some(replaced) = replaced {
            replaced.file.update(&handle, |item| {
                item.nlink = 0;
                item.ctime = stamp;
            });
        }
        return Ok(());
    }
}

/// Exchanges the name of a subvolume with the name of another subvolume. If both names are in the
/// same subvolume, the other name may belong to any inode.
pub(super) fn exchange_subvolume(source: &Side<'_>, target: &Side<'_>, tree: TreeId) -> Result<()> {
    let mount = source.mount();
    expect_movable(source, target, tree)?;
    loop {
        let view = mount.engine.view();
        let there = target.find(&view)?.ok_or(NameError::NotFound)?;
        let other = match names::target(&view, target.dir.id, &there)? {
            Target::Subvolume(same) if same == tree => return Ok(()),
            Target::Subvolume(other) => Other::Subvolume(other),
            Target::Stub => return Err(NameError::NotEmpty.into()),
            Target::Inode(_) => match target.inode(&there)? {
                None => continue,
                Some(inode) => Other::Inode(inode),
            },
        };
        drop(view);
        match &other {
            Other::Subvolume(other) => expect_movable(target, source, *other)?,
            Other::Inode(_) if source.dir.tree() != target.dir.tree() => {
                return Err(NameError::CrossDevice.into());
            }
            Other::Inode(inode) if inode.kind() == FileKind::Directory => {
                check_dir_way(mount, &inode.cell, source.dir)?;
            }
            Other::Inode(_) => {}
        }
        let _changing = mount.inodes.trees().changing.lock();
        let _locks = LockSet::new([Some(source.dir), Some(target.dir), other.cell(), None]);
        let view = mount.engine.view();
        expect_subvolume(&view, source, tree)?;
        let now_there = target.find(&view)?.ok_or(NameError::NotFound)?;
        if now_there.location != there.location {
            continue;
        }
        for dir in [source.dir, target.dir] {
            dir.expect_linked()?;
            dir.expect_removable()?;
        }
        check_way(&view, tree, target.dir.tree())?;
        let mut changes = Changes::new(source, target);
        changes.take(&view, source, tree)?;
        match &other {
            Other::Subvolume(other) => {
                check_way(&view, *other, source.dir.tree())?;
                changes.take(&view, target, *other)?;
                changes.give(&view, source, *other)?;
            }
            Other::Inode(inode) => {
                inode.cell.expect_removable()?;
                take(&view, target, &inode.cell, changes.of(target))?;
                give(&view, source, &inode.cell, changes.of(source))?;
            }
        }
        changes.give(&view, target, tree)?;
        drop(view);
        let stamp = now();
        let handle = mount.engine.begin(mount.space.reserve(changes.cost(), ReserveClass::Normal)?);
        changes.apply(&handle);
        if let Some(cell) = other.cell() {
            cell.file.update(&handle, |item| item.ctime = stamp);
        }
        // Each directory keeps the name, which now leads to another target. So only the directory's
        // times change.
        for dir in [source.dir, target.dir] {
            dir.file.update(&handle, |item| (item.mtime, item.ctime) = (stamp, stamp));
        }
        return Ok(());
    }
}

/// The other side of an exchange with a subvolume.
enum Other {
    Subvolume(TreeId),
    Inode(Inode),
}

impl Other {
    fn cell(&self) -> Option<&Arc<InodeCell>> {
        match self {
            Self::Subvolume(_) => None,
            Self::Inode(inode) => Some(&inode.cell),
        }
    }
}

/// Fails for a read-only subvolume that gets another parent directory. As in Linux, a change of
/// `..` counts as a change of the subvolume.
fn expect_movable(from: &Side<'_>, to: &Side<'_>, tree: TreeId) -> Result<()> {
    let mount = from.mount();
    let home = mount.inodes.tree_info(&mount.engine.view(), tree)?;
    if from.dir.id != to.dir.id && home.is_read_only() {
        return Err(Error::read_only("the subvolume", "its read-only flag is set"));
    }
    Ok(())
}

fn expect_subvolume(view: &View, side: &Side<'_>, tree: TreeId) -> Result<()> {
    let found = side.find(view)?.ok_or(NameError::NotFound)?;
    match names::target(view, side.dir.id, &found)? {
        Target::Subvolume(there) if there == tree => Ok(()),
        _ => Err(NameError::NotFound.into()),
    }
}

/// The changes of one transaction (M2). Two names with colliding hashes share an item. Names of one
/// subvolume are collected in one batch, so that changes of the same item combine.
struct Changes {
    roots: Batch,
    parts: Vec<Batch>,
}

impl Changes {
    fn new(source: &Side<'_>, target: &Side<'_>) -> Self {
        let mut parts = vec![Batch::new(source.dir.tree())];
        if source.dir.tree() != target.dir.tree() {
            parts.push(Batch::new(target.dir.tree()));
        }
        Self { roots: Batch::new(TreeId::ROOT), parts }
    }

    fn of(&mut self, side: &Side<'_>) -> &mut Batch {
        let tree = side.dir.tree();
        self.parts.iter_mut().find(|part| part.tree() == tree).expect("one of the two sides")
    }

    fn take(&mut self, view: &View, side: &Side<'_>, tree: TreeId) -> Result<()> {
        let index = remove_refs(view, &mut self.roots, tree, side.dir.tree())?;
        self.of(side).remove_name(view, side.dir.ino(), index, side.name)
    }

    fn give(&mut self, view: &View, side: &Side<'_>, tree: TreeId) -> Result<()> {
        let index = side.dir.next_index(view)?;
        add_refs(&mut self.roots, tree, side.dir.id, index, side.name);
        let entry = DirEntry {
            location: Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX),
            transid: NOW,
            kind: buttress_format::FileKind::Directory,
            name: side.name.to_vec(),
            data: Vec::new(),
        };
        let item_len_max = side.mount().ref_limits().item_len_max;
        self.of(side).add_name(view, side.dir.ino(), index, entry, item_len_max)
    }

    /// The cost of all changes, with three inode items: the items of both directories, and of the
    /// replaced or moved inode.
    fn cost(&self) -> Cost {
        let mut cost = self.roots.cost(3);
        for part in &self.parts {
            let more = part.cost(0);
            cost = cost.and(more);
        }
        cost
    }

    fn apply(self, handle: &buttress_txn::Handle<'_>) {
        for part in self.parts {
            part.apply(handle);
        }
        self.roots.apply(handle);
    }
}

/// Refuses a target directory that lies in the subvolume itself (M1).
fn check_way(view: &View, moved: TreeId, into: TreeId) -> Result<()> {
    let mut at = into;
    for _ in 0..DEPTH_MAX {
        if at == moved {
            return Err(Error::invalid("a subvolume cannot be moved below itself"));
        }
        match roots::place(view, at)? {
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
