//! Verbs still work on a mount of a full volume, and make room.

use std::fs::File;
use std::io::{ErrorKind, Write};

use crate::checker::check;
use crate::live::{Mounted, has};
use crate::text;

/// Writes to a file until the volume is full and the kernel holds bytes that the volume refused.
fn fill(path: &std::path::Path) {
    let mut file = File::options().create(true).append(true).open(path).expect("a file");
    let bytes = vec![1; 1 << 20];
    loop {
        let written = file.write_all(&bytes).and_then(|()| file.sync_data());
        match written {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            Err(error) => panic!("{error}"),
        }
    }
    // If a write-back fails after the last sync of the file, only `syncfs` reports the failure.
    let _ = file.write_all(&bytes);
}

/// A write that found no room fails for its program, but does not make a verb fail.
#[test]
fn orders_answer_when_writes_found_no_room() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "256M"]);
    File::create(bench.path("more")).expect("a file").set_len(256 << 20).expect("sparse");
    let mounted = Mounted::new(&bench, &[]);
    let file = bench.path("mnt/file");
    let orders: [&[&str]; 5] = [
        &["df", "mnt"],
        &["fstrim", "mnt"],
        &["subvolume", "create", "mnt/sub"],
        &["subvolume", "snapshot", "mnt/sub", "mnt/snapshot"],
        &["scrub", "start", "mnt"],
    ];
    for order in orders {
        fill(&file);
        bench.ok(order);
    }
    mounted.end();
    check(&bench.path("image"));

    let mounted = Mounted::new(&bench, &[]);
    fill(&file);
    bench.ok(&["device", "add", "mnt", "more"]);
    std::fs::write(bench.path("mnt/room"), vec![2; 4 << 20]).expect("there is a second device");
    mounted.end();
    // `btrfs check` cannot find the second image, so our own checker is used.
    let checked = bench.ok(&["check", "image", "--device", text(&bench.path("more"))]);
    assert!(checked.contains("no error found"), "{checked}");
}
