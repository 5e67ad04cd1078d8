//! Checks the log trees: whether they exist and can be read.
//!
//! Only a replay shows whether the contents of a log fit the trees, and the next mount makes that
//! replay. So the contents are not checked.

use buttress_base::RangeSet;
use buttress_format::{FileExtent, Kind, RootItem};
use buttress_tree::{Expect, Node, NodePtr};

use crate::context::Context;
use crate::issue::Issue;

/// The space that the log trees use. No extent item covers it yet.
#[derive(Debug, Default)]
pub(crate) struct Logged {
    /// Data that the log trees reference. It may have checksums.
    pub(crate) data: RangeSet,
    /// Nodes of the log trees, as far as they can be found.
    pub(crate) nodes: RangeSet,
}

/// Checks whether there is a log, and whether each of its nodes can be read.
pub(crate) fn check(context: &Context<'_>) -> Logged {
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
    walk(context, &mut logged.nodes, &Expect::root(root), &mut |leaf| {
        for slot in 0..leaf.len() {
            if leaf.key(slot).kind != Kind::ROOT_ITEM {
                continue;
            }
            match RootItem::parse(leaf.item(slot)) {
                Ok(item) => logs.push(NodePtr {
                    logical: item.bytenr,
                    generation: item.generation,
                    level: item.level,
                }),
                Err(error) => {
                    let (logical, why) = (leaf.logical(), error.to_string());
                    context.add(Issue::LogDamaged { logical, why });
                }
            }
        }
    });
    let data = &mut logged.data;
    for ptr in logs {
        walk(context, &mut logged.nodes, &Expect::root(ptr), &mut |leaf| {
            for slot in 0..leaf.len() {
                if leaf.key(slot).kind != Kind::EXTENT_DATA {
                    continue;
                }
                let extent = FileExtent::parse(leaf.item(slot));
                if let Some(region) = extent.ok().as_ref().and_then(FileExtent::region) {
                    data.insert(region.disk.0..region.disk.0.saturating_add(region.disk_len));
                }
            }
        });
    }
    logged
}

/// Visits each node once. The depth is at most eight, since each child has a lower level.
fn walk(context: &Context<'_>, met: &mut RangeSet, expect: &Expect, visit: &mut dyn FnMut(&Node)) {
    let at = expect.ptr.logical.0;
    if met.contains(at) {
        return;
    }
    met.insert(at..at.saturating_add(context.superblock.nodesize.into()));
    match context.source.read_quietly(expect, false) {
        Err(why) => context.add(Issue::LogDamaged { logical: expect.ptr.logical, why }),
        Ok(node) if node.level() == 0 => visit(&node),
        Ok(node) => {
            for slot in 0..node.len() {
                walk(context, met, &node.expect_child(slot), visit);
            }
        }
    }
}
