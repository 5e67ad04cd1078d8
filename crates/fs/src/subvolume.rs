//! Subvolumes as a whole: which there are, which is shown by default, what their root items say.

use buttress_format::{
    Generation, Incompat, Ino, InodeFlags, Key, Kind, RootFlags, RootItem, Timespec, TreeId,
};
use buttress_txn::{Cost, Urgency, View, cost_of_copies};

use crate::attr::InodeId;
use crate::batch::{Batch, Change, NOW};
use crate::clock::now;
use crate::error::{Error, ErrorKind, NameError, Result};
use crate::filesystem::Filesystem;
use crate::names::{self, Target};
use crate::ops::{add_uuid, remove_uuid};
use crate::options::MountOptions;
use crate::trees;

/// The directory of the root tree in which the default subvolume has its name.
const ROOT_TREE_DIR: InodeId = InodeId { tree: TreeId::ROOT, ino: Ino(TreeId::ROOT_DIR.0) };

/// Where subvolumes with a uuid are recorded.
pub(crate) fn uuid_key(kind: Kind, uuid: &[u8; 16]) -> Key {
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&uuid[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    Key::new(half(0), kind, half(8))
}

/// The subvolume that is shown when no other is asked for.
pub(crate) fn default_subvolume(view: &View) -> Result<TreeId> {
    let Some(entry) = names::find(view, ROOT_TREE_DIR, b"default")? else { return Ok(TreeId::FS) };
    Ok(match names::target(view, ROOT_TREE_DIR, &entry)? {
        Target::Subvolume(tree) => tree,
        Target::Inode(_) | Target::Stub => TreeId::FS,
    })
}

/// What a received subvolume is a copy of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Uuid of the original; all zero to forget that it was received.
    pub uuid: [u8; 16],
    /// The original's transaction.
    pub stransid: Generation,
    /// The original's time.
    pub stime: Timespec,
}

impl Received {
    /// Of nothing: it was not received, or is no longer what was.
    pub const NOTHING: Self =
        Self { uuid: [0; 16], stransid: Generation(0), stime: Timespec { sec: 0, nsec: 0 } };
}

impl Filesystem {
    /// The subvolume that a mount with these options would show: by `subvol` or `subvolid`, or
    /// the default one.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Name`] where there is none, `Invalid` for a directory that is none.
    pub fn find_subvolume(&self, options: &MountOptions) -> Result<TreeId> {
        let shared = self.shared();
        Ok(crate::mount::root(shared, &shared.engine.view(), options)?.tree)
    }

    /// The subvolume that is shown when no other is asked for.
    ///
    /// # Errors
    ///
    /// What reading the root tree met.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        default_subvolume(&self.shared().engine.view())
    }

    /// Has another subvolume shown when none is asked for.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ReadOnly`, `NoSpace`.
    pub fn set_default_subvolume(&self, tree: TreeId) -> Result<()> {
        let shared = self.shared();
        shared.expect_writable()?;
        let _changing = shared.trees.changing.lock();
        let view = shared.engine.view();
        trees::root_item(&view, tree)?.ok_or(NameError::NotFound)?;
        let mut entry = names::find(&view, ROOT_TREE_DIR, b"default")?.ok_or(Error::Item {
            tree: TreeId::ROOT,
            ino: ROOT_TREE_DIR.ino,
            what: "it names no default subvolume",
        })?;
        entry.location = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
        drop(view);
        let mut batch = Batch::new(TreeId::ROOT);
        batch.set(names::item_key(ROOT_TREE_DIR.ino, b"default"), Change::Names(vec![entry]));
        let reservation = shared.reserve(batch.cost(0), Urgency::Normal)?;
        // Linux marks volumes whose default was ever changed, and never unmarks them.
        shared.engine.need_feature(Incompat::DEFAULT_SUBVOL);
        let handle = shared.engine.begin(reservation);
        batch.apply(&handle);
        Ok(())
    }

    /// Forbids changes of a subvolume, or allows them: then there is to be room for copies of what it shares.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ReadOnly`, `NoSpace`.
    pub fn set_subvolume_read_only(&self, tree: TreeId, read_only: bool) -> Result<()> {
        let home = self.shared().tree_info(&self.shared().engine.view(), tree)?;
        // What was written before must not be written after.
        let _writes = home.writes.write();
        if read_only {
            self.shared().write_all();
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

    /// Records what a subvolume was received from.
    ///
    /// # Errors
    ///
    /// `NotFound`, `ReadOnly`, `NoSpace`.
    pub fn set_received(&self, tree: TreeId, received: Received) -> Result<()> {
        let stamp = now();
        self.change_root(tree, |item| {
            let gone = received.uuid == [0; 16];
            item.received_uuid = received.uuid;
            (item.stransid, item.stime) = (received.stransid, received.stime);
            item.rtransid = if gone { Generation(0) } else { NOW };
            item.rtime = if gone { Timespec::default() } else { stamp };
        })
    }

    /// Changes a root item, and what the uuid tree says of it.
    fn change_root(&self, tree: TreeId, change: impl FnOnce(&mut RootItem)) -> Result<()> {
        let shared = self.shared();
        shared.expect_writable()?;
        let _changing = shared.trees.changing.lock();
        let view = shared.engine.view();
        let (key, old) = trees::root_entry(&view, tree)?.ok_or(NameError::NotFound)?;
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
        let copies = if is_opened { shared.engine.room_to_change(tree)? } else { 0 };
        let cost = uuids.cost(0);
        let cost = cost.and(Cost::of(1, RootItem::LEN as u32)).and(cost_of_copies(copies));
        let reservation = shared.reserve(cost, Urgency::Normal);
        let reservation = reservation.map_err(|error| told_of_copies(error, copies))?;
        let handle = shared.engine.begin(reservation);
        shared.engine.keep_until_published(copies, handle.generation());
        if item.rtransid == NOW {
            item.rtransid = handle.generation();
        }
        handle.put(TreeId::ROOT, key, item.to_bytes());
        uuids.apply(&handle);
        Ok(())
    }

    /// What the root item of a subvolume says.
    ///
    /// # Errors
    ///
    /// `NotFound`.
    pub fn subvolume_item(&self, tree: TreeId) -> Result<RootItem> {
        let item = trees::root_item(&self.shared().engine.view(), tree)?;
        Ok(item.ok_or(NameError::NotFound)?)
    }

    /// The deleted subvolumes that are not dropped yet.
    ///
    /// # Errors
    ///
    /// What reading the root tree met.
    pub fn dying_subvolumes(&self) -> Result<Vec<TreeId>> {
        let shared = self.shared();
        let mut found = shared.maintenance.dead_subvolumes()?;
        for tree in shared.background.dying() {
            if !found.contains(&tree) {
                found.push(tree);
            }
        }
        Ok(found)
    }
}

/// What somebody was refused for who needs room for so many bytes of copies.
pub(crate) fn told_of_copies(error: Error, bytes: u64) -> Error {
    match error.kind() {
        ErrorKind::NoSpace if bytes > 0 => buttress_txn::Error::NoSpace(
            "metadata to keep, so that what snapshots share can still be deleted: delete some, or mount with delete_room=off",
        )
        .into(),
        _ => error,
    }
}
