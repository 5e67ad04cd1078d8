//! Quotas: changes of groups, leftovers of an interrupted `quota disable`, and counts.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{Key, Kind, QuotaStatus, RootItem, TreeId};
use buttress_fs::{ErrorKind, Filesystem, MakeOptions, NameError, QuotaGroup, Quotas};
use buttress_tree::{Cursor, Geometry, NodePtr, Store, boot};
use buttress_volume::Volume;

use crate::checker::{check, expect_sound, find_faults};
use crate::volume::{copy, drop_all, file_with, memory, memory_with, mount, mount_with, pattern};

/// A group above the groups of subvolumes.
fn above(number: u64) -> QuotaGroup {
    QuotaGroup(1 << 48 | number)
}

fn quotas(fs: &Filesystem) -> Quotas {
    fs.quotas().expect("quotas").expect("they are on")
}

/// Changes the payload of an item of the quota tree on the device.
fn damage_quotas(device: &Arc<dyn Device>, key: Key, change: impl FnOnce(&mut [u8])) {
    let how = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = Volume::open(vec![Arc::clone(device)], how).expect("a volume");
    let volume = Arc::new(volume);
    let store = Store::new(Arc::clone(&volume), Geometry::of(&superblock), 0);
    boot::load_chunks(&store, &superblock).expect("chunks");
    let find = |tree, root, key: Key| {
        let found = Cursor::find(&store, tree, root, &key).expect("a tree");
        found.unwrap_or_else(|| panic!("no {key} in {tree}"))
    };
    let root_key = Key::new(TreeId::QUOTA.0, Kind::ROOT_ITEM, 0);
    let (leaf, slot) = find(TreeId::ROOT, boot::root_tree_root(&superblock), root_key);
    let root = RootItem::parse(leaf.item(slot)).expect("a root item");
    assert!(root.level > 0, "the tree has several leaves");
    let root = NodePtr { logical: root.bytenr, generation: root.generation, level: root.level };
    let (leaf, slot) = find(TreeId::QUOTA, root, key);
    let at = leaf.item(slot).as_ptr() as usize - leaf.bytes().as_ptr() as usize;
    let mut node = leaf.bytes().to_vec();
    change(&mut node[at..at + leaf.item(slot).len()]);
    let sum = superblock.csum_type.digest(&node[32..]);
    node[..sum.len()].copy_from_slice(&sum);
    volume.write(leaf.logical(), &node).expect("damage");
}

/// A crash in `quota disable` of Linux leaves a quota tree with a status that lacks ON. Enabling
/// begins with an empty tree, and keeps no leaf of the old tree.
#[test]
fn enabling_replaces_a_leftover_tree() {
    for simple in [true, false] {
        let device = memory_with(256, &MakeOptions { nodesize: 4096, ..MakeOptions::default() });
        let fs = mount(&device);
        fs.enable_quotas(simple).expect("quotas");
        for number in 1..=60 {
            fs.make_quota_group(above(number)).expect("a group");
        }
        fs.close().expect("a close");
        damage_quotas(&device, QuotaStatus::KEY, |status| status[16] &= !(QuotaStatus::ON as u8));
        let fs = mount(&device);
        assert!(fs.quotas().expect("a look").is_none());
        fs.enable_quotas(simple).expect("quotas");
        let groups: Vec<_> = quotas(&fs).groups.iter().map(|known| known.group).collect();
        assert_eq!(groups, [QuotaGroup::of(TreeId::FS)]);
        // Space that was freed is used again.
        for number in 0..200 {
            file_with(&fs.root(), &format!("f{number}"), &pattern(number, 900));
        }
        fs.close().expect("a close");
        // The installed `btrfs check` may not know simple quotas.
        if simple { expect_sound(&device) } else { check(&device) }
    }
}

