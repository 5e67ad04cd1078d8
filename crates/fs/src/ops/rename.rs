//! Moves names: within a directory, across directories, and over other names. Also exchanges two
//! names.
//!
//! # Invariants
//!
//! - **R1** A directory never gets below itself. While a directory moves to another parent, no
//!   other directory moves (`Mount::moving`). Before the move, the thread follows the path from the
//!   new parent up.

use std::sync::Arc;

use buttress_format::DirEntry;
use buttress_items::names::{self, Target};
use buttress_items::{Batch, Error, FileKind, NameError, Result, mode};
use buttress_txn::{ReserveClass, View};

use super::create::Plan;
use super::move_subvolume::{exchange_subvolume, move_subvolume};
use super::side::{Side, check_dir_way, give, take};
use super::unlink::{is_empty, orphan_if_last_name};
use crate::cell::InodeCell;
use crate::inode::{Inode, RenameFlags};
use crate::lock_set::LockSet;
use buttress_make::clock::now;

fn location(entry: Option<&DirEntry>) -> Option<buttress_format::Key> {
    entry.map(|entry| entry.location)
}

impl Inode {
    /// Moves the name `old` of this directory to `new` in `target`.
    ///
    /// # Errors
    ///
    /// `NotFound`, `Exists`. `NotEmpty`, also for a rename over a subvolume. `CrossDevice` between
    /// subvolumes, except for moving a subvolume. `Invalid` if a directory would get below itself.
    pub fn rename(&self, old: &[u8], target: &Self, new: &[u8], flags: RenameFlags) -> Result<()> {
        self.rename_and(old, target, new, flags, None)
    }

    /// Moves a name as [`Inode::rename`] does, and leaves a whiteout in its place. A whiteout is a
    /// character device 0:0 without permissions, which overlayfs treats as a deleted name. One
    /// transaction makes both changes.
    ///
    /// # Errors
    ///
    /// The errors of [`Inode::rename`]; `Invalid` for an exchange; `Unsupported` for a subvolume.
    pub fn rename_leaving_whiteout(
        &self,
        old: &[u8],
        target: &Self,
        new: &[u8],
        flags: RenameFlags,
        (uid, gid): (u32, u32),
    ) -> Result<()> {
        if flags.exchange {
            return Err(Error::invalid("an exchange leaves no name free"));
        }
        let whiteout = Plan { mode: mode::CHARACTER, uid, gid, rdev: 0, target: None };
        self.rename_and(old, target, new, flags, Some(&whiteout))
    }

    fn rename_and(
        &self,
        old: &[u8],
        target: &Self,
        new: &[u8],
        flags: RenameFlags,
        left: Option<&Plan<'_>>,
    ) -> Result<()> {
        names::check_name(new)?;
        let source = Side { of: self, dir: &self.cell, name: old };
        let target = Side { of: target, dir: &target.cell, name: new };
        for side in [&source, &target] {
            side.dir.expect_dir()?;
            side.dir.expect_writable(&self.mount().status)?;
        }
        let across = source.dir.id != target.dir.id;
        let _moving = across.then(|| self.mount().moving.lock());
        loop {
            let view = self.mount().engine.view();
            let (from, to) = (source.find(&view)?, target.find(&view)?);
            if let Some(entry) = &from
                && let Target::Subvolume(tree) = names::target(&view, source.dir.id, entry)?
            {
                drop(view);
                if left.is_some() {
                    return Err(Error::unsupported("a whiteout in place of a subvolume"));
                }
                return if flags.exchange {
                    exchange_subvolume(&source, &target, tree)
                } else {
                    move_subvolume(&source, &target, tree, flags)
                };
            }
            if flags.exchange
                && from.is_some()
                && let Some(entry) = &to
                && let Target::Subvolume(tree) = names::target(&view, target.dir.id, entry)?
            {
                drop(view);
                return exchange_subvolume(&target, &source, tree);
            }
            drop(view);
            if source.dir.tree() != target.dir.tree() {
                return Err(NameError::CrossDevice.into());
            }
            // These values are separate users of the inodes. The values are dropped after the
            // locks, because they may be the last users.
            let Some(moved) = source.inode(from.as_ref().ok_or(NameError::NotFound)?)? else {
                continue;
            };
            let replaced = match &to {
                None => None,
                Some(entry) => match target.inode(entry)? {
                    None => continue,
                    found => found,
                },
            };
            let (moved, replaced) = (&moved.cell, replaced.as_ref().map(|inode| &inode.cell));
            if across {
                check_ways(&source, &target, moved, replaced, flags)?;
            }
            let _locks = LockSet::new([Some(source.dir), Some(target.dir), Some(moved), replaced]);
            let view = self.mount().engine.view();
            if location(source.find(&view)?.as_ref()) != location(from.as_ref())
                || location(target.find(&view)?.as_ref()) != location(to.as_ref())
            {
                continue;
            }
            target.dir.expect_linked()?;
            source.dir.expect_removable()?;
            target.dir.expect_mutable()?;
            moved.expect_removable()?;
            let Some(replaced) = replaced else {
                if flags.exchange {
                    return Err(NameError::NotFound.into());
                }
                return move_name(view, &source, &target, moved, None, left);
            };
            target.dir.expect_removable()?;
            replaced.expect_removable()?;
            if flags.no_replace {
                return Err(NameError::Exists.into());
            }
            if replaced.id == moved.id {
                return Ok(());
            }
            if flags.exchange {
                return exchange(view, &source, &target, moved, replaced);
            }
            check_replaceable(&view, moved, replaced)?;
            return move_name(view, &source, &target, moved, Some(replaced), left);
        }
    }
}

