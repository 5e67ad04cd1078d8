//! What we write, judged by Linux: its checker, its kernel, its scrub and its balance.

use buttress_block::{Device, FileDevice};
use buttress_format::{CsumType, Profile};
use buttress_fs::make::{Features, make_on};
use buttress_fs::{Filesystem, MakeOptions};
use buttress_interop::linux::{Images, has_linux_btrfs, has_program};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};

use crate::open::{close, manifest, open_with};

/// Rounds in which we write and Linux writes.
const ROUNDS: u64 = 3;
/// Size in MiB of devices on which Linux can balance three and four copies: on 2 GiB it finds no space for
/// that, on volumes of its own neither.
const ROOMY: u64 = 6 << 10;

struct Row {
    devices: usize,
    mib: u64,
    options: MakeOptions,
    mount: &'static str,
    ours: &'static str,
    scale: Scale,
}

impl Default for Row {
    fn default() -> Self {
        let options = MakeOptions { seed: Some(1), ..MakeOptions::default() };
        let scale = Scale::default();
        Self { devices: 1, mib: 512, options, mount: "", ours: "rw,noatime", scale }
    }
}

impl Row {
    fn with(change: impl FnOnce(&mut MakeOptions)) -> Self {
        let mut row = Self::default();
        change(&mut row.options);
        row
    }

    fn packed(ours: &'static str, mount: &'static str) -> Self {
        Self { ours, mount, ..Self::default() }
    }

    /// Data and metadata spread alike.
    fn profile(profile: Profile, devices: usize) -> Self {
        let row = Self::with(|options| {
            options.metadata = Some(profile);
            options.data = Some(profile);
        });
        Self { devices, ..row }
    }

    fn features(list: &str) -> Self {
        Self::with(|options| options.features = Features::parse(list).expect("known features"))
    }

    /// We fill a volume of ours; Linux and we change it in turns; whoever comes next must see
    /// what the last one saw.
    #[track_caller]
    fn goes_back_and_forth(self) {
        if !has_linux_btrfs() && !has_program("btrfs") {
            return;
        }
        let images = Images::new(self.devices, self.mib << 20);
        let mut options = self.options.clone();
        if self.devices > 1 {
            // Linux knows volumes on several devices by their identifiers: no two tests may share one.
            options.seed = None;
        }
        let create = |path| FileDevice::create(path, self.mib << 20).expect("the image opens");
        let devices: Vec<_> = images.paths().iter().map(create).collect();
        let parts: Vec<_> = devices.iter().map(|device| device as &dyn Device).collect();
        make_on(&parts, &options).expect("a new volume");
        drop(devices);
        images.check();

        let mut ours = written(&images, self.ours, |library| fill(library, &self.scale));
        if !has_linux_btrfs() {
            return;
        }
        for round in 1..=ROUNDS {
            let mount = images.mount(self.mount);
            let linux = Manifest::of_folder(mount.path());
            ours.assert_same("what we wrote", &linux, "Linux", Depth::Volume);
            if round == ROUNDS {
                return self.ends(&images, mount);
            }
            change(&Folder::new(mount.path()), &self.scale, 2 * round - 1);
            mount.unmount();
            let mount = images.mount("ro");
            let linux = Manifest::of_folder(mount.path());
            mount.unmount();
            linux.assert_same("Linux", &manifest(images.paths()), "round", Depth::Volume);
            ours = written(&images, self.ours, |library| change(library, &self.scale, 2 * round));
        }
    }

    /// Linux moves every chunk and reads every copy, and finds nothing to complain of.
    #[track_caller]
    fn ends(&self, images: &Images, mount: buttress_interop::linux::Mount) {
        let scrub = mount.btrfs("scrub start -B -R");
        for line in scrub.lines().filter(|line| line.contains("errors:")) {
            assert!(line.trim_end().ends_with(" 0"), "scrub: {scrub}");
        }
        mount.btrfs("balance start --full-balance");
        let linux = Manifest::of_folder(mount.path());
        mount.unmount();
        images.check();
        let ours = manifest(images.paths());
        linux.assert_same("Linux after a balance", &ours, "the library", Depth::Volume);
    }
}

