//! Which subvolumes use which nodes and data extents, each with its users in the order of
//! btrfs-progs.
//!
//! Linux records a user of a node or an extent by the subvolume, or by the address of the node
//! above. btrfs-progs lists the recorded subvolumes first. Then it lists the users of all nodes
//! above, in the order of their addresses. Of the leaves only those count that are recorded.
//!
//! # Place
//!
//! The walk and its bounds are those of `joined_walk`. If there are too many extents, no users are
//! known.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use buttress_base::sets::{Number, Sets};
use buttress_format::{Extent, ExtentFlags, ExtentItem, Kind, Logical, TreeId};
use buttress_tree::Node;

use crate::context::{Context, Tree};
use crate::joined_walk::{self, Reached, Unknown};
use crate::walk::each_leaf;

/// What is above a node or an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Above {
    /// A subvolume that is recorded as the user.
    Root(TreeId),
    /// The node at this address.
    Node(Logical),
}

/// An extent of a subvolume, and its users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsedExtent {
    /// The addresses.
    pub extent: Extent,
    /// The subvolumes that use it, in the order in which btrfs-progs lists them.
    pub users: Arc<[TreeId]>,
}

/// What is known of users.
#[derive(Default)]
struct Known {
    sets: Sets<Above>,
    /// The nodes that refer to what is below them by their own address.
    by_address: HashSet<Logical>,
    /// Each node that was read, and what is directly above it.
    nodes: HashMap<Logical, Number>,
    /// What is directly above each node that is a member of a set.
    above: HashMap<Logical, Number>,
    /// The users by what is directly above.
    users: HashMap<Number, Arc<[TreeId]>>,
    /// Each list of users once.
    lists: HashSet<Arc<[TreeId]>>,
}

impl Known {
    /// The users of what has this above it.
    fn users(&mut self, above: Number) -> Arc<[TreeId]> {
        if let Some(users) = self.users.get(&above) {
            return Arc::clone(users);
        }
        let mut list: Vec<TreeId> = Vec::new();
        let mut listed: HashSet<TreeId> = HashSet::new();
        for above in self.sets.members(above).iter() {
            if let Above::Root(tree) = above {
                list.extend(listed.insert(*tree).then_some(*tree));
            }
        }
        for node in self.nodes_above(above) {
            // The calls are at most as deep as a tree, which has eight levels.
            let Some(above) = self.above.get(&node).copied() else { continue };
            let users = self.users(above);
            list.extend(users.iter().filter(|user| listed.insert(**user)));
        }
        let list: Arc<[TreeId]> = list.into();
        let list = self.lists.get(&list).cloned().unwrap_or(list);
        self.lists.insert(Arc::clone(&list));
        self.users.insert(above, Arc::clone(&list));
        list
    }

    /// All nodes above, of every level.
    fn nodes_above(&self, above: Number) -> BTreeSet<Logical> {
        let mut nodes = BTreeSet::new();
        let mut waiting = vec![above];
        while let Some(number) = waiting.pop() {
            for above in self.sets.members(number).iter() {
                if let Above::Node(at) = above
                    && nodes.insert(*at)
                {
                    waiting.extend(self.above.get(at));
                }
            }
        }
        nodes
    }

    /// What is above the children or the data of a node, which has `above` above itself.
    fn below(&mut self, node: &Node, above: Number, is_by_address: bool) -> Number {
        let mut members = BTreeSet::new();
        if is_by_address || node.level() > 0 {
            members.insert(Above::Node(node.logical()));
            self.above.insert(node.logical(), above);
        } else {
            let is_node = |above: &&Above| matches!(above, Above::Node(_));
            members.extend(self.sets.members(above).iter().filter(is_node));
        }
        if !is_by_address && node.owner().is_fs_tree() {
            members.insert(Above::Root(node.owner()));
        }
        self.sets.number(members)
    }
}

/// The nodes that refer to what is below them by their own address.
fn by_address(context: &Context<'_>, trees: &[Tree]) -> HashSet<Logical> {
    let mut found = HashSet::new();
    for tree in trees.iter().filter(|tree| tree.id == TreeId::EXTENT) {
        each_leaf(context, tree, &mut |leaf| {
            for slot in 0..leaf.len() {
                let key = leaf.key(slot);
                let is_node = matches!(key.kind, Kind::EXTENT_ITEM | Kind::METADATA_ITEM);
                if is_node
                    && let Ok(item) = ExtentItem::parse(&key, leaf.item(slot))
                    && item.flags & ExtentFlags::FULL_BACKREF != 0
                {
                    found.insert(Logical(key.objectid));
                }
            }
        });
    }
    found
}

impl Reached<Above> for Known {
    fn sets(&mut self) -> &mut Sets<Above> {
        &mut self.sets
    }

    fn root(&self, tree: TreeId) -> Above {
        Above::Root(tree)
    }

    fn node(&mut self, node: &Node, above: Number) -> Number {
        self.nodes.insert(node.logical(), above);
        self.below(node, above, self.by_address.contains(&node.logical()))
    }

    fn entries(&self) -> usize {
        self.nodes.len() + self.by_address.len()
    }
}

/// The nodes and data extents of a subvolume by address, each with all its users.
pub(crate) fn extents_of(
    context: &Context<'_>,
    trees: &[Tree],
    subvolume: TreeId,
) -> Result<Vec<UsedExtent>, Unknown> {
    let mut known = Known { by_address: by_address(context, trees), ..Known::default() };
    let data = joined_walk::walk(context, &joined_walk::whole_trees(trees)?, &mut known)?;
    let nodesize = context.nodesize();
    let nodes = std::mem::take(&mut known.nodes).into_iter();
    let mut all: BTreeMap<Logical, (u64, Number)> =
        nodes.map(|(at, above)| (at, (nodesize, above))).collect();
    all.extend(data);
    let used = all.into_iter().filter_map(|(at, (len, above))| {
        let users = known.users(above);
        users.contains(&subvolume).then(|| UsedExtent { extent: Extent::new(at, len), users })
    });
    Ok(used.collect())
}
