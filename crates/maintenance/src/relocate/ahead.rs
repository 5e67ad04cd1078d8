//! Finds the users of many extents at once, by one walk over all trees. Without the walk, each
//! extent would be looked up in each tree.
//!
//! # Invariants
//!
//! - **L6** A walk visits each node once, even if several trees share it. It reads the root of each
//!   tree, and the nodes on the paths to the items that it seeks. Its work also grows by one
//!   counted step (`Store::steps`) for each found user. When the possible users reach a maximum,
//!   the walk takes no further extents. A single extent may have more users than this maximum.
//! - **L7** A walk finds the users in the committed trees. These users are valid only while the
//!   same trees are the committed ones. They become invalid, too, if a later transaction changes
//!   the references of the extent, or an item that the walk found. The mover then searches each
//!   tree anew.
//!
//! Why L7 is enough: an operation changes the users of an extent in one of two ways. If it makes a
//! new item point to the extent, it adds a reference. If it removes, moves or cuts an item, the
//! walk has found that item. L7 checks for both kinds of change.

use std::collections::HashMap;
use std::sync::Arc;

use buttress_format::{Extent, FileExtent, Generation, Key, Kind, Logical, TreeId};
use buttress_tree::{Expect, Node, NodeSource};
use buttress_txn::{Error, Result, View};

use super::users::{ExtentUser, Places, users};

/// When the extents of a walk may have this many users, the walk takes no further extents. A
/// reference may have a user in each tree.
const USERS_ASKED: usize = 32 << 10;
/// The least and the greatest number of extents of which a walk seeks the users.
const EXTENTS_ASKED: std::ops::RangeInclusive<usize> = 16..=4096;
/// The number of extents of which the first walk seeks the users.
const EXTENTS_FIRST: usize = 256;

/// Users of extents, found before these extents are moved.
pub(super) struct Ahead {
    trees: Arc<[TreeId]>,
    /// The generation of the committed trees that were walked.
    walked: Option<Generation>,
    /// The users of extents that have not been moved yet, by the start of the extent; `None` if the
    /// walk cannot tell.
    found: HashMap<Logical, Option<Vec<ExtentUser>>>,
    /// The number of extents of the last walk, and how many of these extents were moved since.
    asked: usize,
    taken: usize,
}

impl Ahead {
    /// Seeks users in these trees.
    pub(super) fn new(trees: Arc<[TreeId]>) -> Self {
        Self { trees, walked: None, found: HashMap::new(), asked: 0, taken: 0 }
    }

    pub(super) fn trees(&self) -> &Arc<[TreeId]> {
        &self.trees
    }

    /// Returns the users of the first of these extents. The same walk also seeks the users of the
    /// next extents.
    pub(super) fn users(&mut self, view: &View, extents: &[Extent]) -> Result<Vec<ExtentUser>> {
        let Some(&first) = extents.first() else { return Ok(Vec::new()) };
        let committed = Some(view.committed_generation());
        if self.walked != committed || !self.found.contains_key(&first.start) {
            let count = self.next_count().min(extents.len());
            self.taken = 0;
            self.found = walk(view, &self.trees, &extents[..count])?;
            self.asked = self.found.len();
            self.walked = committed;
        }
        self.taken += 1;
        match self.found.remove(&first.start).flatten() {
            Some(found) if is_unchanged(view, first, &found) => Ok(found),
            _ => users(view, &self.trees, first),
        }
    }

    /// The number of extents for the next walk. A commit that comes early makes walks shorter, so
    /// that at least half of the found users are used.
    fn next_count(&self) -> usize {
        let (least, most) = (*EXTENTS_ASKED.start(), *EXTENTS_ASKED.end());
        let most = (USERS_ASKED / self.trees.len().max(1)).clamp(least, most);
        let count = match self.walked {
            None => EXTENTS_FIRST,
            Some(_) if self.found.is_empty() => 4 * self.asked,
            Some(_) => 2 * self.taken,
        };
        count.clamp(least, most)
    }

    /// Whether a result of [`Ahead::users`] is still valid (L7).
    pub(super) fn is_so(&self, view: &View, extent: Extent, found: &[ExtentUser]) -> bool {
        self.walked == Some(view.committed_generation()) && is_unchanged(view, extent, found)
    }
}

/// Whether no transaction after the committed trees changed an extent's users (L7).
fn is_unchanged(view: &View, extent: Extent, found: &[ExtentUser]) -> bool {
    let later = [Some(view.running()), view.frozen()];
    later.into_iter().flatten().all(|transaction| {
        transaction.refs.look(extent.start, |_| ()).is_none()
            && found.iter().all(|user| transaction.overlay.find(user.tree, &user.key).is_none())
    })
}

/// The keys between which items may point to an extent.
struct Want {
    low: Key,
    high: Key,
    extent: Extent,
    offset: u64,
}

/// An item that points to an extent.
struct Match {
    start: Logical,
    key: Key,
    item: FileExtent,
    offset: u64,
}

/// The matches below a node.
enum Below {
    /// The matches of a leaf.
    Matches(Vec<Match>),
    /// The addresses of children with matches below them.
    Children(Vec<Logical>),
}

