//! Good volumes to damage: Linux's and ours.

use std::process::Command;
use std::sync::{Arc, OnceLock};

use buttress_base::Rng;
use buttress_block::{Device, FileDevice, MemoryDevice, OpenOptions};
use buttress_hostile::image::Image;
use buttress_hostile::targets;

/// A volume that this program made and filled: every kind of item there is.
pub(crate) fn ours() -> Arc<Image> {
    static MADE: OnceLock<Arc<Image>> = OnceLock::new();
    Arc::clone(MADE.get_or_init(|| Arc::new(Image::scan(buttress_hostile::sample::filled()))))
}

/// A volume that `mkfs.btrfs` made and filled, if it is here.
pub(crate) fn linux(nodesize: u32) -> Option<Arc<Image>> {
    let folder = tempfile::tempdir().expect("a folder for the test");
    let (tree, path) = (folder.path().join("tree"), folder.path().join("image"));
    let mut rng = Rng::new(3);
    for dir in 0..3 {
        let dir = tree.join(format!("folder {dir}"));
        std::fs::create_dir_all(&dir).expect("a new folder");
        for number in 0..40_u64 {
            let mut bytes =
                vec![0; rng.below(if number % 4 == 0 { 90_000 } else { 1500 }) as usize];
            rng.fill(&mut bytes);
            std::fs::write(dir.join(format!("file {number}")), bytes).expect("a new file");
        }
        std::os::unix::fs::symlink("file 1", dir.join("link")).expect("a new link");
    }
    drop(FileDevice::create(&path, targets::IMAGE_LEN).expect("a new file"));
    let nodesize = nodesize.to_string();
    let made = Command::new("mkfs.btrfs")
        .args(["-q", "-n", &nodesize, "--rootdir"])
        .args([&tree, &path])
        .status();
    if !made.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_none(), "mkfs.btrfs lacks");
        eprintln!("SKIPPED: mkfs.btrfs lacks (apt-get install btrfs-progs)");
        return None;
    }
    let file = FileDevice::open(&path, OpenOptions::READ).expect("it was just made");
    let device = MemoryDevice::new(file.len());
    let mut block = vec![0; 16 << 10];
    for at in (0..file.len()).step_by(block.len()) {
        file.read_at(at, &mut block).expect("within the device");
        if block.iter().any(|&byte| byte != 0) {
            device.write_at(at, &block).expect("within the device");
        }
    }
    Some(Arc::new(Image::scan(device)))
}
