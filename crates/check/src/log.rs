//! Checks the nodes of the log trees, and finds the space that the logs use.
//!
//! The module `log_items` checks the contents, and `log_space` compares the space with the extents.
//! This module needs no tree but the logs, so a rebuild can use it, too.

use buttress_base::RangeSet;
use buttress_format::{Extent, FileExtent, Kind, RootItem, TreeId};
use buttress_tree::{Expect, Node, NodePtr};

use crate::context::Context;
use buttress_issue::Issue;

/// The log trees. No extent item covers their space yet.
#[derive(Debug, Default)]
pub(crate) struct Logged {
    /// Nodes of the log trees, as far as they can be found.
    pub(crate) nodes: RangeSet,
    /// The logs in which every node can be read, with their subvolumes.
    pub(crate) trees: Vec<(TreeId, NodePtr)>,
}

/// Checks whether there is a log, and each of its nodes. `data` gets each extent of data that the
/// logs reference. The extent may have checksums.
pub(crate) fn check(context: &Context<'_>, data: &mut dyn FnMut(Extent)) -> Logged {
    let superblock = context.superblock;
    let mut logged = Logged::default();
    if superblock.log_root.0 == 0 {
        return logged;
    }
    context.add(Issue::LogPresent { log: superblock.log_root });
    let root = NodePtr {
        logical: superblock.log_root,
        // The log is written in the transaction after the transaction of the superblock.
        generation: superblock.generation.next(),
        level: superblock.log_root_level,
    };
    let mut logs = Vec::new();
    check_nodes(context, &mut logged.nodes, &Expect::root(root), &mut |leaf| {
        for slot in 0..leaf.len() {
            let key = leaf.key(slot);
            let damaged = |why: String| {
                context.add(Issue::LogDamaged { logical: leaf.logical(), why });
            };
            if key.kind != Kind::ROOT_ITEM || key.objectid != TreeId::TREE_LOG.0 {
                damaged(format!("{key} has no place in the tree of logs"));
                continue;
            }
            match RootItem::parse(leaf.item(slot)) {
                Ok(item) => {
                    let (logical, generation, level) = (item.bytenr, item.generation, item.level);
                    logs.push((TreeId(key.offset), NodePtr { logical, generation, level }));
                }
                Err(error) => damaged(error.to_string()),
            }
        }
    });
    let Logged { nodes, trees } = &mut logged;
    for (subvolume, ptr) in logs {
        let is_whole = check_nodes(context, nodes, &Expect::root(ptr), &mut |leaf| {
            for slot in 0..leaf.len() {
                if leaf.key(slot).kind != Kind::EXTENT_DATA {
                    continue;
                }
                let extent = FileExtent::parse(leaf.item(slot));
                let region = extent.ok().as_ref().and_then(FileExtent::region).copied();
                if let Some(region) = region.filter(|region| !region.is_hole()) {
                    data(region.extent());
                }
            }
        });
        if is_whole {
            trees.push((subvolume, ptr));
        }
    }
    logged
}

/// Reads each node of a log tree once, and checks it. Returns whether all nodes are good. The depth
/// is at most eight, since each child has a lower level.
fn check_nodes(
    context: &Context<'_>,
    met: &mut RangeSet,
    expect: &Expect,
    visit: &mut dyn FnMut(&Node),
) -> bool {
    let (logical, nodesize) = (expect.ptr.logical, context.nodesize());
    let damaged = |why: String| {
        context.add(Issue::LogDamaged { logical, why });
        false
    };
    let place = logical.0..logical.0.saturating_add(nodesize);
    if met.overlaps(&place) {
        return damaged("two pointers of the logs lead to it".to_owned());
    }
    met.insert(place);
    // The second copy of a node may be written later than the log, or not at all.
    let node = match context.source.read_quietly(expect, false) {
        Ok(node) => node,
        Err(why) => return damaged(why),
    };
    if node.owner() != TreeId::TREE_LOG {
        return damaged(format!("it was written for {}", node.owner()));
    }
    if node.header().generation != context.superblock.generation.next() {
        return damaged(format!("it is of generation {}", node.header().generation));
    }
    if node.level() == 0 {
        visit(&node);
        return true;
    }
    let mut is_whole = true;
    for slot in 0..node.len() {
        is_whole &= check_nodes(context, met, &node.expect_child_below(slot, expect.below), visit);
    }
    is_whole
}
