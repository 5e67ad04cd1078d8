//! Walks from a tree's root to all of its nodes.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use buttress_format::header::{HEADER_LEN, PTR_LEN};
use buttress_format::{Header, TreeId};
use buttress_tree::{Expect, Geometry, Node, NodePtr, NodeSource};
use buttress_volume::Uuid;
use buttress_words::start;

use super::items;
use crate::exit::{Context, Exit, Failure, Result};
use crate::inspect::Inspect;

/// How nodes are printed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Form {
    /// Print the nodes below a node before the next node of its level.
    pub(crate) is_depth_first: bool,
    /// Print the checksum of each node.
    pub(crate) shows_csums: bool,
    /// Print only leaves.
    pub(crate) only_leaves: bool,
    /// How items are printed.
    pub(crate) items: items::Form,
}

/// Prints a whole tree. As in btrfs-progs, the order is level by level from the root, if the form
/// does not say otherwise.
pub(super) fn tree(
    inspect: &Inspect,
    id: TreeId,
    root: NodePtr,
    form: Form,
    out: &mut impl Write,
) -> Result<()> {
    let geometry = inspect.store.geometry();
    let print = |node: &Node| print(node, geometry, form, out);
    nodes(inspect, id, root, form.is_depth_first, print)
}

/// The most nodes of a tree. A damaged tree may refer to one node many times. A valid tree fits on
/// its devices, so a walk ends after as many nodes as fit there.
fn nodes_max(inspect: &Inspect) -> u64 {
    inspect.superblock.total_bytes / u64::from(inspect.superblock.nodesize)
}

/// Counts nodes that a walk goes on to.
fn left(inspect: &Inspect, id: TreeId, nodes: u64, more: usize) -> Result<u64> {
    nodes.checked_sub(more as u64).ok_or_else(|| {
        let what = format!("{}: tree {id} names more nodes than there can be", inspect.name());
        Failure::new(Exit::Corrupt, what)
    })
}

/// Prints one node by its address, and the nodes below it if `follows` is set.
pub(super) fn block(
    inspect: &Inspect,
    at: u64,
    follows: bool,
    form: Form,
    out: &mut impl Write,
) -> Result<()> {
    let header = start::header_at(&inspect.volume, &inspect.superblock, at)?;
    let (logical, generation, level) = (header.bytenr, header.generation, header.level);
    let root = NodePtr { logical, generation, level };
    if follows {
        return tree(inspect, header.owner, root, form, out);
    }
    let node = read(inspect, header.owner, &Expect::root(root))?;
    print(&node, inspect.store.geometry(), form, out).context(|| "standard output")
}

/// Visits the nodes of a tree: level by level, or each before the nodes below it.
///
/// Keeps only pointers of nodes in memory, and not the nodes. The crate `tree` has checked that a
/// child is one level lower than its parent, so the walk ends at the leaves.
pub(crate) fn nodes(
    inspect: &Inspect,
    id: TreeId,
    root: NodePtr,
    is_depth_first: bool,
    mut visit: impl FnMut(&Node) -> std::io::Result<()>,
) -> Result<()> {
    let mut nodes_left = nodes_max(inspect);
    let mut waiting = VecDeque::from([Expect::root(root)]);
    while let Some(expect) = waiting.pop_front() {
        let node = read(inspect, id, &expect)?;
        visit(&node).context(|| "standard output")?;
        if node.level() == 0 {
            continue;
        }
        nodes_left = left(inspect, id, nodes_left, node.len())?;
        let below = (0..node.len()).map(|slot| node.expect_child_below(slot, expect.below));
        if is_depth_first {
            below.rev().for_each(|child| waiting.push_front(child));
        } else {
            waiting.extend(below);
        }
    }
    Ok(())
}

fn read(inspect: &Inspect, id: TreeId, expect: &Expect) -> Result<Arc<Node>> {
    let node = inspect.store.node(id, expect).context(|| inspect.name())?;
    inspect.bar.add(node.bytes().len() as u64);
    Ok(node)
}

fn print(
    node: &Node,
    geometry: &Geometry,
    form: Form,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let header = node.header();
    if form.only_leaves && node.level() > 0 {
        return Ok(());
    }
    let csum = match form.shows_csums {
        true => format!(" csum {}", items::csum(&node.bytes()[..geometry.csum.size()])),
        false => String::new(),
    };
    let room = node.bytes().len() - HEADER_LEN;
    if node.level() == 0 {
        let free = room - node.used_bytes();
        writeln!(
            out,
            "leaf {} items {} free space {free} generation {} owner {}",
            header.bytenr, header.nritems, header.generation, header.owner
        )?;
        identity("leaf", header, &csum, out)?;
        for slot in 0..node.len() {
            item(node, slot, geometry, form.items, out)?;
        }
    } else {
        let free = room / PTR_LEN - node.len();
        writeln!(
            out,
            "node {} level {} items {} free space {free} generation {} owner {}",
            header.bytenr, header.level, header.nritems, header.generation, header.owner
        )?;
        identity("node", header, &csum, out)?;
        for slot in 0..node.len() {
            let child = node.child(slot);
            writeln!(
                out,
                "\tkey {} block {} gen {}",
                items::key(&node.key(slot)),
                child.logical,
                child.generation
            )?;
        }
    }
    Ok(())
}

fn identity(what: &str, header: &Header, csum: &str, out: &mut impl Write) -> std::io::Result<()> {
    let flags: Vec<&str> = [(1, "WRITTEN"), (2, "RELOC")]
        .into_iter()
        .filter(|(bit, _)| header.flags & bit != 0)
        .map(|(_, name)| name)
        .collect();
    writeln!(
        out,
        "{what} {} flags {:#x}({}) backref revision {}{csum}",
        header.bytenr,
        header.flags,
        flags.join("|"),
        header.backref_rev
    )?;
    writeln!(out, "fs uuid {}", Uuid(header.fsid))?;
    writeln!(out, "chunk uuid {}", Uuid(header.chunk_tree_uuid))
}

fn item(
    node: &Node,
    slot: usize,
    geometry: &Geometry,
    form: items::Form,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let (key, bytes) = (node.key(slot), node.item(slot));
    // The item lies in the buffer of its node. Its offset counts from the end of the node's header.
    let offset = bytes.as_ptr().addr() - node.bytes().as_ptr().addr() - HEADER_LEN;
    writeln!(
        out,
        "\titem {slot} key {} itemoff {offset} itemsize {}",
        items::key(&key),
        bytes.len()
    )?;
    items::print(&key, bytes, geometry, form, out)
}
