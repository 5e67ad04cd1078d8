//! Items of the extent tree: how a sum of reference changes becomes items.
//!
//! # Invariants
//!
//! - **R1** An item's count is the sum of its inline and keyed references, before and after.
//! - **R2** A count that would fall below zero means that the volume was inconsistent: the commit
//!   fails, nothing is written.

use std::collections::BTreeMap;

use buttress_format::{
    BackRef, Extent, ExtentFlags, ExtentItem, Generation, Key, Kind, Logical, TreeId,
};
use buttress_tree::{Change, Cursor, NodePtr, NodeSource};

use crate::{DataRef, Error, Result, View, delayed_ref::ExtentChange};

/// Whether every reference to an extent is `who`'s: committed, frozen and running together. A file
/// that was split into parts of one extent holds several references under one name.
pub(crate) fn is_exclusive(view: &View, extent: Extent, who: DataRef) -> Result<bool> {
    let running = view.running().refs.find(extent.start);
    let frozen = view.frozen().and_then(|f| f.refs.find(extent.start));
    let mut others: BTreeMap<DataRef, i64> = BTreeMap::new();
    let mut born = false;
    for change in [&running, &frozen].into_iter().flatten() {
        born |= change.born;
        for (user, delta) in &change.deltas {
            *others.entry(*user).or_default() += delta;
        }
    }
    if !born {
        let root = view
            .committed_root(TreeId::EXTENT)?
            .ok_or_else(|| Error::Malformed("there is no extent tree".into()))?;
        let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
        let refs = read(&**view.store(), root, &key)?;
        for entry in refs.item.inline.iter().chain(refs.keyed.values()) {
            match *entry {
                BackRef::Data { root, ino, offset, count } => {
                    let user = DataRef { root, ino, offset };
                    *others.entry(user).or_default() += i64::from(count);
                }
                BackRef::Owner { .. } => {}
                _ => return Ok(false),
            }
        }
    }
    Ok(others.iter().all(|(user, count)| *user == who || *count == 0))
}

