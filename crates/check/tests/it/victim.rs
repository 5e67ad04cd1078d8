//! The volume that tests damage. The engine makes it once, and each test has its own changes in
//! memory.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

use buttress_block::{Device, Error, MemoryDevice};
use buttress_fs::{
    FallocateMode, Filesystem, Inode, MakeOptions, MountOptions, NewInode, XattrFlags,
};

const BLOCK: u64 = 4096;

/// A device in front of another device. Writes stay in memory, and the device behind never gets
/// these writes.
#[derive(Debug)]
pub(crate) struct Overlay {
    base: Arc<dyn Device>,
    blocks: Mutex<HashMap<u64, Vec<u8>>>,
}

impl Overlay {
    pub(crate) fn new(base: Arc<dyn Device>) -> Self {
        Self { base, blocks: Mutex::default() }
    }

    /// The device as it would be after a power cut now.
    pub(crate) fn cut(&self) -> Arc<Self> {
        Arc::new(Self { base: Arc::clone(&self.base), blocks: Mutex::new(self.blocks()) })
    }

    /// Every block with a write.
    pub(crate) fn blocks(&self) -> HashMap<u64, Vec<u8>> {
        self.blocks.lock().expect("no test panics with it").clone()
    }

    /// Writes the bytes that are not zero into a sparse file of the same length.
    pub(crate) fn write_image(&self, path: &Path) {
        const PART: usize = 1 << 20;
        let file = File::create(path).expect("an image");
        file.set_len(self.len()).expect("its length");
        let mut part = vec![0; PART];
        for at in (0..self.len()).step_by(PART) {
            self.base.read_at(at, &mut part).expect("a read");
            if part.iter().any(|byte| *byte != 0) {
                file.write_all_at(&part, at).expect("a write");
            }
        }
        for (number, block) in self.blocks() {
            file.write_all_at(&block, number * BLOCK).expect("a write");
        }
    }

    /// Panics unless the device has the same bytes as when `blocks` were read.
    #[track_caller]
    pub(crate) fn expect_blocks(&self, blocks: &HashMap<u64, Vec<u8>>) {
        for (number, now) in self.blocks() {
            let mut then = vec![0; BLOCK as usize];
            self.base.read_at(number * BLOCK, &mut then).expect("a read");
            let then = blocks.get(&number).unwrap_or(&then);
            assert!(*then == now, "block {number} differs");
        }
    }
}

impl Device for Overlay {
    fn name(&self) -> String {
        "victim".to_owned()
    }

