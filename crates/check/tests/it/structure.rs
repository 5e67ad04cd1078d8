//! Tests of damage to nodes, extents, roots and checksums.

use buttress_check::Options;
use buttress_format::{
    BackRef, Extent, ExtentFlags, ExtentItem, Generation, Ino, Key, Kind, Logical, RootItem,
    RootRef, TreeId, UuidItem, ids,
};

use crate::patch::{Patch, add64, finds, get64, put64};
use crate::victim::{old_victim, victim};

const FAR: u64 = 1 << 40;

fn is(kind: Kind) -> impl Fn(&Key, &[u8]) -> bool {
    move |key, _| key.kind == kind
}

/// Whether an item is the extent item of data.
fn is_data(key: &Key, bytes: &[u8]) -> bool {
    key.kind == Kind::EXTENT_ITEM && get64(bytes, 16) == ExtentFlags::DATA
}

#[test]
fn node_damaged() {
    let patch = Patch::new(victim());
    let ptr = patch.leaves(TreeId::FS)[1].ptr();
    patch.volume.write(ptr.logical, &vec![7; 16384]).expect("a write");
    patch.finds_among_others(&["node-damaged"]);
}

#[test]
fn node_owner() {
    let patch = Patch::new(victim());
    patch.edit_root_node(TreeId::CSUM, |bytes| put64(bytes, 88, TreeId::FS.0));
    patch.finds(&["node-owner", "node-owner-ref"]);
}

/// A node of a subvolume may have been written for another tree. That tree must have a reference to
/// the node.
#[test]
fn node_owner_ref() {
    let patch = Patch::new(victim());
    let leaf = patch.leaves(TreeId::FS).pop().expect("a leaf");
    let mut bytes = leaf.bytes().to_vec();
    put64(&mut bytes, 88, 300);
    patch.write_node(leaf.ptr(), bytes);
    patch.finds_among_others(&["node-owner-ref"]);
}

/// Flags and revision of a node decide how its references are read, so both must be valid.
#[test]
fn node_flags() {
    let patch = Patch::new(victim());
    patch.edit_root_node(TreeId::CSUM, |bytes| bytes[63] = 0);
    patch.finds(&["node-flags"]);

    let patch = Patch::new(victim());
    patch.edit_root_node(TreeId::CSUM, |bytes| bytes[56] |= 2);
    patch.finds(&["node-flags"]);
}

#[test]
fn node_generation() {
    let patch = Patch::new(victim());
    let newer = patch.superblock.generation.0 + 5;
    patch.edit_root_node(TreeId::CSUM, |bytes| put64(bytes, 80, newer));
    let root = |key: &Key, _: &[u8]| key.objectid == TreeId::CSUM.0 && key.kind == Kind::ROOT_ITEM;
    patch.edit(TreeId::ROOT, root, |bytes| {
        let item = RootItem::parse(bytes).expect("a root item");
        *bytes = RootItem { generation: Generation(newer), ..item }.to_bytes();
    });
    patch.finds(&["node-generation", "item-generation", "extent-mismatch"]);
}

#[test]
fn node_bounds() {
    let patch = Patch::new(victim());
    let first = patch.leaves(TreeId::FS)[0].key(0);
    patch.edit_leaf(TreeId::FS, &first, |items| {
        items.last_mut().expect("an item").0.objectid = 5000;
    });
    patch.finds_among_others(&["node-bounds"]);
}

#[test]
fn node_shared() {
    let patch = Patch::new(victim());
    let root = |key: &Key, _: &[u8]| key.objectid == TreeId::CSUM.0 && key.kind == Kind::ROOT_ITEM;
    let (_, bytes) = patch.find(TreeId::ROOT, root).expect("a root item");
    patch.insert(TreeId::ROOT, Key::new(13, Kind::ROOT_ITEM, 0), bytes);
    patch.finds_among_others(&["node-shared", "node-owner", "backref-missing"]);
}

#[test]
fn item_malformed() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::FS, is(Kind::XATTR_ITEM), |bytes| bytes[27] = 0);
    patch.finds(&["item-malformed"]);
}

#[test]
fn item_unexpected() {
    let patch = Patch::new(victim());
    patch.insert(TreeId::FS, Key::new(256, Kind(97), 0), vec![0; 8]);
    patch.finds(&["item-unexpected"]);
}

#[test]
fn extent_missing() {
    let patch = Patch::new(victim());
    // This extent belongs to the big file. The first extent is preallocated and has no checksums.
    patch.remove(TreeId::EXTENT, |key, bytes| is_data(key, bytes) && key.offset == 303_104);
    patch.finds(&[
        "extent-missing",
        "block-group-used",
        "free-space-mismatch",
        "super-field",
        "csum-unused",
    ]);
}

fn data_item(root: TreeId) -> Vec<u8> {
    let user = BackRef::Data { root, ino: Ino(257), offset: 0, count: 1 };
    let item = ExtentItem {
        refs: 1,
        generation: Generation(1),
        flags: ExtentFlags::DATA,
        tree_block: None,
        inline: vec![user],
    };
    item.to_bytes()
}

