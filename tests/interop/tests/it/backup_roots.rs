//! A volume without its newest root tree. Its superblock names older ones.

use std::os::unix::fs::FileExt;

use buttress_block::FileDevice;
use buttress_fs::{Filesystem, MountOptions};
use buttress_interop::linux::{Images, has_linux_btrfs, try_run};
use buttress_volume::Volume;

use crate::open::{close, open_with};

/// Linux goes back with `rescue=usebackuproot`, and so do we, to the same files; without it both
/// refuse.
#[test]
fn an_older_root_is_read_where_linux_reads_it() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 600 << 20);
    images.mkfs(&[]);
    let mount = images.mount("");
    for file in 1..5 {
        mount.shell(&format!("echo {file} > f{file}; sync -f ."));
    }
    mount.unmount();
    let device = FileDevice::open(images.path(), buttress_block::OpenOptions::READ).expect("opens");
    let superblock = Volume::read_superblock(&device).expect("a superblock");
    drop(device);
    // Both copies: every node that says it is the root.
    let file = std::fs::File::options().read(true).write(true).open(images.path()).expect("opens");
    let mut damaged = 0;
    for at in (0..file.metadata().expect("metadata").len()).step_by(4096) {
        let mut bytenr = [0; 8];
        file.read_exact_at(&mut bytenr, at + 48).expect("read");
        if u64::from_le_bytes(bytenr) == superblock.root.0 {
            file.write_all_at(&[0; 4096], at).expect("written");
            damaged += 1;
        }
    }
    assert!(damaged >= 1, "the root was found");
    let ours = |options: &str| {
        let device = FileDevice::open(images.path(), buttress_block::OpenOptions::READ);
        let device = std::sync::Arc::new(device.expect("opens"));
        Filesystem::open(vec![device], MountOptions::parse(options).expect("options"))
    };
    let path = images.path().display().to_string();
    let point = images.scratch().join("point");
    std::fs::create_dir(&point).expect("a folder");
    let point = point.display().to_string();
    try_run("mount", ["-t", "btrfs", "-o", "loop,ro", &path, &point]).expect_err("Linux refuses");
    ours("ro").expect_err("we refuse");
    let text = ours("usebackuproot").expect_err("with ro only").to_string();
    assert!(text.contains("ro"), "{text}");
    let options = "loop,ro,rescue=usebackuproot";
    try_run("mount", ["-t", "btrfs", "-o", options, &path, &point]).expect("Linux goes back");
    let mut linux: Vec<_> = std::fs::read_dir(&point)
        .expect("a list")
        .map(|entry| entry.expect("an entry").file_name().into_encoded_bytes())
        .collect();
    linux.sort();
    try_run("umount", [&point]).expect("unmounted");
    for options in ["ro,usebackuproot", "ro,rescue=usebackuproot", "ro,rescue=all"] {
        let filesystem = open_with(images.paths(), options);
        let mut names = Vec::new();
        let list = filesystem.root().read_dir(0, |entry| {
            names.push(entry.name.to_vec());
            std::ops::ControlFlow::Continue(())
        });
        list.expect("a list");
        names.sort();
        assert_eq!(names, linux, "{options}");
        close(filesystem);
    }
}
