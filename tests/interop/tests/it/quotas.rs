//! Volumes with quotas: simple and full quotas are counted as in Linux, and every subvolume has its
//! group.

use std::sync::Arc;

use buttress_block::{Device, FileDevice};
use buttress_format::{Key, Kind, RootItem, TreeId};
use buttress_interop::linux::{Images, Mount, has_linux_btrfs, try_run};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};
use buttress_tree::{Cursor, Geometry, NodePtr, Store, boot};
use buttress_volume::Volume;

use crate::open::{close, drop_all, open_with};

fn scale() -> Scale {
    Scale { dirs: 4, files: 20, big_bytes: 1 << 20, links: 50, ..Scale::default() }
}

/// Every group of level 0 and 1, as `btrfs qgroup show` prints it.
pub(crate) fn groups(mount: &Mount) -> Vec<String> {
    let text = mount.btrfs("qgroup show --raw");
    let is_group = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let words = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
    text.lines().filter(is_group).map(words).collect()
}

fn names(mount: &Mount) -> Vec<String> {
    let first = |line: &String| line.split(' ').next().unwrap_or_default().to_owned();
    groups(mount).iter().map(first).collect()
}

/// Makes, copies, changes and deletes subvolumes here.
fn work(images: &Images, round: u64) {
    let filesystem = open_with(images.paths(), "rw,noatime,subvolid=5");
    assert_eq!(filesystem.read_only_reason(), None);
    let root = filesystem.root();
    let made = format!("ours-{round}");
    let copy = format!("copy-{round}");
    drop(root.create_subvolume(made.as_bytes(), 0o755, 0, 0).expect("a subvolume"));
    let id = |path: &str| filesystem.resolve(path).expect("a path").id().tree;
    filesystem.sync().expect("a sync");
    drop(root.snapshot(copy.as_bytes(), id("live"), false).expect("a snapshot"));
    let live = filesystem.resolve("live").expect("live");
    let nested = format!("nested-{round}");
    drop(live.create_subvolume(nested.as_bytes(), 0o755, 0, 0).expect("a subvolume"));
    drop((live, root));
    close(filesystem);
    for path in ["live", &made] {
        let filesystem = open_with(images.paths(), &format!("rw,noatime,subvol={path}"));
        let library = Library::new(&filesystem);
        if path == "live" {
            change(&library, &scale(), round);
        } else {
            fill(&library, &scale());
        }
        filesystem.sync().expect("a sync");
        close(filesystem);
    }
    let filesystem = open_with(images.paths(), "rw,noatime,subvolid=5");
    if round > 1 {
        let old = format!("copy-{}", round - 1);
        filesystem.root().delete_subvolume(old.as_bytes()).expect("a deletion");
        let old = format!("ours-{}", round - 1);
        filesystem.root().delete_subvolume(old.as_bytes()).expect("a deletion");
        drop_all(&filesystem);
    }
    close(filesystem);
}

/// Asks Linux for simple quotas, which this btrfs-progs may not know. False if this Linux has none.
pub(crate) fn enable_simple_quotas(mount: &Mount) -> bool {
    // BTRFS_IOC_QUOTA_CTL with BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA.
    let script = "open(D, '<', $ARGV[0]) or die; $a = pack('QQ', 4, 0); \
                  ioctl(D, 0xC0109428, $a) or die \"simple quotas: $!\";";
    match try_run("perl", ["-e".as_ref(), script.as_ref(), mount.path().as_os_str()]) {
        Ok(_) => true,
        Err(text) if text.contains("Invalid argument") => {
            eprintln!("this Linux has no simple quotas");
            false
        }
        Err(text) => panic!("{text}"),
    }
}

/// The content of the volume is the same here and in Linux.
fn same_everywhere(images: &Images) {
    let filesystem = open_with(images.paths(), "ro,noatime,subvolid=5");
    let here = Manifest::of_library(&filesystem);
    close(filesystem);
    let mount = images.mount("subvolid=5,ro");
    let linux = Manifest::of_folder(mount.path());
    here.assert_same("here", &linux, "Linux", Depth::Volume);
    mount.unmount();
}

/// Fills and copies as Linux does.
fn begin(mount: &Mount) {
    mount.shell("btrfs -q subvolume create live");
    mount.shell("btrfs qgroup create 1/7 . && btrfs qgroup assign --no-rescan 0/256 1/7 .");
    fill(&Folder::new(&mount.path().join("live")), &scale());
    mount.shell("btrfs -q subvolume snapshot -r live first");
    mount.shell("echo more > live/more; sync");
}