impl Below {
    fn is_empty(&self) -> bool {
        match self {
            Self::Matches(matches) => matches.is_empty(),
            Self::Children(children) => children.is_empty(),
        }
    }
}

struct Walk<'v> {
    view: &'v View,
    wants: Vec<Want>,
    /// The matches below each visited node, by its address (L6).
    seen: HashMap<Logical, Below>,
}

/// Returns the users of as many leading extents as the limit allows, in the committed trees. An
/// extent that the root tree uses has `None`. The walk takes no further extents once the references
/// of the taken extents may have `USERS_ASKED` users (L6).
fn walk(
    view: &View,
    trees: &[TreeId],
    extents: &[Extent],
) -> Result<HashMap<Logical, Option<Vec<ExtentUser>>>> {
    let mut found = HashMap::with_capacity(extents.len());
    let mut wants = Vec::new();
    let mut places = Places::new(view)?;
    for &extent in extents {
        if wants.len().saturating_mul(trees.len()) >= USERS_ASKED {
            break;
        }
        let places = places.of(extent)?;
        if places.iter().any(|place| place.root == TreeId::ROOT) {
            found.insert(extent.start, None);
            continue;
        }
        found.insert(extent.start, Some(Vec::new()));
        wants.extend(places.iter().map(|place| {
            let (low, high) = place.keys(extent);
            Want { low, high, extent, offset: place.offset }
        }));
    }
    wants.sort_unstable_by_key(|want| want.low);
    let all: Vec<usize> = (0..wants.len()).collect();
    let mut walk = Walk { view, wants, seen: HashMap::new() };
    for &tree in trees {
        let Some(root) = view.committed_root(tree)? else { continue };
        if !all.is_empty() && walk.visit(tree, &Expect::root(root), &all)? {
            walk.collect(tree, root.logical, &mut found);
        }
    }
    Ok(found)
}

impl Walk<'_> {
    /// Looks for matches below a node, and returns whether a match was found. Several trees may
    /// share the node. Each tree comes to the node with the same wants: all wants that may have
    /// items below the node. So the result of the first visit holds for all trees.
    fn visit(&mut self, tree: TreeId, at: &Expect, wants: &[usize]) -> Result<bool> {
        if let Some(known) = self.seen.get(&at.ptr.logical) {
            return Ok(!known.is_empty());
        }
        let node = self.view.store().node(tree, at)?;
        let below = if at.ptr.level == 0 {
            Below::Matches(self.matches(&node, wants)?)
        } else {
            let mut ways: Vec<(usize, usize)> = Vec::with_capacity(wants.len());
            for &want in wants {
                let Want { low, high, .. } = &self.wants[want];
                let slots = node.child_slot(low)..=node.child_slot(high);
                ways.extend(slots.map(|slot| (slot, want)));
            }
            ways.sort_unstable();
            let mut children = Vec::new();
            for ways in ways.chunk_by(|a, b| a.0 == b.0) {
                let mine: Vec<usize> = ways.iter().map(|(_, want)| *want).collect();
                let child = node.expect_child_below(ways[0].0, at.below);
                if self.visit(tree, &child, &mine)? {
                    children.push(child.ptr.logical);
                }
            }
            Below::Children(children)
        };
        let any = !below.is_empty();
        self.seen.insert(at.ptr.logical, below);
        Ok(any)
    }

    fn matches(&self, leaf: &Arc<Node>, wants: &[usize]) -> Result<Vec<Match>> {
        let mut matches = Vec::new();
        for &want in wants {
            let Want { low, high, extent, offset } = &self.wants[want];
            let first = leaf.search(low).unwrap_or_else(|slot| slot);
            for slot in first..leaf.len() {
                let key = leaf.key(slot);
                if key > *high {
                    break;
                }
                if key.kind != Kind::EXTENT_DATA {
                    continue;
                }
                let item = FileExtent::parse(leaf.item(slot)).map_err(|source| Error::Item {
                    tree: leaf.owner(),
                    key,
                    source,
                })?;
                let Some(region) = item.region() else { continue };
                let is_it = region.extent() == *extent;
                if is_it && key.offset.wrapping_sub(region.offset) == *offset {
                    matches.push(Match { start: extent.start, key, item, offset: *offset });
                }
            }
        }
        Ok(matches)
    }

    /// Adds the matches below a node as users of a tree.
    fn collect(
        &self,
        tree: TreeId,
        root: Logical,
        found: &mut HashMap<Logical, Option<Vec<ExtentUser>>>,
    ) {
        let mut stack = vec![root];
        while let Some(at) = stack.pop() {
            match self.seen.get(&at) {
                Some(Below::Children(children)) => stack.extend(children),
                Some(Below::Matches(matches)) => {
                    self.view.store().count_keys(matches.len() as u64);
                    for Match { start, key, item, offset } in matches {
                        if let Some(Some(users)) = found.get_mut(start) {
                            users.push(ExtentUser {
                                tree,
                                key: *key,
                                item: item.clone(),
                                offset: *offset,
                            });
                        }
                    }
                }
                None => {}
            }
        }
    }
}
