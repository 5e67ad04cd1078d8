//! Block groups that move: balance, conversion, and added or removed devices. After each move, no
//! file has changed and `btrfs check` finds no fault.

use std::path::PathBuf;
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_format::{DeviceId, Profile};
use buttress_fs::{BalanceOptions, Filesystem, Filter};
use buttress_interop::linux::{Images, Mount, check_all, has_linux_btrfs, sparse_file};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};

use crate::open::{close, manifest, open, open_with};

const LEN: u64 = 600 << 20;

fn filled(mkfs: &[&str], devices: usize, extra: impl FnOnce(&Mount)) -> Images {
    let images = Images::new(devices, LEN);
    images.mkfs(mkfs);
    let mount = images.mount("");
    fill(&Folder::new(mount.path()), &Scale::default());
    extra(&mount);
    mount.unmount();
    images
}

fn balanced(filesystem: &Filesystem, options: &BalanceOptions) -> u64 {
    let done = filesystem.balance(options, &mut |_| true).expect("a balance");
    assert_eq!(done.completed, done.expected, "{done:?}");
    done.completed
}

fn convert(data: Profile, metadata: Profile) -> BalanceOptions {
    let to = |profile| Some(Filter { convert: Some(profile), soft: true, ..Filter::default() });
    BalanceOptions { data: to(data), metadata: to(metadata), system: to(metadata) }
}

fn profiles(filesystem: &Filesystem) -> Vec<String> {
    let kinds = filesystem.info().expect("figures").usage.kinds;
    kinds.iter().map(|kind| kind.flags.to_string()).collect()
}

/// Everything moves, also extents that snapshots and clones share. Linux can then use the volume
/// and move everything again.
#[test]
fn a_full_balance() {
    if !has_linux_btrfs() {
        return;
    }
    let images = filled(&[], 1, |mount| {
        mount.shell(
            "btrfs -q subvolume snapshot . before; cp --reflink=always big clone 2>/dev/null || true; \
             btrfs -q subvolume snapshot -r . frozen; echo more > before/more; \
             btrfs -q subvolume delete before >/dev/null; sync",
        );
    });
    let before = manifest(images.paths());
    for _ in 0..2 {
        let filesystem = open(images.paths(), true);
        assert_eq!(filesystem.read_only_reason(), None);
        assert!(balanced(&filesystem, &BalanceOptions::full()) >= 3);
        close(filesystem);
        images.check();
        let mount = images.mount("");
        mount.btrfs("balance start --full-balance");
        mount.unmount();
        let after = manifest(images.paths());
        before.assert_same("before", &after, "after", Depth::Volume);
    }
    images.check();
}

/// Profiles are converted from one copy to several and back, on devices that are added and removed.
#[test]
pub(crate) fn profiles_are_converted() {
    if !has_linux_btrfs() {
        return;
    }
    let images = filled(&["-d", "single", "-m", "dup"], 1, |_| ());
    let before = manifest(images.paths());
    let more: Vec<PathBuf> =
        ["b", "c", "d"].iter().map(|name| images.scratch().join(name)).collect();
    let filesystem = open(images.paths(), true);
    for path in &more {
        sparse_file(path, 2 * LEN);
        let device: Arc<dyn Device> =
            Arc::new(FileDevice::open(path, OpenOptions::WRITE).expect("a device"));
        filesystem.add_device(device).expect("a device more");
    }
    let steps = [
        (Profile::Raid1, Profile::Raid1),
        (Profile::Raid10, Profile::Raid1c4),
        (Profile::Raid0, Profile::Raid1c3),
        (Profile::Raid1, Profile::Raid10),
    ];
    let mut paths = images.paths().to_vec();
    paths.extend(more);
    close(filesystem);
    for (data, metadata) in steps {
        let filesystem = open(&paths, true);
        balanced(&filesystem, &convert(data, metadata));
        let names = profiles(&filesystem);
        let wanted = [format!("Data, {data}"), format!("System, {metadata}")];
        assert!(wanted.iter().all(|name| names.contains(name)), "{names:?}");
        assert_eq!(names.len(), 3, "{names:?}");
        close(filesystem);
        check_all(&paths);
        let after = manifest(&paths);
        before.assert_same("before", &after, "converted", Depth::Volume);
    }
    // The volume goes back to two devices, without the first device.
    let filesystem = open(&paths, true);
    balanced(&filesystem, &convert(Profile::Raid1, Profile::Raid1));
    for id in [1, 3] {
        filesystem.remove_device(DeviceId(id), &mut |_| true).expect("a device less");
    }
    close(filesystem);
    let left = vec![paths[1].clone(), paths[3].clone()];
    check_all(&left);
    before.assert_same("before", &manifest(&left), "on two devices", Depth::Volume);
    // The volume goes back to one device, after its mirror was lost.
    let filesystem = open_with(&left[..1], "rw,noatime,degraded");
    balanced(&filesystem, &convert(Profile::Single, Profile::Dup));
    let missing = filesystem.missing_devices().expect("known");
    assert_eq!(missing, [DeviceId(4)]);
    filesystem.remove_device(missing[0], &mut |_| true).expect("the missing one");
    change(&Library::new(&filesystem), &Scale::default(), 1);
    filesystem.sync().expect("a sync");
    let changed = Manifest::of_library(&filesystem);
    close(filesystem);
    check_all(&left[..1]);
    changed.assert_same("changed", &manifest(&left[..1]), "again", Depth::Volume);
}

