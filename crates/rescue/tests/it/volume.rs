//! Volumes with files of every kind, and the content of these files.

use std::collections::BTreeMap;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_format::{CsumType, Profile};
use buttress_fs::{Filesystem, Inode, MakeOptions, MountOptions, NewInode};

/// The content of files, by subvolume and inode number.
pub(crate) type Contents = BTreeMap<(u64, u64), Vec<u8>>;

/// A volume, and its files.
pub(crate) struct Made {
    pub(crate) devices: Vec<Arc<MemoryDevice>>,
    pub(crate) contents: Contents,
    /// Paths of files, from the top.
    pub(crate) paths: BTreeMap<(u64, u64), Vec<Vec<u8>>>,
}

/// Ways to make a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Nodes of 4 KiB: trees have inner nodes.
    Tall,
    /// The defaults of `mkfs`.
    Usual,
    /// Two devices, everything mirrored.
    Mirrored,
    /// Compressed, with another checksum.
    Packed,
}

pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Rng::new(seed).fill(&mut bytes);
    bytes
}

impl Shape {
    pub(crate) const ALL: [Self; 4] = [Self::Tall, Self::Usual, Self::Mirrored, Self::Packed];

    pub(crate) fn make(self) -> Made {
        let mut options = MakeOptions { seed: Some(7), ..MakeOptions::default() };
        let mut count = 1;
        match self {
            Self::Tall => options.nodesize = 4096,
            Self::Usual => {}
            Self::Mirrored => {
                count = 2;
                options.data = Profile::parse("raid1");
                options.nodesize = 4096;
            }
            Self::Packed => options.csum = CsumType::Xxhash64,
        }
        let devices: Vec<_> = (0..count).map(|_| Arc::new(MemoryDevice::new(300 << 20))).collect();
        let list: Vec<&dyn Device> = devices.iter().map(|device| &**device as _).collect();
        buttress_fs::make::make_on(&list, &options).expect("an empty volume");
        let list = if self == Self::Packed { "rw,compress-force=zstd" } else { "rw" };
        let fs = opened(&devices, list);
        let mut made = Made { devices, contents: Contents::new(), paths: BTreeMap::new() };
        fill(&fs, &mut made);
        fs.close().expect("an unmount");
        made
    }
}

pub(crate) fn opened(devices: &[Arc<MemoryDevice>], options: &str) -> Filesystem {
    let devices = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
    Filesystem::open(devices, MountOptions::parse(options).expect("options")).expect("a mount")
}

impl Made {
    pub(crate) fn file(&mut self, dir: &Inode, path: &str, content: Vec<u8>) -> Inode {
        let name = path.rsplit('/').next().expect("a name").as_bytes();
        let inode = dir.create(name, NewInode::file(0o640).owner(1, 2)).expect("a file");
        inode.write_at(0, &content).expect("a write");
        self.note(&inode, path, content);
        inode
    }

    pub(crate) fn note(&mut self, inode: &Inode, path: &str, content: Vec<u8>) {
        let id = inode.id();
        self.contents.insert((id.tree.0, id.ino.0), content);
        let paths = self.paths.entry((id.tree.0, id.ino.0)).or_default();
        paths.push(path.as_bytes().to_vec());
    }
}

fn fill(fs: &Filesystem, made: &mut Made) {
    let root = fs.root();
    for number in 0..120_u64 {
        let name = format!("file {number}");
        made.file(&root, &name, noise(number, 20 + number as usize * 97));
        if number.is_multiple_of(40) {
            fs.sync().expect("a commit");
        }
    }
    let big = made.file(&root, "big", noise(1000, 700_000));
    big.set_xattr(b"user.colour", b"blue", buttress_fs::XattrFlags::default())
        .expect("an attribute");
    root.link(&big, b"second").expect("a link");
    made.paths.get_mut(&(5, big.id().ino.0)).expect("noted").push(b"second".to_vec());
    let text: Vec<u8> = (0..400_000_u32).map(|at| (at / 100) as u8).collect();
    made.file(&root, "text", text);
    let mut sparse = vec![0; 1 << 20];
    sparse.extend(noise(1001, 10_000));
    let inode = root.create(b"sparse", NewInode::file(0o644)).expect("a file");
    inode.write_at(1 << 20, &sparse[1 << 20..]).expect("a write");
    made.note(&inode, "sparse", sparse);
    root.symlink(b"link", b"file 1", 0, 0).expect("a symbolic link");
    fs.sync().expect("a commit");
    let dir = root.mkdir(b"dir", 0o755, 0, 0).expect("a directory");
    for number in 0..80_u64 {
        let path = format!("dir/entry {number}");
        made.file(&dir, &path, noise(2000 + number, 5000 + number as usize * 13));
    }
    fs.sync().expect("a commit");
    let sub = root.create_subvolume(b"sub", 0o755, 0, 0).expect("a subvolume");
    for number in 0..60_u64 {
        let path = format!("sub/item {number}");
        made.file(&sub, &path, noise(3000 + number, 3000 + number as usize * 31));
    }
    fs.sync().expect("a commit");
    root.snapshot(b"snap", sub.id().tree, false).expect("a snapshot");
    let snap = root.lookup(b"snap").expect("the snapshot");
    for number in 0..60_u64 {
        let name = format!("item {number}");
        let inode = snap.lookup(name.as_bytes()).expect("an item");
        let content = noise(3000 + number, 3000 + number as usize * 31);
        made.note(&inode, &format!("snap/{name}"), content);
    }
    made.file(&snap, "snap/own", noise(4000, 9000));
    fs.sync().expect("a commit");
}
