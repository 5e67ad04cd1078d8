//! Items of the extent tree: how a sum of reference changes becomes items.
//!
//! # Invariants
//!
//! - **R1** An item's count is the sum of its inline and keyed references, before and after.
//! - **R2** A count that would fall below zero means that the volume was inconsistent: the commit
//!   fails, nothing is written.
//! - **R3** One user has one reference, inline or keyed, never both: it is looked for in both before
//!   one is made.

use std::collections::BTreeMap;

use buttress_format::{
    BackRef, Extent, ExtentFlags, ExtentItem, Generation, Key, Kind, Logical, TreeId,
};
use buttress_tree::{Change, Cursor, NodePtr, NodeSource};

use crate::{
    DataRef, Error, Result, View,
    delayed_ref::{Deltas, ExtentChange, User},
};

/// Whether every reference to an extent is `who`'s: in the committed trees, in those that the frozen transaction
/// leaves, and in those of the running one. A crash may lead to any of them, and who has lost the extent since has
/// it there. A file that was split into parts of one extent holds several references under one name.
///
/// What the extent tree says is one user may be several: a leaf that is shared counts once. Who asks
/// has made sure that the leaf is younger than the last snapshot.
pub(crate) fn is_exclusive(view: &View, extent: Extent, who: DataRef) -> Result<bool> {
    let running = view.running().refs.find(extent.start);
    let frozen = view.frozen().and_then(|f| f.refs.find(extent.start));
    let mut users = Deltas::default();
    let is_alone = |users: &Deltas| users.iter().all(|(user, _)| user == User::File(who));
    if ![&running, &frozen].into_iter().flatten().any(|change| change.born) {
        let root = view
            .committed_root(TreeId::EXTENT)?
            .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
        let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
        let refs = Refs::read(&**view.store(), root, &key)?;
        for entry in refs.item.inline.iter().chain(refs.keyed.values()) {
            if let Some(user) = User::of(entry) {
                users.add(user, i64::from(entry.count()));
            }
        }
    }
    for change in [frozen, running].into_iter().flatten() {
        if !is_alone(&users) {
            return Ok(false);
        }
        for (user, delta) in change.deltas.iter() {
            users.add(user, delta);
        }
    }
    Ok(is_alone(&users))
}

fn parse(key: &Key, bytes: &[u8]) -> Result<ExtentItem> {
    ExtentItem::parse(key, bytes).map_err(|source| Error::Item {
        tree: TreeId::EXTENT,
        key: *key,
        source,
    })
}

impl User {
    /// Who a reference is of; nobody where it is none, but a note of who made the extent.
    fn of(entry: &BackRef) -> Option<Self> {
        Some(match *entry {
            BackRef::TreeBlock { root } => Self::Tree(root),
            BackRef::SharedBlock { parent } => Self::Node(parent),
            BackRef::Data { root, ino, offset, .. } => Self::File(DataRef { root, ino, offset }),
            BackRef::SharedData { parent, .. } => Self::Leaf(parent),
            BackRef::Owner { .. } => return None,
        })
    }

    fn with_count(self, count: u32) -> BackRef {
        match self {
            Self::Tree(root) => BackRef::TreeBlock { root },
            Self::Node(parent) => BackRef::SharedBlock { parent },
            Self::File(DataRef { root, ino, offset }) => BackRef::Data { root, ino, offset, count },
            Self::Leaf(parent) => BackRef::SharedData { parent, count },
        }
    }

    /// Most references that one entry counts: those of tree nodes have no count.
    fn count_max(self) -> u32 {
        match self {
            Self::Tree(_) | Self::Node(_) => 1,
            Self::File(_) | Self::Leaf(_) => u32::MAX,
        }
    }
}

/// What a change of references did to an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It has an item now and had none.
    Born,
    /// It lives on.
    Kept,
    /// Nobody uses it any more; its items are gone.
    Freed,
}

