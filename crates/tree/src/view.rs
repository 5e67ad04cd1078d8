//! How everything above the trees reads them: running overlay, frozen overlay, committed tree.
//!
//! # Invariants
//!
//! - **V1** The three parts of a view are one consistent state: who froze an overlay published the
//!   view that has it as frozen in the same step.
//! - **V2** While a view lives, nothing that its committed roots reach is handed out again (T6).

use std::{ops::Deref, sync::Arc};

use buttress_format::{Generation, Key, Kind, RootItem, TreeId};

use crate::{
    Error, Result,
    cursor::Cursor,
    node::{Node, NodePtr},
    overlay::{Overlay, Payload},
    roots::Roots,
    store::Store,
};

/// An item's bytes, borrowed from wherever they live.
#[derive(Clone, Debug)]
pub struct Item(Inner);

#[derive(Clone, Debug)]
enum Inner {
    Overlay(Payload),
    Node { node: Arc<Node>, start: usize, end: usize },
}

impl Item {
    pub(crate) fn of_node(node: &Arc<Node>, slot: usize) -> Self {
        let (start, end) = node.item_range(slot);
        Self(Inner::Node { node: Arc::clone(node), start, end })
    }
}

impl Deref for Item {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Overlay(payload) => payload,
            Inner::Node { node, start, end } => &node.bytes()[*start..*end],
        }
    }
}

/// A consistent state of every tree.
#[derive(Clone, Debug)]
pub struct View {
    store: Arc<Store>,
    running: Arc<Overlay>,
    frozen: Option<Arc<Overlay>>,
    roots: Arc<Roots>,
}

impl View {
    /// Joins the three parts.
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        running: Arc<Overlay>,
        frozen: Option<Arc<Overlay>>,
        roots: Arc<Roots>,
    ) -> Self {
        Self { store, running, frozen, roots }
    }

    /// The committed roots beneath.
    #[must_use]
    pub fn roots(&self) -> &Arc<Roots> {
        &self.roots
    }

    /// Where nodes come from.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The transaction that the committed roots are.
    #[must_use]
    pub fn committed_generation(&self) -> Generation {
        self.roots.generation
    }

    /// The committed root of a tree, or nothing if the tree is not (yet) on disk.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn committed_root(&self, tree: TreeId) -> Result<Option<NodePtr>> {
        if let Some(ptr) = self.roots.find(tree) {
            return Ok(Some(ptr));
        }
        let root = self.committed_root_item(tree)?;
        Ok(root.map(|root| NodePtr {
            logical: root.bytenr,
            generation: root.generation,
            level: root.level,
        }))
    }

    /// The committed root item of a tree, or nothing if the tree is not (yet) on disk.
    ///
    /// # Errors
    ///
    /// When the root tree is damaged.
    pub fn committed_root_item(&self, tree: TreeId) -> Result<Option<RootItem>> {
        let root_tree = self.roots.find(TreeId::ROOT).ok_or(Error::NoTree(TreeId::ROOT))?;
        let last = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
        let cursor = Cursor::seek_before(&*self.store, TreeId::ROOT, root_tree, &last)?;
        let Some((node, slot)) = cursor.current() else { return Ok(None) };
        let key = node.key(slot);
        if key.objectid != tree.0 || key.kind != Kind::ROOT_ITEM {
            return Ok(None);
        }
        let root = RootItem::parse(node.item(slot)).map_err(|source| Error::Item {
            tree: TreeId::ROOT,
            key,
            source,
        })?;
        Ok(Some(root))
    }

    /// The item with exactly this key.
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn get(&self, tree: TreeId, key: &Key) -> Result<Option<Item>> {
        if let Some(change) = self.changed(tree, key) {
            return Ok(change.map(|payload| Item(Inner::Overlay(payload))));
        }
        let Some(root) = self.committed_root(tree)? else { return Ok(None) };
        let found = Cursor::find(&*self.store, tree, root, key)?;
        Ok(found.map(|(node, slot)| Item::of_node(&node, slot)))
    }

    fn changed(&self, tree: TreeId, key: &Key) -> Option<Option<Payload>> {
        self.running
            .find(tree, key)
            .or_else(|| self.frozen.as_ref().and_then(|frozen| frozen.find(tree, key)))
    }

    /// The item with the smallest key in `from..=to`.
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn at_or_after(&self, tree: TreeId, from: &Key, to: &Key) -> Result<Option<(Key, Item)>> {
        self.range(tree, *from, *to).next().transpose()
    }

    /// The item with the largest key in `from..=to`.
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn at_or_before(&self, tree: TreeId, from: &Key, to: &Key) -> Result<Option<(Key, Item)>> {
        let mut high = *to;
        let mut cursor = match self.committed_root(tree)? {
            Some(root) => Some(Cursor::seek_before(&*self.store, tree, root, &high)?),
            None => None,
        };
        loop {
            let in_tree = cursor.as_ref().and_then(Cursor::key).filter(|k| k >= from);
            let in_running = self.running.last_in(tree, from, &high);
            let in_frozen = self.frozen.as_ref().and_then(|f| f.last_in(tree, from, &high));
            let best = [in_tree, in_running.as_ref().map(|x| x.0), in_frozen.as_ref().map(|x| x.0)]
                .into_iter()
                .flatten()
                .max();
            let Some(best) = best else { return Ok(None) };
            let change = in_running
                .filter(|(k, _)| *k == best)
                .or_else(|| in_frozen.filter(|(k, _)| *k == best));
            match change {
                Some((_, Some(payload))) => {
                    return Ok(Some((best, Item(Inner::Overlay(payload)))));
                }
                Some((_, None)) => {}
                None => {
                    let current = cursor.as_ref().and_then(Cursor::current);
                    return Ok(current.map(|(node, slot)| (best, Item::of_node(node, slot))));
                }
            }
            // Deleted: go on below it.
            let Some(below) = previous_key(&best).filter(|k| k >= from) else { return Ok(None) };
            high = below;
            if in_tree == Some(best)
                && let Some(cursor) = cursor.as_mut()
            {
                cursor.retreat()?;
            }
        }
    }

    /// Every item in `from..=to`, in order. Sees what is put behind its position while it walks.
    #[must_use]
    pub fn range(&self, tree: TreeId, from: Key, to: Key) -> RangeIter<'_> {
        RangeIter {
            view: self,
            tree,
            next: Some(from),
            to,
            cursor: Committed::Unopened,
            behind: false,
        }
    }
}