/// A device is made smaller than the end of its last chunk, and grows again.
#[test]
fn a_device_is_resized() {
    if !has_linux_btrfs() {
        return;
    }
    let images = filled(&[], 1, |_| ());
    let before = manifest(images.paths());
    let filesystem = open(images.paths(), true);
    for len in [260 << 20, LEN, 300 << 20] {
        filesystem.resize_device(DeviceId(1), len, &mut |_| true).expect("another size");
        assert_eq!(filesystem.info().expect("figures").usage.device_bytes, len);
    }
    close(filesystem);
    images.check();
    before.assert_same("before", &manifest(images.paths()), "resized", Depth::Volume);
    let mount = images.mount("");
    mount.btrfs("filesystem resize max");
    mount.unmount();
    images.check();
    before.assert_same("before", &manifest(images.paths()), "grown by Linux", Depth::Volume);
}

/// Filters choose the block groups that they describe.
#[test]
fn filters_choose() {
    if !has_linux_btrfs() {
        return;
    }
    let images = filled(&[], 1, |_| ());
    let filesystem = open(images.paths(), true);
    let only = |filter: Filter| BalanceOptions { data: Some(filter), ..BalanceOptions::default() };
    let none = Filter { profiles: Some(vec![Profile::Raid1]), ..Filter::default() };
    assert_eq!(balanced(&filesystem, &only(none)), 0);
    let none = Filter { devid: Some(DeviceId(7)), ..Filter::default() };
    assert_eq!(balanced(&filesystem, &only(none)), 0);
    let none = Filter { vrange: Some((0, 1)), ..Filter::default() };
    assert_eq!(balanced(&filesystem, &only(none)), 0);
    let one = Filter { limit: Some(1), ..Filter::default() };
    assert_eq!(balanced(&filesystem, &only(one)), 1);
    let too_many = convert(Profile::Raid1, Profile::Raid1);
    assert!(filesystem.balance(&too_many, &mut |_| true).is_err(), "there is one device");
    close(filesystem);
    images.check();
}

/// Stops a balance after its first group.
fn paused(filesystem: &Filesystem, options: &BalanceOptions) {
    let done = filesystem.balance(options, &mut |done| done.completed == 0).expect("a balance");
    assert!(done.is_paused && done.completed > 0 && done.completed < done.expected, "{done:?}");
    assert_eq!(filesystem.paused_balance().expect("an item").as_ref(), Some(options));
    let again = filesystem.balance(options, &mut |_| true).expect_err("one at a time");
    assert!(again.to_string().contains("paused"), "{again}");
}

/// A balance that was paused here continues in Linux, or here, or is cancelled. The volume can be
/// written meanwhile.
#[test]
pub(crate) fn a_paused_balance_goes_on() {
    if !has_linux_btrfs() {
        return;
    }
    let images = filled(&["-m", "dup"], 1, |_| ());
    let scale = Scale::default();
    let target = Some(Filter { convert: Some(Profile::Single), ..Filter::default() });
    let options =
        BalanceOptions { data: Some(Filter::default()), metadata: target.clone(), system: target };
    let filesystem = open(images.paths(), true);
    paused(&filesystem, &options);
    close(filesystem);
    images.check();
    let mount = images.mount("skip_balance");
    let script = format!("btrfs balance status -v {} || true", mount.path().display());
    let status = mount.shell(&script);
    assert!(status.contains("is paused") && status.contains("convert"), "{status}");
    mount.btrfs("balance resume");
    let usage = mount.btrfs("filesystem df");
    assert!(!usage.contains("DUP"), "{usage}");
    mount.unmount();
    images.check();

    // The balance continues here, after a change of the volume.
    let filesystem = open(images.paths(), true);
    assert_eq!(filesystem.paused_balance().expect("none"), None);
    paused(&filesystem, &BalanceOptions::full());
    close(filesystem);
    let filesystem = open(images.paths(), true);
    assert_eq!(filesystem.read_only_reason(), None);
    change(&Library::new(&filesystem), &scale, 1);
    filesystem.sync().expect("a sync");
    let done = filesystem.resume_balance(&mut |_| true).expect("the rest");
    assert!(!done.is_paused && done.completed == done.expected, "{done:?}");
    assert_eq!(filesystem.paused_balance().expect("none"), None);
    paused(&filesystem, &BalanceOptions::full());
    filesystem.cancel_balance().expect("forgotten");
    close(filesystem);
    images.check();
    let mount = images.mount("");
    let status = mount.btrfs("balance status");
    assert!(status.contains("No balance found"), "{status}");
    mount.unmount();
}