#[test]
fn extent_unused() {
    let patch = Patch::new(victim());
    let chunks = patch.volume.chunks();
    let data = chunks.iter().find(|chunk| chunk.flags.0 == 1).expect("a chunk of data");
    let key = Key::new(data.logical.0 + data.len - 4096, Kind::EXTENT_ITEM, 4096);
    patch.insert(TreeId::EXTENT, key, data_item(TreeId::FS));
    patch.finds(&[
        "extent-unused",
        "backref-unused",
        "block-group-used",
        "free-space-mismatch",
        "super-field",
    ]);
}

#[test]
fn extent_overlap() {
    let patch = Patch::new(victim());
    let big = |key: &Key, bytes: &[u8]| is_data(key, bytes) && key.offset > 65536;
    let (key, _) = patch.find(TreeId::EXTENT, big).expect("an extent");
    let key = Key::new(key.objectid + 4096, Kind::EXTENT_ITEM, 4096);
    patch.insert(TreeId::EXTENT, key, data_item(TreeId::FS));
    patch.finds_among_others(&["extent-overlap", "extent-unused"]);
}

#[test]
fn extent_mismatch() {
    let patch = Patch::new(victim());
    let at = patch.root(TreeId::CSUM).logical;
    let node = move |key: &Key, _: &[u8]| key.objectid == at.0;
    patch.edit(TreeId::EXTENT, node, |bytes| {
        put64(bytes, 16, ExtentFlags::TREE_BLOCK | ExtentFlags::FULL_BACKREF);
    });
    patch.finds(&["extent-mismatch"]);
    let patch = Patch::new(victim());
    patch.edit_key(TreeId::EXTENT, node, |key| key.offset = 3);
    patch.finds(&["extent-mismatch"]);
}

#[test]
fn extent_refs() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::EXTENT, is_data, |bytes| add64(bytes, 0, 1));
    patch.finds(&["extent-refs"]);
}

#[test]
fn backref_missing_and_unused() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::EXTENT, is_data, |bytes| add64(bytes, 33, 1));
    patch.finds(&["backref-missing", "backref-unused"]);
}

#[test]
fn backref_count() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::EXTENT, is_data, |bytes| {
        add64(bytes, 0, 1);
        bytes[49] += 1;
    });
    patch.finds(&["backref-count"]);
}

#[test]
fn backref_order() {
    let patch = Patch::new(victim());
    patch.edit(TreeId::EXTENT, is_data, |bytes| {
        // Shared references sort after all other references. So a second reference of the first
        // kind must not follow a shared reference.
        let first = bytes[24..].to_vec();
        bytes.push(Kind::SHARED_DATA_REF.0);
        bytes.extend_from_slice(&[0; 12]);
        bytes.extend_from_slice(&first);
    });
    patch.finds_among_others(&["backref-order"]);
}

#[test]
fn extent_outside() {
    let patch = Patch::new(victim());
    patch.insert(TreeId::EXTENT, Key::new(FAR, Kind::EXTENT_ITEM, 4096), data_item(TreeId::FS));
    patch.finds(&["extent-outside", "extent-unused", "backref-unused", "super-field"]);
}

#[test]
fn extent_group() {
    let patch = Patch::new(victim());
    let chunks = patch.volume.chunks();
    let other = chunks.iter().find(|chunk| chunk.flags.0 & 4 != 0).expect("a chunk of nodes");
    let key = Key::new(other.logical.0 + other.len - 4096, Kind::EXTENT_ITEM, 4096);
    patch.insert(TreeId::EXTENT, key, data_item(TreeId::FS));
    patch.finds_among_others(&["extent-group", "extent-unused"]);
}

fn root_item(patch: &Patch, tree: TreeId) -> Vec<u8> {
    let root = |key: &Key, _: &[u8]| key.objectid == tree.0 && key.kind == Kind::ROOT_ITEM;
    patch.find(TreeId::ROOT, root).expect("a root item").1
}

#[test]
fn root_missing() {
    let patch = Patch::new(victim());
    patch.remove(TreeId::ROOT, |key, _| {
        key.objectid == TreeId::DATA_RELOC.0 && key.kind == Kind::ROOT_ITEM
    });
    patch.finds(&["root-missing", "extent-unused", "backref-unused"]);
}

#[test]
fn root_directory() {
    let patch = Patch::new(victim());
    let root = |key: &Key, _: &[u8]| key.objectid == 5 && key.kind == Kind::ROOT_ITEM;
    patch.edit(TreeId::ROOT, root, |bytes| put64(bytes, 168, 257));
    patch.finds(&["root-directory"]);
}

/// A tree that exists only once is looked up under one key.
#[test]
fn root_under_another_key() {
    let patch = Patch::new(victim());
    let bytes = root_item(&patch, TreeId::CSUM);
    let is_it = |key: &Key, _: &[u8]| key.objectid == TreeId::CSUM.0 && key.kind == Kind::ROOT_ITEM;
    patch.remove(TreeId::ROOT, is_it);
    patch.insert(TreeId::ROOT, Key::new(TreeId::CSUM.0, Kind::ROOT_ITEM, 1 << 40), bytes);
    patch.finds(&["root-missing"]);
}

