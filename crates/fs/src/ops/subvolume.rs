//! Creates and deletes subvolumes and snapshots.
//!
//! # Invariants
//!
//! - **S1** A subvolume has one name: the entry in its directory. The root tree has a `ROOT_REF`
//!   and a `ROOT_BACKREF` for this name. One transaction adds all three items, and one transaction
//!   removes them.
//! - **S2** A snapshot holds all writes before the call. If it holds a later write, it holds all
//!   writes before that write, too. The snapshot is taken at the end of a transaction. From the
//!   writeback of all dirty data until the end of the transaction, no file content changes
//!   (`Tree::writes`).
//! - **S3** The transaction that removes the name of a subvolume makes the subvolume an orphan of
//!   the root tree. The cleaner drops the subvolume when its files have no users any more.

use std::sync::Arc;

use buttress_format::{
    DirEntry, Generation, Ino, InodeFlags, InodeItem, InodeRef, InodeRefs, Key, Kind, RootItem,
    Timespec, TreeId, ids,
};
use buttress_items::names::{self, Target};
use buttress_items::subvolume_items::{
    add_refs, add_uuid, default_subvolume, remove_refs, remove_uuid, uuid_key, with_headroom,
};
use buttress_items::{Batch, Change, InodeId, NOW, NameError, Result, mode, roots};
use buttress_txn::{Cost, ReserveClass, Snapshot, View, cost_of_copies};

use crate::cell::InodeCell;
use crate::inode::Inode;
use crate::quota::{Joins, QuotaGroup};
use buttress_make::clock::{new_uuid, now};

/// The inode in a root item. No reader uses it, and every writer stores the same values.
fn stub_inode(nodesize: u32) -> InodeItem {
    InodeItem {
        generation: Generation(1),
        size: 3,
        nbytes: nodesize.into(),
        nlink: 1,
        mode: mode::DIRECTORY | 0o755,
        flags: InodeFlags::ROOT_ITEM_INIT,
        ..InodeItem::default()
    }
}

impl Inode {
    /// Makes an empty subvolume in this directory, and returns its root directory. As in Linux, the
    /// subvolume inherits neither flags nor the group of this directory.
    ///
    /// # Errors
    ///
    /// `Exists`, `NoSpace`, `ReadOnly`.
    pub fn create_subvolume(&self, name: &[u8], mode: u32, uid: u32, gid: u32) -> Result<Self> {
        self.create_subvolume_in(&[], name, (mode, uid, gid))
    }

    /// As [`create_subvolume`](Self::create_subvolume), with mode, user and group. If quotas are
    /// on, the subvolume joins quota groups in the transaction that makes it.
    ///
    /// # Errors
    ///
    /// As [`create_subvolume`](Self::create_subvolume). `NotFound` for an unknown quota group,
    /// `Invalid` for one of level 0.
    pub fn create_subvolume_in(
        &self,
        groups: &[QuotaGroup],
        name: &[u8],
        (mode, uid, gid): (u32, u32, u32),
    ) -> Result<Self> {
        names::check_name(name)?;
        let dir = &self.cell;
        dir.expect_dir()?;
        dir.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        mount.space.expect_quota(dir.tree())?;
        let joins = Joins::new(mount, groups)?;
        let tree = mount.engine.commits().next_subvolume()?;
        let uuid = new_uuid();
        let stamp = now();
        let _lock = dir.lock.write();
        let (mut batch, mut roots, index) = self.name_subvolume(tree, name)?;
        let view = mount.engine.view();
        let mut uuids = Batch::new(TreeId::UUID);
        add_uuid(&view, &mut uuids, uuid_key(Kind::UUID_KEY_SUBVOL, &uuid), tree)?;
        drop(view);
        add_refs(&mut roots, tree, dir.id, index, name);

        let mut item = InodeItem {
            nlink: 1,
            uid,
            gid,
            mode: mode & mode::PERMISSIONS | mode::DIRECTORY,
            atime: stamp,
            ctime: stamp,
            mtime: stamp,
            otime: stamp,
            ..InodeItem::default()
        };
        let mut root = RootItem {
            inode: stub_inode(mount.superblock.nodesize),
            root_dirid: Ino::ROOT_DIR,
            refs: 1,
            uuid,
            ctime: stamp,
            otime: stamp,
            ..RootItem::default()
        };
        let mut cost = Cost::of(4, 1024).and(joins.cost());
        for part in [&mut batch, &mut roots, &mut uuids] {
            let more = part.cost(0);
            cost = cost.and(more);
        }
        let handle = mount.engine.begin(mount.space.reserve(cost, ReserveClass::Normal)?);
        let generation = handle.generation();
        (item.generation, item.transid) = (generation, generation);
        (root.generation, root.generation_v2) = (generation, generation);
        (root.ctransid, root.otransid) = (generation, generation);
        let above = InodeRef { index: 0, name: b"..".to_vec() };
        let top = Ino::ROOT_DIR.0;
        handle.put(TreeId::ROOT, Key::new(tree.0, Kind::ROOT_ITEM, 0), root.to_bytes());
        handle.put(tree, Key::new(top, Kind::INODE_ITEM, 0), item.to_bytes());
        let refs = InodeRefs::encode(&[above]);
        handle.put(tree, Key::new(top, Kind::INODE_REF, top), refs);
        for part in [batch, roots, uuids] {
            part.apply(&handle);
        }
        handle.note_subvolume(tree, dir.tree());
        joins.apply(&handle, tree);
        dir.file.update(&handle, |item| count_name(item, name, stamp));
        drop(handle);
        Inode::of(mount, InodeId { tree, ino: Ino::ROOT_DIR })
    }

