//! Items of the extent tree: turns summed reference changes into item changes.
//!
//! # Invariants
//!
//! - **R1** An item's count is the sum of its inline and keyed references, before and after every
//!   change.
//!
//! [`ExtentItems`] holds the references of one extent and states the invariants of these
//! references.

use std::collections::BTreeMap;

use buttress_format::{
    BackRef, Extent, ExtentFlags, ExtentItem, Generation, Key, Kind, Logical, TreeId,
};
use buttress_transaction::delayed_ref::inline_max;
use buttress_tree::{Change, Cursor, NodePtr, NodeSource, Store};

use crate::{
    DataRef, Error, Result, View,
    delayed_ref::{Deltas, ExtentChange, User},
    extent_refs::{ExtentItems, parse},
};

pub(crate) use crate::extent_refs::ExtentEffect;

/// Whether `user` is the only user of an extent. The answer must hold in the committed trees, and
/// after the frozen and the running transaction: a crash may lead to any of these states. If a file
/// extent item was split into parts, the file has several references to the extent under one name.
///
/// One user in the extent tree may stand for several files: a shared leaf counts once. The caller
/// has made sure that the leaf is younger than the last snapshot.
///
/// The cost does not depend on the number of users: the search ends at the first other user.
///
/// # Errors
///
/// When the extent tree cannot be read, or does not know the extent.
pub fn is_exclusive(view: &View, extent: Extent, user: DataRef) -> Result<bool> {
    let user = User::File(user);
    let look = |change: &ExtentChange| (change.born, change.deltas.is_only_of(user));
    let running = view.running().refs.look(extent.start, look);
    let frozen = view.frozen().and_then(|f| f.refs.look(extent.start, look));
    let changes = [frozen, running].into_iter().flatten();
    if changes.clone().any(|(_, is_alone)| !is_alone) {
        return Ok(false);
    }
    if changes.clone().any(|(born, _)| born) {
        return Ok(true);
    }
    let root = view
        .committed_root(TreeId::EXTENT)?
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
    ExtentItems::read(&**view.store(), root, &key)?.are_only_of(user)
}

/// The form of items of data extents in one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataForm {
    pub(crate) generation: Generation,
    pub(crate) nodesize: u32,
    /// Whether items of new extents record the subvolume that made them (simple quotas).
    pub(crate) owners: bool,
}

/// The subvolume that made an extent or node, if it is recorded, and the transaction in which it
/// was made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) owner: Option<TreeId>,
    pub(crate) generation: Generation,
}

fn owner_of(item: &ExtentItem) -> Option<TreeId> {
    item.inline.iter().find_map(|entry| match entry {
        BackRef::Owner { root } => Some(*root),
        _ => None,
    })
}

/// The subvolume that made a committed data extent. `None` if the extent's item does not record it.
///
/// # Errors
///
/// When the extent tree cannot be read.
pub fn data_owner(view: &View, extent: Extent) -> Result<Option<TreeId>> {
    let root = view
        .committed_root(TreeId::EXTENT)?
        .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
    let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
    let found = Cursor::find(&**view.store(), TreeId::EXTENT, root, &key)?;
    found.map_or(Ok(None), |(node, slot)| Ok(owner_of(&parse(&key, node.item(slot))?)))
}

/// Turns one data extent's summed changes into changes of items.
pub(crate) fn apply_data<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    change: &ExtentChange,
    form: DataForm,
    out: &mut BTreeMap<Key, Change>,
) -> Result<(ExtentEffect, Origin)> {
    let at = change.extent.start;
    let key = Key::new(at.0, Kind::EXTENT_ITEM, change.extent.len);
    let mut refs = if change.born {
        let mut refs = ExtentItems::born(key, form.generation, ExtentFlags::DATA);
        if let Some(root) = change.owner.filter(|_| form.owners) {
            refs.item.inline.push(BackRef::Owner { root });
        }
        refs
    } else {
        ExtentItems::read(source, root, &key)?
    };
    if refs.item.flags & ExtentFlags::DATA == 0 {
        return Err(Error::Extents { at, what: "a data extent's item says it is a tree block" });
    }
    refs.apply(&change.deltas, inline_max(form.nodesize))?;
    let origin = Origin { owner: owner_of(&refs.item), generation: refs.item.generation };
    Ok((refs.write(change.born, out)?, origin))
}

/// The changes that a transaction makes to the references of one tree node.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockChange {
    pub(crate) level: u8,
    pub(crate) deltas: Deltas,
    /// From this change on, references to the node's children carry the node's address.
    pub(crate) make_full: bool,
}

