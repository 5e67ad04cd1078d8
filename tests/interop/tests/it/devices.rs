//! Devices that are missing, that come back, or that return wrong data: nothing is lost, and a
//! scrub repairs everything.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use buttress_block::{Device, FileDevice};
use buttress_format::Profile;
use buttress_fs::make::make_on;
use buttress_fs::{BalanceOptions, Filesystem, Filter, MakeOptions, ScrubOptions, ScrubProgress};
use buttress_interop::linux::{Images, has_linux_btrfs};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill, noise};

use crate::open::{close, expect_of_linux, manifest, open, open_with, scrubbed, try_open, without};

const LEN: u64 = 400 << 20;

fn made(profile: Profile, devices: usize) -> Images {
    let images = Images::new(devices, LEN);
    let parts: Vec<_> = images
        .paths()
        .iter()
        .map(|path| FileDevice::create(path, LEN).expect("the image opens"))
        .collect();
    let parts: Vec<_> = parts.iter().map(|device| device as &dyn Device).collect();
    let options =
        MakeOptions { metadata: Some(profile), data: Some(profile), ..MakeOptions::default() };
    make_on(&parts, &options).expect("a new volume");
    images
}

/// Each device in turn is unplugged, and the volume is written without it. After the device is back
/// and was repaired, each of the other devices can be unplugged.
fn every_device_in_turn(profile: Profile, devices: usize) {
    if !has_linux_btrfs() {
        return;
    }
    let images = made(profile, devices);
    let scale = Scale::default();
    let filesystem = open(images.paths(), true);
    fill(&Library::new(&filesystem), &scale);
    close(filesystem);
    for lost in 0..devices {
        let left = without(images.paths(), lost);
        let error = try_open(&left, true).expect_err("a device is missing").to_string();
        assert!(error.contains(&format!("missing: {}", lost + 1)), "{error}");

        let filesystem = open_with(&left, "rw,noatime,degraded");
        assert_eq!(filesystem.read_only_reason(), None);
        change(&Library::new(&filesystem), &scale, lost as u64 + 1);
        filesystem.sync().expect("a sync");
        let written = Manifest::of_library(&filesystem);
        close(filesystem);

        // The old content of the returned device is not mistaken for the present content.
        let before = manifest(images.paths());
        written.assert_same("without a device", &before, "with it again", Depth::Volume);
        let filesystem = open(images.paths(), true);
        let found = scrubbed(&filesystem, false);
        assert!(found.has_errors() && found.corrected_errors > 0, "{found:?}");
        assert!(!scrubbed(&filesystem, true).has_errors());
        close(filesystem);
        images.check();

        expect_of_linux(&images, &written);
    }
}

/// Two mirrored devices.
#[test]
pub(crate) fn raid1_without_a_device() {
    every_device_in_turn(Profile::Raid1, 2);
}

/// Two of three devices hold each byte. Without one device, new chunks lie on the other two.
#[test]
pub(crate) fn raid1_of_three_without_a_device() {
    every_device_in_turn(Profile::Raid1, 3);
}

/// Striped mirrors.
#[test]
pub(crate) fn raid10_without_a_device() {
    every_device_in_turn(Profile::Raid10, 4);
}

/// A mirror full of noise is rewritten from the other mirror, including superblocks. `btrfs check`
/// then finds no fault, and Linux sees the same files.
#[test]
pub(crate) fn a_scrub_heals_a_mirror() {
    if !has_linux_btrfs() {
        return;
    }
    let images = made(Profile::Raid1, 2);
    let filesystem = open(images.paths(), true);
    fill(&Library::new(&filesystem), &Scale::default());
    filesystem.sync().expect("a sync");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    let file = OpenOptions::new().write(true).open(&images.paths()[1]).expect("an image");
    for at in (2 << 20..LEN).step_by(1 << 20) {
        // The first superblock stays, because it identifies the device.
        file.write_all_at(&noise(at, 64 << 10), at).expect("damage");
    }
    drop(file);
    let filesystem = open(images.paths(), true);
    let only_looked = scrubbed(&filesystem, true);
    assert_eq!((only_looked.corrected_errors, only_looked.super_errors), (0, 1));
    let found = scrubbed(&filesystem, false);
    assert!(found.csum_errors > 0 && found.corrected_errors >= found.csum_errors, "{found:?}");
    assert!(!scrubbed(&filesystem, true).has_errors());
    let counted = filesystem.devices()[1].stats.counts[3];
    assert!(counted > 0, "failures are counted");
    close(filesystem);
    images.check();
    let mount = images.mount("");
    let stats = mount.btrfs("device stats");
    assert!(stats.contains(&format!("corruption_errs  {counted}")), "{counted}: {stats}");
    let linux = Manifest::of_folder(mount.path());
    written.assert_same("before the damage", &linux, "Linux", Depth::Volume);
    mount.unmount();
}