/// A change of limits reads the old limits only when no other change can run. So no change is lost.
#[test]
fn changes_of_limits_lose_none() {
    let device = memory(256);
    let fs = mount(&device);
    fs.enable_quotas(true).expect("quotas");
    let group = QuotaGroup::of(TreeId::FS);
    let mut inner = Ok(());
    fs.limit_quota_group(group, |limit| {
        inner = fs.limit_quota_group(group, |limit| {
            limit.flags |= buttress_fs::QuotaLimit::EXCLUSIVE;
            limit.exclusive = 5 << 20;
        });
        limit.flags |= buttress_fs::QuotaLimit::REFERENCED;
        limit.referenced = 9 << 20;
    })
    .expect("a limit");
    let limit = quotas(&fs).group(group).expect("the group").limit;
    assert_eq!(limit.max_referenced(), Some(9 << 20));
    // The inner change was either refused or made.
    assert_eq!(limit.max_exclusive().is_some(), inner.is_ok());
    fs.close().expect("a close");
    expect_sound(&device);
}

/// A new subvolume joins its groups in the transaction that makes it: each commit that has the
/// subvolume has the membership.
#[test]
fn subvolumes_join_groups_as_they_are_made() {
    for simple in [true, false] {
        let device = memory(256);
        let fs = mount_with(&device, "commit=3000");
        fs.enable_quotas(simple).expect("quotas");
        for number in [1, 2] {
            fs.make_quota_group(above(number)).expect("a group");
        }
        let groups = [above(1), above(2)];
        let commits = || fs.info().expect("facts").generation.0;
        let before = commits();
        let sub = fs.root().create_subvolume_in(&groups, b"sub", (0o755, 0, 0)).expect("it");
        fs.sync().expect("a sync");
        assert_eq!(commits(), before + 1);
        let parents = |tree| {
            let quotas = quotas(&fs);
            quotas.group(QuotaGroup::of(tree)).expect("the group").parents.clone()
        };
        assert_eq!(parents(sub.id().tree), groups);
        let before = commits();
        let copy = fs.root().snapshot_in(&groups[1..], b"copy", sub.id().tree, false);
        let copy = copy.expect("a snapshot");
        // A snapshot makes a commit, and may begin with one.
        assert!(commits() <= before + 2);
        assert_eq!(parents(copy.id().tree), groups[1..]);
        file_with(&sub, "file", &pattern(1, 300_000));
        fs.sync().expect("a sync");
        assert!(quotas(&fs).group(above(1)).expect("the group").info.referenced >= 300_000);

        let unknown = fs.root().create_subvolume_in(&[above(3)], b"other", (0o755, 0, 0));
        assert_eq!(
            unknown.expect_err("there is no such group").kind(),
            ErrorKind::Name(NameError::NotFound)
        );
        let own = [QuotaGroup::of(TreeId::FS)];
        let low = fs.root().create_subvolume_in(&own, b"other", (0o755, 0, 0));
        assert_eq!(low.expect_err("a group of level 0").kind(), ErrorKind::Invalid);
        assert!(fs.root().lookup(b"other").is_err());
        drop((sub, copy));
        fs.close().expect("a close");
        if simple { expect_sound(&device) } else { check(&device) }
    }
}

/// A group of simple quotas outlives its subvolume as long as the group's counts are not zero.
#[test]
fn a_group_that_counts_is_kept() {
    let device = memory(256);
    let fs = mount(&device);
    fs.enable_quotas(true).expect("quotas");
    fs.make_quota_group(above(1)).expect("a group");
    let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    let tree = sub.id().tree;
    let group = QuotaGroup::of(tree);
    fs.sync().expect("a sync");
    fs.join_quota_group(group, above(1)).expect("a membership");
    file_with(&sub, "file", &pattern(1, 300_000));
    drop(sub);
    fs.root().snapshot(b"copy", tree, false).expect("a snapshot");
    fs.root().delete_subvolume(b"sub").expect("a deletion");
    drop_all(&fs);
    fs.sync().expect("a sync");
    assert!(!quotas(&fs).group(group).expect("the group").info.is_zero());
    let refused = fs.remove_quota_group(group).expect_err("it counts");
    assert!(matches!(refused.kind(), ErrorKind::Name(NameError::Busy)), "{refused}");
    expect_sound(&device);
    fs.root().delete_subvolume(b"copy").expect("a deletion");
    drop_all(&fs);
    fs.sync().expect("a sync");
    let sum = quotas(&fs).group(above(1)).expect("the group").info;
    assert!(sum.is_zero(), "{sum:?}");
    fs.close().expect("a close");
    expect_sound(&device);
}

