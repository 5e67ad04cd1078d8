//! The extent tree is written anew from the trees that refer to extents. If a part of one of those
//! trees is lost, there is no rebuild.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_block::{Device, MemoryDevice};
use buttress_check::{RepairOptions, Repairs, repair, repair_with};
use buttress_format::{ExtentItem, Key, Kind, TreeId};
use buttress_fs::{Filesystem, MakeOptions, MountOptions, NewInode};
use buttress_volume::journal::{Journal, undo};

use crate::patch::Patch;
use crate::victim::{Overlay, old_victim, victim};

fn devices(patch: &Patch) -> Vec<Arc<dyn Device>> {
    vec![Arc::clone(&patch.device) as Arc<dyn Device>]
}

fn mend(patch: &Patch) -> Repairs {
    repair(&devices(patch), &patch.report()).expect("a repair")
}

/// A volume with snapshots of snapshots, files that share extents, and nodes that only snapshots
/// have.
fn shared(features: &str) -> Arc<Overlay> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    let mut options = MakeOptions { nodesize: 4096, ..MakeOptions::default() };
    options.features.block_group_tree = features != "old";
    options.features.skinny_metadata = features != "old";
    Filesystem::make(&*device, &options).expect("an empty volume");
    let options = MountOptions::parse("rw").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(&device)], options).expect("a mount");
    let write = |top: &buttress_fs::Inode, from: u64, to: u64| {
        for number in from..to {
            let name = format!("file {number}");
            let file = top
                .lookup(name.as_bytes())
                .or_else(|_| top.create(name.as_bytes(), NewInode::file(0o644)));
            let bytes = vec![number as u8; 3000 + number as usize * 20];
            file.expect("a file").write_at(0, &bytes).expect("a write");
        }
        fs.sync().expect("a commit");
    };
    let top = fs.root();
    write(&top, 0, 300);
    let (one, two) = (top.lookup(b"file 7"), top.lookup(b"file 8"));
    let (one, two) = (one.expect("a file"), two.expect("a file"));
    fs.sync().expect("a commit");
    two.clone_range(0, &one, 0, 0).expect("a clone");
    let first = top.snapshot(b"first", TreeId::FS, false).expect("a snapshot");
    write(&top, 100, 150);
    let id = first.id().tree;
    let second = top.snapshot(b"second", id, false).expect("a snapshot");
    write(&second, 120, 180);
    write(&first, 10, 20);
    write(&top, 0, 300);
    fs.close().expect("an unmount");
    Arc::new(Overlay::new(device))
}

/// The items of extents. Nodes of trees that the repair writes anew are left out.
fn items(patch: &Patch) -> BTreeMap<Key, String> {
    let anew = [TreeId::EXTENT, TreeId::ROOT, TreeId::BLOCK_GROUP, TreeId::FREE_SPACE];
    let mut items = BTreeMap::new();
    for leaf in patch.leaves(TreeId::EXTENT) {
        for slot in 0..leaf.len() {
            let (key, bytes) = (leaf.key(slot), leaf.item(slot));
            let text = match key.kind {
                Kind::EXTENT_ITEM | Kind::METADATA_ITEM => {
                    let item = ExtentItem::parse(&key, bytes).expect("an item");
                    let is_anew = |reference: &buttress_format::BackRef| {
                        matches!(
                            reference,
                            buttress_format::BackRef::TreeBlock { root } if anew.contains(root)
                        )
                    };
                    if item.inline.iter().any(is_anew) {
                        continue;
                    }
                    // The first key is not compared, since the engine writes the smallest key
                    // instead.
                    let level = item.tree_block.map(|(_, level)| level);
                    format!("{} {:x} {:?} {:?}", item.refs, item.flags, level, item.inline)
                }
                Kind::BLOCK_GROUP_ITEM => continue,
                _ => format!("{bytes:?}"),
            };
            items.insert(key, text);
        }
    }
    items
}

/// On volumes with and without snapshots, the references equal those that the engine had recorded.
#[test]
fn rebuild_gives_the_same_items_of_an_undamaged_volume() {
    for device in [victim(), old_victim(), shared("new"), shared("old")] {
        let patch = Patch::new(device);
        let before = items(&patch);
        let options = RepairOptions { init_extent_tree: true, ..RepairOptions::default() };
        let mut lines = Vec::new();
        let mut announce = |line: &str| lines.push(line.to_owned());
        let repairs = repair_with(&devices(&patch), &patch.report(), &options, &mut announce);
        let repairs = repairs.expect("a repair");
        assert!(repairs.left.is_empty() && repairs.done == lines, "{repairs:?} {lines:?}");
        let patch = Patch::new(patch.device);
        let report = patch.report();
        assert!(report.is_clean(), "{}", report.to_text());
        assert!(!report.has("free-space-invalid"));
        let after = items(&patch);
        for (key, item) in &before {
            assert_eq!(Some(item), after.get(key), "{key}");
        }
        assert_eq!(before.len(), after.len());
    }
}

/// The trees that can be derived from other trees are rebuilt, whichever of their nodes is lost.
#[test]
fn repair_rebuilds_the_extent_tree_where_a_node_is_lost() {
    for tree in [TreeId::EXTENT, TreeId::FREE_SPACE, TreeId::BLOCK_GROUP] {
        for lost in [0, usize::MAX] {
            let patch = Patch::new(shared("new"));
            let leaves = patch.leaves(tree);
            let leaf = leaves[lost.min(leaves.len() - 1)].ptr();
            patch.volume.write(leaf.logical, &vec![7; 4096]).expect("a write");
            let repairs = mend(&patch);
            assert!(!repairs.done.is_empty() && repairs.left.is_empty(), "{tree}: {repairs:?}");
            let report = Patch::new(patch.device).report();
            assert!(report.is_clean(), "{tree}: {}", report.to_text());
        }
    }
}

