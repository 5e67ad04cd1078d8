//! Names of devices that came to a mount, or left it: a verb looks for the file, not for the name.

use std::fs::File;

use crate::checker::check;
use crate::live::{Mounted, has};

/// A device that was added leads to the mount under each name that its file has. A new image that
/// gets the name of the device is a volume of its own. So is a device that was replaced or removed.
#[test]
fn devices_are_known_by_their_files() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let bench = crate::bench();
    bench.ok(&["mkfs", "image", "--size", "200M"]);
    for name in ["second", "third"] {
        File::create(bench.path(name)).expect("a file").set_len(200 << 20).expect("a size");
    }
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