    fn len(&self) -> u64 {
        self.base.len()
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.base.read_at(offset, buf)?;
        let blocks = self.blocks.lock().expect("no test panics with it");
        let end = offset + buf.len() as u64;
        for number in offset / BLOCK..end.div_ceil(BLOCK) {
            if let Some(block) = blocks.get(&number) {
                let start = (number * BLOCK).max(offset);
                let stop = ((number + 1) * BLOCK).min(end);
                buf[(start - offset) as usize..(stop - offset) as usize].copy_from_slice(
                    &block[(start - number * BLOCK) as usize..(stop - number * BLOCK) as usize],
                );
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        let end = offset + buf.len() as u64;
        for number in offset / BLOCK..end.div_ceil(BLOCK) {
            let mut block = vec![0; BLOCK as usize];
            self.read_at(number * BLOCK, &mut block)?;
            let start = (number * BLOCK).max(offset);
            let stop = ((number + 1) * BLOCK).min(end);
            block[(start - number * BLOCK) as usize..(stop - number * BLOCK) as usize]
                .copy_from_slice(&buf[(start - offset) as usize..(stop - offset) as usize]);
            self.blocks.lock().expect("no test panics with it").insert(number, block);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), Error> {
        Ok(())
    }

    fn discard(&self, _: u64, _: u64) -> Result<(), Error> {
        Ok(())
    }
}

/// A volume with items of every kind.
pub(crate) fn victim() -> Arc<Overlay> {
    static BASE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    let base = BASE.get_or_init(|| make(&MakeOptions::default()));
    Arc::new(Overlay::new(Arc::clone(base)))
}

/// A volume like [`victim`], with items for holes, and with block groups in the extent tree.
pub(crate) fn old_victim() -> Arc<Overlay> {
    static BASE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        let mut options = MakeOptions::default();
        options.features.no_holes = false;
        options.features.block_group_tree = false;
        make(&options)
    });
    Arc::new(Overlay::new(Arc::clone(base)))
}

/// A volume with directories in each other: `a/b/c`, and `z` beside them. Each has a file.
pub(crate) fn nested_victim() -> Arc<Overlay> {
    static BASE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    let base = BASE.get_or_init(|| make_with(&MakeOptions::default(), fill_nested));
    Arc::new(Overlay::new(Arc::clone(base)))
}

/// A volume with nodes of 4 KiB and files enough that the tree has three levels.
pub(crate) fn deep_victim() -> Arc<Overlay> {
    static BASE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    let base = BASE.get_or_init(|| make_with(&small_nodes(), fill_deep));
    Arc::new(Overlay::new(Arc::clone(base)))
}

/// A volume with nodes of 4 KiB and a tree that is one leaf.
pub(crate) fn flat_victim() -> Arc<Overlay> {
    static BASE: OnceLock<Arc<dyn Device>> = OnceLock::new();
    let base = BASE.get_or_init(|| {
        make_with(&small_nodes(), |fs| {
            for name in [&b"one"[..], b"two", b"three"] {
                let file = fs.root().create(name, NewInode::file(0o644)).expect("a file");
                file.write_at(0, name).expect("a write");
            }
        })
    });
    Arc::new(Overlay::new(Arc::clone(base)))
}

pub(crate) fn small_nodes() -> MakeOptions {
    MakeOptions { nodesize: 4096, ..MakeOptions::default() }
}

fn fill_nested(fs: &Filesystem) {
    let root = fs.root();
    let file = |dir: &Inode, name: &str| {
        let file = dir.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
        file.write_at(0, name.repeat(30_000).as_bytes()).expect("a write");
    };
    let dir = |above: &Inode, name: &str| {
        let dir = above.mkdir(name.as_bytes(), 0o755, 0, 0).expect("a directory");
        file(&dir, &format!("in {name}"));
        dir
    };
    file(&root, "one");
    file(&root, "two");
    dir(&dir(&dir(&root, "a"), "b"), "c");
    dir(&root, "z");
}

fn fill_deep(fs: &Filesystem) {
    for outer in 0..3 {
        let name = format!("directory {outer}");
        let dir = fs.root().mkdir(name.as_bytes(), 0o755, 0, 0).expect("a directory");
        for number in 0..3000 {
            let name = format!("file {number} of directory {outer}");
            let file = dir.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
            if number % 8 == 0 {
                file.write_at(0, name.as_bytes()).expect("a write");
            }
        }
    }
}

fn make(options: &MakeOptions) -> Arc<dyn Device> {
    make_with(options, fill)
}

pub(crate) fn make_with(options: &MakeOptions, fill: impl FnOnce(&Filesystem)) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    Filesystem::make(&*device, options).expect("an empty volume");
    let options = MountOptions::parse("rw").expect("options");
    let fs = Filesystem::open(vec![Arc::clone(&device)], options).expect("a mount");
    fill(&fs);
    fs.close().expect("an unmount");
    device
}

fn fill(fs: &Filesystem) {
    let root = fs.root();
    let noise = |seed: u64, len: usize| {
        let mut bytes = vec![0; len];
        buttress_base::Rng::new(seed).fill(&mut bytes);
        bytes
    };
    let file = |name: &str| root.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
    let small = file("small");
    small.write_at(0, b"hello").expect("a write");
    small.set_xattr(b"user.colour", b"blue", XattrFlags::default()).expect("an attribute");
    let big = file("big");
    big.write_at(0, &noise(1, 300_000)).expect("a write");
    let sparse = file("sparse");
    sparse.write_at(1 << 20, &noise(2, 10_000)).expect("a write");
    let ahead = file("ahead");
    let mode = FallocateMode::Allocate { keep_size: false };
    ahead.fallocate(0, 1 << 20, mode).expect("an allocation");
    root.symlink(b"link", b"small", 0, 0).expect("a symbolic link");
    root.link(&small, b"second").expect("a link");
    let dir = root.mkdir(b"dir", 0o755, 0, 0).expect("a directory");
    for number in 0..500 {
        let name = format!("another name of the same small file, number {number:04}");
        dir.link(&small, name.as_bytes()).expect("a link");
    }
    for number in 0..200 {
        let name = format!("file {number}");
        let inode = dir.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
        inode.write_at(0, &noise(number, number as usize * 40)).expect("a write");
    }
}