    /// Makes a snapshot of a subvolume under a name in this directory, and returns its root
    /// directory. The snapshot is durable when the call returns, and holds all changes made before
    /// the call.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such subvolume, `Exists`, `NoSpace`, `ReadOnly`, `Io`.
    pub fn snapshot(&self, name: &[u8], source: TreeId, read_only: bool) -> Result<Self> {
        self.snapshot_in(&[], name, source, read_only)
    }

    /// As [`snapshot`](Self::snapshot), with quota groups to join in the same transaction.
    ///
    /// # Errors
    ///
    /// Also those of [`create_subvolume_in`](Self::create_subvolume_in) about groups.
    pub fn snapshot_in(
        &self,
        groups: &[QuotaGroup],
        name: &[u8],
        source: TreeId,
        read_only: bool,
    ) -> Result<Self> {
        names::check_name(name)?;
        let dir = &self.cell;
        dir.expect_dir()?;
        dir.expect_writable(&self.mount().status)?;
        let mount = self.mount();
        let from = mount.inodes.tree_info(&mount.engine.view(), source)?;
        mount.space.expect_quota(dir.tree())?;
        let joins = Joins::new(mount, groups)?;
        mount.engine.reservations().note_shared(&mount.engine.view());
        let target = mount.engine.commits().next_subvolume()?;
        let uuid = new_uuid();
        // Writes most dirty data back while other threads still write.
        mount.writeback.write_all();
        mount.times.put_all();
        mount.engine.prepare_snapshot(source, read_only)?;
        let writes = from.writes.write();
        mount.writeback.write_all();
        // Times that were set meanwhile belong to changes that the snapshot has.
        mount.times.put_set();
        let _lock = dir.lock.write();
        // The subvolume may have been deleted meanwhile.
        mount.inodes.tree_info(&mount.engine.view(), source)?;
        let (batch, mut roots, index) = self.name_subvolume(target, name)?;
        let mut uuids = Batch::new(TreeId::UUID);
        let view = mount.engine.view();
        add_uuid(&view, &mut uuids, uuid_key(Kind::UUID_KEY_SUBVOL, &uuid), target)?;
        if read_only
            && let Some(item) = roots::root_item(&view, source)?
            && item.received_uuid != [0; 16]
        {
            let key = uuid_key(Kind::UUID_KEY_RECEIVED_SUBVOL, &item.received_uuid);
            add_uuid(&view, &mut uuids, key, target)?;
        }
        drop(view);
        add_refs(&mut roots, target, dir.id, index, name);
        let time = now();
        // The snapshot adds items only to trees that commits alone change. The reservation covers
        // copies of the nodes that become shared. If the reservation fails, no snapshot is made.
        let copies = mount.engine.reservations().room_for_snapshot(source, read_only)?;
        let own = Cost { items: 0, commit_items: 1024, bytes: 64 << 10 };
        let mut cost = own.and(cost_of_copies(copies)).and(joins.cost());
        for part in [&batch, &roots, &uuids] {
            let more = part.cost(0);
            cost = cost.and(more);
        }
        let reservation = mount.space.reserve(cost, ReserveClass::Normal);
        let reservation = reservation.map_err(|error| with_headroom(error, copies))?;
        let handle = mount.engine.begin(reservation);
        let generation = handle.generation();
        mount.engine.reservations().keep_until_published(copies, generation);
        let mut late: Vec<_> = [batch, roots, uuids]
            .into_iter()
            .flat_map(|part| part.into_items(generation))
            .collect();
        // The directory's inode item changes after the commit has copied the source's root (the
        // cut). So the snapshot does not show its own name (`transaction::snapshot::Z1`).
        let mut item = dir.file.item();
        count_name(&mut item, name, time);
        item.transid = generation;
        item.sequence = item.sequence.wrapping_add(1);
        let key = Key::new(dir.ino().0, Kind::INODE_ITEM, 0);
        late.push((dir.tree(), key, Some(item.to_bytes())));
        joins.apply(&handle, target);
        handle.snapshot(Snapshot { source, target, uuid, read_only, time, late });
        drop(handle);
        mount.engine.commit_cut(|| drop(writes))?;
        dir.file.touch(|item| count_name(item, name, time));
        Inode::of(mount, InodeId { tree: target, ino: from.root_dir })
    }

