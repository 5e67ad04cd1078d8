//! Items about subvolumes outside their own trees: references, uuids, the default subvolume.
//!
//! # On disk
//!
//! ```text
//! (parent, ROOT_REF, tree)        directory, index and name of a subvolume, in the root tree
//! (tree, ROOT_BACKREF, parent)    the same, found from the subvolume
//! (ROOT_TREE_DIR, DIR_ITEM, ..)   the name `default`, which leads to the default subvolume
//! (uuid, UUID_KEY_*, uuid)        the subvolumes with that uuid, in the uuid tree
//! ```
//!
//! # Invariants
//!
//! - **U1** The two references of a subvolume are put in one transaction, and deleted in one
//!   transaction.

use buttress_format::{Ino, Key, Kind, RootRef, TreeId, UuidItem};
use buttress_txn::View;

use crate::attr::InodeId;
use crate::batch::{Batch, Change};
use crate::error::{Error, ErrorKind, NameError, Result};
use crate::names::{self, Target};

/// The directory of the root tree that contains the name of the default subvolume.
pub const ROOT_TREE_DIR: InodeId = InodeId { tree: TreeId::ROOT, ino: Ino(TreeId::ROOT_DIR.0) };

/// The key of the uuid tree's item for a uuid.
pub fn uuid_key(kind: Kind, uuid: &[u8; 16]) -> Key {
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&uuid[at..at + 8]);
        u64::from_le_bytes(bytes)
    };
    Key::new(half(0), kind, half(8))
}

/// The subvolume that a mount shows by default.
pub fn default_subvolume(view: &View) -> Result<TreeId> {
    let Some(entry) = names::find(view, ROOT_TREE_DIR, b"default")? else { return Ok(TreeId::FS) };
    Ok(match names::target(view, ROOT_TREE_DIR, &entry)? {
        Target::Subvolume(tree) => tree,
        Target::Inode(_) | Target::Stub => TreeId::FS,
    })
}

fn ref_keys(tree: TreeId, parent: TreeId) -> [Key; 2] {
    [Key::new(parent.0, Kind::ROOT_REF, tree.0), Key::new(tree.0, Kind::ROOT_BACKREF, parent.0)]
}

/// Collects the two references of a subvolume's name (U1).
pub fn add_refs(roots: &mut Batch, tree: TreeId, dir: InodeId, index: u64, name: &[u8]) {
    let place = RootRef { dirid: dir.ino, sequence: index, name: name.to_vec() };
    for key in ref_keys(tree, dir.tree) {
        roots.set(key, Change::Bytes(place.to_bytes()));
    }
}

/// Collects the removal of the two references of a subvolume's name. Returns the index of the name
/// in its directory.
pub fn remove_refs(view: &View, roots: &mut Batch, tree: TreeId, parent: TreeId) -> Result<u64> {
    let keys = ref_keys(tree, parent);
    let item = view.get(TreeId::ROOT, &keys[0])?.ok_or(NameError::NotFound)?;
    let place = RootRef::parse(&item).map_err(|source| Error::Format {
        tree: TreeId::ROOT,
        ino: Ino(tree.0),
        source,
    })?;
    for key in keys {
        roots.set(key, Change::Delete);
    }
    Ok(place.sequence)
}

/// The subvolumes with a uuid. `None` if the volume has no uuid tree, or for a uuid of zeros.
fn with_uuid(view: &View, key: Key) -> Result<Option<Vec<TreeId>>> {
    let none = key.objectid == 0 && key.offset == 0;
    if none || view.committed_root(TreeId::UUID)?.is_none() {
        return Ok(None);
    }
    let Some(item) = view.get(TreeId::UUID, &key)? else { return Ok(Some(Vec::new())) };
    let UuidItem(found) = UuidItem::parse(&item).map_err(|source| Error::Format {
        tree: TreeId::UUID,
        ino: Ino(key.objectid),
        source,
    })?;
    Ok(Some(found))
}

/// Collects the change that records a subvolume's uuid.
pub fn add_uuid(view: &View, uuids: &mut Batch, key: Key, tree: TreeId) -> Result<()> {
    if let Some(mut found) = with_uuid(view, key)?
        && !found.contains(&tree)
    {
        found.push(tree);
        uuids.set(key, Change::Bytes(UuidItem(found).to_bytes()));
    }
    Ok(())
}

/// Collects the change that removes the record of a subvolume's uuid.
pub fn remove_uuid(view: &View, uuids: &mut Batch, key: Key, tree: TreeId) -> Result<()> {
    if let Some(mut found) = with_uuid(view, key)?
        && found.contains(&tree)
    {
        found.retain(|known| *known != tree);
        let rest = if found.is_empty() {
            Change::Delete
        } else {
            Change::Bytes(UuidItem(found).to_bytes())
        };
        uuids.set(key, rest);
    }
    Ok(())
}

/// Replaces the error of a failed reservation that included `bytes` of snapshot headroom. The new
/// error names the headroom.
pub fn with_headroom(error: Error, bytes: u64) -> Error {
    match error.kind() {
        ErrorKind::NoSpace if bytes > 0 => buttress_txn::Error::NoSpace(
            "metadata to keep, so that what snapshots share can still be deleted: delete some, or mount with delete_room=off",
        )
        .into(),
        _ => error,
    }
}
