//! How upper layers read the trees: running overlay, frozen overlay, committed tree.
//!
//! # Invariants
//!
//! - **V1** The three parts of a view are one consistent state. The thread that freezes an overlay
//!   publishes, in the same step, a view with that overlay as its frozen part.
//! - **V2** While a view lives, no space that its committed roots reach is allocated again
//!   (`tree::T6`).

use std::{ops::Deref, sync::Arc};

use buttress_format::{Generation, Key, Kind, RootItem, TreeId};

use crate::{
    Error, Result,
    cursor::Cursor,
    gaps::{NOTED_AFTER, previous_key},
    node::{Node, NodePtr},
    overlay::{Overlay, Payload, Seen},
    roots::Roots,
    store::{NodeSource, Store},
};

/// An item's bytes, shared with the overlay or the node that has them.
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
    /// Makes a view of the three parts. Costs O(1).
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        running: Arc<Overlay>,
        frozen: Option<Arc<Overlay>>,
        roots: Arc<Roots>,
    ) -> Self {
        Self { store, running, frozen, roots }
    }

    /// The committed roots beneath. Costs O(1).
    #[must_use]
    pub fn roots(&self) -> &Arc<Roots> {
        &self.roots
    }

    /// The source of nodes. Costs O(1).
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The transaction of the committed roots. Costs O(1).
    #[must_use]
    pub fn committed_generation(&self) -> Generation {
        self.roots.generation
    }

    /// The committed root of a tree, or nothing if the tree is not (yet) on disk. Costs O(log n) in
    /// the items of the root tree, or in [`Roots`] if it holds the tree.
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

    /// The committed root item of a tree, or nothing if the tree is not (yet) on disk. Costs
    /// O(log n) in the items of the root tree.
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

    /// The item with exactly this key: O(log n) in the items of the tree and of the overlays.
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn get(&self, tree: TreeId, key: &Key) -> Result<Option<Item>> {
        self.store.count_keys(1);
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
    /// Costs O(log n) in the items of the tree and of the overlays. Each deletion on the way that
    /// no walk passed before costs one step. See [`range`](Self::range).
    ///
    /// # Errors
    ///
    /// When a node on the way is damaged.
    pub fn at_or_after(&self, tree: TreeId, from: &Key, to: &Key) -> Result<Option<(Key, Item)>> {
        self.range(tree, *from, *to).next().transpose()
    }

    /// The item with the largest key in `from..=to`. The cost is that of
    /// [`at_or_after`](Self::at_or_after).
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
        let mut stepped = Stepped::within(from, to);
        loop {
            self.store.count_keys(1);
            let in_tree = cursor.as_ref().and_then(Cursor::key).filter(|k| k >= from);
            let Seen { found: in_running, items_made } = self.running.see_last(tree, from, &high);
            stepped.look(high, items_made);
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
            // Deleted: go on below this key or, if the key lies in a gap, below the gap.
            let first = self.gap_around(tree, &best).map_or(best, |(first, _)| first);
            if let Some(edge) = stepped.over() {
                self.running.note_gap(tree, (first, edge), items_made, self.roots.generation);
            }
            let Some(below) = previous_key(&first).filter(|k| k >= from) else { return Ok(None) };
            high = below;
            if let Some(cursor) = cursor.as_mut()
                && let Some(at) = in_tree
            {
                if at == best && first == best {
                    cursor.retreat()?;
                } else if at > high {
                    cursor.seek_back_on(&high)?;
                }
            }
        }
    }

    /// Every item in `from..=to`, in order. The walk sees items that are put ahead of its position
    /// meanwhile.
    ///
    /// The first item costs O(log n) in the items of the tree and of the overlays. Each further
    /// item costs O(log n) in the items of the overlays. A deletion costs one step when a walk
    /// first passes it. Walks note long runs of deletions as gaps. Until the next commit, later
    /// walks pass each gap in one step. A range that spans objects looks at each shard of the
    /// overlays for each item.
    #[must_use]
    pub fn range(&self, tree: TreeId, from: Key, to: Key) -> RangeIter<'_> {
        RangeIter {
            view: self,
            tree,
            next: Some(from),
            to,
            cursor: Committed::Unopened,
            behind: false,
            stepped: Stepped::within(&from, &to),
        }
    }

    fn gap_around(&self, tree: TreeId, key: &Key) -> Option<(Key, Key)> {
        self.running.gap_around(tree, key, self.roots.generation)
    }
}

/// Deletions that a walk stepped over since the last item.
struct Stepped {
    /// The key where the deletions begin, and the count of items made in the shard at that time.
    since: Option<(Key, u64)>,
    count: u32,
    /// Whether the walk stays within one object. Only such walks note gaps.
    one_object: bool,
}

impl Stepped {
    fn within(from: &Key, to: &Key) -> Self {
        Self { since: None, count: 0, one_object: from.objectid == to.objectid }
    }

    /// Notes a look at the shard from `key` on. If an item was put since the last look, this item
    /// may lie between the deletions, so the count of deletions begins again.
    fn look(&mut self, key: Key, items_made: u64) {
        if self.since.is_none_or(|(_, since)| since != items_made) {
            self.since = Some((key, items_made));
            self.count = 0;
        }
    }

    /// Counts one more deletion. If there are enough deletions to note as a gap, returns the key
    /// where they began.
    fn over(&mut self) -> Option<Key> {
        self.count += 1;
        if self.count < NOTED_AFTER || !self.one_object {
            return None;
        }
        self.count = 0;
        self.since.map(|(key, _)| key)
    }

    /// Ends the run of deletions, because the walk came to an item.
    fn end(&mut self) {
        self.since = None;
        self.count = 0;
    }
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
    /// Whether the item at the cursor was handed out. The cursor moves on only when the next item
    /// is asked for, so a search for one item never reads the leaf after it.
    behind: bool,
    stepped: Stepped,
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
            self.view.store.count_keys(1);
            if std::mem::take(&mut self.behind)
                && let Committed::At(cursor) = &mut self.cursor
            {
                cursor.advance()?;
            }
            let in_tree = match &self.cursor {
                Committed::At(cursor) => cursor.key().filter(|k| *k <= self.to),
                _ => None,
            };
            let Seen { found: in_running, items_made } =
                self.view.running.see_first(self.tree, &from, &self.to);
            self.stepped.look(from, items_made);
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
                    self.stepped.end();
                    return Ok(Some((best, Item(Inner::Overlay(payload)))));
                }
                Some((_, None)) => self.pass(best, items_made)?,
                None => {
                    self.stepped.end();
                    return Ok(committed.map(|item| (best, item)));
                }
            }
        }
        self.next = None;
        Ok(None)
    }

    /// Goes on after a deletion. If the deletion lies in a gap, goes on after the end of the gap.
    fn pass(&mut self, deleted: Key, items_made: u64) -> Result<()> {
        let gap = self.view.gap_around(self.tree, &deleted);
        let last = gap.map_or(deleted, |(_, last)| last);
        if let Some(edge) = self.stepped.over() {
            let roots = self.view.roots.generation;
            self.view.running.note_gap(self.tree, (edge, last), items_made, roots);
        }
        if last == deleted {
            return Ok(());
        }
        self.next = last.next();
        if let Committed::At(cursor) = &mut self.cursor
            && let Some(next) = self.next.filter(|next| *next <= self.to)
            && cursor.key().is_some_and(|at| at < next)
        {
            self.behind = false;
            cursor.seek_on(&next)?;
        }
        Ok(())
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
