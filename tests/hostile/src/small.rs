//! Small volumes with every kind of item that files cause, in as few nodes as possible. So work on
//! such a volume is short, and random damage meets many different items.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::CsumType;
use buttress_fs::{
    FallocateMode, Filesystem, Inode, InodeFlags, MakeOptions, MountOptions, NewInode, RenameFlags,
    SetAttr, XattrFlags,
};

use crate::targets;

/// Names of one file. They are too many for the item of the first name.
const NAMES: u64 = 30;

/// The options in which small volumes differ.
#[derive(Clone, Copy, Debug)]
pub struct Make {
    /// Data and metadata share block groups.
    pub mixed: bool,
    /// The checksum of nodes and data.
    pub csum: CsumType,
}

impl Make {
    /// The usual options.
    pub const PLAIN: Self = Self { mixed: false, csum: CsumType::Crc32c };
}

/// A small volume, in use when its power was cut: a file without a name waits to be removed.
///
/// # Panics
///
/// If the volume cannot be made.
#[must_use]
pub fn filled(make: Make) -> MemoryDevice {
    let device = Arc::new(MemoryDevice::new(targets::IMAGE_LEN));
    let Make { mixed, csum } = make;
    let options =
        MakeOptions { seed: Some(1), nodesize: 4096, mixed, csum, ..MakeOptions::default() };
    buttress_fs::make::make(&*device, &options).expect("a new volume");
    let filesystem = open(device.clone(), "rw,compress=zlib");
    fill(&filesystem);
    let nameless = filesystem.root().tmpfile(0o600, 0, 0).expect("room");
    nameless.write_at(0, &[b'n'; 9000]).expect("room");
    filesystem.sync().expect("a good volume");
    let left = device.fork();
    drop(nameless);
    filesystem.close().expect("a good volume");
    left
}

/// A volume as [`filled`] makes it, with further changes that only a log has.
///
/// # Panics
///
/// If the volume cannot be made.
#[must_use]
pub fn logged() -> MemoryDevice {
    let device = Arc::new(filled(Make::PLAIN));
    let filesystem = open(device.clone(), "rw,noatime,commit=3000");
    let root = filesystem.root();
    let folder = root.lookup(b"folder").expect("it is there");
    for number in 0..4_u64 {
        let made = folder.create(format!("logged {number}").as_bytes(), NewInode::file(0o644));
        let made = made.expect("a new name");
        made.write_at(number * 5000, &[number as u8; 6000]).expect("room");
        made.set_xattr(b"user.log", b"yes", XattrFlags::default()).expect("room");
        folder.link(&made, format!("again {number}").as_bytes()).expect("a new name");
        made.sync().expect("a good volume");
    }
    folder.unlink(b"raw").expect("it is there");
    folder.rename(b"short", &root, b"long", RenameFlags::default()).expect("it is there");
    folder.sync().expect("a good volume");
    let packed = folder.lookup(b"packed").expect("it is there");
    packed.fallocate(4096, 8192, FallocateMode::PunchHole).expect("room");
    packed.sync().expect("a good volume");
    // The copy is the state after a power cut.
    let left = device.fork();
    drop((root, folder, packed));
    filesystem.close().expect("a good volume");
    left
}

fn open(device: Arc<dyn Device>, options: &str) -> Filesystem {
    let mut options = MountOptions::parse(options).expect("known options");
    options.background = false;
    Filesystem::open(vec![device], options).expect("a good volume")
}

fn file(folder: &Inode, name: &str, at: u64, bytes: &[u8]) -> Inode {
    let made =
        folder.create(name.as_bytes(), NewInode::file(0o644).owner(1, 2)).expect("a new file");
    made.write_at(at, bytes).expect("room");
    made
}

fn fill(filesystem: &Filesystem) {
    let root = filesystem.root();
    let mut rng = Rng::new(5);
    let mut random = |len: usize| {
        let mut bytes = vec![0; len];
        rng.fill(&mut bytes);
        bytes
    };
    let folder = root.mkdir(b"folder", 0o755, 0, 0).expect("a new folder");
    drop(file(&folder, "short", 0, b"in the tree"));
    drop(file(&folder, "packed", 0, &[b'a'; 20_000]));
    for codec in ["zlib", "lzo", "zstd"] {
        // The file is compressed and inline, so that damage reaches the decompressor with all
        // checksums right.
        let tiny = folder.create(codec.as_bytes(), NewInode::file(0o644)).expect("a new file");
        let value = codec.as_bytes();
        tiny.set_xattr(b"btrfs.compression", value, XattrFlags::default()).expect("known");
        let text: Vec<u8> = (0..3500_u32).map(|at| (at % 37 * (at / 400)) as u8).collect();
        tiny.write_at(0, &text).expect("room");
    }
    let raw = file(&folder, "raw", 9000, &random(12_000));
    raw.set_xattr(b"user.x", &random(200), XattrFlags::default()).expect("room");
    raw.fallocate(40_960, 16_384, FallocateMode::Allocate { keep_size: true }).expect("room");
    folder.symlink(b"away", b"../folder", 0, 0).expect("a new link");
    drop(folder.create(b"fifo", NewInode::fifo(0o644)).expect("a new fifo"));
    drop(folder.create(b"device", NewInode::char_device(0o644, 0x103)).expect("a new device"));

    let in_place = root.create(b"in place", NewInode::file(0o644)).expect("a new file");
    let flags = SetAttr { flags: Some(InodeFlags::NODATACOW), ..SetAttr::default() };
    in_place.set_attr(&flags).expect("it is empty");
    in_place.write_at(0, &random(8192)).expect("room");
    raw.clone_range(12_288, &file(&root, "clone", 0, &random(8192)), 4096, 4096).expect("room");
    // Makes more names than the first item has room for, of one file and in one folder.
    let many = file(&root, "many", 0, &random(100));
    let names = folder.mkdir(b"names", 0o700, 0, 0).expect("a new folder");
    for number in 0..NAMES {
        let name = format!("{number} {}", "n".repeat(110));
        names.link(&many, name.as_bytes()).expect("a new name");
    }
    filesystem.sync().expect("a good volume");

    let sub = root.create_subvolume(b"sub", 0o755, 0, 0).expect("room");
    let shared = file(&sub, "shared", 0, &random(10_000));
    shared.sync().expect("a good volume");
    drop(root.snapshot(b"snapshot", sub.id().tree, true).expect("room"));
    shared.write_at(4096, &random(4096)).expect("room");
}