/// Largest extent item that grows inline; further references get items of their own. A leaf must
/// hold several items, or it could not be searched in halves.
pub(crate) fn inline_max(nodesize: u32) -> usize {
    (nodesize as usize - buttress_format::header::HEADER_LEN) / 16
        - buttress_format::header::ITEM_LEN
}

/// The items of one extent, read once and changed as a whole.
struct Refs {
    at: Logical,
    key: Key,
    item: ExtentItem,
    keyed: BTreeMap<Key, BackRef>,
    original: Vec<Key>,
}

/// How the items of data extents look in one transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataForm {
    pub(crate) generation: Generation,
    pub(crate) nodesize: u32,
    /// Items of new extents say who made them.
    pub(crate) owners: bool,
}

/// Who made a data extent, as far as it says so, and in which transaction.
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

/// Who made a committed data extent, as far as its item says so.
pub(crate) fn committed_owner(view: &View, extent: Extent) -> Result<Option<TreeId>> {
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
) -> Result<(Fate, Origin)> {
    let at = change.extent.start;
    let key = Key::new(at.0, Kind::EXTENT_ITEM, change.extent.len);
    let mut refs = if change.born {
        let mut refs = Refs::born(key, form.generation, ExtentFlags::DATA);
        if let Some(root) = change.owner.filter(|_| form.owners) {
            refs.item.inline.push(BackRef::Owner { root });
        }
        refs
    } else {
        Refs::read(source, root, &key)?
    };
    if refs.item.flags & ExtentFlags::DATA == 0 {
        return Err(Error::Extents { at, what: "a data extent's item says it is a tree block" });
    }
    refs.apply(&change.deltas, form.nodesize)?;
    let origin = Origin { owner: owner_of(&refs.item), generation: refs.item.generation };
    Ok((refs.write(change.born, out)?, origin))
}

/// What a transaction does to the references of one tree node.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockChange {
    pub(crate) level: u8,
    pub(crate) deltas: Deltas,
    /// From now on what it points to is referenced by its address.
    pub(crate) make_full: bool,
}

/// How the items of tree nodes look on a volume.
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
) -> Result<Fate> {
    let mut refs = read_block(source, root, at, change.level, form.nodesize)?;
    refs.apply(&change.deltas, form.nodesize)?;
    if change.make_full {
        refs.item.flags |= ExtentFlags::FULL_BACKREF;
    }
    refs.write(false, out)
}

/// The items of a node that was made in this transaction, for `tree`, and may have come to be shared.
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
    let mut refs = Refs::born(key, generation, ExtentFlags::TREE_BLOCK);
    refs.item.tree_block = (!form.skinny).then_some((Key::MIN, change.level));
    let mut deltas = change.deltas.clone();
    deltas.add(User::Tree(tree), 1);
    refs.apply(&deltas, form.nodesize)?;
    if change.make_full {
        refs.item.flags |= ExtentFlags::FULL_BACKREF;
    }
    refs.write(true, out)?;
    Ok(())
}

/// How many users a committed tree node has, and whether what it points to is referenced by its
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

/// The key of a tree node's item, whichever form it has, after making sure that only one tree
/// uses the node.
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
) -> Result<Refs> {
    let (key, _) = find_block(source, root, at, level, nodesize)?;
    Refs::read(source, root, &key)
}

impl Refs {
    fn born(key: Key, generation: Generation, flags: u64) -> Self {
        let item = ExtentItem { refs: 0, generation, flags, tree_block: None, inline: Vec::new() };
        let at = Logical(key.objectid);
        Self { at, key, item, keyed: BTreeMap::new(), original: Vec::new() }
    }