/// The engine can write a rebuilt volume, and frees extents that only snapshots have.
#[test]
fn a_rebuilt_volume_is_written_and_checked() {
    let patch = Patch::new(shared("new"));
    let root = patch.root(TreeId::EXTENT);
    patch.volume.write(root.logical, &vec![7; 4096]).expect("a write");
    let repairs = mend(&patch);
    assert!(repairs.left.is_empty(), "{repairs:?}");
    let options = MountOptions::parse("rw").expect("options");
    let fs = Filesystem::open(devices(&patch), options).expect("a mount");
    let top = fs.root();
    top.lookup(b"file 3").expect("a file").write_at(0, &[1; 50_000]).expect("a write");
    top.delete_subvolume(b"first").expect("a deletion");
    fs.close().expect("an unmount");
    let report = Patch::new(patch.device).report();
    assert!(report.is_clean(), "{}", report.to_text());
}

/// If all checksums are lost, the new checksums equal those that the engine had written. Files
/// without checksums, and space that is only preallocated, get no checksums.
#[test]
fn init_csum_tree_gives_the_same_checksums() {
    let sums = |patch: &Patch| {
        let mut sums = BTreeMap::new();
        for leaf in patch.leaves(TreeId::CSUM) {
            for slot in 0..leaf.len() {
                for (index, sum) in leaf.item(slot).chunks(4).enumerate() {
                    sums.insert(leaf.key(slot).offset + index as u64 * 4096, sum.to_vec());
                }
            }
        }
        sums
    };
    for device in [victim(), shared("new"), shared("old")] {
        let patch = Patch::new(device);
        let before = sums(&patch);
        assert!(before.len() > 50);
        let root = patch.root(TreeId::CSUM).logical;
        let nodesize = patch.superblock.nodesize as usize;
        patch.volume.write(root, &vec![7; nodesize]).expect("a write");
        let report = patch.report();
        assert!(report.has("node-damaged"));
        let options = RepairOptions { init_csum_tree: true, ..RepairOptions::default() };
        let repairs = repair_with(&devices(&patch), &report, &options, &mut |_| {});
        let repairs = repairs.expect("a repair");
        assert!(repairs.left.is_empty(), "{repairs:?}");
        let patch = Patch::new(patch.device);
        let report = patch.report_with(&buttress_check::Options::thorough());
        assert!(report.is_clean(), "{}", report.to_text());
        assert!(sums(&patch) == before, "other checksums");
    }
}

/// The extents that the lost leaf used are unknown, so no space may count as free.
#[test]
fn repair_keeps_the_extent_tree_where_a_file_tree_has_lost_a_leaf() {
    let patch = Patch::new(victim());
    patch.remove(TreeId::EXTENT, |key, _| key.kind == Kind::EXTENT_ITEM);
    let leaf = patch.leaves(TreeId::FS)[1].ptr();
    patch.volume.write(leaf.logical, &vec![7; 16384]).expect("a write");
    let before = patch.report().to_text();
    let repairs = mend(&patch);
    assert!(repairs.done.is_empty() && !repairs.left.is_empty(), "{repairs:?}");
    assert_eq!(patch.report().to_text(), before);
}

/// The journal puts back every byte. An undo refuses a volume that was written since the repair.
#[test]
fn undo_puts_back_what_a_repair_overwrote() {
    let folder = std::env::temp_dir().join(format!("undo-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let whole = |device: &Overlay| {
        let mut bytes = vec![0; device.len() as usize];
        device.read_at(0, &mut bytes).expect("a read");
        bytes
    };
    for number in 0..3 {
        let path = folder.join(format!("journal {number}"));
        let patch = Patch::new(shared("new"));
        let root = patch.root(TreeId::EXTENT);
        patch.volume.write(root.logical, &vec![7; 4096]).expect("a write");
        let before = whole(&patch.device);
        let (_, journaled) = Journal::create(&path, &devices(&patch)).expect("a journal");
        let repairs = repair(&journaled, &patch.report()).expect("a repair");
        assert!(repairs.left.is_empty(), "{repairs:?}");
        assert!(whole(&patch.device) != before);
        if number == 2 {
            undo(&devices(&patch), &path).expect("an undo");
            repair(&devices(&patch), &patch.report()).expect("the same repair again");
        }
        if number > 0 {
            let options = MountOptions::parse("rw").expect("options");
            let fs = Filesystem::open(devices(&patch), options).expect("a mount");
            fs.root().mkdir(b"new", 0o755, 0, 0).expect("a directory");
            fs.close().expect("an unmount");
            undo(&devices(&patch), &path).expect_err("it was written since");
            continue;
        }
        // A crash may leave zeros behind the last record.
        let mut file = std::fs::File::options().append(true).open(&path).expect("it opens");
        std::io::Write::write_all(&mut file, &[0; 60]).expect("written");
        undo(&devices(&patch), &path).expect("an undo");
        undo(&devices(&patch), &path).expect("the same undo again");
        assert!(whole(&patch.device) == before, "the bytes differ");
    }
    std::fs::remove_dir_all(&folder).expect("the folder goes");
}