#[test]
fn root_unreferenced() {
    let patch = Patch::new(victim());
    let bytes = root_item(&patch, TreeId::FS);
    patch.insert(TreeId::ROOT, Key::new(300, Kind::ROOT_ITEM, 0), bytes);
    patch.finds(&["root-unreferenced", "backref-missing"]);
}

#[test]
fn root_refs() {
    let patch = Patch::new(victim());
    let reference = RootRef { dirid: Ino(256), sequence: 99, name: b"gone".to_vec() };
    patch.insert(TreeId::ROOT, Key::new(5, Kind::ROOT_REF, 300), reference.to_bytes());
    patch.finds(&["root-ref-dangling", "root-ref-mismatch", "root-entry-missing"]);
}

#[test]
fn default_missing() {
    let patch = Patch::new(victim());
    let default = |key: &Key, _: &[u8]| key.objectid == 6 && key.kind == Kind::DIR_ITEM;
    patch.edit(TreeId::ROOT, default, |bytes| put64(bytes, 0, 999));
    patch.finds(&["default-missing"]);
}

#[test]
fn uuid_missing_and_stale() {
    let patch = Patch::new(victim());
    let root = |key: &Key, _: &[u8]| key.objectid == TreeId::FS.0 && key.kind == Kind::ROOT_ITEM;
    patch.edit(TreeId::ROOT, root, |bytes| {
        let item = RootItem::parse(bytes).expect("a root item");
        *bytes = RootItem { uuid: [9; 16], ..item }.to_bytes();
    });
    let key = Key::new(1, Kind::UUID_KEY_SUBVOL, 2);
    patch.insert(TreeId::UUID, key, UuidItem(vec![TreeId(5)]).to_bytes());
    let report = patch.report();
    assert!(report.has("uuid-missing") && report.has("uuid-stale"), "{}", report.to_text());
}

/// Early versions of mkfs.btrfs made the uuid tree with a root directory.
#[test]
fn uuid_tree_with_a_root_directory() {
    let patch = Patch::new(victim());
    for kind in [Kind::INODE_ITEM, Kind::INODE_REF] {
        let (key, bytes) = patch
            .find(TreeId::FS, |key, _| key.objectid == 256 && key.kind == kind)
            .expect("the top directory");
        patch.insert(TreeId::UUID, key, bytes);
    }
    assert!(patch.report().issues.is_empty(), "{}", patch.report().to_text());
}

/// btrfs-convert makes the data relocation tree like a snapshot, with a transaction in its key.
#[test]
fn root_of_balances_with_a_transaction() {
    let patch = Patch::new(victim());
    let is_root =
        |key: &Key, _: &[u8]| key.objectid == TreeId::DATA_RELOC.0 && key.kind == Kind::ROOT_ITEM;
    patch.edit_key(TreeId::ROOT, is_root, |key| key.offset = 2);
    assert!(patch.report().issues.is_empty(), "{}", patch.report().to_text());
}

/// A record of free inode numbers by an old kernel is a warning.
#[test]
fn inode_cache() {
    let patch = Patch::new(victim());
    patch.insert(TreeId::FS, Key::new(ids::FREE_SPACE_V1, Kind(0), 0), vec![0; 41]);
    patch.finds(&[]);
    assert!(patch.report().has("inode-cache"));
}

fn csum(patch: &Patch) -> Extent {
    let (key, bytes) = patch.find(TreeId::CSUM, is(Kind::EXTENT_CSUM)).expect("checksums");
    Extent::new(Logical(key.offset), bytes.len() as u64 / 4 * 4096)
}

#[test]
fn csum_missing() {
    let patch = Patch::new(old_victim());
    patch.edit(TreeId::CSUM, is(Kind::EXTENT_CSUM), |bytes| bytes.truncate(bytes.len() - 4));
    patch.finds(&["csum-missing"]);
}

#[test]
fn csum_unused() {
    let patch = Patch::new(victim());
    let chunks = patch.volume.chunks();
    let data = chunks.iter().find(|chunk| chunk.flags.0 == 1).expect("a chunk of data");
    let at = data.logical.0 + data.len - 4096;
    patch.insert(TreeId::CSUM, Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at), vec![0; 4]);
    patch.finds(&["csum-unused"]);
}

#[test]
fn csum_overlap() {
    let patch = Patch::new(victim());
    let at = csum(&patch).start.0 + 4096;
    patch.insert(TreeId::CSUM, Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, at), vec![0; 4]);
    patch.finds(&["csum-overlap", "csum-unused"]);
}

#[test]
fn data_damaged() {
    let patch = Patch::new(victim());
    patch.volume.write(csum(&patch).start, b"damage").expect("a write");
    patch.finds(&[]);
    finds(&patch.report_with(&Options::thorough()), &["data-damaged"]);
}

#[test]
fn data_unreadable() {
    let patch = Patch::new(victim());
    patch.insert(TreeId::CSUM, Key::new(ids::EXTENT_CSUM, Kind::EXTENT_CSUM, FAR), vec![0; 4]);
    finds(&patch.report_with(&Options::thorough()), &["data-unreadable", "csum-unused"]);
}
