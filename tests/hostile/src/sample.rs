//! A volume with every kind of item that files make.

use std::sync::Arc;

use buttress_base::Rng;
use buttress_block::{Device, MemoryDevice};
use buttress_fs::{Filesystem, MountOptions, XattrFlags};

use crate::targets;

/// A volume that this program made and filled.
///
/// # Panics
///
/// If it cannot.
#[must_use]
pub fn filled() -> MemoryDevice {
    let device = Arc::new(targets::fresh().fork());
    fill(device.clone());
    device.fork()
}

/// The same, and then changes that are in a log alone.
///
/// # Panics
///
/// If it cannot be made.
#[must_use]
pub fn logged() -> MemoryDevice {
    let device = Arc::new(filled());
    let options = MountOptions::parse("rw,noatime,commit=3000").expect("known options");
    let filesystem = Filesystem::open(vec![device.clone()], options).expect("a good volume");
    let root = filesystem.root();
    for number in 0..12_u64 {
        let folder = root.lookup(format!("folder {}", number % 4).as_bytes()).expect("it is there");
        let made = folder.create(format!("logged {number}").as_bytes(), 0o644, 0, 0, 0);
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
    // As a power cut leaves it.
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
            let file = folder.create(name.as_bytes(), 0o644, 1, 2, 0).expect("a new file");
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
