//! Snapshots that Linux made are written here, and snapshots that are made here are written by
//! Linux.

use buttress_interop::linux::{Images, Mount, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};

use crate::open::{close, drop_all, manifest, open_with};

struct Row {
    mkfs: &'static [&'static str],
    mount: &'static str,
    /// The work of Linux on the volume between its snapshots and our writes.
    then: &'static str,
    scale: Scale,
}

impl Default for Row {
    fn default() -> Self {
        let scale =
            Scale { dirs: 4, files: 20, big_bytes: 1 << 20, links: 100, ..Scale::default() };
        Self { mkfs: &[], mount: "", then: "", scale }
    }
}

/// Writes into one subvolume through the library, and runs `btrfs check`.
#[track_caller]
fn write_into(images: &Images, subvolume: &str, write: impl FnOnce(&Library)) {
    let filesystem = open_with(images.paths(), &format!("rw,noatime,subvol={subvolume}"));
    assert_eq!(filesystem.read_only_reason(), None);
    write(&Library::new(&filesystem));
    filesystem.sync().expect("a sync");
    close(filesystem);
    images.check();
}

/// A subvolume through the library.
#[track_caller]
fn of(images: &Images, subvolume: &str) -> Manifest {
    let filesystem = open_with(images.paths(), &format!("ro,noatime,subvol={subvolume}"));
    let manifest = Manifest::of_library(&filesystem);
    close(filesystem);
    manifest
}

fn folder(mount: &Mount, name: &str) -> Folder {
    Folder::new(&mount.path().join(name))
}

#[track_caller]
fn same_everywhere(images: &Images, options: &str) {
    let mount = images.mount(&format!("ro,{options}"));
    let linux = Manifest::of_folder(mount.path());
    mount.unmount();
    linux.assert_same("Linux", &manifest(images.paths()), "the library", Depth::Volume);
}

impl Row {
    #[track_caller]
    fn linux_snapshots_are_written_here(self) {
        if !has_linux_btrfs() {
            return;
        }
        let images = Images::new(1, 512 << 20);
        images.mkfs(self.mkfs);
        let mount = images.mount(self.mount);
        mount.shell("btrfs -q subvolume create live");
        fill(&folder(&mount, "live"), &self.scale);
        mount.shell(
            "btrfs -q subvolume create live/nested; echo nested > live/nested/file; \
             sync; btrfs -q subvolume snapshot -r live first",
        );
        change(&folder(&mount, "live"), &self.scale, 1);
        mount.shell(
            "btrfs -q subvolume snapshot live second; btrfs -q subvolume snapshot -r second third; \
             btrfs -q subvolume snapshot -r live live/inside",
        );
        mount.shell(self.then);
        mount.unmount();
        images.check();
        let frozen = ["first", "third", "live/inside"];
        let before = frozen.map(|name| of(&images, name));

        write_into(&images, "live", |library| change(library, &self.scale, 2));
        write_into(&images, "second", |library| change(library, &self.scale, 2));
        write_into(&images, "live", |library| change(library, &self.scale, 3));
        same_everywhere(&images, self.mount);

        // Linux continues, and deletes the users of the shared nodes one by one.
        let mount = images.mount(self.mount);
        change(&folder(&mount, "live"), &self.scale, 4);
        for (name, before) in frozen.iter().zip(&before) {
            let now = Manifest::of_folder(&mount.path().join(name));
            before.assert_same("a snapshot before", &now, "and after", Depth::Volume);
        }
        mount.shell("btrfs -q subvolume delete first; btrfs subvolume sync .");
        mount.unmount();
        images.check();
        write_into(&images, "second", |library| change(library, &self.scale, 3));
        write_into(&images, "live", |library| change(library, &self.scale, 5));
        let mount = images.mount(self.mount);
        mount.shell("btrfs -q subvolume delete second; btrfs subvolume sync .");
        mount.btrfs("balance start --full-balance");
        mount.unmount();
        images.check();
        write_into(&images, "live", |library| change(library, &self.scale, 6));
        same_everywhere(&images, self.mount);
        let third = of(&images, "third");
        before[1].assert_same("a snapshot before", &third, "and after", Depth::Volume);
    }
}

