//! Volumes that grow from a seed. They are grown here and by Linux, written by both, and at the end
//! opened without the seed. No byte of the seed changes.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_format::DeviceId;
use buttress_format::limits::SUPER_OFFSETS;
use buttress_interop::linux::{Images, can_mount_fuse, has_linux_btrfs, has_program, run};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::program::{Mounted, buttress, program};
use buttress_interop::sample::{Folder, Library, Scale, change, fill};
use buttress_volume::Volume;

use crate::open::{close, expect_of_linux, manifest, open, try_open};

const LEN: u64 = 256 << 20;

fn scale() -> Scale {
    Scale { dirs: 4, files: 12, big_bytes: 2 << 20, ..Scale::default() }
}

fn can_run() -> bool {
    has_linux_btrfs() && has_program("btrfstune")
}

/// Files for a new volume, and a seed with files in it that Linux made.
fn seed_of_linux(mkfs: &[&str], devices: usize) -> (Images, Images) {
    let all = Images::new(devices + 1, LEN);
    let seed = Images::over(all.paths()[1..].to_vec());
    seed.mkfs(mkfs);
    let mount = seed.mount("");
    fill(&Folder::new(mount.path()), &scale());
    // With `chattr +C`, the file's data may be overwritten in place.
    mount.shell("touch here; chattr +C here; head -c 300000 /dev/zero | tr '\\0' a > here; sync");
    mount.unmount();
    make_seed(&seed);
    (all, seed)
}

/// Sets the flag of a seed. Linux's tool finds other devices only among block devices.
fn make_seed(seed: &Images) {
    if let [only] = seed.paths() {
        run("btrfstune", ["-f".as_ref(), "-S".as_ref(), "1".as_ref(), only.as_os_str()]);
        return;
    }
    seed.paths().iter().for_each(|path| set_seed_flag(path));
}

/// Linux sees the same files. Linux's scrub reports the nodes of a seed as damaged, so no scrub is
/// run.
fn expect_of_linux_with_seed(images: &Images, written: &Manifest) {
    let mount = images.mount("");
    let linux = Manifest::of_folder(mount.path());
    written.assert_same("here", &linux, "Linux", Depth::Volume);
    mount.unmount();
}

