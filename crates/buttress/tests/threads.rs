//! The threads of an open volume. This test is a program of its own, since it counts all threads of
//! the process.

use buttress::{CreateOptions, OpenOptions};

/// Threads of this process. Threads of the kernel that serve an io_uring do not count.
fn threads() -> usize {
    let all = std::fs::read_dir("/proc/self/task").expect("this process");
    let names = all.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| !name.starts_with("iou-")).count()
}

#[test]
fn volume_starts_no_thread_unless_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("v.img");
    let before = threads();

    let fs = CreateOptions::new(256 << 20).create(&image).expect("made");
    assert_eq!(threads(), before, "of one that was made");
    fs.close().expect("closed");

    let fs = OpenOptions::new().memory(8 << 20).open(&image).expect("opened");
    // The files exceed the memory of the volume, so the volume writes back and commits.
    for index in 0..32 {
        fs.write(format!("/{index}"), vec![index; 1 << 20]).expect("written");
    }
    fs.create_subvolume("/plans").expect("a subvolume");
    fs.create_snapshot("/plans", "/monday", true).expect("a snapshot");
    fs.transaction(|all| all.write("/plans/a", "one")).expect("a transaction");
    fs.delete_subvolume("/monday").expect("deleted");
    fs.sync().expect("durable");
    assert_eq!(fs.read("/31").expect("read").len(), 1 << 20);
    assert_eq!(threads(), before, "of one that was written to");
    fs.close().expect("closed");

    let fs = OpenOptions::new().background(true).open(&image).expect("opened");
    assert!(threads() > before, "they were asked for");
    fs.close().expect("closed");
    assert_eq!(threads(), before, "none is left");
}
