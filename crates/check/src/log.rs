//! Checks the log trees: whether they exist and can be read.
//!
//! The next mount replays their contents, and a check does not change trees. So the contents are
//! not checked.

use buttress_base::RangeSet;
use buttress_format::{FileExtent, Kind, RootItem};
use buttress_tree::{Expect, Node, NodePtr};

use crate::bits::AddressSet;
use crate::context::Context;
use crate::issue::Issue;

/// Checks whether there is a log, and whether each of its nodes can be read. Returns the data
/// ranges that the log trees reference. These may have checksums although no extent item covers
/// them yet.
pub(crate) fn check(context: &Context<'_>) -> RangeSet {
    let superblock = context.superblock;
    if superblock.log_root.0 == 0 {
        return RangeSet::default();
    }
    context.add(Issue::LogPresent { log: superblock.log_root });
    let root = NodePtr {
        logical: superblock.log_root,
        // The log is written in the transaction after the one of the superblock.
        generation: superblock.generation.next(),
        level: superblock.log_root_level,
    };
    let met = AddressSet::default();
    let mut logs = Vec::new();
    walk(context, &met, &Expect::root(root), &mut |leaf| {
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
    let mut data = RangeSet::default();
    for ptr in logs {
        walk(context, &met, &Expect::root(ptr), &mut |leaf| {
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
    data
}

/// Visits each node once. The depth is at most eight, since each child has a lower level.
fn walk(context: &Context<'_>, met: &AddressSet, expect: &Expect, visit: &mut dyn FnMut(&Node)) {
    if !met.insert(expect.ptr.logical) {
        return;
    }
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
