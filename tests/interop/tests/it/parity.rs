//! Data and nodes that were written with parity are right for Linux without a device, after a
//! scrub, and after a conversion.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use buttress_block::{Device, FileDevice};
use buttress_format::Profile;
use buttress_fs::make::make_on;
use buttress_fs::{BalanceOptions, Filter, MakeOptions};
use buttress_interop::linux::{Images, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill, noise};

use crate::open::{close, expect_of_linux, open, open_with, scrubbed, without};

const LEN: u64 = 700 << 20;

/// Linux finds the same files with all devices, and without each device in turn.
#[track_caller]
fn expect_everywhere(images: &Images, written: &Manifest) {
    images.check();
    for lost in 0..images.paths().len() {
        let mount = images.mount_without(lost);
        let linux = Manifest::of_folder(mount.path());
        mount.unmount();
        written.assert_same("here", &linux, &format!("Linux without {lost}"), Depth::Volume);
        let filesystem = open_with(&without(images.paths(), lost), "ro,degraded");
        let found = Manifest::of_library(&filesystem);
        close(filesystem);
        written.assert_same("here", &found, &format!("here without {lost}"), Depth::Volume);
    }
    expect_of_linux(images, written);
}

/// A volume of Linux is changed here, also without a device, which then comes back. Damaged data
/// and parity of that device are repaired.
fn linux_made_it(data: &str, metadata: &str, devices: usize) {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(devices, LEN);
    images.mkfs(&["-m", metadata, "-d", data]);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    mount.shell("touch plain; chattr +C plain; head -c 2000000 /dev/urandom > plain; sync");
    mount.unmount();

    let filesystem = open_with(images.paths(), "rw,noatime,discard");
    assert_eq!(filesystem.read_only_reason(), None);
    change(&Library::new(&filesystem), &Scale::default(), 1);
    let plain = filesystem.resolve("plain").expect("a file");
    plain.write_at(100_000, &noise(1, 200_000)).expect("not in place");
    drop(plain);
    filesystem.sync().expect("a sync");
    assert!(!scrubbed(&filesystem, false).has_errors());
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    expect_everywhere(&images, &written);

    // The volume is written without a device, which comes back and is repaired.
    let filesystem = open_with(&without(images.paths(), 1), "rw,noatime,degraded");
    assert_eq!(filesystem.read_only_reason(), None);
    change(&Library::new(&filesystem), &Scale::default(), 2);
    // The next step damages data. Damage of a file without checksums cannot be noticed, so this
    // file is removed first.
    filesystem.root().unlink(b"plain").expect("a file");
    filesystem.sync().expect("a sync");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    let filesystem = open(images.paths(), true);
    let found = Manifest::of_library(&filesystem);
    written.assert_same("degraded", &found, "with an old device", Depth::Volume);
    assert!(scrubbed(&filesystem, false).corrected_errors > 0);
    assert!(!scrubbed(&filesystem, false).has_errors());
    close(filesystem);

    // Noise is written at regular distances, so it also hits parity.
    let file = OpenOptions::new().write(true).open(&images.paths()[0]).expect("an image");
    for at in (6 << 20..LEN - (1 << 20)).step_by(192 << 10) {
        file.write_all_at(&noise(at, 64 << 10), at).expect("damage");
    }
    drop(file);
    let filesystem = open(images.paths(), true);
    let found = scrubbed(&filesystem, false);
    assert!(found.csum_errors > 0 && found.parity_errors > 0, "{found:?}");
    assert!(!scrubbed(&filesystem, false).has_errors());
    close(filesystem);
    expect_everywhere(&images, &written);
}

#[test]
pub(crate) fn raid5_of_linux() {
    linux_made_it("raid5", "raid1", 3);
}

#[test]
pub(crate) fn raid6_of_linux() {
    linux_made_it("raid6", "raid1c3", 4);
}

#[test]
pub(crate) fn raid5_nodes_of_linux() {
    linux_made_it("raid5", "raid5", 3);
}

#[test]
pub(crate) fn raid6_nodes_of_linux() {
    linux_made_it("raid6", "raid6", 4);
}

/// A volume made here with parity, changed by Linux and here.
#[test]
pub(crate) fn made_here() {
    made(None, Profile::Raid5, 3);
}

#[test]
pub(crate) fn raid5_nodes_made_here() {
    made(Some(Profile::Raid5), Profile::Raid5, 3);
}

#[test]
pub(crate) fn raid6_nodes_made_here() {
    made(Some(Profile::Raid6), Profile::Raid1, 5);
}

fn made(metadata: Option<Profile>, data: Profile, devices: usize) {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(devices, LEN);
    let make = |path: &std::path::PathBuf| FileDevice::create(path, LEN).expect("the image opens");
    let made: Vec<_> = images.paths().iter().map(make).collect();
    let parts: Vec<_> = made.iter().map(|device| device as &dyn Device).collect();
    let options = MakeOptions { metadata, data: Some(data), ..MakeOptions::default() };
    make_on(&parts, &options).expect("a new volume");
    drop(parts);
    drop(made);
    images.check();
    let filesystem = open(images.paths(), true);
    fill(&Library::new(&filesystem), &Scale::default());
    filesystem.sync().expect("a sync");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    expect_everywhere(&images, &written);
    let mount = images.mount("");
    change(&Folder::new(mount.path()), &Scale::default(), 1);
    let written = Manifest::of_folder(mount.path());
    mount.unmount();
    let filesystem = open(images.paths(), true);
    let found = Manifest::of_library(&filesystem);
    written.assert_same("Linux", &found, "here", Depth::Volume);
    change(&Library::new(&filesystem), &Scale::default(), 2);
    filesystem.sync().expect("a sync");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    expect_everywhere(&images, &written);
}

/// Mirrors are converted to parity, and parity is converted to mirrors.
#[test]
pub(crate) fn converted() {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(4, LEN);
    images.mkfs(&["-m", "raid1c3", "-d", "raid1"]);
    let filesystem = open(images.paths(), true);
    fill(&Library::new(&filesystem), &Scale::default());
    filesystem.sync().expect("a sync");
    let written = Manifest::of_library(&filesystem);
    for to in [Profile::Raid6, Profile::Raid5, Profile::Raid1] {
        let target = Some(Filter { convert: Some(to), soft: true, ..Filter::default() });
        let (metadata, system) = (target.clone(), target.clone());
        let options = BalanceOptions { data: target, metadata, system };
        filesystem.balance(&options, &mut |_| true).expect("a conversion");
        assert!(!scrubbed(&filesystem, false).has_errors());
    }
    let target = Some(Filter { convert: Some(Profile::Raid5), ..Filter::default() });
    let (metadata, system) = (target.clone(), target.clone());
    let options = BalanceOptions { data: target, metadata, system };
    filesystem.balance(&options, &mut |_| true).expect("a conversion");
    close(filesystem);
    expect_everywhere(&images, &written);
}
