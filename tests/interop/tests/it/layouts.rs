//! Layouts that distributions use. They are made by btrfs-progs, written here, and checked by
//! Linux.

use buttress_fs::{Filesystem, NewInode, TreeId};
use buttress_interop::linux::{Images, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};

use crate::open::{close, manifest, open_with};

fn scale(seed: u64) -> Scale {
    Scale { seed, dirs: 4, files: 15, big_bytes: 1 << 20, links: 60, ..Scale::default() }
}

fn tree_of(filesystem: &Filesystem, path: &str) -> TreeId {
    filesystem.resolve(path).unwrap_or_else(|error| panic!("{path}: {error}")).id().tree
}

/// Both sides see the same volume, from its top level on.
#[track_caller]
fn same_everywhere(images: &Images, options: &str) {
    let filesystem = open_with(images.paths(), &format!("ro,noatime,{options}"));
    let here = Manifest::of_library(&filesystem);
    close(filesystem);
    let mount = images.mount(&format!("ro,{options}"));
    let linux = Manifest::of_folder(mount.path());
    here.assert_same("here", &linux, "Linux", Depth::Volume);
    mount.unmount();
}

fn dropped(filesystem: &Filesystem) {
    for _ in 0..1200 {
        if filesystem.dying_subvolumes().expect("a list").is_empty() {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("subvolumes are not dropped");
}

/// openSUSE: nested subvolumes below `@`, snapper's snapshots in `.snapshots/N/snapshot`, the
/// default subvolume is one of these snapshots, and quotas are on. A rollback is made here: a
/// snapshot becomes the default.
#[test]
fn opensuse() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 800 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    mount.shell(
        "btrfs quota enable .; btrfs -q subvolume create @; \
         for name in home opt root srv tmp var usr-local boot-grub2-x86_64-efi .snapshots; do \
         btrfs -q subvolume create @/$name; done; chattr +C @/var; mkdir @/.snapshots/1; \
         btrfs qgroup create 1/0 .; \
         btrfs -q subvolume snapshot @ @/.snapshots/1/snapshot; \
         btrfs subvolume set-default $(btrfs inspect-internal rootid @/.snapshots/1/snapshot) .",
    );
    mount.unmount();
    let root = images.mount("");
    fill(&Folder::new(root.path()), &scale(1));
    root.unmount();
    let top = images.mount("subvolid=5");
    top.shell(
        "cd @/.snapshots; for n in 2 3 4; do mkdir $n; echo \"<snapshot/>\" > $n/info.xml; \
         echo $n >> 1/snapshot/changed; btrfs -q subvolume snapshot -r 1/snapshot $n/snapshot; done",
    );
    fill(&Folder::new(&top.path().join("@/home")), &scale(2));
    top.unmount();

    // The first snapshot is mounted by default, here as in Linux.
    let filesystem = open_with(images.paths(), "rw,noatime");
    assert_eq!(filesystem.read_only_reason(), None);
    assert!(filesystem.resolve("small").is_ok() && filesystem.resolve("@").is_err());
    change(&Library::new(&filesystem), &scale(1), 1);
    filesystem.sync().expect("a sync");
    close(filesystem);
    let filesystem = open_with(images.paths(), "rw,noatime,subvol=@/home");
    change(&Library::new(&filesystem), &scale(2), 1);
    filesystem.sync().expect("a sync");
    close(filesystem);
    let filesystem = open_with(images.paths(), "rw,noatime,subvolid=5");
    let kept = tree_of(&filesystem, "@/.snapshots/3/snapshot");
    let home = filesystem.resolve("@/.snapshots").expect("snapshots");
    drop(home.mkdir(b"5", 0o755, 0, 0).expect("a directory"));
    let into = filesystem.resolve("@/.snapshots/5").expect("it");
    let rolled = into.snapshot(b"snapshot", kept, false).expect("a rollback");
    filesystem.set_default_subvolume(rolled.id().tree).expect("another default");
    let old = filesystem.resolve("@/.snapshots/2").expect("an old one");
    old.delete_subvolume(b"snapshot").expect("a deletion");
    drop((home, into, rolled, old));
    dropped(&filesystem);
    close(filesystem);
    images.check();
    same_everywhere(&images, "subvolid=5");
    same_everywhere(&images, "");
    let mount = images.mount("");
    assert_eq!(mount.shell("cat changed"), "2\n3\n");
    mount.btrfs("quota rescan -w");
    mount.btrfs("scrub start -B");
    mount.unmount();
    images.check();
}

/// Fedora: `root` and `home`, zstd:1.
#[test]
fn fedora() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 600 << 20);
    images.mkfs(&["-L", "fedora"]);
    let mount = images.mount("compress=zstd:1");
    mount.shell(
        "btrfs -q subvolume create root; btrfs -q subvolume create home; mkdir -p root/home \
                 root/var/lib; btrfs -q subvolume create root/var/lib/machines",
    );
    mount.unmount();
    for (name, seed) in [("root", 1), ("home", 2)] {
        let options = format!("subvol={name},compress=zstd:1");
        let mount = images.mount(&options);
        fill(&Folder::new(mount.path()), &scale(seed));
        mount.unmount();
        let filesystem = open_with(images.paths(), &format!("rw,noatime,{options}"));
        change(&Library::new(&filesystem), &scale(seed), 1);
        filesystem.sync().expect("a sync");
        close(filesystem);
        images.check();
        let mount = images.mount(&options);
        change(&Folder::new(mount.path()), &scale(seed), 2);
        // Only these folders are defragmented, because Linux would look at each page of a hole of
        // tebibytes.
        mount.shell("btrfs filesystem defragment -r -czstd big small");
        mount.unmount();
        images.check();
        same_everywhere(&images, &format!("subvol={name}"));
    }
    same_everywhere(&images, "subvolid=5");
}