/// With full quotas, the counts of a removed group are subtracted from the groups above.
#[test]
fn a_removed_group_takes_its_counts_along() {
    let device = memory(256);
    let fs = mount(&device);
    let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    file_with(&sub, "file", &pattern(1, 300_000));
    let group = QuotaGroup::of(sub.id().tree);
    drop(sub);
    fs.enable_quotas(false).expect("quotas");
    let (middle, top) = (above(1), QuotaGroup(2 << 48 | 1));
    fs.make_quota_group(middle).expect("a group");
    fs.make_quota_group(top).expect("a group");
    fs.join_quota_group(group, middle).expect("a membership");
    fs.join_quota_group(middle, top).expect("a membership");
    assert!(quotas(&fs).group(top).expect("the group").info.referenced > 300_000);
    let refused = fs.remove_quota_group(middle).expect_err("it has a member");
    assert!(matches!(refused.kind(), ErrorKind::Name(NameError::Busy)), "{refused}");
    fs.leave_quota_group(group, middle).expect("the end of a membership");
    fs.remove_quota_group(middle).expect("a removal");
    let found = quotas(&fs);
    assert!(found.group(top).expect("the group").info.is_zero());
    assert!(found.group(top).expect("the group").children.is_empty());
    assert_eq!(found.status.flags & QuotaStatus::INCONSISTENT, 0);
    fs.close().expect("a close");
    check(&device);
}

/// The checker compares the counts of full quotas with its own counts.
#[test]
fn the_checker_finds_a_wrong_full_count() {
    let device = memory_with(256, &MakeOptions { nodesize: 4096, ..MakeOptions::default() });
    let fs = mount(&device);
    fs.enable_quotas(false).expect("quotas");
    for number in 1..=60 {
        fs.make_quota_group(above(number)).expect("a group");
    }
    file_with(&fs.root(), "file", &pattern(1, 100_000));
    fs.close().expect("a close");
    check(&device);
    for (place, field) in [(8, "referenced"), (24, "exclusive")] {
        let wrong: Arc<dyn Device> = Arc::new(copy(&*device));
        damage_quotas(&wrong, QuotaGroup::of(TreeId::FS).info_key(), |item| item[place + 1] ^= 16);
        let found = find_faults(&wrong).expect_err("a wrong count");
        assert!(found.contains("quota-reach") && found.contains(field), "{found}");
    }
}

/// If a tree cannot be read, counting ends with an error. The volume stays writable, and the old
/// counts stay.
#[test]
fn a_count_that_cannot_read_changes_nothing() {
    let device = memory_with(256, &MakeOptions { nodesize: 4096, ..MakeOptions::default() });
    let fs = mount(&device);
    let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    for number in 0..100 {
        file_with(&sub, &format!("f{number}"), &pattern(number, 9000));
    }
    let tree = sub.id().tree;
    drop(sub);
    fs.enable_quotas(false).expect("quotas");
    let before = quotas(&fs);
    fs.close().expect("a close");
    let copies = spoil_last_leaf(&device, tree);
    let fs = mount(&device);
    fs.count_quotas().expect_err("a leaf is damaged");
    assert_eq!(fs.read_only_reason(), None);
    let after = quotas(&fs);
    assert_eq!(before.status, after.status);
    assert_eq!(before.groups, after.groups);
    file_with(&fs.root(), "file", b"it goes on");
    fs.close().expect("a close");
    for (at, bytes) in copies {
        device.write_at(at, &bytes).expect("memory");
    }
    let fs = mount(&device);
    fs.count_quotas().expect("a count");
    fs.close().expect("a close");
    check(&device);
}

