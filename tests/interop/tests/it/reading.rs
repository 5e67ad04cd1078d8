//! What Linux writes, read here: one test a feature of the format.
//!
//! Linux makes the volume, mounts it, fills it and says what is in it; the library must see the
//! same, read-only first. Then it opens the volume for writing: either it says why it will not,
//! and leaves every byte as it was, or it changes the tree and Linux agrees with the result.

use std::path::PathBuf;

use buttress_interop::linux::{Images, Mount, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};

use crate::open::{close, manifest, open};

/// What happens when the volume is opened for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    /// It must work.
    Works,
    /// Either is right.
    Either,
}

struct Row {
    devices: usize,
    mib: u64,
    mkfs: &'static [&'static str],
    mount: &'static str,
    scale: Scale,
    /// What Linux does besides filling it.
    extra: fn(&Mount),
    writing: Writing,
}

impl Default for Row {
    fn default() -> Self {
        Self {
            devices: 1,
            mib: 512,
            mkfs: &[],
            mount: "",
            scale: Scale::default(),
            extra: |_| {},
            writing: Writing::Works,
        }
    }
}

impl Row {
    #[track_caller]
    fn reads_back(self) {
        if !has_linux_btrfs() {
            return;
        }
        let images = Images::new(self.devices, self.mib << 20);
        images.mkfs(self.mkfs);
        let mount = images.mount(self.mount);
        fill(&Folder::new(mount.path()), &self.scale);
        (self.extra)(&mount);
        mount.unmount();
        images.judge();
        compare_and_write(&images, self.mount, &self.scale, self.writing);
    }
}

/// What Linux shows of a volume that is not mounted.
fn shown_by_linux(images: &Images, options: &str) -> Manifest {
    let mount = images.mount(&format!("ro,{options}"));
    let manifest = Manifest::of_folder(mount.path());
    mount.unmount();
    manifest
}

#[track_caller]
fn compare_and_write(images: &Images, options: &str, scale: &Scale, writing: Writing) {
    let linux = shown_by_linux(images, options);
    let before = contents(images.paths());
    linux.assert_same("Linux", &manifest(images.paths()), "read-only", Depth::Volume);
    assert!(contents(images.paths()) == before, "reading changed the image");

    let filesystem = open(images.paths(), true);
    let reason = filesystem.read_only_reason();
    let ours = Manifest::of_library(&filesystem);
    linux.assert_same("Linux", &ours, "opened for writing", Depth::Volume);
    if let (Some(reason), Writing::Works) = (&reason, writing) {
        panic!("opened for writing, but: {reason}");
    }
    if reason.is_some() {
        close(filesystem);
        assert!(contents(images.paths()) == before, "a refused volume was changed");
        return;
    }
    change(&Library::new(&filesystem), scale, 1);
    filesystem.sync().expect("a sync");
    let changed = Manifest::of_library(&filesystem);
    close(filesystem);
    images.check();
    let linux = shown_by_linux(images, options);
    linux.assert_same("Linux", &changed, "what we wrote", Depth::Volume);
}

/// All that is in the files, as a fingerprint of their blocks.
fn contents(paths: &[PathBuf]) -> Vec<u64> {
    let folder = paths[0].parent().expect("images are in a folder");
    let manifest = Manifest::of_folder(folder);
    let image = |(path, entry): (&Vec<u8>, _)| {
        let entry: &buttress_interop::manifest::Entry = entry;
        path.ends_with(b".img").then_some(entry.content)
    };
    manifest.entries.iter().filter_map(image).collect()
}