/// Writes through the library and returns what it says there is, before and after a remount.
#[track_caller]
fn written(images: &Images, options: &str, write: impl FnOnce(&Library)) -> Manifest {
    let filesystem: Filesystem = open_with(images.paths(), options);
    assert_eq!(filesystem.read_only_reason(), None);
    write(&Library::new(&filesystem));
    filesystem.sync().expect("a sync");
    let before = Manifest::of_library(&filesystem);
    close(filesystem);
    images.check();
    let after = manifest(images.paths());
    before.assert_same("before closing", &after, "after opening again", Depth::Volume);
    after
}

macro_rules! rows {
    ($($(#[$about:meta])+ $name:ident: $row:expr;)+) => {$(
        $(#[$about])+
        #[test]
        fn $name() {
            $row.goes_back_and_forth();
        }
    )+};
}

rows! {
    /// As btrfs-progs makes them today, the block-group tree included.
    defaults: Row::default();
    /// Small nodes: four levels.
    nodes_of_4k: Row::with(|options| options.nodesize = 4096);
    /// Large nodes.
    nodes_of_64k: Row::with(|options| options.nodesize = 65536);
    /// One copy of the trees.
    single: Row::with(|options| options.metadata = Some(Profile::Single));
    /// Data twice on its only device, too.
    dup: Row::profile(Profile::Dup, 1);
    /// Everything in one copy, over two devices.
    single_on_two: Row::profile(Profile::Single, 2);
    /// Stripes over three devices.
    raid0: Row::profile(Profile::Raid0, 3);
    /// Two copies on two of three devices.
    raid1: Row::profile(Profile::Raid1, 3);
    /// Three copies.
    raid1c3: Row { mib: ROOMY, ..Row::profile(Profile::Raid1c3, 3) };
    /// Four copies.
    raid1c4: Row { mib: ROOMY, ..Row::profile(Profile::Raid1c4, 4) };
    /// Stripes of two copies.
    raid10: Row::profile(Profile::Raid10, 4);
    /// Data and metadata in the same block groups.
    mixed: Row::with(|options| {
        options.mixed = true;
        options.nodesize = 4096;
    });
    /// The same, in two copies.
    mixed_raid1: Row {
        devices: 2,
        ..Row::with(|options| {
            options.mixed = true;
            options.nodesize = 4096;
            options.metadata = Some(Profile::Raid1);
        })
    };
    /// The checksum xxhash64.
    checksum_xxhash: Row::with(|options| options.csum = CsumType::Xxhash64);
    /// The checksum SHA-256.
    checksum_sha256: Row::with(|options| options.csum = CsumType::Sha256);
    /// The checksum BLAKE2b.
    checksum_blake2: Row::with(|options| options.csum = CsumType::Blake2b);
    /// Block groups in the extent tree, as most volumes have them.
    no_block_group_tree: Row::features("^block-group-tree");
    /// No free-space tree either.
    no_free_space_tree: Row {
        mount: "nospace_cache",
        ..Row::features("^block-group-tree,^free-space-tree")
    };
    /// Holes are items.
    explicit_holes: Row::features("^block-group-tree,^no-holes");
    /// Larger records of nodes.
    no_skinny_metadata: Row::features("^skinny-metadata");
    /// Compressed with zlib, and by Linux with zstd.
    packed_zlib: Row::packed("compress-force=zlib,noatime", "compress-force=zstd");
    /// Compressed with LZO, and by Linux with zlib.
    packed_lzo: Row::packed("compress-force=lzo,noatime", "compress-force=zlib");
    /// Compressed with zstd where it looks worth it, and by Linux with LZO.
    packed_zstd: Row::packed("compress=zstd:1,noatime", "compress=lzo");
    /// A full item of names is the end.
    no_extended_refs: Row {
        scale: Scale { links: 150, ..Scale::default() },
        ..Row::features("^extref")
    };
}
