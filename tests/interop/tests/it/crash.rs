//! Volumes that Linux did not unmount: with a log of the files that were synced since the last
//! commit.

use buttress_interop::linux::{Images, has_linux_btrfs, sparse_copy};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Scale, fill};

use crate::open::{close, try_open};

/// A log is never dropped silently. Opening for reading refuses a volume with a log, except if an
/// option asks for the state of the last commit. Opening for writing replays the log.
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
    sparse_copy(images.path(), &crashed);
    mount.unmount();

    let before = std::fs::read(&crashed).expect("an image");
    let paths = [crashed.clone()];
    let error = try_open(&paths, false).expect_err("a log that is not replayed");
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

/// Linux is stopped while it drops a subvolume. We continue from its recorded progress, and no data
/// of a snapshot is lost.
#[test]
pub(crate) fn a_drop_that_linux_began() {
    if !has_linux_btrfs() {
        return;
    }
    // A copy of the image at one moment is a clone of its file, so the file lies on a volume that
    // can make clones.
    let outer = Images::new(1, 2 << 30);
    outer.mkfs(&[]);
    let mount = outer.mount("");
    mount.shell(
        "truncate -s 700M inner.img; mkfs.btrfs -q -f -n 4096 inner.img; mkdir in; \
         mount -o loop,noatime inner.img in; trap 'cd /; umount $OLDPWD/in' EXIT; \
         btrfs -q subvolume create in/big; \
         for d in $(seq 100 139); do mkdir in/big/$d; \
         (cd in/big/$d; seq -f 'a name that takes some room in its leaf %g' 400 | tr '\\n' '\\0' | xargs -0 touch); \
         done; btrfs -q subvolume snapshot in/big in/half; rm -r in/half/1[02]*; \
         for d in in/half/11*; do touch $d/new; done; sync; btrfs -q subvolume delete in/big; \
         for i in 1 2 3 4 5 6; do btrfs filesystem sync in; cp --reflink=always inner.img copy-$i; done",
    );
    let mut met = 0;
    for copy in 1..=6 {
        let path = mount.path().join(format!("copy-{copy}"));
        let paths = [path.clone()];
        let filesystem = crate::open::open(&paths, false);
        let before = Manifest::of_library(&filesystem);
        let view = filesystem.view();
        for tree in filesystem.dying_subvolumes().expect("a list") {
            let item = view.committed_root_item(tree).expect("readable").expect("dying");
            met += u64::from(item.drop_progress != buttress_format::Key::MIN);
        }
        drop(view);
        close(filesystem);
        let filesystem = crate::open::open(&paths, true);
        for _ in 0..1200 {
            if filesystem.dying_subvolumes().expect("a list").is_empty() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert_eq!(filesystem.dying_subvolumes().expect("a list"), [], "copy {copy}");
        close(filesystem);
        buttress_interop::linux::check(&path);
        before.assert_same("before", &crate::open::manifest(&paths), "after", Depth::Volume);
    }
    mount.unmount();
    // The speed of Linux decides this count, so the test only prints it.
    println!("{met} of 6 copies were in the middle of a drop");
}
