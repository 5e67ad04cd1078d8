//! The results of `statfs` for a volume, compared with Linux on the same image.

use buttress_fs::{Filesystem, MakeOptions, NewInode};
use buttress_interop::linux::{Images, has_linux_btrfs};
use rustix::fs::statvfs;

use crate::open::{close, open};

const MIB: u64 = 1 << 20;

/// Size, used and available, in MiB.
fn ours(images: &Images, change: impl FnOnce(&Filesystem)) -> (u64, u64, u64) {
    let fs = open(images.paths(), true);
    change(&fs);
    let stat = fs.statfs().expect("figures");
    close(fs);
    let mib = |blocks: u64| blocks * u64::from(stat.block_size) / MIB;
    (mib(stat.blocks), mib(stat.blocks - stat.blocks_free), mib(stat.blocks_available))
}

fn linux(images: &Images, options: &str) -> (u64, u64, u64) {
    let mount = images.mount(options);
    let stat = statvfs(mount.path()).expect("figures");
    mount.unmount();
    let mib = |blocks: u64| blocks * stat.f_frsize / MIB;
    (mib(stat.f_blocks), mib(stat.f_blocks - stat.f_bfree), mib(stat.f_bavail))
}

/// Compares our numbers with those of Linux: the sizes in MiB are equal, and the other numbers
/// differ only by the reserves.
#[track_caller]
fn compare(what: &str, ours: (u64, u64, u64), linux: (u64, u64, u64)) {
    eprintln!("{what}: ours {ours:?}, Linux {linux:?}");
    assert_eq!(ours.0, linux.0, "{what}: size");
    assert!(ours.1.abs_diff(linux.1) <= 16, "{what}: used {} and {} MiB", ours.1, linux.1);
    let slack = 32 + linux.0 / 8;
    assert!(ours.2.abs_diff(linux.2) <= slack, "{what}: available {} and {}", ours.2, linux.2);
}

/// A volume that is empty, half full, and emptied again, on one device and mirrored on two.
#[test]
fn used_is_what_linux_calls_used() {
    if !has_linux_btrfs() {
        return;
    }
    for (devices, profile) in [(1, "single"), (2, "raid1")] {
        let images = Images::new(devices, 1 << 30);
        images.mkfs(&["-d", profile]);
        compare(profile, ours(&images, |_| ()), linux(&images, "ro"));
        let fill = |fs: &Filesystem| {
            let file = fs.root().create(b"f", NewInode::file(0o644)).expect("made");
            for at in 0..300 {
                file.write_at(at * MIB, &vec![1; MIB as usize]).expect("written");
            }
            file.sync().expect("durable");
        };
        compare("300 MiB", ours(&images, fill), linux(&images, "ro"));
        let empty = |fs: &Filesystem| {
            fs.root().unlink(b"f").expect("removed");
            fs.sync().expect("durable");
            // The space of an empty chunk is available once the commit after the chunk's removal is
            // durable.
            fs.root().create(b"next", NewInode::file(0o644)).expect("made");
            fs.sync().expect("durable");
        };
        compare("emptied", ours(&images, empty), linux(&images, "ro"));
        images.check();
    }
}

/// A new volume of ours has no more space in use than a new volume of Linux.
#[test]
fn a_new_volume_is_empty() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(1, 4 << 30);
    let device =
        buttress_block::FileDevice::open(images.path(), buttress_block::OpenOptions::WRITE);
    Filesystem::make(&device.expect("opens"), &MakeOptions::default()).expect("made");
    let found = ours(&images, |_| ());
    assert!(found.1 <= 16, "{} MiB used", found.1);
    compare("new", found, linux(&images, "ro"));
}
