//! Walks from a tree's root to all of its nodes.

use std::io::Write;
use std::sync::Arc;

use buttress_format::header::{HEADER_LEN, PTR_LEN};
use buttress_format::{Header, TreeId};
use buttress_tree::{Expect, Geometry, Node, NodePtr, NodeSource};
use buttress_volume::Uuid;

use super::items;
use crate::exit::{Context, Exit, Failure, Result};
use crate::inspect::Inspect;

/// Prints a whole tree, level by level from the root, in the order of btrfs-progs.
///
/// Keeps only the pointers of one level in memory. The crate `tree` has checked that a child is one
/// level lower than its parent, so the walk ends at the leaves.
pub(super) fn tree(
    inspect: &Inspect,
    id: TreeId,
    root: NodePtr,
    out: &mut impl Write,
) -> Result<()> {
    nodes(inspect, id, root, |node| print(node, inspect.store.geometry(), out))
}

/// Visits the nodes of a tree in the order of [`tree`].
pub(crate) fn nodes(
    inspect: &Inspect,
    id: TreeId,
    root: NodePtr,
    mut visit: impl FnMut(&Node) -> std::io::Result<()>,
) -> Result<()> {
    // A damaged tree may refer to one node many times. A valid tree fits on its devices, so the
    // walk ends after as many nodes as fit there.
    let superblock = &inspect.superblock;
    let mut nodes_left = superblock.total_bytes / u64::from(superblock.nodesize);
    let mut storey = vec![Expect::root(root)];
    while !storey.is_empty() {
        let mut below = Vec::new();
        for expect in &storey {
            let node = read(inspect, id, expect)?;
            visit(&node).context(|| "standard output")?;
            if node.level() > 0 {
                below.extend(
                    (0..node.len()).map(|slot| node.expect_child_below(slot, expect.below)),
                );
            }
        }
        nodes_left = nodes_left.checked_sub(below.len() as u64).ok_or_else(|| {
            let what = format!("{}: tree {id} names more nodes than there can be", inspect.name());
            Failure::new(Exit::Corrupt, what)
        })?;
        storey = below;
    }
    Ok(())
}

fn read(inspect: &Inspect, id: TreeId, expect: &Expect) -> Result<Arc<Node>> {
    inspect.store.node(id, expect).context(|| inspect.name())
}

fn print(node: &Node, geometry: &Geometry, out: &mut impl Write) -> std::io::Result<()> {
    let header = node.header();
    let room = node.bytes().len() - HEADER_LEN;
    if node.level() == 0 {
        let free = room - node.used_bytes();
        writeln!(
            out,
            "leaf {} items {} free space {free} generation {} owner {}",
            header.bytenr, header.nritems, header.generation, header.owner
        )?;
        identity("leaf", header, out)?;
        for slot in 0..node.len() {
            item(node, slot, geometry, out)?;
        }
    } else {
        let free = room / PTR_LEN - node.len();
        writeln!(
            out,
            "node {} level {} items {} free space {free} generation {} owner {}",
            header.bytenr, header.level, header.nritems, header.generation, header.owner
        )?;
        identity("node", header, out)?;
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

fn identity(what: &str, header: &Header, out: &mut impl Write) -> std::io::Result<()> {
    let flags: Vec<&str> = [(1, "WRITTEN"), (2, "RELOC")]
        .into_iter()
        .filter(|(bit, _)| header.flags & bit != 0)
        .map(|(_, name)| name)
        .collect();
    writeln!(
        out,
        "{what} {} flags {:#x}({}) backref revision {}",
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
    items::print(&key, bytes, geometry, out)
}