    /// As [`delete_subvolume`](Self::delete_subvolume), but the files stay readable as long as an
    /// [`Inode`] of the subvolume lives. After a crash the subvolume is gone.
    ///
    /// # Errors
    ///
    /// As [`delete_subvolume`](Self::delete_subvolume); the subvolume then stays as it was.
    pub fn unname_subvolume(&self, name: &[u8]) -> Result<()> {
        let mount = self.mount();
        let view = mount.engine.view();
        let entry = names::find(&view, self.id(), name)?.ok_or(NameError::NotFound)?;
        if let Target::Subvolume(tree) = names::target(&view, self.id(), &entry)? {
            mount.inodes.tree_info(&view, tree)?.hold();
        }
        drop(view);
        self.delete_subvolume(name)
    }

    /// Deletes a subvolume that has its name in this directory, with all its contents. The
    /// subvolume must not contain other subvolumes. The name is removed at once; the cleaner frees
    /// the space later.
    ///
    /// # Errors
    ///
    /// `NotFound`; `NotDir` if the name belongs to no subvolume. `NotEmpty` if the subvolume
    /// contains other subvolumes, `NotPermitted` for the default subvolume, `Busy` for the mounted
    /// subvolume.
    pub fn delete_subvolume(&self, name: &[u8]) -> Result<()> {
        let dir = &self.cell;
        let mount = self.mount();
        let view = mount.engine.view();
        let Some(tree) = self.subvolume_to_delete(&view, name)? else {
            return self.remove_stub(name);
        };
        let home = mount.inodes.tree_info(&view, tree)?;
        drop(view);
        let _writes = home.writes.write();
        let _changing = mount.inodes.trees().changing.lock();
        let _lock = dir.lock.write();
        let view = mount.engine.view();
        self.expect_may_go(&view, tree, name)?;
        let (key, mut item) = roots::root_entry(&view, tree)?.ok_or(NameError::NotFound)?;
        let mut roots = Batch::new(TreeId::ROOT);
        let index = remove_refs(&view, &mut roots, tree, dir.id.tree)?;
        let mut batch = Batch::new(dir.tree());
        batch.remove_name(&view, dir.ino(), index, name)?;
        let mut uuids = Batch::new(TreeId::UUID);
        remove_uuid(&view, &mut uuids, uuid_key(Kind::UUID_KEY_SUBVOL, &item.uuid), tree)?;
        let received = uuid_key(Kind::UUID_KEY_RECEIVED_SUBVOL, &item.received_uuid);
        remove_uuid(&view, &mut uuids, received, tree)?;
        item.refs = 0;
        (item.drop_progress, item.drop_level) = (Key::MIN, 0);
        roots.set(key, Change::Bytes(item.to_bytes()));
        let orphan = Key::new(ids::ORPHAN, Kind::ORPHAN_ITEM, tree.0);
        roots.set(orphan, Change::Bytes(Vec::new()));
        drop(view);
        let mut cost = Cost::of(2, 512);
        for part in [&batch, &roots, &uuids] {
            let more = part.cost(0);
            cost = cost.and(more);
        }
        let reservation = mount.space.reserve(cost, ReserveClass::DropTree)?;
        home.set_dead(true);
        mount.writeback.forget_tree(tree);
        mount.times.forget_tree(tree);
        let stamp = now();
        let handle = mount.engine.begin(reservation);
        for part in [batch, roots, uuids] {
            part.apply(&handle);
        }
        dir.file.update(&handle, |item| uncount_name(item, name, stamp));
        drop(handle);
        mount.inodes.cleaning().drop_later(tree);
        Ok(())
    }

