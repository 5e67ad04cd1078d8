//! A mount without threads of its own: everything happens in the calling thread.

use buttress_fs::{Error, ErrorKind, Filesystem, MountOptions, NewInode};

use crate::checker::expect_sound;
use crate::volume::{content, file_with, memory, pattern};

/// Writers find room, and the next sync removes deleted files and subvolumes completely.
#[test]
fn mount_without_threads_does_all_work() {
    let device = memory(128);
    let mut options = MountOptions::parse("noatime,compress=zlib").expect("options");
    options.background = false;
    let fs = Filesystem::open(vec![device.clone()], options).expect("a mount");
    let root = fs.root();
    let free = || {
        fs.statfs().map(|stat| stat.blocks_available * u64::from(stat.block_size)).expect("a mount")
    };

    let sub = root.create_subvolume(b"sub", 0o755, 0, 0).expect("room");
    for number in 0..50 {
        file_with(&sub, &format!("small {number}"), &pattern(number, 5000));
    }
    fs.sync().expect("room");
    let before = free();
    for round in 0..3 {
        let mut names = Vec::new();
        loop {
            let name = format!("file {round} {}", names.len());
            let file = root.create(name.as_bytes(), NewInode::file(0o644));
            let written = file.and_then(|file| {
                let written = file.write_at(0, &pattern(names.len() as u64, 1 << 20));
                written.and_then(|_| file.sync())
            });
            names.push(name);
            if let Err(error) = written {
                assert_eq!(Error::kind(&error), ErrorKind::NoSpace, "{error}");
                break;
            }
        }
        assert!(names.len() > 20, "{}", names.len());
        let first = content(&root.lookup(names[0].as_bytes()).expect("it was made"));
        assert!(first == pattern(0, 1 << 20));
        for name in names {
            let _ = root.unlink(name.as_bytes());
        }
        // On a full volume a part of the freed space becomes available only with the second sync.
        // The same holds for a mount with threads.
        fs.sync().expect("what was deleted gives room");
        fs.sync().expect("what was deleted gives room");
        assert!(free() + (8 << 20) > before, "round {round}: {} of {before}", free());
    }

    drop(sub);
    root.delete_subvolume(b"sub").expect("it is not in use");
    fs.sync().expect("a good volume");
    assert_eq!(fs.dying_subvolumes().expect("a list"), Vec::new());
    drop(root);
    fs.close().expect("a good volume");
    expect_sound(&device);
}
