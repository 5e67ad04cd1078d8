//! The memory of inodes that the kernel knows, counted by an allocator of this test's own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_fs::make::{MakeOptions, make};
use buttress_fs::{Filesystem, MountOptions, NewInode};
use buttress_fuse::{KernelSync, Options};
use buttress_test_program::is_met;

/// The most bytes of a known inode of which nothing is open or dirty.
const IDLE_MAX: isize = 100;

/// The most bytes of a handle, which `stats` counts as 1.5 KiB. Locks of a debug build take more.
const HANDLE_MAX: isize = 1700;

const NAMES: usize = 1000;

/// The bytes that this process has allocated.
static HELD: AtomicIsize = AtomicIsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every request goes unchanged to the system's allocator, and its answer is returned.
#[expect(unsafe_code, reason = "an allocator is unsafe")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        HELD.fetch_add(len as isize - layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(at, layout, len) }
    }
}

fn open(image: &Path) -> Filesystem {
    let options = OpenOptions { write: true, ..OpenOptions::default() };
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, options).expect("the image"));
    // So little memory for nodes that it is full soon, and does not grow with the inodes.
    let options = MountOptions::parse("rw,noatime").expect("options").with_memory(4 << 20);
    Filesystem::open(vec![device], options).expect("it opens")
}

/// Makes a volume with folders of small files.
fn filled(image: &Path, folders: usize) {
    let device = FileDevice::create(image, 1 << 30).expect("a sparse file");
    make(&device, &MakeOptions::default()).expect("an empty volume");
    drop(device);
    let fs = open(image);
    for folder in 0..folders {
        let name = format!("d{folder}");
        let folder = fs.root().mkdir(name.as_bytes(), 0o755, 0, 0).expect("a folder");
        for number in 0..NAMES {
            let name = format!("f{number}");
            drop(folder.create(name.as_bytes(), NewInode::file(0o644)).expect("a file"));
        }
    }
    fs.close().expect("closed");
}

/// Mounts the image, runs `work`, and unmounts.
fn with_mount(image: &Path, place: &Path, options: &Options, work: impl FnOnce(&KernelSync)) {
    let fs = open(image);
    let session = buttress_fuse::mount(fs.clone(), place, options).expect("a mount");
    let (unmounter, kernel_sync) = (session.unmounter(), session.kernel_sync());
    let serving = session.start().expect("it is served");
    work(&kernel_sync);
    drop(kernel_sync);
    unmounter.unmount().expect("root may unmount");
    serving.wait().expect("the session ends well");
    fs.close().expect("closed");
}

/// Looks at all files of a folder. Then opens some, and writes some of these.
fn use_folder(place: &Path, folder: usize, opened: usize, written: usize) {
    let folder = place.join(format!("d{folder}"));
    for entry in fs::read_dir(&folder).expect("a listing") {
        let length = entry.expect("an entry").metadata().expect("attributes").size();
        assert!(length < 10);
    }
    for number in 0..opened {
        let path = folder.join(format!("f{number}"));
        let mut file = File::options().read(true).write(true).open(path).expect("it opens");
        file.read_to_end(&mut Vec::new()).expect("it reads");
        if number < written {
            file.write_all(b"content").expect("it is written");
        }
    }
}

/// The bytes of each further inode and of each further handle, while folders are used.
fn growth(known: &KernelSync, place: &Path, folders: std::ops::Range<usize>, opened: usize) {
    let commit = || File::open(place).expect("the top").sync_all().expect("a commit");
    commit();
    let (before, first) = (HELD.load(Ordering::Relaxed), known.known());
    let count = folders.len() * NAMES;
    folders.for_each(|folder| use_folder(place, folder, opened, opened / 10));
    commit();
    let (after, last) = (HELD.load(Ordering::Relaxed), known.known());
    let grown = after - before;
    let (inodes, handles) =
        (last.inodes - first.inodes, last.handles.saturating_sub(first.handles));
    println!("{grown} bytes for {inodes} inodes, {handles} more handles of {}", last.handles);
    assert!(inodes >= count, "the kernel was told of all");
    let idle = (inodes - handles) as isize;
    let most = idle * IDLE_MAX + handles as isize * HANDLE_MAX;
    assert!(grown <= most, "{grown} bytes for {idle} idle inodes and {handles} handles");
}

/// A known inode of which nothing is open or dirty takes at most 100 bytes, whether it was looked
/// at, opened or written. The exception is a bounded number of handles, of at most the size that
/// `stats` tells.
#[test]
fn an_idle_inode_takes_at_most_100_bytes() {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !is_met(can, "root and /dev/fuse") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (image, place) = (folder.path().join("image"), folder.path().join("mnt"));
    fs::create_dir(&place).expect("a place");
    filled(&image, 30);
    let mut options = Options::default();
    options.accept("noio_uring").expect("an option");
    with_mount(&image, &place, &options, |known| {
        (0..15).for_each(|folder| use_folder(&place, folder, 100, 10));
        let handles = known.known().handles;
        assert!(handles <= 2 * options.handles_max, "{handles} of {}", options.handles_max);
        growth(known, &place, 15..30, 100);
    });
    options.handles_max = 1 << 20;
    with_mount(&image, &place, &options, |known| {
        use_folder(&place, 0, 100, 10);
        growth(known, &place, 1..6, 100);
    });
}
