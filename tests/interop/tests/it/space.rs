//! Free space is recorded anew, and mostly empty block groups are reclaimed.

use std::os::unix::fs::FileExt;

use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{CompatRo, CsumType};
use buttress_fs::Filesystem;
use buttress_interop::linux::{Images, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};

use crate::open::{close, manifest, open, open_with};

fn has_tree(filesystem: &Filesystem) -> bool {
    let valid = CompatRo::FREE_SPACE_TREE.with(CompatRo::FREE_SPACE_TREE_VALID);
    filesystem.info().expect("figures").superblock.compat_ro.has(valid)
}

/// Removes the flag that says that the free-space tree of a volume is valid.
fn invalidate(images: &Images) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(images.path());
    let file = file.expect("the image");
    for offset in SUPER_OFFSETS.into_iter().take(2) {
        let mut bytes = vec![0; SUPER_SIZE];
        file.read_exact_at(&mut bytes, offset).expect("a superblock");
        bytes[180] &= !(CompatRo::FREE_SPACE_TREE_VALID.0 as u8);
        let digest = CsumType::Crc32c.digest(&bytes[32..]);
        bytes[..32].copy_from_slice(&digest);
        file.write_all_at(&bytes, offset).expect("a superblock");
    }
}

/// Free space is recorded anew if the free-space tree is invalid, is not trusted, or does not
/// exist.
#[test]
pub(crate) fn free_space_is_recorded_anew() {
    if !has_linux_btrfs() {
        return;
    }
    for (mkfs, options, how) in [
        ("free-space-tree", "rw,noatime", "marked"),
        ("free-space-tree", "rw,noatime,clear_cache", "cleared"),
        ("^free-space-tree", "rw,noatime,space_cache=v2", "made"),
    ] {
        let images = Images::new(1, 400 << 20);
        images.mkfs(&["-R", mkfs]);
        let mount = images.mount(if how == "made" { "space_cache=v1" } else { "" });
        fill(&Folder::new(mount.path()), &Scale::default());
        mount.shell(
            "for i in $(seq 80); do head -c 5000 /dev/urandom > f$i; sync f$i; done; rm f*[13579]",
        );
        mount.unmount();
        if how == "marked" {
            invalidate(&images);
        }
        let before = manifest(images.paths());
        let filesystem = open_with(images.paths(), options);
        assert_eq!(filesystem.read_only_reason(), None, "{how}");
        close(filesystem);
        let filesystem = open(images.paths(), false);
        assert!(has_tree(&filesystem), "{how}");
        close(filesystem);
        images.check();
        before.assert_same("before", &manifest(images.paths()), how, Depth::Volume);
        let mount = images.mount("");
        change(&Folder::new(mount.path()), &Scale::default(), 1);
        mount.unmount();
        let filesystem = open(images.paths(), true);
        change(&Library::new(&filesystem), &Scale::default(), 2);
        filesystem.sync().expect("a sync");
        let here = Manifest::of_library(&filesystem);
        close(filesystem);
        images.check();
        let mount = images.mount("ro");
        let linux = Manifest::of_folder(mount.path());
        here.assert_same("here", &linux, "Linux", Depth::Volume);
        mount.unmount();
    }
}

/// With a mount option, groups that are nearly empty are emptied at the unmount.
#[test]
fn mostly_empty_groups_are_reclaimed() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 2 << 30);
    images.mkfs(&[]);
    let mount = images.mount("");
    // The large files are removed, and a small file stays behind in each of several groups.
    mount.shell(
        "for i in 1 2 3 4 5; do head -c 150M /dev/zero > big$i; head -c 300K /dev/urandom > small$i; \
         sync; done; rm big*; sync",
    );
    mount.unmount();
    let before = manifest(images.paths());
    let total = || {
        let filesystem = open(images.paths(), false);
        let kinds = filesystem.info().expect("figures").usage.kinds;
        close(filesystem);
        kinds.iter().map(|kind| kind.total).sum::<u64>()
    };
    let full = total();
    close(open_with(images.paths(), "rw,noatime"));
    let plain = total();
    close(open_with(images.paths(), "rw,noatime,bg_reclaim_threshold=30"));
    let left = total();
    assert!(left < plain && plain <= full, "{full} {plain} {left}");
    images.check();
    before.assert_same("before", &manifest(images.paths()), "reclaimed", Depth::Volume);
}