    /// Fails as [`delete_subvolume`](Self::delete_subvolume) would fail now, and changes nothing.
    /// This is for callers that must prepare a deletion. Another thread may make the result
    /// outdated.
    ///
    /// # Errors
    ///
    /// As [`delete_subvolume`](Self::delete_subvolume), except `NoSpace`.
    pub fn expect_deletable_subvolume(&self, name: &[u8]) -> Result<()> {
        let view = self.mount().engine.view();
        let Some(tree) = self.subvolume_to_delete(&view, name)? else { return Ok(()) };
        self.expect_may_go(&view, tree, name)
    }

    /// The subvolume that has a name in this directory; `None` for the stub of a missing subvolume.
    fn subvolume_to_delete(&self, view: &View, name: &[u8]) -> Result<Option<TreeId>> {
        let dir = &self.cell;
        dir.expect_dir()?;
        dir.expect_writable(&self.mount().status)?;
        let entry = names::find(view, dir.id, name)?.ok_or(NameError::NotFound)?;
        match names::target(view, dir.id, &entry)? {
            Target::Subvolume(tree) => Ok(Some(tree)),
            Target::Inode(_) => Err(NameError::NotDir.into()),
            Target::Stub => Ok(None),
        }
    }

    /// Checks that nothing keeps a subvolume from being deleted by this name.
    fn expect_may_go(&self, view: &View, tree: TreeId, name: &[u8]) -> Result<()> {
        if !roots::is_here(view, tree, self.id(), name)? {
            return Err(NameError::NotFound.into());
        }
        if !roots::children(view, tree)?.is_empty() {
            return Err(NameError::NotEmpty.into());
        }
        if default_subvolume(view)? == tree {
            return Err(NameError::NotPermitted.into());
        }
        if self.mount().root.get().is_some_and(|root| root.tree == tree) {
            return Err(NameError::Busy.into());
        }
        Ok(())
    }

    /// Removes the stub of a missing subvolume: the empty directory that its entry shows.
    pub(super) fn remove_stub(&self, name: &[u8]) -> Result<()> {
        let dir = &self.cell;
        let mount = self.mount();
        let _lock = dir.lock.write();
        let view = mount.engine.view();
        let entry = names::find(&view, dir.id, name)?.ok_or(NameError::NotFound)?;
        if names::target(&view, dir.id, &entry)? != Target::Stub {
            return Err(NameError::NotFound.into());
        }
        let index = names::index_of(&view, dir.id, name)?.ok_or(NameError::NotFound)?;
        let mut batch = Batch::new(dir.tree());
        batch.remove_name(&view, dir.ino(), index, name)?;
        drop(view);
        let stamp = now();
        let handle = mount.engine.begin(mount.space.reserve(batch.cost(1), ReserveClass::Free)?);
        batch.apply(&handle);
        dir.file.update(&handle, |item| uncount_name(item, name, stamp));
        Ok(())
    }

    /// Collects the items of a new subvolume's name. The caller holds this directory's lock.
    fn name_subvolume(&self, tree: TreeId, name: &[u8]) -> Result<(Batch, Batch, u64)> {
        let dir: &Arc<InodeCell> = &self.cell;
        dir.expect_linked()?;
        let mount = self.mount();
        let view = mount.engine.view();
        if names::find(&view, dir.id, name)?.is_some() {
            return Err(NameError::Exists.into());
        }
        let index = dir.next_index(&view)?;
        let entry = DirEntry {
            location: Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX),
            transid: NOW,
            kind: buttress_format::FileKind::Directory,
            name: name.to_vec(),
            data: Vec::new(),
        };
        let mut batch = Batch::new(dir.tree());
        batch.add_name(&view, dir.ino(), index, entry, mount.ref_limits().item_len_max)?;
        Ok((batch, Batch::new(TreeId::ROOT), index))
    }
}

/// Updates the inode of a directory for a new name.
pub(super) fn count_name(item: &mut InodeItem, name: &[u8], stamp: Timespec) {
    item.size += names::size_of(name);
    (item.mtime, item.ctime) = (stamp, stamp);
}

/// Updates the inode of a directory for a removed name.
pub(super) fn uncount_name(item: &mut InodeItem, name: &[u8], stamp: Timespec) {
    item.size = item.size.saturating_sub(names::size_of(name));
    (item.mtime, item.ctime) = (stamp, stamp);
}