/// A scrub runs while programs write: neither the scrub nor a program gets an error, and nothing is
/// lost.
#[test]
fn a_scrub_beside_writers() {
    if !has_linux_btrfs() {
        return;
    }
    let images = made(Profile::Raid1, 2);
    let filesystem = open(images.paths(), true);
    fill(&Library::new(&filesystem), &Scale::default());
    filesystem.sync().expect("a sync");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for round in 1..=4 {
                change(&Library::new(&filesystem), &Scale::default(), round);
                filesystem.sync().expect("a sync");
            }
        });
        while !writer.is_finished() {
            assert!(!scrub_once(&filesystem).has_errors());
        }
    });
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    images.check();
    let after = manifest(images.paths());
    written.assert_same("before closing", &after, "after opening again", Depth::Volume);
}

/// Volumes of Linux with parity are read with as many missing devices as parity allows.
fn parity_is_used(profile: &str, devices: usize, may_lose: usize) {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(devices, LEN);
    images.mkfs(&["-m", profile, "-d", profile]);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    mount.unmount();
    let mount = images.mount("ro");
    let linux = Manifest::of_folder(mount.path());
    mount.unmount();
    let whole = manifest(images.paths());
    linux.assert_same("Linux", &whole, "all devices", Depth::Volume);
    for first in 0..devices {
        let mut left = without(images.paths(), first);
        if may_lose > 1 {
            left.remove(first % left.len());
        }
        let filesystem = open_with(&left, "ro,degraded");
        let found = Manifest::of_library(&filesystem);
        linux.assert_same("Linux", &found, "degraded", Depth::Volume);
        close(filesystem);
    }
    // All devices are present, and one of them is full of noise.
    let file = OpenOptions::new().write(true).open(&images.paths()[1]).expect("an image");
    for at in (2 << 20..LEN - (1 << 20)).step_by(128 << 10) {
        file.write_all_at(&noise(at, 64 << 10), at).expect("damage");
    }
    drop(file);
    let found = manifest(images.paths());
    linux.assert_same("Linux", &found, "one device damaged", Depth::Volume);
}

/// One unit of each row is parity.
#[test]
pub(crate) fn raid5_with_losses() {
    parity_is_used("raid5", 3, 1);
}

/// Two units of each row are parity.
#[test]
pub(crate) fn raid6_with_losses() {
    parity_is_used("raid6", 4, 2);
}

fn scrub_once(filesystem: &Filesystem) -> ScrubProgress {
    filesystem.scrub(ScrubOptions::default(), &mut |_| true).expect("a scrub").0
}

/// With the option that mirrors new chunks, a volume with parity is changed, loses a device, and is
/// converted. Data and nodes with parity stay as safe as before.
fn parity_is_left(data: &str, metadata: &str, devices: usize, to: Profile) {
    if !has_linux_btrfs() {
        return;
    }
    let images = Images::new(devices, 3 * LEN);
    images.mkfs(&["-m", metadata, "-d", data]);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    mount.shell("touch plain; chattr +C plain; head -c 2000000 /dev/urandom > plain; sync");
    mount.unmount();
    let filesystem = open_with(images.paths(), "rw,raid56=ro");
    let why = filesystem.read_only_reason().expect("a reason");
    assert!(why.contains("raid56="), "{why}");
    close(filesystem);
    let filesystem = open(images.paths(), true);
    assert_eq!(filesystem.read_only_reason(), None);
    close(filesystem);

    let filesystem = open_with(images.paths(), "rw,noatime,raid56=mirror,discard");
    assert_eq!(filesystem.read_only_reason(), None);
    change(&Library::new(&filesystem), &Scale::default(), 1);
    let plain = filesystem.resolve("plain").expect("a file");
    plain.write_at(100_000, &noise(1, 200_000)).expect("not in place");
    drop(plain);
    filesystem.sync().expect("a sync");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    images.check();
    let mount = images.mount("");
    let linux = Manifest::of_folder(mount.path());
    written.assert_same("here", &linux, "Linux", Depth::Volume);
    mount.unmount();
    for lost in 0..devices {
        let filesystem = open_with(&without(images.paths(), lost), "ro,degraded");
        let found = Manifest::of_library(&filesystem);
        close(filesystem);
        written.assert_same("whole", &found, "degraded", Depth::Volume);
    }

    let filesystem = open_with(images.paths(), "rw,noatime,raid56=mirror");
    let target = Some(Filter { convert: Some(to), soft: true, ..Filter::default() });
    let options = BalanceOptions { data: target.clone(), metadata: target.clone(), system: target };
    filesystem.balance(&options, &mut |_| true).expect("a conversion");
    close(filesystem);
    images.check();
    let filesystem = open(images.paths(), true);
    assert_eq!(filesystem.read_only_reason(), None, "no parity is left");
    let found = Manifest::of_library(&filesystem);
    close(filesystem);
    written.assert_same("before", &found, "converted", Depth::Volume);
}

#[test]
pub(crate) fn raid5_is_left() {
    parity_is_left("raid5", "raid1", 3, Profile::Raid1);
}

#[test]
pub(crate) fn raid6_is_left() {
    parity_is_left("raid6", "raid6", 4, Profile::Raid1c3);
}