fn check_replaceable(view: &View, moved: &InodeCell, replaced: &InodeCell) -> Result<()> {
    match (moved.kind == FileKind::Directory, replaced.kind == FileKind::Directory) {
        (true, false) => Err(NameError::NotDir.into()),
        (false, true) => Err(NameError::IsDir.into()),
        (true, true) if !is_empty(view, replaced)? => Err(NameError::NotEmpty.into()),
        _ => Ok(()),
    }
}

/// Refuses to move a directory below itself (R1).
fn check_ways(
    source: &Side<'_>,
    target: &Side<'_>,
    moved: &Arc<InodeCell>,
    replaced: Option<&Arc<InodeCell>>,
    flags: RenameFlags,
) -> Result<()> {
    if moved.kind == FileKind::Directory {
        check_dir_way(source.mount(), moved, target.dir)?;
    }
    match replaced {
        Some(replaced) if flags.exchange && replaced.kind == FileKind::Directory => {
            check_dir_way(source.mount(), replaced, source.dir)
        }
        // A directory cannot replace one of its own ancestors.
        Some(replaced) if replaced.kind == FileKind::Directory => {
            check_dir_way(source.mount(), replaced, source.dir)
                .map_err(|_| NameError::NotEmpty.into())
        }
        _ => Ok(()),
    }
}

fn move_name(
    view: Arc<View>,
    source: &Side<'_>,
    target: &Side<'_>,
    moved: &Arc<InodeCell>,
    replaced: Option<&Arc<InodeCell>>,
    left: Option<&Plan<'_>>,
) -> Result<()> {
    let mount = source.mount();
    let mut batch = Batch::new(source.dir.tree());
    let mut last = false;
    if let Some(replaced) = replaced {
        let index = batch.remove_ref(&view, replaced.ino(), target.dir.ino(), target.name)?;
        batch.remove_name(&view, target.dir.ino(), index, target.name)?;
        last = orphan_if_last_name(replaced, &mut batch);
    }
    take(&view, source, moved, &mut batch)?;
    give(&view, target, moved, &mut batch)?;
    let left = left.map(|plan| source.of.prepare(&view, plan, &mut batch, 1)).transpose()?;
    if let Some(left) = &left {
        let index = source.dir.next_index(&view)?;
        let entry = names::entry(source.name, left.id.ino, left.kind);
        let limits = mount.ref_limits();
        batch.add_name(&view, source.dir.ino(), index, entry, limits.item_len_max)?;
        batch.add_first_ref(left.id.ino, source.dir.ino(), index, source.name);
    }
    let keeps_name = left.is_some();
    let stamp = now();
    let frees = replaced.is_some() && !keeps_name;
    let class = if frees { ReserveClass::Free } else { ReserveClass::Normal };
    drop(view);
    let inodes = 4 + u32::from(keeps_name);
    let reservation = mount.space.reserve(batch.cost(inodes), class)?;
    let handle = mount.engine.begin(reservation);
    let left = left.map(|left| left.enter(source.of, handle.generation())).transpose()?;
    batch.apply(&handle);
    if let Some(left) = left {
        left.file.update(&handle, |_| ());
    }
    moved.file.update(&handle, |item| item.ctime = stamp);
    if let Some(replaced) = replaced {
        replaced.file.update(&handle, |item| {
            item.nlink = if last { 0 } else { item.nlink.saturating_sub(1) };
            item.ctime = stamp;
        });
    }
    source.dir.file.update(&handle, |item| {
        if !keeps_name {
            item.size = item.size.saturating_sub(names::size_of(source.name));
        }
        item.mtime = stamp;
        item.ctime = stamp;
    });
    target.dir.file.update(&handle, |item| {
        if replaced.is_none() {
            item.size += names::size_of(target.name);
        }
        item.mtime = stamp;
        item.ctime = stamp;
    });
    Ok(())
}

fn exchange(
    view: Arc<View>,
    source: &Side<'_>,
    target: &Side<'_>,
    first: &Arc<InodeCell>,
    second: &Arc<InodeCell>,
) -> Result<()> {
    let mount = source.mount();
    let mut batch = Batch::new(source.dir.tree());
    take(&view, source, first, &mut batch)?;
    take(&view, target, second, &mut batch)?;
    give(&view, target, first, &mut batch)?;
    give(&view, source, second, &mut batch)?;
    let stamp = now();
    drop(view);
    let reservation = mount.space.reserve(batch.cost(4), ReserveClass::Normal)?;
    let handle = mount.engine.begin(reservation);
    batch.apply(&handle);
    for cell in [first, second] {
        cell.file.update(&handle, |item| item.ctime = stamp);
    }
    // Each directory keeps the name, which now leads to another inode. So only the directory's
    // times change.
    for dir in [source.dir, target.dir] {
        dir.file.update(&handle, |item| {
            item.mtime = stamp;
            item.ctime = stamp;
        });
    }
    Ok(())
}
