//! Volumes with every kind of item that files cause: ours and Linux's.

use std::process::{Command, Stdio};
use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, FileDevice, MemoryDevice, OpenOptions};
use buttress_format::CsumType;
use buttress_fs::{Filesystem, MountOptions, NewInode, XattrFlags};

use crate::image::Image;
use crate::small::{self, Make};
use crate::targets;

/// Volumes to damage: ours, and Linux's with small nodes and large ones, if `mkfs.btrfs` is here.
///
/// # Panics
///
/// If a volume cannot be made.
#[must_use]
pub fn bases() -> Vec<Image> {
    let linux = [4096, 16384].into_iter().filter_map(|nodesize| linux(nodesize, "crc32c"));
    std::iter::once(filled()).chain(linux).map(Image::scan).collect()
}

/// Small volumes to damage: ours, ours with mixed groups, and Linux's, if `mkfs.btrfs` is here.
///
/// # Panics
///
/// If a volume cannot be made.
#[must_use]
pub fn small_bases() -> Vec<Image> {
    let ours = [(false, CsumType::Crc32c), (true, CsumType::Xxhash64)];
    let ours = ours.map(|(mixed, csum)| small::filled(Make { mixed, csum }));
    let linux =
        [4096, 16384].into_iter().filter_map(|nodesize| filled_by_linux(nodesize, "crc32c", 5));
    ours.into_iter().chain(linux).map(Image::scan).collect()
}

/// A volume that this program made and filled.
///
/// # Panics
///
/// If the volume cannot be filled.
#[must_use]
pub fn filled() -> MemoryDevice {
    let device = Arc::new(targets::fresh().fork());
    fill(device.clone());
    device.fork()
}

/// A volume as [`filled`] makes it, with further changes that only a log has.
///
/// # Panics
///
/// If the volume cannot be made.
#[must_use]
pub fn logged() -> MemoryDevice {
    let device = Arc::new(filled());
    let options = MountOptions::parse("rw,noatime,commit=3000").expect("known options");
    let filesystem = Filesystem::open(vec![device.clone()], options).expect("a good volume");
    let root = filesystem.root();
    for number in 0..12_u64 {
        let folder = root.lookup(format!("folder {}", number % 4).as_bytes()).expect("it is there");
        let made = folder.create(format!("logged {number}").as_bytes(), NewInode::file(0o644));
        let made = made.expect("a new name");
        made.write_at(number * 5000, &[number as u8; 9000]).expect("room");
        made.set_xattr(b"user.log", b"yes", XattrFlags::default()).expect("room");
        folder.link(&made, format!("again {number}").as_bytes()).expect("a new name");
        let old = format!("file {number} with a name that is not the shortest");
        if number % 3 == 0 {
            folder.unlink(old.as_bytes()).expect("it is there");
        } else if number % 3 == 1 {
            let flags = buttress_fs::RenameFlags::default();
            folder.rename(old.as_bytes(), &root, old.as_bytes(), flags).expect("it is there");
        }
        made.sync().expect("a good volume");
        folder.sync().expect("a good volume");
    }
    // The copy is the state after a power cut.
    let left = device.fork();
    drop(root);
    filesystem.close().expect("a good volume");
    left
}

fn fill(device: Arc<dyn Device>) {
    let options = MountOptions::parse("compress=zlib").expect("known options");
    let filesystem = Filesystem::open(vec![device], options).expect("a good volume");
    let root = filesystem.root();
    let mut rng = Rng::new(2);
    for dir in 0..4 {
        let name = format!("folder {dir}");
        let folder = root.mkdir(name.as_bytes(), 0o755, 0, 0).expect("a new folder");
        for number in 0..30_u64 {
            let name = format!("file {number} with a name that is not the shortest");
            let file = folder
                .create(name.as_bytes(), NewInode::file(0o644).owner(1, 2))
                .expect("a new file");
            let mut bytes = vec![b'a'; rng.below(1 << rng.clone().range(6..17)) as usize];
            if number % 3 == 0 {
                rng.fill(&mut bytes);
            }
            file.write_at(number % 4 * 9000, &bytes).expect("room");
            if number % 5 == 0 {
                file.set_xattr(b"user.x", &bytes[..bytes.len().min(200)], XattrFlags::default())
                    .expect("room");
                root.link(&file, format!("link {dir} {number}").as_bytes()).expect("a new name");
            }
        }
        folder.symlink(b"away", b"../folder 1", 0, 0).expect("a new link");
        filesystem.sync().expect("a good volume");
    }
    filesystem.close().expect("a good volume");
}

/// A volume that `mkfs.btrfs` made and filled. `None` without that program.
///
/// # Panics
///
/// If `mkfs.btrfs` is installed and fails.
#[must_use]
pub fn linux(nodesize: u32, csum: &str) -> Option<MemoryDevice> {
    filled_by_linux(nodesize, csum, 40)
}

/// Makes a volume as [`linux`] does, with `files` files in each of three folders.
fn filled_by_linux(nodesize: u32, csum: &str, files: u64) -> Option<MemoryDevice> {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let (tree, path) = (folder.path().join("tree"), folder.path().join("image"));
    let mut rng = Rng::new(3);
    for dir in 0..3 {
        let dir = tree.join(format!("folder {dir}"));
        std::fs::create_dir_all(&dir).expect("a new folder");
        for number in 0..files {
            let mut bytes =
                vec![0; rng.below(if number % 4 == 0 { 90_000 } else { 1500 }) as usize];
            rng.fill(&mut bytes);
            std::fs::write(dir.join(format!("file {number}")), bytes).expect("a new file");
        }
        std::os::unix::fs::symlink("file 1", dir.join("link")).expect("a new link");
    }
    drop(FileDevice::create(&path, targets::IMAGE_LEN).expect("a new file"));
    let nodesize = nodesize.to_string();
    let made = Command::new("mkfs.btrfs")
        .args(["-q", "-n", &nodesize, "--csum", csum, "--rootdir"])
        .args([&tree, &path])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !made.is_ok_and(|status| status.success()) {
        return None;
    }
    let file = FileDevice::open(&path, OpenOptions::READ).expect("it was just made");
    let device = MemoryDevice::new(file.len());
    let mut block = vec![0; 16 << 10];
    let zeros = block.clone();
    for at in (0..file.len()).step_by(block.len()) {
        file.read_at(at, &mut block).expect("within the device");
        if block != zeros {
            device.write_at(at, &block).expect("within the device");
        }
    }
    Some(device)
}
