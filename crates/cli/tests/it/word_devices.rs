//! Names of devices that came to a mount, or left it: a verb looks for the file, not for the name.

use std::fs::File;

use crate::checker::check;
use crate::live::{Mounted, has};

/// A volume on `image`, and two empty files of its size.
fn with_spare_devices() -> crate::Bench {
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "200M"]);
    for name in ["second", "third"] {
        File::create(bench.path(name)).expect("a file").set_len(200 << 20).expect("a size");
    }
    bench
}

/// A device that was added leads to the mount under each name that its file has. A new image that
/// gets the name of the device is a volume of its own. So is a device that was replaced or removed.
#[test]
fn devices_are_known_by_their_files() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = with_spare_devices();
    let mounted = Mounted::new(&bench, &[]);
    bench.ok(&["device", "add", "mnt", "second"]);
    bench.ok(&["subvolume", "create", "second:/by-second"]);
    assert!(bench.path("mnt/by-second").is_dir(), "the server made it");
    // The file keeps its volume under another name. The old name is that of a new volume.
    std::fs::rename(bench.path("second"), bench.path("moved")).expect("renamed");
    bench.ok(&["mkfs", "second", "--size", "200M"]);
    bench.ok(&["subvolume", "create", "second:/made"]);
    assert!(!bench.path("mnt/made").exists(), "it was made in the new volume");
    assert!(bench.ok(&["subvolume", "list", "second"]).contains("made"));
    bench.ok(&["subvolume", "create", "moved:/by-moved"]);
    assert!(bench.path("mnt/by-moved").is_dir(), "the server made it");

    // Devices leave the volume. Their files become volumes of their own.
    bench.ok(&["device", "replace", "mnt", "2", "third"]);
    bench.ok(&["subvolume", "create", "third:/by-third"]);
    assert!(bench.path("mnt/by-third").is_dir(), "the server made it");
    for (name, words) in
        [("moved", &["subvolume", "list", "mnt"][..]), ("third", &["device", "remove", "mnt", "2"])]
    {
        bench.ok(words);
        bench.ok(&["mkfs", "--force", name, "--size", "200M"]);
        bench.ok(&["subvolume", "create", &format!("{name}:/own")]);
        assert!(!bench.path("mnt/own").exists(), "it was made in the new volume");
        assert!(bench.ok(&["subvolume", "list", name]).contains("own"), "{name}");
    }

    mounted.end();
    for name in ["image", "second", "moved", "third"] {
        check(&bench.path(name));
    }
}

/// A mount does not keep its first device open after the device was replaced or removed. The name
/// of the device then leads to the file's own volume, and the other devices lead to the mount.
#[test]
fn the_first_device_may_leave() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = with_spare_devices();
    let mounted = Mounted::new(&bench, &[]);
    let is_open = |name: &str| {
        let folder = format!("/proc/{}/fd", mounted.pid());
        let open = std::fs::read_dir(folder).expect("the files of the server");
        let open = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        open.into_iter().any(|path| path == bench.path(name))
    };
    for (old, words) in [
        ("image", &["device", "replace", "mnt", "1", "second"][..]),
        ("second", &["device", "remove", "mnt", "1"]),
    ] {
        assert!(is_open(old), "{old}");
        if old == "second" {
            bench.ok(&["device", "add", "mnt", "third"]);
        }
        bench.ok(words);
        let new = if old == "image" { "second" } else { "third" };
        assert!(!is_open(old) && is_open(new), "{old}");
        bench.ok(&["mkfs", "--force", old, "--size", "200M"]);
        bench.ok(&["subvolume", "create", &format!("{old}:/own")]);
        assert!(!bench.path("mnt/own").exists(), "it was made in the new volume");
        assert!(bench.ok(&["subvolume", "list", old]).contains("own"), "{old}");
        let by_new = format!("by-{new}");
        bench.ok(&["subvolume", "create", &format!("{new}:/{by_new}")]);
        assert!(bench.path("mnt").join(&by_new).is_dir(), "the server made it");
        for place in [new, "mnt"] {
            for words in [&["subvolume", "list"][..], &["check"], &["scrub", "start"], &["info"]] {
                bench.ok(&[words, &[place]].concat());
            }
        }
        // A verb that cannot work on a mount says so at once.
        let begun = std::time::Instant::now();
        bench.fails(&["rescue", "zero-log", "--yes", new], 1, &[new]);
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{:?}", begun.elapsed());
    }
    mounted.end();
    for name in ["image", "second", "third"] {
        check(&bench.path(name));
    }
}