/// The checker confirms the counts of Linux and our counts. Linux continues from our counts.
#[test]
pub(crate) fn simple_quotas_are_kept() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 600 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    // This file is older than the quotas, so no group is charged for it.
    mount.shell("head -c 300000 /dev/urandom > before; sync");
    if !enable_simple_quotas(&mount) {
        return;
    }
    begin(&mount);
    mount.unmount();
    images.check_volume();
    for round in 1..=2 {
        work(&images, round);
        images.check_volume();
        let mount = images.mount("");
        let before = groups(&mount);
        assert!(before.iter().any(|line| line.starts_with("1/7 ")), "{before:?}");
        mount.shell(&format!(
            "rm -f before; head -c 50000 /dev/urandom > live/linux-{round}; rm -rf live/big; \
             btrfs -q subvolume snapshot live linux-{round}; mkdir live/big; \
             head -c 100000 /dev/urandom > live/big/noise; cp live/big/noise live/big/words; \
             head -c 1000000 /dev/zero > live/big/zeros; sync"
        ));
        if round > 1 {
            mount.btrfs("balance start --full-balance");
            mount.shell("btrfs -q subvolume delete first; btrfs subvolume sync .");
        }
        mount.unmount();
        images.check_volume();
    }
    same_everywhere(&images);
    // The checker finds a count that differs from that of Linux.
    for (field, offset) in [("referenced", 8), ("exclusive", 24)] {
        let before = std::fs::read(images.path()).expect("the image");
        miscount(&images, offset);
        let report =
            buttress_check::check_images(images.paths(), &buttress_check::Options::default());
        let report = report.expect("a report");
        assert!(report.has("quota-count"), "{}", report.to_text());
        assert!(report.to_text().contains(field), "{}", report.to_text());
        let counts = report.issues.iter().filter(|issue| issue.code() == "quota-count");
        assert_eq!(counts.count(), 1, "{}", report.to_text());
        std::fs::write(images.path(), before).expect("the image as it was");
    }
}

/// Adds a block to a figure of the group of the first subvolume, at `offset` in its item.
fn miscount(images: &Images, offset: usize) {
    let how = buttress_block::OpenOptions::WRITE;
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(images.path(), how).expect("an image"));
    let how = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = Volume::open(vec![device], how).expect("a volume");
    let volume = Arc::new(volume);
    let geometry = Geometry::of(&superblock);
    let store = Store::new(Arc::clone(&volume), geometry, 0);
    boot::load_chunks(&store, &superblock).expect("chunks");
    // This version of Linux's tool does not show the quota tree of a volume with simple quotas.
    let find = |tree, root, key: Key| {
        let found = Cursor::find(&store, tree, root, &key).expect("a tree");
        found.unwrap_or_else(|| panic!("no {key} in {tree}"))
    };
    let key = Key::new(TreeId::QUOTA.0, Kind::ROOT_ITEM, 0);
    let (leaf, slot) = find(TreeId::ROOT, boot::root_tree_root(&superblock), key);
    let root = RootItem::parse(leaf.item(slot)).expect("a root item");
    let root = NodePtr { logical: root.bytenr, generation: root.generation, level: root.level };
    let (leaf, slot) = find(TreeId::QUOTA, root, Key::new(0, Kind::QGROUP_INFO, 256));
    let item = leaf.item(slot).as_ptr() as usize - leaf.bytes().as_ptr() as usize;
    let mut node = leaf.bytes().to_vec();
    let at = item + offset;
    let figure = u64::from_le_bytes(node[at..at + 8].try_into().expect("eight bytes"));
    node[at..at + 8].copy_from_slice(&(figure + 4096).to_le_bytes());
    let sum = superblock.csum_type.digest(&node[32..]);
    node[..sum.len()].copy_from_slice(&sum);
    volume.write(leaf.logical(), &node).expect("damage");
}

/// Our counts of full quotas are those of Linux, and every subvolume has its group.
#[test]
fn full_quotas_are_kept() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 600 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    mount.btrfs("quota enable");
    mount.btrfs("quota rescan -w");
    begin(&mount);
    mount.shell("btrfs qgroup limit 300M live");
    // Linux may have marked the counts as inconsistent when it made the snapshot.
    mount.btrfs("quota rescan -w");
    mount.unmount();
    images.check();
    expect_unmarked(&images);
    for round in 1..=2 {
        work(&images, round);
        // `btrfs check` compares only counts that are not marked as inconsistent.
        images.check();
        expect_unmarked(&images);
        let mount = images.mount("");
        let ours = groups(&mount);
        let listed = mount.shell("btrfs subvolume list . | awk '{print \"0/\" $2}' | sort");
        let mut known = names(&mount);
        known.retain(|name| name != "0/5" && name != "1/7");
        known.sort();
        assert_eq!(listed.lines().collect::<Vec<_>>(), known, "round {round}");
        let limits = mount.btrfs("qgroup show -r --raw");
        let limited = limits.lines().filter(|line| line.contains("314572800")).count();
        // `live` and the snapshots of `live` have limits.
        assert!(limited >= 2, "{limits}");
        mount.btrfs("quota rescan -w");
        mount.shell("sync");
        assert_eq!(ours, groups(&mount), "round {round}");
        // Linux continues from our counts.
        mount.shell(&format!(
            "head -c 50000 /dev/urandom > live/linux-{round}; cp --reflink live/linux-{round} other; \
             btrfs -q subvolume snapshot live linux-{round}; rm -rf live/big; mkdir live/big; \
             head -c 100000 /dev/urandom > live/big/noise; cp live/big/noise live/big/words; \
             head -c 1000000 /dev/zero > live/big/zeros; sync"
        ));
        mount.btrfs("quota rescan -w");
        mount.shell("sync");
        mount.unmount();
        images.check();
        expect_unmarked(&images);
    }
    same_everywhere(&images);
}

/// Full quotas are not marked as inconsistent, and the checker agrees with their counts.
fn expect_unmarked(images: &Images) {
    let report = buttress_check::check_images(images.paths(), &buttress_check::Options::default());
    let report = report.expect("a report");
    for code in ["quota-inconsistent", "quota-reach", "not-checked"] {
        assert!(!report.has(code), "{}", report.to_text());
    }
}
