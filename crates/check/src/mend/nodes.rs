//! Proposes repairs of nodes that fail a check although their checksums are right.
//!
//! # Invariants
//!
//! - **NO1** A node with a wrong checksum is not changed, since its content is unknown.
//! - **NO2** An older node in the place of a newer one is not changed, since the write of the newer
//!   one was lost.
//! - **NO3** A mended node passes every check of its readers, and its items can be parsed.

use std::collections::HashSet;

use buttress_base::AlignedBuf;
use buttress_format::header::{HEADER_LEN, ITEM_LEN, PTR_LEN};
use buttress_format::{
    DirEntry, FileExtent, InodeItem, InodeRefs, Key, Kind, Logical, RootItem, TreeId, name_hash,
};
use buttress_tree::{Expect, Node, NodePtr};

use crate::error::Result;
use crate::mend::editor::{Edit, Editor, Fix, Items, leaf_of};

const GENERATION_AT: usize = 80;

/// The pointer to a node.
struct Place {
    expect: Expect,
    /// The parent and the slot; none for a root.
    parent: Option<(std::sync::Arc<Node>, usize)>,
}

/// Finds the pointer to a node.
fn find(editor: &Editor, tree: TreeId, at: Logical) -> Result<Option<Place>> {
    let mut queue = vec![Place { expect: Expect::root(editor.root(tree)?), parent: None }];
    let mut met = HashSet::new();
    while let Some(place) = queue.pop() {
        if !met.insert(place.expect.ptr.logical) {
            continue;
        }
        if place.expect.ptr.logical == at {
            return Ok(Some(place));
        }
        if place.expect.ptr.level == 0 {
            continue;
        }
        let Some(node) = editor.node(tree, &place.expect) else { continue };
        queue.extend((0..node.len()).map(|slot| Place {
            expect: node.expect_child(slot),
            parent: Some((std::sync::Arc::clone(&node), slot)),
        }));
    }
    Ok(None)
}

/// The bytes of a node with a right checksum and a wanted generation, at its own place (NO1, NO2).
fn raw(editor: &Editor, at: Logical, is_wanted: impl Fn(u64) -> bool) -> Option<Vec<u8>> {
    let digest = |bytes: &[u8]| editor.geometry.csum.digest(&bytes[32..]);
    let size = editor.geometry.csum.size();
    (0..editor.volume.mirrors(at)).find_map(|mirror| {
        let mut buf = AlignedBuf::zeroed(editor.geometry.nodesize as usize);
        editor.volume.read_mirror(at, &mut buf, mirror).ok()?;
        let is_right = digest(&buf)[..size] == buf[..size];
        (is_right && is_wanted(word64(&buf, GENERATION_AT))).then(|| buf.to_vec())
    })
}

/// The generation that every copy of a node states. `None` if a copy has a wrong checksum, or if
/// the generations differ. Different generations mean that a copy missed a write, and nothing says
/// which copy.
fn agreed(editor: &Editor, at: Logical) -> Option<u64> {
    let size = editor.geometry.csum.size();
    let mut copies = (0..editor.volume.mirrors(at)).map(|mirror| {
        let mut buf = AlignedBuf::zeroed(editor.geometry.nodesize as usize);
        editor.volume.read_mirror(at, &mut buf, mirror).ok()?;
        let is_right = editor.geometry.csum.digest(&buf[32..])[..size] == buf[..size];
        is_right.then(|| word64(&buf, GENERATION_AT))
    });
    let first = copies.next()??;
    copies.all(|copy| copy == Some(first)).then_some(first)
}

fn is_sound(editor: &Editor, bytes: &[u8], expect: &Expect) -> bool {
    let mut sealed = bytes.to_vec();
    let digest = editor.geometry.csum.digest(&sealed[32..]);
    sealed[..32].copy_from_slice(&digest);
    Node::inspect(&sealed, &editor.geometry, expect, true).is_ok()
}

/// Proposes a fix for a node that its readers refuse.
pub(super) fn damaged(editor: &Editor, tree: TreeId, at: Logical) -> Result<Option<Fix>> {
    let Some(place) = find(editor, tree, at)? else { return Ok(None) };
    let ptr = place.expect.ptr;
    let newest = editor.superblock.generation.0;
    let is_wanted = |found: u64| found == ptr.generation.0 || found > newest;
    let Some(bytes) = raw(editor, at, is_wanted) else { return Ok(None) };
    let fix = |says, bytes| Ok(Some(Fix { says, edits: vec![Edit::Node(ptr, bytes)] }));
    let mut patched = bytes;
    let found = word64(&patched, GENERATION_AT);
    let mut says = format!("{tree}: node {at}: its items lie where their lengths say");
    if found != ptr.generation.0 {
        let right = ptr.generation.0;
        patched[GENERATION_AT..GENERATION_AT + 8].copy_from_slice(&right.to_le_bytes());
        says = format!("{tree}: node {at} is of transaction {right}, as its parent says");
    }
    if is_sound(editor, &patched, &place.expect) {
        return fix(says, patched);
    }
    if ptr.level > 0 {
        return Ok(None);
    }
    // The data of the items is packed at the end of the leaf, or lies at the offsets that the items
    // state. If the last offset agrees with the lengths, the data is packed.
    let tried = if ends_packed(&patched) { &[false][..] } else { &[true, false] };
    let mut good: Vec<Vec<u8>> = tried.iter().filter_map(|says| relaid(&patched, *says)).collect();
    good.retain(|bytes| is_sound(editor, bytes, &place.expect) && parses(bytes));
    good.dedup();
    // Checksums have no structure to parse, so a wrong choice between the two layouts would go
    // unnoticed.
    let is_known = tried.len() == 1 || tree != TreeId::CSUM;
    match &good[..] {
        [one] if is_known => fix(says, one.clone()),
        _ => Ok(None),
    }
}

