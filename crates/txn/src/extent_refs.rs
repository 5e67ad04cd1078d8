//! The references of one extent: its item and its keyed items, changed as a whole.
//!
//! # Invariants
//!
//! - **R2** A count that would fall below zero means that the volume was inconsistent: the commit
//!   fails, and nothing is written.
//! - **R3** One user has either an inline reference or a keyed reference, never both. Before a
//!   reference is made, the references of both forms are searched.
//! - **R4** The cost grows with the number of changed references, not with the number of all
//!   references. Each keyed reference is found by its own key, and only changes are written.

use std::collections::BTreeMap;

use buttress_format::{BackRef, ExtentItem, Generation, Key, Kind, Logical, TreeId};
use buttress_tree::{Change, Cursor, NodePtr, NodeSource};

use crate::{
    Error, Result,
    delayed_ref::{Deltas, User},
};

#[cfg(test)]
mod tests;

pub(crate) fn parse(key: &Key, bytes: &[u8]) -> Result<ExtentItem> {
    ExtentItem::parse(key, bytes).map_err(|source| Error::Item {
        tree: TreeId::EXTENT,
        key: *key,
        source,
    })
}

/// Whether the key of this kind of reference holds only a hash of the user. Other users may have
/// the same hash.
fn is_hashed(kind: Kind) -> bool {
    kind == Kind::EXTENT_DATA_REF
}

/// The effect of a change of references on an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentEffect {
    /// The extent has an item now and had none.
    Made,
    /// The extent still has users.
    Kept,
    /// The extent has no user any more; its items were deleted.
    Freed,
}

/// A keyed reference is searched for within this distance after its hash. A reference that is not
/// found there counts as new. References with colliding hashes follow one another, with gaps where
/// references were deleted.
const HASHES_LOOKED_AT: u64 = 64;

/// A keyed reference that changes.
struct Edit {
    /// Whether the tree has an item for the reference.
    in_tree: bool,
    /// The new content; `None` deletes the reference.
    entry: Option<BackRef>,
}

/// The items of one extent. The extent's own item is read at once, keyed items on demand.
pub(crate) struct ExtentItems<'s, S: NodeSource + ?Sized> {
    at: Logical,
    key: Key,
    pub(crate) item: ExtentItem,
    /// A cursor in the extent tree; `None` if the extent has no keyed references.
    cursor: Option<Cursor<'s, S>>,
    keyed: BTreeMap<Key, Edit>,
}

impl<'s, S: NodeSource + ?Sized> ExtentItems<'s, S> {
    pub(crate) fn born(key: Key, generation: Generation, flags: u64) -> Self {
        let item = ExtentItem { refs: 0, generation, flags, tree_block: None, inline: Vec::new() };
        Self { at: Logical(key.objectid), key, item, cursor: None, keyed: BTreeMap::new() }
    }

    pub(crate) fn read(source: &'s S, root: NodePtr, key: &Key) -> Result<Self> {
        let at = Logical(key.objectid);
        let cursor = Cursor::seek(source, TreeId::EXTENT, root, key)?;
        let Some(item) = cursor.key().filter(|k| k == key).and_then(|_| cursor.item()) else {
            return Err(Error::Extents { at, what: "references change, but there is no item" });
        };
        let item = parse(key, item)?;
        let inline: u64 = item.inline.iter().map(|r| u64::from(r.count())).sum();
        // Most extents have no keyed references. The count of the item shows this without a search,
        // because it equals the number of inline references.
        let cursor = (inline != item.refs).then_some(cursor);
        Ok(Self { at, key: *key, item, cursor, keyed: BTreeMap::new() })
    }

    /// Whether no other user has a reference. To be called before any change.
    pub(crate) fn are_only_of(mut self, user: User) -> Result<bool> {
        let mine = |entry: &BackRef| User::of(entry).is_none_or(|of| of == user);
        if !self.item.inline.iter().all(mine) {
            return Ok(false);
        }
        let mut next = Some(Key::new(self.at.0, Kind::TREE_BLOCK_REF, 0));
        while let Some(from) = next {
            let Some((key, entry)) = self.keyed_in_tree(&from)? else { break };
            if !mine(&entry) {
                return Ok(false);
            }
            next = key.next();
        }
        Ok(true)
    }

    /// All users and their counts. To be called before any change.
    pub(crate) fn users(&mut self) -> Result<Vec<(User, i64)>> {
        let of = |entry: &BackRef| User::of(entry).map(|user| (user, i64::from(entry.count())));
        let mut users: Vec<_> = self.item.inline.iter().filter_map(of).collect();
        let mut next = Some(Key::new(self.at.0, Kind::TREE_BLOCK_REF, 0));
        while let Some(from) = next {
            let Some((key, entry)) = self.keyed_in_tree(&from)? else { break };
            users.extend(of(&entry));
            next = key.next();
        }
        Ok(users)
    }

    pub(crate) fn apply(&mut self, deltas: &Deltas, inline_max: usize) -> Result<()> {
        for (user, delta) in deltas.in_order() {
            self.change(user, delta, inline_max)?;
        }
        Ok(())
    }

