//! Many threads on the same names and the same files: nothing hangs, nothing breaks, the checker
//! agrees.

use buttress_base::Rng;
use buttress_fs::{
    ErrorKind, FallocateMode, Filesystem, Inode, NameError, NewInode, RenameFlags, SetAttr,
};

use crate::checker::check;
use crate::volume::{content, file_with, memory, mount, mount_with};

const THREADS: u64 = 4;
const STEPS: u64 = 400;

/// Errors that other threads may cause at any time.
fn expected(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Name(
            NameError::NotFound
                | NameError::Exists
                | NameError::NotDir
                | NameError::IsDir
                | NameError::NotEmpty
        ) | ErrorKind::Invalid
    )
}

fn tolerate<T>(result: buttress_fs::Result<T>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) if expected(error.kind()) => None,
        Err(error) => panic!("{error:?}"),
    }
}

fn names_step(fs: &Filesystem, rng: &mut Rng) {
    let dir = |rng: &mut Rng| -> Option<Inode> {
        let mut at = fs.root();
        for _ in 0..rng.below(3) {
            at = tolerate(at.lookup(format!("d{}", rng.below(3)).as_bytes()))?;
        }
        Some(at)
    };
    let Some(from) = dir(rng) else { return };
    let name = format!("n{}", rng.below(6));
    let sub = format!("d{}", rng.below(3));
    match rng.below(9) {
        0 | 1 => {
            if let Some(file) = tolerate(from.create(name.as_bytes(), NewInode::file(0o644))) {
                file.write_at(0, &[1; 5000]).expect("a write");
            }
        }
        2 => drop(tolerate(from.mkdir(sub.as_bytes(), 0o755, 0, 0))),
        3 => {
            let _ = tolerate(from.unlink(name.as_bytes()));
        }
        4 => {
            let _ = tolerate(from.rmdir(sub.as_bytes()));
        }
        5 | 6 => {
            let Some(to) = dir(rng) else { return };
            let other = format!("n{}", rng.below(6));
            let flags = RenameFlags { exchange: rng.below(4) == 0, ..RenameFlags::default() };
            let _ = tolerate(from.rename(name.as_bytes(), &to, other.as_bytes(), flags));
        }
        7 => {
            let Some(to) = dir(rng) else { return };
            let other = format!("d{}", rng.below(3));
            let flags = RenameFlags { exchange: rng.below(4) == 0, ..RenameFlags::default() };
            let _ = tolerate(from.rename(sub.as_bytes(), &to, other.as_bytes(), flags));
        }
        _ => {
            let Some(file) = tolerate(from.lookup(name.as_bytes())) else { return };
            let Some(to) = dir(rng) else { return };
            let other = format!("n{}", rng.below(6));
            let _ = tolerate(to.link(&file, other.as_bytes()));
        }
    }
}

/// Directories and files move into and out of each other in every direction, while commits go on.
#[test]
fn one_tree_for_all() {
    let device = memory(512);
    let fs = mount_with(&device, "commit=1");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let fs = &fs;
            scope.spawn(move || {
                let mut rng = Rng::new(thread + 77);
                for step in 0..STEPS {
                    names_step(fs, &mut rng);
                    if step % 100 == 99 {
                        fs.sync().expect("sync");
                    }
                }
            });
        }
    });
    fs.close().expect("closed");
    check(&device);
}

fn content_step(file: &Inode, rng: &mut Rng, thread: u64) {
    let offset = rng.below(400_000);
    match rng.below(10) {
        0..=3 => {
            let data = vec![thread as u8; rng.below(30_000) as usize];
            file.write_at(offset, &data).expect("a write");
        }
        4 => {
            let data = vec![thread as u8; 8192];
            file.write_direct(offset & !4095, &data).expect("a write");
        }
        5 | 6 => {
            let mut buf = vec![0xff; 50_000];
            let len = file.read_at(offset, &mut buf).expect("a read");
            assert!(buf[..len].iter().all(|byte| u64::from(*byte) <= THREADS));
        }
        7 => {
            let set = SetAttr { size: Some(offset), ..SetAttr::default() };
            file.set_attr(&set).expect("a length");
        }
        8 => file.fallocate(offset, 40_000, FallocateMode::PunchHole).expect("a hole"),
        _ => {
            let mode = FallocateMode::Allocate { keep_size: rng.below(2) == 0 };
            file.fallocate(offset, 60_000, mode).expect("space");
        }
    }
    if rng.below(20) == 0 {
        file.sync().expect("sync");
    }
}

/// Readers see bytes that a writer wrote, or zeros, and never a failed checksum.
#[test]
fn one_file_for_all() {
    let device = memory(512);
    let fs = mount_with(&device, "commit=1,dirty=1m");
    let file = file_with(&fs.root(), "file", b"");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                let mut rng = Rng::new(thread + 99);
                for _ in 0..STEPS {
                    content_step(file, &mut rng, thread + 1);
                }
            });
        }
    });
    let bytes = content(&file);
    drop(file);
    fs.close().expect("closed");
    check(&device);
    let fs = mount(&device);
    assert!(content(&fs.resolve("file").expect("file")) == bytes);
}

/// A volume that is often full: refusals come at once, and accepted data is kept.
#[test]
fn a_full_volume_for_all() {
    let device = memory(192);
    let fs = mount(&device);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let root = fs.root();
            scope.spawn(move || {
                let mut rng = Rng::new(thread + 5);
                let mut kept: Vec<String> = Vec::new();
                for step in 0..200 {
                    let name = format!("t{thread}n{step}");
                    let len = rng.below(3 << 20) as usize;
                    let made =
                        root.create(name.as_bytes(), NewInode::file(0o644)).and_then(|file| {
                            kept.push(name.clone());
                            file.write_at(0, &vec![thread as u8; len])
                        });
                    if let Err(error) = made {
                        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error:?}");
                        for name in kept.drain(..kept.len() / 2) {
                            root.unlink(name.as_bytes()).expect("unlink on a full volume");
                        }
                    }
                }
            });
        }
    });
    fs.close().expect("closed");
    check(&device);
}