fn parse(key: &Key, bytes: &[u8]) -> Result<ExtentItem> {
    ExtentItem::parse(key, bytes).map_err(|source| Error::Item {
        tree: TreeId::EXTENT,
        key: *key,
        source,
    })
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
fn inline_max(nodesize: u32) -> usize {
    (nodesize as usize - buttress_format::header::HEADER_LEN) / 16
        - buttress_format::header::ITEM_LEN
}

/// The items of one extent, read once and changed as a whole.
struct Refs {
    item: ExtentItem,
    keyed: BTreeMap<Key, BackRef>,
    original: Vec<Key>,
}

/// Turns one extent's summed changes into changes of items.
pub(crate) fn apply_data<S: NodeSource + ?Sized>(
    source: &S,
    root: NodePtr,
    change: &ExtentChange,
    generation: Generation,
    nodesize: u32,
    out: &mut BTreeMap<Key, Change>,
) -> Result<Fate> {
    let at = change.extent.start;
    let key = Key::new(at.0, Kind::EXTENT_ITEM, change.extent.len);
    let mut refs = if change.born {
        let item = ExtentItem {
            refs: 0,
            generation,
            flags: ExtentFlags::DATA,
            tree_block: None,
            inline: Vec::new(),
        };
        Refs { item, keyed: BTreeMap::new(), original: Vec::new() }
    } else {
        read(source, root, &key)?
    };
    // Drops first, so that a reference that moves finds room where the old one was.
    let mut deltas = change.deltas.clone();
    deltas.sort_by_key(|(_, n)| *n);
    for (who, delta) in deltas {
        refs.change(at, who, delta, inline_max(nodesize))?;
    }
    let fate = match (change.born, refs.item.refs) {
        (true, 0) => return Err(Error::Extents { at, what: "born without references" }),
        (true, _) => Fate::Born,
        (false, 0) => Fate::Freed,
        (false, _) => Fate::Kept,
    };
    for old in refs.original {
        if fate == Fate::Freed || !refs.keyed.contains_key(&old) {
            out.insert(old, None);
        }
    }
    if fate == Fate::Freed {
        out.insert(key, None);
        return Ok(fate);
    }
    out.insert(key, Some(refs.item.to_bytes().into()));
    for (key, entry) in refs.keyed {
        let mut payload = entry.keyed(at).1;
        payload.shrink_to_fit();
        out.insert(key, Some(payload.into()));
    }
    Ok(fate)
}

fn read<S: NodeSource + ?Sized>(source: &S, root: NodePtr, key: &Key) -> Result<Refs> {
    let at = Logical(key.objectid);
    let mut cursor = Cursor::seek(source, TreeId::EXTENT, root, key)?;
    let Some(item) = cursor.key().filter(|k| k == key).and_then(|_| cursor.item()) else {
        return Err(Error::Extents { at, what: "references change, but there is no item" });
    };
    let item = parse(key, item)?;
    if item.flags & ExtentFlags::DATA == 0 {
        return Err(Error::Extents { at, what: "a data extent's item says it is a tree block" });
    }
    let inline: u64 = item.inline.iter().map(|r| u64::from(r.count())).sum();
    let mut refs = Refs { item, keyed: BTreeMap::new(), original: Vec::new() };
    // Most extents have no keyed references; the count says so without another look.
    if inline == refs.item.refs {
        return Ok(refs);
    }
    cursor.advance()?;
    while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
        if key.objectid != at.0 {
            break;
        }
        if matches!(key.kind, Kind::EXTENT_DATA_REF | Kind::SHARED_DATA_REF) {
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

impl Refs {
    fn change(&mut self, at: Logical, who: DataRef, delta: i64, inline_max: usize) -> Result<()> {
        let wrong = Error::Extents { at, what: "a reference is dropped that nobody holds" };
        let is_mine = |entry: &BackRef| {
            matches!(*entry, BackRef::Data { root, ino, offset, .. }
                if root == who.root && ino == who.ino && offset == who.offset)
        };
        let counted = |entry: &BackRef| i64::from(entry.count()) + delta;
        let total = i64::try_from(self.item.refs).unwrap_or(i64::MAX / 2) + delta;
        self.item.refs = u64::try_from(total).map_err(|_| wrong.clone())?;
        if let Some(index) = self.item.inline.iter().position(is_mine) {
            let count = counted(&self.item.inline[index]);
            return match u32::try_from(count).map_err(|_| wrong)? {
                0 => {
                    self.item.inline.remove(index);
                    Ok(())
                }
                count => {
                    self.item.inline[index] = who.with_count(count);
                    Ok(())
                }
            };
        }
        let keyed = self.keyed.iter().find(|(_, entry)| is_mine(entry)).map(|(k, e)| (*k, *e));
        if let Some((key, entry)) = keyed {
            match u32::try_from(counted(&entry)).map_err(|_| wrong)? {
                0 => self.keyed.remove(&key),
                count => self.keyed.insert(key, who.with_count(count)),
            };
            return Ok(());
        }
        let count = u32::try_from(delta).map_err(|_| wrong.clone())?;
        if count == 0 {
            return Err(wrong);
        }
        let entry = who.with_count(count);
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
}

impl DataRef {
    fn with_count(self, count: u32) -> BackRef {
        BackRef::Data { root: self.root, ino: self.ino, offset: self.offset, count }
    }
}

/// Key and payload of a new tree node's item.
pub(crate) fn tree_block_item(
    at: Logical,
    level: u8,
    tree: TreeId,
    generation: Generation,
    skinny: bool,
    nodesize: u32,
) -> (Key, Vec<u8>) {
    let item = ExtentItem {
        refs: 1,
        generation,
        flags: ExtentFlags::TREE_BLOCK,
        tree_block: (!skinny).then_some((Key::MIN, level)),
        inline: vec![BackRef::TreeBlock { root: tree }],
    };
    let key = if skinny {
        Key::new(at.0, Kind::METADATA_ITEM, level.into())
    } else {
        Key::new(at.0, Kind::EXTENT_ITEM, nodesize.into())
    };
    (key, item.to_bytes())
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
    let forms = [
        Key::new(at.0, Kind::METADATA_ITEM, level.into()),
        Key::new(at.0, Kind::EXTENT_ITEM, nodesize.into()),
    ];
    for key in forms {
        if let Some((node, slot)) = Cursor::find(source, TreeId::EXTENT, root, &key)? {
            let item = parse(&key, node.item(slot))?;
            let plain = item.refs == 1
                && item.flags == ExtentFlags::TREE_BLOCK
                && item.inline.iter().any(|r| matches!(r, BackRef::TreeBlock { .. }));
            if !plain {
                return Err(Error::Extents { at, what: "a node that is rebuilt is shared" });
            }
            return Ok(key);
        }
    }
    Err(Error::Extents { at, what: "no item for a tree node in use" })
}