/// The form of items of tree nodes on a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockForm {
    pub(crate) skinny: bool,
    pub(crate) nodesize: u32,
}

/// Turns one tree node's summed changes into changes of items.
pub(crate) fn apply_block<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    at: Logical,
    change: &BlockChange,
    form: BlockForm,
    out: &mut BTreeMap<Key, Change>,
) -> Result<ExtentEffect> {
    let mut refs = read_block(source, root, at, change.level, form.nodesize)?;
    refs.apply(&change.deltas, inline_max(form.nodesize))?;
    if change.make_full {
        refs.item.flags |= ExtentFlags::FULL_BACKREF;
    }
    refs.write(false, out)
}

/// The items of a node that this transaction made for `tree`. The node may be shared by now.
pub(crate) fn new_block(
    at: Logical,
    tree: TreeId,
    change: &BlockChange,
    generation: Generation,
    form: BlockForm,
    out: &mut BTreeMap<Key, Change>,
) -> Result<()> {
    let key = if form.skinny {
        Key::new(at.0, Kind::METADATA_ITEM, change.level.into())
    } else {
        Key::new(at.0, Kind::EXTENT_ITEM, form.nodesize.into())
    };
    let mut refs = ExtentItems::<Store>::born(key, generation, ExtentFlags::TREE_BLOCK);
    refs.item.tree_block = (!form.skinny).then_some((Key::MIN, change.level));
    let mut deltas = change.deltas.clone();
    deltas.add(User::Tree(tree), 1);
    refs.apply(&deltas, inline_max(form.nodesize))?;
    if change.make_full {
        refs.item.flags |= ExtentFlags::FULL_BACKREF;
    }
    refs.write(true, out)?;
    Ok(())
}

/// The number of users of a committed tree node, and whether references to its children carry its
/// address.
pub(crate) fn block_state<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    at: Logical,
    level: u8,
    nodesize: u32,
) -> Result<(u64, bool)> {
    let (_, item) = find_block(source, root, at, level, nodesize)?;
    Ok((item.refs, item.flags & ExtentFlags::FULL_BACKREF != 0))
}

/// The transaction that made a committed tree node.
pub(crate) fn block_generation<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    at: Logical,
    level: u8,
    nodesize: u32,
) -> Result<Generation> {
    Ok(find_block(source, root, at, level, nodesize)?.1.generation)
}

/// Every user of a committed tree node, and whether references to its children carry its address.
pub(crate) fn block_users<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    at: Logical,
    level: u8,
    nodesize: u32,
) -> Result<(Vec<(User, i64)>, bool)> {
    let mut refs = read_block(source, root, at, level, nodesize)?;
    Ok((refs.users()?, refs.item.flags & ExtentFlags::FULL_BACKREF != 0))
}

/// Every user of a committed data extent, with its number of references.
pub(crate) fn data_users<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    extent: Extent,
) -> Result<Vec<(User, i64)>> {
    let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
    ExtentItems::read(source, root, &key)?.users()
}

/// The key of a tree node's item, in the form that the item has. Fails if the node has several
/// users.
pub(crate) fn find_tree_block<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    at: Logical,
    level: u8,
    nodesize: u32,
) -> Result<Key> {
    let (key, item) = find_block(source, root, at, level, nodesize)?;
    let plain = item.refs == 1
        && item.flags == ExtentFlags::TREE_BLOCK
        && item.inline.iter().any(|r| matches!(r, BackRef::TreeBlock { .. }));
    if !plain {
        return Err(Error::Extents { at, what: "a node that is rebuilt is shared" });
    }
    Ok(key)
}

fn find_block<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    at: Logical,
    level: u8,
    nodesize: u32,
) -> Result<(Key, ExtentItem)> {
    let forms = [
        Key::new(at.0, Kind::METADATA_ITEM, level.into()),
        Key::new(at.0, Kind::EXTENT_ITEM, nodesize.into()),
    ];
    for key in forms {
        if let Some((node, slot)) = Cursor::find(source, TreeId::EXTENT, root, &key)? {
            let item = parse(&key, node.item(slot))?;
            if item.flags & ExtentFlags::TREE_BLOCK == 0 {
                return Err(Error::Extents { at, what: "a tree node's item says it is data" });
            }
            return Ok((key, item));
        }
    }
    Err(Error::Extents { at, what: "no item for a tree node in use" })
}

fn read_block<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    at: Logical,
    level: u8,
    nodesize: u32,
) -> Result<ExtentItems<'_, S>> {
    let (key, _) = find_block(source, root, at, level, nodesize)?;
    ExtentItems::read(source, root, &key)
}