/// Damages both copies of the last leaf of a subvolume. Returns their offsets and old bytes.
fn spoil_last_leaf(device: &Arc<dyn Device>, tree: TreeId) -> Vec<(u64, Vec<u8>)> {
    let how = buttress_volume::OpenOptions { writable: true, ..Default::default() };
    let (volume, superblock) = Volume::open(vec![Arc::clone(device)], how).expect("a volume");
    let volume = Arc::new(volume);
    let store = Store::new(Arc::clone(&volume), Geometry::of(&superblock), 0);
    boot::load_chunks(&store, &superblock).expect("chunks");
    let last = Key::new(tree.0, Kind::ROOT_ITEM, u64::MAX);
    let root = boot::root_tree_root(&superblock);
    let cursor = Cursor::seek_before(&store, TreeId::ROOT, root, &last).expect("a tree");
    let item = RootItem::parse(cursor.item().expect("an item")).expect("a root item");
    assert!(item.level > 0, "the tree has several leaves");
    let root = NodePtr { logical: item.bytenr, generation: item.generation, level: item.level };
    let cursor = Cursor::seek_before(&store, tree, root, &Key::MAX).expect("a tree");
    let last = cursor.key().expect("a key");
    let (leaf, _) = Cursor::find(&store, tree, root, &last).expect("a tree").expect("its leaf");
    let mut copies = Vec::new();
    let mut block = vec![0; 4096];
    for at in (0..device.len()).step_by(4096) {
        device.read_at(at, &mut block).expect("memory");
        if block == leaf.bytes() {
            copies.push((at, block.clone()));
            device.write_at(at, &[0xA5; 4096]).expect("memory");
        }
    }
    assert_eq!(copies.len(), 2, "metadata has two copies");
    copies
}

/// Counts that another commit has overtaken do not replace right counts.
#[test]
fn a_count_that_is_overtaken_leaves_right_counts() {
    let device = memory(256);
    let fs = mount(&device);
    fs.enable_quotas(false).expect("quotas");
    let done = std::sync::atomic::AtomicBool::new(false);
    let are_marked = |fs: &Filesystem| quotas(fs).status.flags & QuotaStatus::INCONSISTENT != 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                file_with(&fs.root(), &format!("f{number}"), &pattern(number, 3000));
                fs.sync().expect("a sync");
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
            }
        });
        for _ in 0..5 {
            fs.count_quotas().expect("a count");
            assert!(!are_marked(&fs), "the counts were right before");
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    file_with(&fs.root(), "last", b"a change");
    fs.sync().expect("a sync");
    assert!(!are_marked(&fs), "the commit has counted");
    fs.close().expect("a close");
    check(&device);
}

/// Many dead subvolumes that share nodes are dropped together, in steps that keep to their budget.
#[test]
fn many_dead_subvolumes_are_dropped_together() {
    let device = memory_with(256, &MakeOptions { nodesize: 4096, ..MakeOptions::default() });
    let fs = mount(&device);
    let sub = fs.root().create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    for number in 0..300 {
        file_with(&sub, &format!("f{number}"), &pattern(number, 5000));
    }
    for number in 0..40_u64 {
        let name = format!("copy-{number}");
        fs.root().snapshot(name.as_bytes(), sub.id().tree, false).expect("a snapshot");
        file_with(&sub, &format!("g{number}"), &pattern(number, 7000));
    }
    drop(sub);
    for number in 0..40 {
        fs.root().delete_subvolume(format!("copy-{number}").as_bytes()).expect("a deletion");
    }
    fs.root().delete_subvolume(b"sub").expect("a deletion");
    drop_all(&fs);
    fs.close().expect("a close");
    check(&device);
}