/// The storage driver of Docker: each layer is a snapshot of the layer below it, and containers are
/// snapshots of images. Of two hundred layers and containers, half are made here, and a third are
/// deleted here.
#[test]
fn docker() {
    if !has_linux_btrfs() {
        return;
    }
    let count = 200_u64;
    let images = Images::new(1, 1 << 30);
    images.mkfs(&[]);
    let mount = images.mount("");
    mount.shell("mkdir -p btrfs/subvolumes; btrfs -q subvolume create btrfs/subvolumes/0");
    let few = Scale { dirs: 2, files: 8, links: 20, ..scale(9) };
    fill(&Folder::new(&mount.path().join("btrfs/subvolumes/0")), &few);
    // Parents are chosen by arithmetic, so that some layers are the parents of many.
    let parent = |layer: u64| layer * 7 / 10;
    let script: String = (1..count / 2)
        .map(|layer| {
            let parent = parent(layer);
            format!(
                "btrfs -q subvolume snapshot {parent} {layer}; echo layer {layer} > {layer}/layer-{layer}; \
                 rm -f {layer}/layer-{parent}; "
            )
        })
        .collect();
    mount.shell(&format!("cd btrfs/subvolumes; {script}"));
    mount.unmount();
    images.check_volume();

    let filesystem = open_with(images.paths(), "rw,noatime");
    let dir = filesystem.resolve("btrfs/subvolumes").expect("the layers");
    for layer in count / 2..count {
        let parent = parent(layer);
        let tree = tree_of(&filesystem, &format!("btrfs/subvolumes/{parent}"));
        let made = dir.snapshot(layer.to_string().as_bytes(), tree, false).expect("a layer");
        let file = made
            .create(format!("layer-{layer}").as_bytes(), NewInode::file(0o644))
            .expect("a file");
        file.write_at(0, format!("layer {layer}\n").as_bytes()).expect("a line");
        let below = format!("layer-{parent}");
        if made.lookup(below.as_bytes()).is_ok() {
            made.unlink(below.as_bytes()).expect("a file less");
        }
    }
    for layer in (0..count).filter(|layer| layer % 3 == 1) {
        dir.delete_subvolume(layer.to_string().as_bytes()).expect("a layer less");
    }
    drop(dir);
    dropped(&filesystem);
    close(filesystem);
    images.check();
    let here = manifest(images.paths());
    let mount = images.mount("");
    let linux = Manifest::of_folder(mount.path());
    here.assert_same("here", &linux, "Linux", Depth::Volume);
    let left = mount.shell("btrfs subvolume list . | wc -l");
    assert_eq!(left.trim(), (0..count).filter(|layer| layer % 3 != 1).count().to_string());
    mount.shell("cd btrfs/subvolumes; for l in *2; do btrfs -q subvolume delete $l; done; btrfs subvolume sync .");
    mount.unmount();
    images.check();
}