    fn read<S: NodeSource + ?Sized>(source: &S, root: NodePtr, key: &Key) -> Result<Self> {
        let at = Logical(key.objectid);
        let mut cursor = Cursor::seek(source, TreeId::EXTENT, root, key)?;
        let Some(item) = cursor.key().filter(|k| k == key).and_then(|_| cursor.item()) else {
            return Err(Error::Extents { at, what: "references change, but there is no item" });
        };
        let item = parse(key, item)?;
        let inline: u64 = item.inline.iter().map(|r| u64::from(r.count())).sum();
        let mut refs = Self { at, key: *key, item, keyed: BTreeMap::new(), original: Vec::new() };
        // Most extents have no keyed references; the count says so without another look.
        if inline == refs.item.refs {
            return Ok(refs);
        }
        cursor.advance()?;
        while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
            if key.objectid != at.0 {
                break;
            }
            let kinds = Kind::TREE_BLOCK_REF..=Kind::SHARED_DATA_REF;
            if kinds.contains(&key.kind) {
                let entry = BackRef::keyed_parse(&key, bytes).map_err(|source| Error::Item {
                    tree: TreeId::EXTENT,
                    key,
                    source,
                })?;
                refs.original.push(key);
                refs.keyed.insert(key, entry);
            }
            cursor.advance()?;
        }
        Ok(refs)
    }

    fn apply(&mut self, deltas: &Deltas, nodesize: u32) -> Result<()> {
        for (user, delta) in deltas.in_order() {
            self.change(user, delta, inline_max(nodesize))?;
        }
        Ok(())
    }

    fn change(&mut self, user: User, delta: i64, inline_max: usize) -> Result<()> {
        let at = self.at;
        let wrong = Error::Extents { at, what: "a reference is dropped that nobody holds" };
        let total = i64::try_from(self.item.refs).unwrap_or(i64::MAX / 2) + delta;
        self.item.refs = u64::try_from(total).map_err(|_| wrong.clone())?;
        let is_mine = |entry: &BackRef| User::of(entry) == Some(user);
        let count_of = |entry: Option<&BackRef>| {
            let count = entry.map_or(0, |entry| i64::from(entry.count())) + delta;
            let count = u32::try_from(count).map_err(|_| wrong.clone())?;
            if count > user.count_max() {
                return Err(Error::Extents { at, what: "one tree or node refers to a node twice" });
            }
            Ok(count)
        };
        if let Some(index) = self.item.inline.iter().position(is_mine) {
            match count_of(self.item.inline.get(index))? {
                0 => drop(self.item.inline.remove(index)),
                count => self.item.inline[index] = user.with_count(count),
            }
            return Ok(());
        }
        let keyed = self.keyed.iter().find(|(_, entry)| is_mine(entry)).map(|(k, e)| (*k, *e));
        if let Some((key, entry)) = keyed {
            match count_of(Some(&entry))? {
                0 => self.keyed.remove(&key),
                count => self.keyed.insert(key, user.with_count(count)),
            };
            return Ok(());
        }
        let entry = user.with_count(count_of(None)?);
        if self.item.byte_len() + entry.inline_len() <= inline_max {
            self.item.inline.push(entry);
            return Ok(());
        }
        // Keys of references whose hashes collide follow one another.
        let mut key = entry.keyed(at).0;
        while self.keyed.contains_key(&key) {
            key.offset = key.offset.wrapping_add(1);
        }
        self.keyed.insert(key, entry);
        Ok(())
    }

    /// The items that differ from those that were read.
    fn write(self, born: bool, out: &mut BTreeMap<Key, Change>) -> Result<Fate> {
        let fate = match (born, self.item.refs) {
            (true, 0) => {
                return Err(Error::Extents { at: self.at, what: "born without references" });
            }
            (true, _) => Fate::Born,
            (false, 0) => Fate::Freed,
            (false, _) => Fate::Kept,
        };
        for old in self.original {
            if fate == Fate::Freed || !self.keyed.contains_key(&old) {
                out.insert(old, None);
            }
        }
        if fate == Fate::Freed {
            out.insert(self.key, None);
            return Ok(fate);
        }
        out.insert(self.key, Some(self.item.to_bytes().into()));
        for (key, entry) in self.keyed {
            out.insert(key, Some(entry.keyed(self.at).1.into()));
        }
        Ok(fate)
    }
}