    fn change(&mut self, user: User, delta: i64, inline_max: usize) -> Result<()> {
        let at = self.at;
        let wrong = Error::Extents { at, what: "a reference is dropped that no file holds" };
        let total = i64::try_from(self.item.refs).unwrap_or(i64::MAX / 2) + delta;
        self.item.refs = u64::try_from(total).map_err(|_| wrong.clone())?;
        let count_of = |entry: Option<&BackRef>| {
            let count = entry.map_or(0, |entry| i64::from(entry.count())) + delta;
            let count = u32::try_from(count).map_err(|_| wrong.clone())?;
            if count > user.count_max() {
                return Err(Error::Extents { at, what: "one tree or node refers to a node twice" });
            }
            Ok(count)
        };
        let is_mine = |entry: &BackRef| User::of(entry) == Some(user);
        if let Some(index) = self.item.inline.iter().position(is_mine) {
            match count_of(self.item.inline.get(index))? {
                0 => drop(self.item.inline.remove(index)),
                count => self.item.inline[index] = user.with_count(count),
            }
            return Ok(());
        }
        let (free, found) = self.find_keyed(user, delta < 0)?;
        if let Some((key, entry)) = found {
            let count = count_of(Some(&entry))?;
            // The reference was not changed yet: it comes from the tree.
            self.edit(key, (count > 0).then(|| user.with_count(count)), true);
            return Ok(());
        }
        let entry = user.with_count(count_of(None)?);
        if self.item.byte_len() + entry.inline_len() <= inline_max {
            self.item.inline.push(entry);
            return Ok(());
        }
        self.edit(free, Some(entry), false);
        Ok(())
    }

    /// The first keyed reference of this extent in the tree at or after a key.
    fn keyed_in_tree(&mut self, from: &Key) -> Result<Option<(Key, BackRef)>> {
        let Some(cursor) = &mut self.cursor else { return Ok(None) };
        cursor.seek_on(from)?;
        while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
            if key.objectid != self.at.0 || key.kind > Kind::SHARED_DATA_REF {
                break;
            }
            if key.kind >= Kind::TREE_BLOCK_REF {
                let malformed = |source| Error::Item { tree: TreeId::EXTENT, key, source };
                return Ok(Some((key, BackRef::keyed_parse(&key, bytes).map_err(malformed)?)));
            }
            cursor.advance()?;
        }
        Ok(None)
    }

    /// The keyed reference of a user, and the key for a new reference: the first free key at or
    /// after the user's hash. If the reference `must` exist, all keys after the hash are searched,
    /// as in Linux.
    fn find_keyed(&mut self, user: User, must: bool) -> Result<(Key, Option<(Key, BackRef)>)> {
        let start = user.with_count(1).keyed(self.at).0;
        let reach = match is_hashed(start.kind) {
            true if must => u64::MAX,
            true => start.offset.saturating_add(HASHES_LOOKED_AT),
            false => start.offset,
        };
        let (mut free, mut next) = (start, Some(start));
        while let Some(from) = next {
            let Some((key, entry)) = self.keyed_from(&from)? else { break };
            next = key.next();
            // If many users have one hash, the free key lies after all of them.
            if key.kind != start.kind || (key.offset > reach && key != free) {
                break;
            }
            let Some(entry) = entry else { continue };
            if User::of(&entry) == Some(user) {
                return Ok((free, Some((key, entry))));
            }
            if key == free {
                free.offset = free.offset.wrapping_add(1);
            }
        }
        Ok((free, None))
    }

    /// The first key at or after `from` that has a keyed reference, or had one before this change.
    fn keyed_from(&mut self, from: &Key) -> Result<Option<(Key, Option<BackRef>)>> {
        let in_tree = self.keyed_in_tree(from)?;
        let changed = self.keyed.range(from..).next().map(|(key, edit)| (*key, edit.entry));
        Ok(match (in_tree, changed) {
            (Some((key, entry)), changed) if changed.is_none_or(|(edited, _)| key < edited) => {
                Some((key, Some(entry)))
            }
            (_, changed) => changed,
        })
    }

    fn edit(&mut self, key: Key, entry: Option<BackRef>, in_tree: bool) {
        self.keyed.entry(key).or_insert(Edit { in_tree, entry: None }).entry = entry;
    }

    /// Adds to `out` the items that differ from the items that were read.
    pub(crate) fn write(
        mut self,
        born: bool,
        out: &mut BTreeMap<Key, Change>,
    ) -> Result<ExtentEffect> {
        let fate = match (born, self.item.refs) {
            (true, 0) => {
                return Err(Error::Extents { at: self.at, what: "born without references" });
            }
            (true, _) => ExtentEffect::Made,
            (false, 0) => ExtentEffect::Freed,
            (false, _) => ExtentEffect::Kept,
        };
        if fate == ExtentEffect::Freed {
            let mut next = Some(Key::new(self.at.0, Kind::TREE_BLOCK_REF, 0));
            while let Some(from) = next {
                let Some((key, _)) = self.keyed_in_tree(&from)? else { break };
                out.insert(key, None);
                next = key.next();
            }
            out.insert(self.key, None);
            return Ok(fate);
        }
        out.insert(self.key, Some(self.item.to_bytes().into()));
        for (key, Edit { in_tree, entry }) in self.keyed {
            match entry {
                Some(entry) => drop(out.insert(key, Some(entry.keyed(self.at).1.into()))),
                None if in_tree => drop(out.insert(key, None)),
                None => {}
            }
        }
        Ok(fate)
    }
}
