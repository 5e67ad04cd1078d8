//! Volumes to test on, and helpers with short names for frequent operations.

use std::sync::Arc;
use std::time::Duration;

use buttress_block::{Device, FileDevice, MemoryDevice, OpenOptions};
use buttress_format::DeviceId;
use buttress_fs::{Filesystem, Inode, InodeFlags, MakeOptions, MountOptions, NewInode, SetAttr};
use buttress_sim::{Log, Recorder};

/// A volume on a device in memory, made with default options.
pub(crate) fn memory(mib: u64) -> Arc<dyn Device> {
    memory_with(mib, &MakeOptions::default())
}

pub(crate) fn memory_with(mib: u64, options: &MakeOptions) -> Arc<dyn Device> {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(mib << 20));
    Filesystem::make(&*device, options).expect("an empty volume");
    device
}

pub(crate) fn mount(device: &Arc<dyn Device>) -> Filesystem {
    mount_with(device, "rw")
}

pub(crate) fn mount_with(device: &Arc<dyn Device>, options: &str) -> Filesystem {
    let options = MountOptions::parse(options).expect("options");
    Filesystem::open(vec![Arc::clone(device)], options).expect("a mount")
}

/// Copies a device in memory into a file, for tools that need a file.
pub(crate) fn save(device: &Arc<dyn Device>, path: &std::path::Path) {
    let file = FileDevice::create(path, device.len()).expect("an image");
    copy_to(&**device, &file);
    file.flush().expect("an image");
}

/// A copy of the content of a device, on a new device.
pub(crate) fn copy(device: &dyn Device) -> MemoryDevice {
    let copy = MemoryDevice::new(device.len());
    copy_to(device, &copy);
    copy
}

fn copy_to(device: &dyn Device, to: &dyn Device) {
    let mut block = vec![0; 1 << 20];
    let zeros = vec![0; block.len()];
    let mut offset = 0;
    while offset < device.len() {
        let len = block.len().min((device.len() - offset) as usize);
        device.read_at(offset, &mut block[..len]).expect("memory");
        // Compare whole blocks. A comparison byte by byte, in builds without optimisation, took a
        // quarter of the time of these tests.
        if block[..len] != zeros[..len] {
            to.write_at(offset, &block[..len]).expect("a write");
        }
        offset += len as u64;
    }
}

/// Opens an image that a test has made.
#[expect(dead_code, reason = "for tests that want a file from the start")]
pub(crate) fn file(path: &std::path::Path) -> Arc<dyn Device> {
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    Arc::new(FileDevice::open(path, options).expect("an image"))
}

pub(crate) fn file_with(dir: &Inode, name: &str, content: &[u8]) -> Inode {
    let inode = dir.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
    assert_eq!(inode.write_at(0, content).expect("a write"), content.len());
    inode
}

/// Mounts a volume, and records what is written to it, in pieces of 512 bytes.
pub(crate) fn recorded(base: &MemoryDevice) -> (Arc<Log>, Arc<Recorder>, Filesystem) {
    let log = Log::new();
    let recorder = log.device(base, 512);
    let fs = mount(&(Arc::clone(&recorder) as Arc<dyn Device>));
    (log, recorder, fs)
}

/// An empty file. Its data is overwritten in place.
pub(crate) fn nocow(fs: &Filesystem, name: &str) -> Inode {
    let file = fs.root().create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
    let flags = Some(InodeFlags::NODATACOW);
    file.set_attr(&SetAttr { flags, ..SetAttr::default() }).expect("flags");
    file
}

/// Waits until another thread's [`Filesystem::close`] refuses new work. Work that runs ends then.
pub(crate) fn wait_until_closing(fs: &Filesystem) {
    let begin = || fs.resize_device(DeviceId(1), 0, &mut |_| true).expect_err("no such length");
    while !begin().to_string().contains("being closed") {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until deleted subvolumes are gone from the trees.
pub(crate) fn drop_all(fs: &Filesystem) {
    for _ in 0..6000 {
        if fs.dying_subvolumes().expect("a list").is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("still there: {:?}", fs.dying_subvolumes());
}

/// A number that the environment may set.
pub(crate) fn setting(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub(crate) fn content(inode: &Inode) -> Vec<u8> {
    let mut bytes = vec![0; inode.attr().size as usize];
    let len = inode.read_at(0, &mut bytes).expect("a read");
    assert_eq!(len, bytes.len());
    bytes
}

/// Pseudo-random bytes, so that no two places have the same content by chance.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// The names of a directory, sorted.
pub(crate) fn list(dir: &Inode) -> Vec<String> {
    let mut names = Vec::new();
    dir.read_dir(0, |entry| {
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        std::ops::ControlFlow::Continue(())
    })
    .expect("a listing");
    names.sort();
    names
}
