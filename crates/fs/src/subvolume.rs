//! Operations on whole subvolumes: the list, the default subvolume, and changes of root items.

use std::collections::BTreeSet;

use buttress_format::{
    Generation, Incompat, InodeFlags, Key, Kind, RootFlags, RootItem, Timespec, TreeId,
};
use buttress_items::subvolume_items::{
    ROOT_TREE_DIR, add_uuid, default_subvolume, remove_uuid, uuid_key, with_headroom,
};
use buttress_items::{Batch, Change, Error, InodeId, NOW, NameError, Result, names, roots};
use buttress_txn::{Cost, ReserveClass, cost_of_copies};
use buttress_volume::Uuid;

use crate::filesystem::Filesystem;
use crate::open;
use crate::options::MountOptions;
use crate::statfs::SubvolumeInfo;
use buttress_make::clock::now;

/// The origin of a received subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceivedUuid {
    /// Uuid of the original. All zero removes the record of the reception.
    pub uuid: [u8; 16],
    /// Transaction of the original.
    pub stransid: Generation,
    /// Time of the original.
    pub stime: Timespec,
}

impl ReceivedUuid {
    /// No origin: the subvolume was not received, or has changed since.
    pub const NOTHING: Self =
        Self { uuid: [0; 16], stransid: Generation(0), stime: Timespec { sec: 0, nsec: 0 } };
}

impl Filesystem {
    /// The subvolume that a mount with these options would show: by `subvol` or `subvolid`, or the
    /// default subvolume.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Name`] if the subvolume does not exist. `Invalid` for a directory that
    /// is no subvolume.
    pub fn find_subvolume(&self, options: &MountOptions) -> Result<TreeId> {
        let mount = self.mount();
        Ok(open::root(&mount, &mount.engine.view(), options)?.tree)
    }