/// The reason why a volume does not open, with all causes.
fn refusal(paths: &[PathBuf]) -> String {
    let error = try_open(paths, true).expect_err("it must not open");
    let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |e| e.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Grows a volume on a new device from a seed that is only read.
fn grow(seed: &[PathBuf], new: &Path) -> DeviceId {
    let filesystem = open(seed, false);
    assert!(filesystem.is_seed());
    let device = FileDevice::open(new, OpenOptions::WRITE).expect("an image");
    let id = filesystem.add_device(Arc::new(device)).expect("a new volume");
    close(filesystem);
    id
}

fn bytes(seed: &Images) -> Vec<Vec<u8>> {
    seed.paths().iter().map(|path| std::fs::read(path).expect("an image")).collect()
}

/// A volume that is grown here shows the seed's files to both sides, and both sides write it. After
/// the seed is removed, the volume is complete.
#[track_caller]
fn grown_here(mkfs: &[&str], devices: usize) {
    let (all, seed) = seed_of_linux(mkfs, devices);
    let before = bytes(&seed);
    let of_seed = manifest(seed.paths());
    let id = grow(seed.paths(), all.path());
    assert_eq!(id, DeviceId(devices as u64 + 1));
    all.check();
    of_seed.assert_same("the seed", &manifest(all.paths()), "grown", Depth::Volume);

    let filesystem = open(all.paths(), true);
    assert_eq!(filesystem.read_only_reason(), None);
    change(&Library::new(&filesystem), &scale(), 1);
    let file = filesystem.resolve("here").expect("a file");
    file.write_at(70_000, b"written").expect("a write");
    drop(file);
    filesystem.sync().expect("a sync");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    all.check();
    expect_of_linux_with_seed(&all, &written);

    let mount = all.mount("");
    change(&Folder::new(mount.path()), &scale(), 2);
    let linux = Manifest::of_folder(mount.path());
    mount.unmount();
    linux.assert_same("Linux", &manifest(all.paths()), "here", Depth::Volume);

    let filesystem = open(all.paths(), true);
    for old in 1..id.0 {
        filesystem.remove_device(DeviceId(old), &mut |_| true).expect("the seed goes");
    }
    close(filesystem);
    assert!(bytes(&seed) == before, "the seed was written");
    let alone = Images::over(vec![all.path().to_owned()]);
    alone.check();
    linux.assert_same("with the seed", &manifest(alone.paths()), "alone", Depth::Volume);
    expect_of_linux(&alone, &linux);
}

/// The seed has one device, with the defaults.
#[test]
pub(crate) fn a_volume_grown_here_is_written_by_linux() {
    if can_run() {
        grown_here(&[], 1);
    }
}

/// Mirrors become two copies on the new device. Rows with parity on a seed get no new data.
#[test]
fn a_volume_grows_from_parity() {
    if can_run() {
        grown_here(&["-m", "raid1", "-d", "raid5"], 3);
    }
}

/// The seed has data and nodes in the same block groups.
#[test]
fn a_volume_grows_from_mixed_groups() {
    if can_run() {
        grown_here(&["--mixed", "-n", "4096"], 1);
    }
}

/// Linux grows the volume. It is written here, and the seed is removed here.
#[test]
pub(crate) fn a_volume_that_linux_grew_is_written_here() {
    if !can_run() {
        return;
    }
    let (all, seed) = seed_of_linux(&[], 1);
    let before = bytes(&seed);
    let mut mount = seed.mount("");
    mount.add_device(all.path());
    change(&Folder::new(mount.path()), &scale(), 1);
    let linux = Manifest::of_folder(mount.path());
    mount.unmount();
    all.check();
    linux.assert_same("Linux", &manifest(all.paths()), "here", Depth::Volume);

    let filesystem = open(all.paths(), true);
    change(&Library::new(&filesystem), &scale(), 2);
    filesystem.sync().expect("a sync");
    let found = crate::open::scrubbed(&filesystem, false);
    assert!(!found.has_errors(), "{found:?}");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    all.check();
    expect_of_linux_with_seed(&all, &written);

    let filesystem = open(all.paths(), true);
    filesystem.remove_device(DeviceId(1), &mut |_| true).expect("the seed goes");
    close(filesystem);
    assert!(bytes(&seed) == before, "the seed was written");
    let alone = Images::over(vec![all.path().to_owned()]);
    alone.check();
    expect_of_linux(&alone, &written);
}

/// A volume that has grown becomes a seed itself. Two volumes grow from this seed, and are open at
/// the same time.
#[test]
pub(crate) fn a_volume_grows_from_one_that_grew() {
    if !can_run() {
        return;
    }
    let images = Images::new(4, LEN);
    let of = |which: &[usize]| {
        Images::over(which.iter().map(|index| images.paths()[*index].clone()).collect())
    };
    of(&[0]).mkfs(&[]);
    make_seed(&of(&[0]));
    grow(of(&[0]).paths(), &images.paths()[1]);
    let middle = of(&[1, 0]);
    let filesystem = open(middle.paths(), true);
    fill(&Library::new(&filesystem), &scale());
    filesystem.sync().expect("a sync");
    let written = Manifest::of_library(&filesystem);
    close(filesystem);
    let mount = middle.mount("");
    mount.unmount();
    // Linux's tool needs all devices, and finds them only among block devices.
    set_seed_flag(&images.paths()[1]);
    for new in [2, 3] {
        assert_eq!(grow(middle.paths(), &images.paths()[new]), DeviceId(3));
    }
    let both = [of(&[2, 1, 0]), of(&[3, 1, 0])];
    let opened = both.each_ref().map(|one| open(one.paths(), true));
    for (seed, filesystem) in (1..).zip(&opened) {
        change(&Library::new(filesystem), &Scale { seed, ..scale() }, 1);
        filesystem.sync().expect("a sync");
    }
    let changed = opened.each_ref().map(Manifest::of_library);
    opened.into_iter().for_each(close);
    for (one, changed) in both.iter().zip(&changed) {
        one.check();
        expect_of_linux_with_seed(one, changed);
    }
    written.assert_same("before", &manifest(middle.paths()), "after", Depth::Volume);
}

/// Sets the flag in every superblock of a device.
fn set_seed_flag(path: &Path) {
    let device = FileDevice::open(path, OpenOptions::WRITE).expect("an image");
    let mut superblock = Volume::read_superblock(&device).expect("a volume");
    superblock.flags |= 1 << 32;
    for at in SUPER_OFFSETS.into_iter().filter(|at| *at < LEN) {
        device.write_at(at, &superblock.to_bytes(at)).expect("a write");
    }
}

/// A seed is only read. A volume without its seed, or with a seed that has changed, does not open.
#[test]
fn a_volume_needs_the_seed_it_grew_from() {
    if !can_run() {
        return;
    }
    let (all, seed) = seed_of_linux(&[], 1);
    let filesystem = open(seed.paths(), true);
    let why = filesystem.read_only_reason().expect("it is only read");
    assert!(why.contains("a seed"), "{why}");
    close(filesystem);
    grow(seed.paths(), all.path());
    let alone = [all.path().to_owned()];
    let error = refusal(&alone);
    assert!(error.contains("missing: 1"), "{error}");

    run("btrfstune", ["-f".as_ref(), "-S".as_ref(), "0".as_ref(), seed.path().as_os_str()]);
    let error = refusal(all.paths());
    assert!(error.contains("belongs to"), "{error}");
    let mount = seed.mount("");
    mount.shell("echo more > more");
    mount.unmount();
    make_seed(&seed);
    let error = refusal(all.paths());
    assert!(error.contains("the seed has generation"), "{error}");

    let plain = Images::new(2, LEN);
    Images::over(vec![plain.path().to_owned()]).mkfs(&[]);
    let filesystem = open(&plain.paths()[..1], false);
    assert!(!filesystem.is_seed());
    close(filesystem);
}

/// The program has a seed mounted. It grows a volume from this seed, and adds another device to the
/// volume. The mount still shows the seed.
#[test]
fn the_program_grows_a_volume_from_a_mounted_seed() {
    if !can_run() || !can_mount_fuse() {
        return;
    }
    let (images, seed) = seed_of_linux(&[], 2);
    let before = bytes(&seed);
    let names: Vec<_> = images.paths().iter().map(|path| path.to_str().expect("UTF-8")).collect();
    let [new, first, second] = names[..] else { panic!("three images") };
    let options = format!("ro,device={second}");
    let shown = Mounted::new(seed.path(), &options);
    let place = shown.path().to_str().expect("UTF-8");
    let told = buttress(["device", "add", place, new]);
    assert!(told.contains(&format!("--device {first}")), "{told}");
    let more = Images::new(1, LEN);
    let added = more.path().to_str().expect("UTF-8");
    let (one, two) = (["--device", first], ["--device", second]);
    buttress(["device", "add", new, added].into_iter().chain(one).chain(two));
    let options = format!("device={added},device={first},device={second}");
    let grown = Mounted::new(images.path(), &options);
    grown.shell("echo new > new; test -f here");
    shown.shell("test ! -e new; test -f here");
    grown.unmount();
    shown.unmount();
    let all = Images::over([new, added, first, second].map(PathBuf::from).to_vec());
    all.check();
    assert!(bytes(&seed) == before, "the seed was written");
    let mount = all.mount("");
    assert_eq!(mount.shell("cat new"), "new\n");
    mount.unmount();
}

/// Names of devices that are no UTF-8 lead to the devices again, also from another folder than the
/// folder of the mount's server.
#[test]
fn devices_of_any_name_are_found_again() {
    if !can_run() || !can_mount_fuse() {
        return;
    }
    let (images, seed) = seed_of_linux(&[], 1);
    let folder = tempfile::tempdir().expect("a folder");
    let inside = folder.path().join(OsStr::from_bytes(b"lit\xe9"));
    std::fs::create_dir(&inside).expect("a folder");
    std::fs::copy(seed.path(), inside.join("seed")).expect("a copy");
    std::fs::copy(images.path(), inside.join("new")).expect("a copy");
    let more = Images::new(1, LEN);
    let (top, added) = (folder.path(), more.path());
    let run = |folder: &Path, arguments: &[&OsStr]| {
        // A server keeps the open files that it inherits, so its standard streams must not be pipes
        // of this test.
        let mut command = Command::new(program());
        let done = command.args(arguments).current_dir(folder).stdin(Stdio::null()).status();
        assert!(done.expect("the program").success(), "{arguments:?}");
    };
    std::fs::create_dir(top.join("mnt")).expect("a folder");
    let mount = top.join("mnt");
    run(
        &inside,
        &["mount".as_ref(), "-o".as_ref(), "ro".as_ref(), "seed".as_ref(), mount.as_ref()],
    );
    // The first device makes a volume grow from the seed. The second device is added to this
    // volume.
    let new = inside.join("new");
    let add = ["device".as_ref(), "add".as_ref()];
    run(top, &[&add[..], &[mount.as_ref(), new.as_ref(), added.as_ref()]].concat());
    run(top, &["umount".as_ref(), mount.as_ref()]);
    let all = [new, inside.join("seed"), added.to_owned()];
    let filesystem = open(&all, false);
    assert_eq!(filesystem.devices().len(), 3);
    close(filesystem);
    // The device is found by its name, from another folder.
    let option = |path: &Path| ["--device".into(), path.as_os_str().to_owned()];
    let others = [option(&all[1]), option(&all[2])].concat();
    let others: Vec<_> = others.iter().map(|one| &**one).collect();
    let remove = ["device".as_ref(), "remove".as_ref(), all[0].as_ref(), added.as_ref()];
    run(top, &[&remove[..], &others[..]].concat());
    let filesystem = open(&all[..2], false);
    assert_eq!(filesystem.devices().len(), 2);
    close(filesystem);
}