/// A balance that Linux paused can be resumed here.
#[test]
pub(crate) fn a_balance_that_linux_paused() {
    if !has_linux_btrfs() {
        return;
    }
    let images = filled(&[], 1, |_| ());
    let mount = images.mount("");
    // Linux may finish the balance before the request to pause arrives.
    let script = "head -c 120M /dev/urandom > more; sync; for turn in 1 2 3; do \
                  btrfs balance start -musage=100 -dusage=99,vrange=0..1099511627776 . &>/dev/null & \
                  for i in $(seq 200); do btrfs balance pause . &>/dev/null && break; done; \
                  wait || true; btrfs balance status . | grep -q paused && break; done; \
                  btrfs balance status . || true";
    let status = mount.shell(script);
    mount.unmount();
    let filesystem = open(images.paths(), true);
    assert_eq!(filesystem.read_only_reason(), None);
    let kept = filesystem.paused_balance().expect("an item");
    assert_eq!(kept.is_some(), status.contains("paused"), "{status}");
    if let Some(kept) = kept {
        let data = kept.data.expect("data was asked for");
        assert_eq!((data.usage, data.vrange), (Some((0, 99)), Some((0, 1 << 40))));
        assert_eq!(kept.metadata.expect("metadata, too").usage, Some((0, 100)));
        change(&Library::new(&filesystem), &Scale::default(), 1);
        filesystem.sync().expect("a sync");
        filesystem.resume_balance(&mut |_| true).expect("the rest");
    }
    close(filesystem);
    images.check();
}

fn writable(path: &PathBuf) -> Arc<dyn Device> {
    Arc::new(FileDevice::open(path, OpenOptions::WRITE).expect("a device"))
}

/// A device is replaced by another: a good device, a device full of noise, and a missing device.
/// Each time, `btrfs check` finds no fault.
#[test]
pub(crate) fn a_device_is_replaced() {
    if !has_linux_btrfs() {
        return;
    }
    let cases = [
        ("raid1", "here"),
        ("raid1", "noise"),
        ("raid1", "missing"),
        ("raid0", "here"),
        ("raid5", "here"),
        ("raid5", "missing"),
    ];
    for (profile, how) in cases {
        let count = if profile == "raid5" { 3 } else { 2 };
        let images = filled(&["-m", "raid1", "-d", profile], count, |mount| {
            mount.shell("head -c 3000000 /dev/urandom > summed; sync");
            // Without checksums, noise cannot be told from data, so the noise is copied, also by
            // Linux.
            if how != "noise" {
                mount.shell("touch plain; chattr +C plain; cat summed > plain; sync");
            }
        });
        let mut paths = images.paths().to_vec();
        let new = images.scratch().join("new");
        sparse_file(&new, LEN + (4 << 20));
        if how == "noise" {
            let file = std::fs::OpenOptions::new().write(true).open(&paths[1]).expect("an image");
            for at in (2 << 20..LEN).step_by(4 << 20) {
                let noise = buttress_interop::sample::noise(at, 64 << 10);
                std::os::unix::fs::FileExt::write_all_at(&file, &noise, at).expect("damage");
            }
        }
        let filesystem = match how {
            "missing" => {
                let mut there = paths.clone();
                there.remove(1);
                open_with(&there, "rw,noatime,degraded")
            }
            _ => open(&paths, true),
        };
        let small = images.scratch().join("small");
        sparse_file(&small, LEN / 2);
        let refused = filesystem.replace_device(DeviceId(2), writable(&small), &mut |_| true);
        assert!(refused.is_err(), "a smaller one");
        if how == "here" {
            let given_up = filesystem.replace_device(DeviceId(2), writable(&new), &mut |_| false);
            assert!(given_up.is_err(), "it was given up");
        }
        let found = filesystem
            .replace_device(DeviceId(2), writable(&new), &mut |_| true)
            .expect("another device");
        assert_eq!(found.uncorrectable_errors, 0, "{profile} {how}: {found:?}");
        let (after, complete) =
            filesystem.scrub(buttress_fs::ScrubOptions::default(), &mut |_| true).expect("a scrub");
        assert!(complete && !after.has_errors(), "{profile} {how}: {after:?}");
        change(&Library::new(&filesystem), &Scale::default(), 1);
        filesystem.sync().expect("a sync");
        let changed = Manifest::of_library(&filesystem);
        close(filesystem);
        if how == "here" {
            assert!(buttress_volume::Volume::read_superblock(&*writable(&paths[1])).is_err());
        }
        paths[1] = new;
        check_all(&paths);
        changed.assert_same("changed", &manifest(&paths), "again", Depth::Volume);
        if profile == "raid1" {
            // The new device alone has all data.
            let alone = open_with(&paths[1..], "ro,degraded");
            let found = Manifest::of_library(&alone);
            close(alone);
            let what = format!("the new one alone, {how}");
            changed.assert_same("changed", &found, &what, Depth::Volume);
        }
    }
}