macro_rules! rows {
    ($($(#[$about:meta])+ $name:ident: $row:expr;)+) => {$(
        $(#[$about])+
        #[test]
        fn $name() {
            $row.linux_snapshots_are_written_here();
        }
    )+};
}

rows! {
    /// The defaults of btrfs-progs.
    defaults: Row::default();
    /// Small nodes, so that nodes are shared on many levels.
    nodes_of_4k: Row { mkfs: &["-n", "4096"], ..Row::default() };
    /// A balance leaves full back references behind.
    after_a_balance: Row { then: "btrfs balance start --full-balance .", ..Row::default() };
    /// A balance with shared nodes on many levels, and with the larger records of nodes.
    after_a_balance_of_4k: Row {
        mkfs: &["-n", "4096", "-O", "^skinny-metadata"],
        then: "btrfs balance start --full-balance .",
        ..Row::default()
    };
    /// Files that are written in place, except for shared parts.
    nodatacow: Row { mount: "nodatacow", ..Row::default() };
    /// The original is deleted before its snapshots.
    the_original_is_gone: Row {
        then: "btrfs -q subvolume snapshot live copy; btrfs -q subvolume delete live/inside; \
               btrfs -q subvolume delete live/nested; btrfs -q subvolume delete live; \
               btrfs subvolume sync .; mv copy live; btrfs -q subvolume snapshot -r second live/inside2; \
               rmdir live/inside; mv live/inside2 live/inside",
        ..Row::default()
    };
}

/// Deletes subvolumes at the top, and waits until their space is freed.
#[track_caller]
fn delete_here(images: &Images, names: &[&str]) {
    let filesystem = open_with(images.paths(), "rw,noatime,subvolid=5");
    for name in names {
        filesystem.root().delete_subvolume(name.as_bytes()).expect("a deletion");
    }
    filesystem.sync().expect("a sync");
    drop_all(&filesystem);
    close(filesystem);
    images.check();
}

/// Snapshots made here: Linux treats these snapshots as its own, changes them and deletes some. The
/// other snapshots are deleted here.
#[test]
pub(crate) fn snapshots_made_here_are_changed_by_linux() {
    if !has_linux_btrfs() {
        return;
    }
    for nodesize in ["16384", "4096"] {
        let scale = Row::default().scale;
        let images = Images::new(1, 512 << 20);
        images.mkfs(&["-n", nodesize]);
        let filesystem = open_with(images.paths(), "rw,noatime");
        let live = filesystem.root().create_subvolume(b"live", 0o755, 0, 0).expect("a subvolume");
        live.create_subvolume(b"nested", 0o700, 1, 2).expect("a subvolume");
        drop(live);
        close(filesystem);
        write_into(&images, "live", |library| fill(library, &scale));
        let snapshot = |source: &str, name: &str, read_only: bool| {
            let filesystem = open_with(images.paths(), "rw,noatime");
            let tree = filesystem.resolve(source).expect("the source").id().tree;
            let made = filesystem.root().snapshot(name.as_bytes(), tree, read_only);
            drop(made.expect("a snapshot"));
            close(filesystem);
        };
        snapshot("live", "first", true);
        write_into(&images, "live", |library| change(library, &scale, 1));
        snapshot("live", "second", false);
        snapshot("second", "third", true);
        write_into(&images, "second", |library| change(library, &scale, 2));
        let (first, third) = (of(&images, "first"), of(&images, "third"));
        same_everywhere(&images, "");

        let mount = images.mount("");
        let said = mount.shell(
            "btrfs subvolume list -t . | wc -l; btrfs property get first ro; \
             btrfs property get second ro; btrfs subvolume show first | grep -c UUID; \
             btrfs subvolume show live | sed -n '/Snapshot/,$p' | grep -c -e first -e second",
        );
        assert_eq!(said, "7\nro=true\nro=false\n3\n2\n");
        change(&folder(&mount, "live"), &scale, 2);
        change(&folder(&mount, "second"), &scale, 3);
        mount.shell("btrfs -q subvolume snapshot second fourth");
        mount.btrfs("balance start --full-balance");
        mount.shell("btrfs -q subvolume delete second; btrfs subvolume sync .");
        let now = Manifest::of_folder(&mount.path().join("first"));
        first.assert_same("a snapshot before", &now, "and after", Depth::Volume);
        mount.unmount();
        images.check();
        write_into(&images, "live", |library| change(library, &scale, 3));
        delete_here(&images, &["first"]);
        third.assert_same("before", &of(&images, "third"), "after", Depth::Volume);

        // Linux deletes the subvolumes, the nested subvolume first, and leaves the dropping to us.
        let mount = images.mount("");
        mount.shell(
            "btrfs -q subvolume delete live/nested; btrfs -q subvolume delete --commit-after live",
        );
        mount.unmount();
        let filesystem = open_with(images.paths(), "rw,noatime");
        drop_all(&filesystem);
        close(filesystem);
        images.check();
        same_everywhere(&images, "");
        third.assert_same("before", &of(&images, "third"), "after", Depth::Volume);
        delete_here(&images, &["third", "fourth"]);
        let mount = images.mount("");
        assert_eq!(mount.shell("btrfs subvolume list . | wc -l"), "0\n");
        mount.btrfs("scrub start -B");
        mount.unmount();
        images.check();
    }
}

/// Linux finds subvolumes that are moved here, and we find subvolumes that Linux moves.
#[test]
pub(crate) fn subvolumes_are_moved() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 256 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    mount.shell(
        "btrfs -q subvolume create a; btrfs -q subvolume create a/b; btrfs -q subvolume create c; \
         echo deep > a/b/file; mkdir dir; btrfs -q subvolume snapshot a/b dir/copy",
    );
    mount.unmount();
    let filesystem = open_with(images.paths(), "rw,noatime");
    let moves = |from: &str, to: &str| {
        let (source, old) = from.rsplit_once('/').unwrap_or(("", from));
        let (target, new) = to.rsplit_once('/').unwrap_or(("", to));
        let dir = |path: &str| filesystem.resolve(path).expect("a directory");
        let flags = buttress_fs::RenameFlags::default();
        dir(source).rename(old.as_bytes(), &dir(target), new.as_bytes(), flags).expect("a move");
    };
    moves("a/b", "c/b");
    moves("dir/copy", "copy");
    moves("c", "dir/c");
    close(filesystem);
    images.check();
    let mount = images.mount("");
    let listed =
        mount.shell("btrfs subvolume list . | sed 's/.* path //' | sort; cat dir/c/b/file");
    assert_eq!(listed, "a\ncopy\ndir/c\ndir/c/b\ndeep\n");
    mount.shell("mv dir/c/b a/b; mv copy a/copy; btrfs -q subvolume delete a/copy");
    mount.unmount();
    images.check();
    same_everywhere(&images, "");
}