fn previous_key(key: &Key) -> Option<Key> {
    if key.offset > 0 {
        return Some(Key { offset: key.offset - 1, ..*key });
    }
    if key.kind.0 > 0 {
        return Some(Key { kind: Kind(key.kind.0 - 1), offset: u64::MAX, ..*key });
    }
    let objectid = key.objectid.checked_sub(1)?;
    Some(Key { objectid, kind: Kind(u8::MAX), offset: u64::MAX })
}

enum Committed<'v> {
    Unopened,
    Absent,
    At(Cursor<'v, Store>),
}

/// Items of one tree in order, merged from the three parts of a view.
pub struct RangeIter<'v> {
    view: &'v View,
    tree: TreeId,
    next: Option<Key>,
    to: Key,
    cursor: Committed<'v>,
    /// The cursor's item was handed out: it moves on only when somebody asks for more, so that
    /// a search for one item never reads the leaf after it.
    behind: bool,
}

impl RangeIter<'_> {
    fn step(&mut self) -> Result<Option<(Key, Item)>> {
        if matches!(self.cursor, Committed::Unopened)
            && let Some(from) = self.next
        {
            self.cursor = match self.view.committed_root(self.tree)? {
                None => Committed::Absent,
                Some(root) => {
                    Committed::At(Cursor::seek(&*self.view.store, self.tree, root, &from)?)
                }
            };
        }
        while let Some(from) = self.next.filter(|from| *from <= self.to) {
            if std::mem::take(&mut self.behind)
                && let Committed::At(cursor) = &mut self.cursor
            {
                cursor.advance()?;
            }
            let in_tree = match &self.cursor {
                Committed::At(cursor) => cursor.key().filter(|k| *k <= self.to),
                _ => None,
            };
            let in_running = self.view.running.first_in(self.tree, &from, &self.to);
            let in_frozen =
                self.view.frozen.as_ref().and_then(|f| f.first_in(self.tree, &from, &self.to));
            let best = [in_tree, in_running.as_ref().map(|x| x.0), in_frozen.as_ref().map(|x| x.0)]
                .into_iter()
                .flatten()
                .min();
            let Some(best) = best else { break };
            let change = in_running
                .filter(|(k, _)| *k == best)
                .or_else(|| in_frozen.filter(|(k, _)| *k == best));
            let committed = match &self.cursor {
                Committed::At(cursor) if in_tree == Some(best) => {
                    let item = match change {
                        Some(_) => None,
                        None => cursor.current().map(|(node, slot)| Item::of_node(node, slot)),
                    };
                    self.behind = true;
                    item
                }
                _ => None,
            };
            self.next = best.next();
            match change {
                Some((_, Some(payload))) => {
                    return Ok(Some((best, Item(Inner::Overlay(payload)))));
                }
                Some((_, None)) => {}
                None => return Ok(committed.map(|item| (best, item))),
            }
        }
        self.next = None;
        Ok(None)
    }
}

impl Iterator for RangeIter<'_> {
    type Item = Result<(Key, Item)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next?;
        match self.step() {
            Ok(found) => found.map(Ok),
            Err(error) => {
                self.next = None;
                Some(Err(error))
            }
        }
    }
}
