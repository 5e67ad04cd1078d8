//! Volumes that Linux did not unmount: with a log of what was synced since the last commit.

use buttress_interop::linux::{Images, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Scale, fill};

use crate::open::{close, try_open};

/// A log is never dropped silently: opening for reading refuses it unless told to look behind it, where the
/// volume is as the last commit left it, and opening for writing replays it.
#[test]
fn a_log_of_linux() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 512 << 20);
    images.mkfs(&[]);
    let mount = images.mount("commit=300");
    fill(&Folder::new(mount.path()), &Scale::default());
    mount.shell("sync -f .");
    let committed = Manifest::of_folder(mount.path());
    mount.shell("echo logged > logged; sync logged");
    let crashed = images.scratch().join("crashed");
    std::fs::copy(images.path(), &crashed).expect("the image as a crash leaves it");
    mount.unmount();

    let before = std::fs::read(&crashed).expect("an image");
    let paths = [crashed.clone()];
    let error = try_open(&paths, false).expect_err("a log that nobody replays");
    assert!(error.to_string().contains("log"), "{error} does not name the log");

    let filesystem = crate::open::open_with(&paths, "ro,nologreplay");
    let found = Manifest::of_library(&filesystem);
    close(filesystem);
    committed.assert_same("the last commit", &found, "without the log", Depth::Copy);
    assert!(
        std::fs::read(&crashed).expect("an image") == before,
        "a volume that is read was changed"
    );

    close(crate::open::open(&paths, true));
    let found = crate::open::manifest(&paths);
    assert!(found.entries.contains_key(&b"logged"[..]), "the log was dropped");
}