/// Whether the last item states the offset that its data has if all data is packed.
fn ends_packed(bytes: &[u8]) -> bool {
    let count = word32(bytes, 96);
    let heads = (0..count).map_while(|slot| {
        let at = HEADER_LEN + slot * ITEM_LEN;
        bytes.get(at..at + ITEM_LEN).map(|head| (word32(head, 17), word32(head, 21)))
    });
    let heads: Vec<(usize, usize)> = heads.collect();
    let filled = heads.iter().try_fold(0_usize, |sum, (_, len)| sum.checked_add(*len));
    let packed = filled.and_then(|filled| (bytes.len() - HEADER_LEN).checked_sub(filled));
    heads.len() == count && heads.last().map(|(said, _)| *said) == packed
}

fn word32(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index])) as usize
}

fn word64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

/// The items of a leaf. With `as_said`, the data of an item lies at the stated offset, and
/// otherwise the data is packed.
fn items_of(bytes: &[u8], as_said: bool) -> Option<Items> {
    let count = word32(bytes, 96);
    let mut items = Items::new();
    let mut end = bytes.len();
    for slot in 0..count {
        let at = HEADER_LEN + slot * ITEM_LEN;
        let head = bytes.get(at..at + ITEM_LEN)?;
        let (said, len) = (word32(head, 17), word32(head, 21));
        end = end.checked_sub(len)?;
        let from = if as_said { HEADER_LEN.checked_add(said)? } else { end };
        let data = bytes.get(from..from.checked_add(len)?)?;
        items.push((Key::parse(&head[..Key::LEN]).ok()?, data.to_vec()));
    }
    Some(items)
}

/// A leaf with the data of its items packed.
fn relaid(bytes: &[u8], as_said: bool) -> Option<Vec<u8>> {
    leaf_of(bytes, &items_of(bytes, as_said)?)
}

/// Whether every item can be parsed according to its key (NO3).
fn parses(bytes: &[u8]) -> bool {
    let Some(items) = items_of(bytes, true) else { return false };
    items.iter().all(|(key, item)| match key.kind {
        Kind::INODE_ITEM => InodeItem::parse(item).is_ok(),
        Kind::INODE_REF => InodeRefs::parse(item).is_ok(),
        Kind::DIR_INDEX => DirEntry::parse_all(item).is_ok(),
        Kind::DIR_ITEM | Kind::XATTR_ITEM => DirEntry::parse_all(item)
            .is_ok_and(|all| all.iter().all(|one| name_hash(&one.name) == key.offset)),
        Kind::EXTENT_DATA => FileExtent::parse(item).is_ok(),
        Kind::ROOT_ITEM => RootItem::parse(item).is_ok(),
        _ => true,
    })
}

/// Proposes a fix if a node, and the pointer to the node, have a generation newer than the
/// superblock's.
pub(super) fn too_new(editor: &Editor, tree: TreeId, at: Logical) -> Result<Option<Fix>> {
    if tree == TreeId::ROOT || tree == TreeId::CHUNK {
        return Ok(None);
    }
    let Some(place) = find(editor, tree, at)? else { return Ok(None) };
    let ptr = place.expect.ptr;
    let newest = editor.superblock.generation;
    if ptr.generation <= newest {
        return Ok(None);
    }
    let is_wanted = |found: u64| found == ptr.generation.0;
    let Some(mut bytes) = raw(editor, at, is_wanted) else { return Ok(None) };
    let right = newest.0.to_le_bytes();
    bytes[GENERATION_AT..GENERATION_AT + 8].copy_from_slice(&right);
    let right_ptr = NodePtr { generation: newest, ..ptr };
    let mut edits = vec![Edit::Node(right_ptr, bytes)];
    match place.parent {
        Some((parent, slot)) => {
            let mut bytes = parent.bytes().to_vec();
            let at = HEADER_LEN + slot * PTR_LEN + Key::LEN + 8;
            bytes[at..at + 8].copy_from_slice(&right);
            edits.push(Edit::Node(parent.ptr(), bytes));
        }
        None => edits.extend(root_edit(editor, tree, newest.0)?),
    }
    let says = format!("{tree}: node {at} is of transaction {newest}, not of a later one");
    Ok(Some(Fix { says, edits }))
}

/// Sets the generations of a root item that are newer than the superblock to `right`.
fn root_edit(editor: &Editor, tree: TreeId, right: u64) -> Result<Option<Edit>> {
    let Some((key, mut bytes)) = editor.root_item(tree)? else { return Ok(None) };
    let newest = editor.superblock.generation.0;
    // The generation, and its copy that newer kernels write.
    for at in [160, 239] {
        if bytes.len() >= at + 8 && word64(&bytes, at) > newest {
            bytes[at..at + 8].copy_from_slice(&right.to_le_bytes());
        }
    }
    Ok(Some(Edit::Put(TreeId::ROOT, key, bytes)))
}

/// Proposes a fix if the root item is newer than the volume, but the root node is not.
pub(super) fn root_too_new(editor: &Editor, tree: TreeId) -> Result<Option<Fix>> {
    let newest = editor.superblock.generation.0;
    let at = editor.root(tree)?.logical;
    let Some(own) = agreed(editor, at).filter(|found| *found <= newest) else { return Ok(None) };
    let says = format!("{tree}: its root item is of transaction {own}, not of a later one");
    Ok(root_edit(editor, tree, own)?.map(|edit| Fix { says, edits: vec![edit] }))
}