    /// The subvolume that a mount shows by default.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        default_subvolume(&self.mount().engine.view())
    }

    /// Sets the subvolume that a mount shows by default.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ReadOnly`, `NoSpace`.
    pub fn set_default_subvolume(&self, tree: TreeId) -> Result<()> {
        let mount = self.mount();
        mount.status.expect_writable()?;
        let _changing = mount.inodes.trees().changing.lock();
        let view = mount.engine.view();
        roots::root_item(&view, tree)?.ok_or(NameError::NotFound)?;
        let mut entry = names::find(&view, ROOT_TREE_DIR, b"default")?.ok_or(Error::Item {
            tree: TreeId::ROOT,
            ino: ROOT_TREE_DIR.ino,
            what: "it names no default subvolume",
        })?;
        entry.location = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
        drop(view);
        let mut batch = Batch::new(TreeId::ROOT);
        batch.set(names::item_key(ROOT_TREE_DIR.ino, b"default"), Change::Names(vec![entry]));
        let reservation = mount.space.reserve(batch.cost(0), ReserveClass::Normal)?;
        // Linux sets this feature flag when the default changes, and never clears it.
        mount.engine.commits().need_feature(Incompat::DEFAULT_SUBVOL);
        let handle = mount.engine.begin(reservation);
        batch.apply(&handle);
        Ok(())
    }

    /// Forbids changes of a subvolume, or allows them. Allowing changes needs space for the
    /// headroom of the subvolume's shared nodes.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ReadOnly`, `NoSpace`.
    pub fn set_subvolume_read_only(&self, tree: TreeId, read_only: bool) -> Result<()> {
        let home = self.mount().inodes.tree_info(&self.mount().engine.view(), tree)?;
        // Data that was dirty before the change must not be written after the change.
        let _writes = home.writes.write();
        if read_only {
            self.mount().writeback.write_all();
            self.mount().times.put_all();
        }
        self.change_root(tree, |item| {
            item.inode.flags |= InodeFlags::ROOT_ITEM_INIT;
            if read_only {
                item.flags |= RootFlags::READONLY;
            } else {
                item.flags &= !RootFlags::READONLY;
            }
        })?;
        home.set_read_only(read_only);
        Ok(())
    }

    /// Records the origin of a received subvolume.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ReadOnly`, `NoSpace`.
    pub fn set_received(&self, tree: TreeId, received: ReceivedUuid) -> Result<()> {
        let stamp = now();
        self.change_root(tree, |item| {
            let gone = received.uuid == [0; 16];
            item.received_uuid = received.uuid;
            (item.stransid, item.stime) = (received.stransid, received.stime);
            item.rtransid = if gone { Generation(0) } else { NOW };
            item.rtime = if gone { Timespec::default() } else { stamp };
        })
    }

    /// Changes a root item, and the entries of the uuid tree for the subvolume.
    fn change_root(&self, tree: TreeId, change: impl FnOnce(&mut RootItem)) -> Result<()> {
        let mount = self.mount();
        mount.status.expect_writable()?;
        let _changing = mount.inodes.trees().changing.lock();
        let view = mount.engine.view();
        let (key, old) = roots::root_entry(&view, tree)?.ok_or(NameError::NotFound)?;
        let mut item = old;
        change(&mut item);
        let mut uuids = Batch::new(TreeId::UUID);
        if item.received_uuid != old.received_uuid {
            let key_of =
                |item: &RootItem| uuid_key(Kind::UUID_KEY_RECEIVED_SUBVOL, &item.received_uuid);
            remove_uuid(&view, &mut uuids, key_of(&old), tree)?;
            add_uuid(&view, &mut uuids, key_of(&item), tree)?;
        }
        drop(view);
        let is_opened = (old.flags & !item.flags) & RootFlags::READONLY != 0;
        let copies = if is_opened { mount.engine.reservations().room_to_change(tree)? } else { 0 };
        let cost = uuids.cost(0);
        let cost = cost.and(Cost::of(1, RootItem::LEN as u32)).and(cost_of_copies(copies));
        let reservation = mount.space.reserve(cost, ReserveClass::Normal);
        let reservation = reservation.map_err(|error| with_headroom(error, copies))?;
        let handle = mount.engine.begin(reservation);
        mount.engine.reservations().keep_until_published(copies, handle.generation());
        if item.rtransid == NOW {
            item.rtransid = handle.generation();
        }
        handle.put(TreeId::ROOT, key, item.to_bytes());
        uuids.apply(&handle);
        Ok(())
    }

    /// The number of items in the UUID tree, by which Linux finds subvolumes.
    ///
    /// # Errors
    ///
    /// An error from reading the tree.
    pub fn uuid_items(&self) -> Result<u64> {
        Ok(self.mount().maintenance.uuid_items()?)
    }

    /// Deletes all items of the UUID tree. Linux builds the tree anew at its next mount. Returns
    /// the number of items.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`, an error from reading the tree, a device that fails.
    pub fn clear_uuid_tree(&self) -> Result<u64> {
        let mount = self.mount();
        mount.status.expect_writable()?;
        let _changing = mount.inodes.trees().changing.lock();
        Ok(mount.maintenance.clear_uuid_tree()?)
    }

    /// Deletes what the inode cache of old kernels left in subvolumes, and commits. Calls `cleared`
    /// for each subvolume, in ascending order. Returns the number of items.
    ///
    /// # Errors
    ///
    /// `ReadOnly`, `NoSpace`, an error from reading a tree, a device that fails.
    pub fn clear_inode_caches(&self, mut cleared: impl FnMut(TreeId)) -> Result<u64> {
        let mount = self.mount();
        mount.status.expect_writable()?;
        let _changing = mount.inodes.trees().changing.lock();
        let mut count = 0;
        for tree in roots::living(&mount.engine.view())? {
            count += mount.maintenance.clear_inode_cache(tree)?;
            cleared(tree);
        }
        mount.engine.commit()?;
        Ok(count)
    }

    /// The root item of a subvolume.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn subvolume_item(&self, tree: TreeId) -> Result<RootItem> {
        let item = roots::root_item(&self.mount().engine.view(), tree)?;
        Ok(item.ok_or(NameError::NotFound)?)
    }

    /// Every subvolume that has a name, the top level first.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn subvolumes(&self) -> Result<Vec<SubvolumeInfo>> {
        let view = self.mount().engine.view();
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        let mut queue = std::collections::VecDeque::from([(TreeId::FS, None, Vec::new())]);
        while let Some((tree, parent, path)) = queue.pop_front() {
            if seen.contains(&tree) {
                continue;
            }
            let Some(item) = roots::root_item(&view, tree)? else { continue };
            seen.insert(tree);
            for child in roots::children(&view, tree)? {
                let Some((dir, name)) = roots::place(&view, child)? else { continue };
                let mut child_path = self.path_below_top(dir)?;
                child_path.push(name);
                let mut whole = path.clone();
                for part in child_path {
                    if !whole.is_empty() {
                        whole.push(b'/');
                    }
                    whole.extend_from_slice(&part);
                }
                queue.push_back((child, Some(tree), whole));
            }
            found.push(info(tree, parent, path, &item));
        }
        Ok(found)
    }

    /// One subvolume, if it has a name or is the top level. Reads only the subvolumes that it lies
    /// in.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn subvolume(&self, tree: TreeId) -> Result<Option<SubvolumeInfo>> {
        let view = self.mount().engine.view();
        let Some(item) = roots::root_item(&view, tree)? else { return Ok(None) };
        let (mut parent, mut parts) = (None, Vec::new());
        let (mut at, mut seen) = (tree, BTreeSet::new());
        while at != TreeId::FS {
            let Some((dir, name)) = roots::place(&view, at)? else { return Ok(None) };
            // On a damaged volume, a subvolume may lie in itself.
            if !seen.insert(at) {
                return Ok(None);
            }
            parts.push(name);
            parts.extend(self.path_below_top(dir)?.into_iter().rev());
            parent.get_or_insert(dir.tree);
            at = dir.tree;
        }
        parts.reverse();
        Ok(Some(info(tree, parent, parts.join(&b'/'), &item)))
    }

    /// The names from the top of a subvolume down to one of its directories.
    fn path_below_top(&self, dir: InodeId) -> Result<Vec<Vec<u8>>> {
        let view = self.mount().engine.view();
        let top = self.mount().inodes.tree_info(&view, dir.tree)?.root_dir;
        let mut names = Vec::new();
        let mut at = dir;
        while at.ino != top {
            let (parent, name) =
                buttress_items::inode_refs::place(&view, at)?.ok_or(NameError::NotFound)?;
            names.push(name);
            at.ino = parent;
            if names.len() > crate::inode::DEPTH_MAX {
                return Err(Error::Item {
                    tree: dir.tree,
                    ino: dir.ino,
                    what: "the way up from it does not end",
                });
            }
        }
        names.reverse();
        Ok(names)
    }

    /// Whether an inode of a subvolume is in memory: a program uses it, or a front end keeps it for
    /// its kernel. A deleted subvolume is not dropped as long as there is such an inode.
    #[must_use]
    pub fn is_subvolume_used(&self, tree: TreeId) -> bool {
        self.mount().inodes.trees().is_used(tree)
    }

    /// Has the cleaner call `told` about twice a second with deleted subvolumes that cannot be
    /// dropped yet, since something uses their inodes. A front end can have its kernel forget these
    /// inodes. `told` must return soon, and must not wait for this volume. The calls end when
    /// `told` returns `false`.
    pub fn tell_of_waiting_subvolumes(
        &self,
        told: impl Fn(&[TreeId]) -> bool + Send + Sync + 'static,
    ) {
        self.mount().cleaner.tell_of_waiting(Box::new(told));
    }

    /// The deleted subvolumes that are not dropped yet.
    ///
    /// # Errors
    ///
    /// An error from reading the root tree.
    pub fn dying_subvolumes(&self) -> Result<Vec<TreeId>> {
        let mount = self.mount();
        let mut found = mount.maintenance.dead_subvolumes()?;
        let listed: BTreeSet<TreeId> = found.iter().copied().collect();
        let dying = mount.inodes.cleaning().dying();
        found.extend(dying.into_iter().filter(|tree| !listed.contains(tree)));
        Ok(found)
    }
}

fn info(tree: TreeId, parent: Option<TreeId>, path: Vec<u8>, item: &RootItem) -> SubvolumeInfo {
    SubvolumeInfo {
        tree,
        parent,
        path,
        generation: item.generation,
        read_only: item.flags & RootFlags::READONLY != 0,
        uuid: Uuid(item.uuid),
        parent_uuid: (item.parent_uuid != [0; 16]).then_some(Uuid(item.parent_uuid)),
    }
}