/// One test a row.
macro_rules! rows {
    ($($(#[$about:meta])+ $name:ident: $row:expr;)+) => {$(
        $(#[$about])+
        #[test]
        fn $name() {
            $row.reads_back();
        }
    )+};
}

rows! {
    /// What Debian 12 makes when it is not asked for anything.
    defaults: Row::default();

    /// Nodes of 4 KiB: deep trees, and few items a leaf.
    nodes_of_4k: Row { mkfs: &["-n", "4k"], ..Row::default() };
    /// Nodes of 8 KiB.
    nodes_of_8k: Row { mkfs: &["-n", "8k"], ..Row::default() };
    /// Nodes of 32 KiB.
    nodes_of_32k: Row { mkfs: &["-n", "32k"], ..Row::default() };
    /// Nodes of 64 KiB.
    nodes_of_64k: Row { mkfs: &["-n", "64k"], ..Row::default() };

    /// The checksum xxhash64.
    checksum_xxhash: Row { mkfs: &["--csum", "xxhash"], writing: Writing::Either, ..Row::default() };
    /// The checksum SHA-256.
    checksum_sha256: Row { mkfs: &["--csum", "sha256"], writing: Writing::Either, ..Row::default() };
    /// The checksum BLAKE2b.
    checksum_blake2: Row { mkfs: &["--csum", "blake2"], writing: Writing::Either, ..Row::default() };

    /// One copy of everything.
    single: Row { mkfs: &["-m", "single", "-d", "single"], ..Row::default() };
    /// Two copies of everything on one device.
    dup: Row { mkfs: &["-m", "dup", "-d", "dup"], ..Row::default() };
    /// Data and metadata in the same block groups.
    mixed_groups: Row { mkfs: &["--mixed", "-n", "4k"], ..Row::default() };
    /// RAID0 over three devices.
    raid0: Row {
        devices: 3,
        mkfs: &["-m", "raid0", "-d", "raid0"],
        ..Row::default()
    };
    /// RAID1 over two devices.
    raid1: Row {
        devices: 2,
        mkfs: &["-m", "raid1", "-d", "raid1"],
        ..Row::default()
    };
    /// Three copies over three devices.
    raid1c3: Row {
        devices: 3,
        mkfs: &["-m", "raid1c3", "-d", "raid1c3"],
        ..Row::default()
    };
    /// Four copies over four devices.
    raid1c4: Row {
        devices: 4,
        mkfs: &["-m", "raid1c4", "-d", "raid1c4"],
        ..Row::default()
    };
    /// RAID10 over four devices.
    raid10: Row {
        devices: 4,
        mkfs: &["-m", "raid10", "-d", "raid10"],
        ..Row::default()
    };
    /// What several devices get by default.
    raid1_of_single: Row {
        devices: 2,
        mkfs: &["-m", "raid1", "-d", "single"],
        ..Row::default()
    };

    /// Holes are items.
    explicit_holes: Row { mkfs: &["-O", "^no-holes"], ..Row::default() };
    /// Records of tree nodes in their old, larger form.
    no_skinny_metadata: Row { mkfs: &["-O", "^skinny-metadata"], ..Row::default() };
    /// All names of an inode in one directory fit one item, or are refused.
    no_extended_refs: Row {
        mkfs: &["-O", "^extref"],
        scale: Scale { links: 150, ..Scale::default() },
        ..Row::default()
    };
    /// Free space remembered in files, the old way.
    space_cache_v1: Row {
        mkfs: &["-R", "^free-space-tree"],
        mount: "space_cache=v1",
        writing: Writing::Either,
        ..Row::default()
    };
    /// Free space remembered nowhere.
    no_space_cache: Row {
        mkfs: &["-R", "^free-space-tree"],
        mount: "nospace_cache",
        ..Row::default()
    };
    /// A volume as btrfs-progs of 2012 made them.
    all_features_off: Row {
        mkfs: &["-O", "^no-holes,^skinny-metadata,^extref", "-R", "^free-space-tree", "-n", "4k"],
        mount: "nospace_cache",
        scale: Scale { links: 40, collisions: 10, ..Scale::default() },
        ..Row::default()
    };

    /// zlib extents, inline and regular.
    compressed_zlib: Row { mount: "compress-force=zlib", writing: Writing::Either, ..Row::default() };
    /// LZO extents.
    compressed_lzo: Row { mount: "compress-force=lzo", writing: Writing::Either, ..Row::default() };
    /// zstd extents.
    compressed_zstd: Row { mount: "compress-force=zstd", writing: Writing::Either, ..Row::default() };
    /// All three in one file, cut up and shared.
    compressed_mixed: Row { extra: compress_variously, writing: Writing::Either, ..Row::default() };

    /// Extents that files share.
    reflinks: Row { extra: reflink, writing: Writing::Either, ..Row::default() };
    /// Files without checksums, overwritten in place.
    nodatacow: Row { extra: write_in_place, ..Row::default() };
    /// Subvolumes within subvolumes.
    subvolumes: Row { extra: nest_subvolumes, writing: Writing::Either, ..Row::default() };
    /// Snapshots, writable and not, of each other; some deleted again.
    snapshots: Row { extra: snapshot, writing: Writing::Either, ..Row::default() };
    /// A subvolume that is shown in place of the top.
    default_subvolume: Row { extra: set_default_subvolume, writing: Writing::Either, ..Row::default() };
    /// Quota groups are on.
    quotas: Row {
        extra: |mount| {
            mount.btrfs("quota enable");
        },
        writing: Writing::Either,
        ..Row::default()
    };

    /// Every chunk was moved once.
    balanced: Row {
        extra: |mount| {
            mount.btrfs("balance start --full-balance");
        },
        writing: Writing::Either,
        ..Row::default()
    };
    /// The device was made smaller, then larger.
    resized: Row {
        mib: 1024,
        extra: |mount| {
            mount.btrfs("filesystem resize 700m");
            mount.btrfs("filesystem resize 900m");
        },
        ..Row::default()
    };
    /// A device was added, and its chunks are of a second profile.
    device_added: Row { extra: add_device, writing: Writing::Either, ..Row::default() };
}

fn compress_variously(mount: &Mount) {
    mount.shell(
        "for kind in zlib lzo zstd; do
             mkdir $kind; btrfs property set $kind compression $kind
             cp big/words big/zeros holes/comb $kind; cp -r small/d000 $kind/small
         done
         sync
         cp --reflink=always zstd/words zstd/shared
         dd if=/dev/urandom of=zstd/words bs=1000 count=50 seek=333 conv=notrunc status=none
         fallocate --punch-hole --offset 300000 --length 70000 lzo/words
         truncate -s 1000001 zlib/words; truncate -s 2000001 zlib/words
         for kind in zlib lzo zstd; do
             btrfs filesystem defragment -c$kind big/backwards > /dev/null; sync
             dd if=big/noise of=big/backwards bs=4096 count=3 seek=10 conv=notrunc status=none
         done",
    );
}

fn reflink(mount: &Mount) {
    mount.shell(
        "mkdir shared; sync
         for number in $(seq 40); do cp --reflink=always big/noise shared/$number; done
         for number in $(seq 20); do
             dd if=/dev/urandom of=shared/$number bs=5000 count=3 seek=$((number * 7)) \
                 conv=notrunc status=none
         done
         rm shared/3*; sync
         cp --reflink=always small/d001/* shared/",
    );
}

fn write_in_place(mount: &Mount) {
    mount.shell(
        "mkdir in-place; chattr +C in-place
         cp big/noise in-place/file; sync
         dd if=/dev/urandom of=in-place/file bs=4000 count=100 seek=20 conv=notrunc status=none
         fallocate -l 3M in-place/allocated; sync
         dd if=/dev/urandom of=in-place/allocated bs=4k count=10 seek=99 conv=notrunc status=none
         cp -r small/d002 in-place/small",
    );
}

fn nest_subvolumes(mount: &Mount) {
    mount.shell(
        "btrfs -q subvolume create sub; btrfs -q subvolume create sub/within
         mkdir -p sub/within/deep/down; btrfs -q subvolume create sub/within/deep/down/lowest
         for at in sub sub/within sub/within/deep/down/lowest; do cp -a small links $at/; done
         btrfs -q subvolume create gone; cp -a small gone/; sync; btrfs -q subvolume delete gone",
    );
}

fn snapshot(mount: &Mount) {
    nest_subvolumes(mount);
    mount.shell(
        "btrfs -q subvolume snapshot sub writable
         btrfs -q subvolume snapshot -r sub read-only
         btrfs -q subvolume snapshot . whole
         rm -r writable/small/d00[0-4]; echo changed > writable/small/d007/new
         rm sub/small/d005/*; cp -a small/d003 sub/small/d005/
         for number in $(seq 12); do
             btrfs -q subvolume snapshot whole generation-$number
             echo $number > whole/generation; rm whole/small/d00$((number % 8))/file-000$((number % 10)).*
         done
         btrfs -q subvolume delete generation-3 generation-7 > /dev/null
         sync",
    );
}

fn set_default_subvolume(mount: &Mount) {
    mount.shell(
        "btrfs -q subvolume create top; cp -a --sparse=always [a-s]* times top/
         btrfs subvolume set-default top",
    );
}

fn add_device(mount: &Mount) {
    // The new chunks go to the same device: a profile is changed, not the count of devices.
    mount.btrfs("balance start -f -mconvert=single -sconvert=single");
    mount.shell("cp -a small copy");
}
