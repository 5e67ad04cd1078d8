//! Mounts of block devices, which the kernel knows as such: `sync`, unmounts, and claims of the
//! device.

use std::fs;
use std::process::{Command, Output};

use crate::live::{has, is_root, run};
use crate::unmounting::can_mount;
use crate::{Bench, bench, text};

/// A volume on a loop device. Dropping this value detaches the loop device.
struct Device {
    bench: Bench,
    name: String,
}

impl Device {
    fn new() -> Self {
        let bench = bench();
        bench.volume("image", "256M");
        bench.ok(&["subvolume", "create", "image:/home"]);
        for place in ["mnt", "home"] {
            fs::create_dir(bench.path(place)).expect("a folder");
        }
        let name = run("losetup", &["--find", "--show", text(&bench.path("image"))]);
        let name = name.trim().to_owned();
        Self { bench, name }
    }

    fn mount(&self, place: &str, options: &str) {
        let point = self.bench.path(place);
        self.bench.ok(&["mount", &self.name, text(&point), "-o", options]);
    }

    /// Unmounts as a program does that knows nothing of `buttress`.
    fn unmount(&self, place: &str) {
        run("umount", &["--internal-only", text(&self.bench.path(place))]);
    }

    /// The type in the kernel's list of mounts.
    fn kind(&self, place: &str) -> String {
        let point = self.bench.path(place);
        run("findmnt", &["-n", "-o", "FSTYPE", "--mountpoint", text(&point)]).trim().to_owned()
    }

    fn server(&self, place: &str) -> u32 {
        let stats = self.bench.ok(&["--json", "stats", text(&self.bench.path(place))]);
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        u32::try_from(stats["pid"].as_u64().expect("a process")).expect("a process")
    }

    /// Kills the server, and waits until its end of the connection is gone.
    fn kill(&self, place: &str) {
        let pid = self.server(place).to_string();
        run("kill", &["-KILL", &pid]);
        while fs::read_dir(self.bench.path(place)).is_ok() {
            std::thread::yield_now();
        }
    }

    fn check(&self) {
        run("btrfs", &["check", "--check-data-csum", &self.name]);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        for place in ["home", "mnt"] {
            let _ = Command::new("umount").args(["-i", "-l"]).arg(self.bench.path(place)).output();
        }
        let _ = Command::new("btrfs").args(["device", "scan", "--forget", &self.name]).output();
        let _ = Command::new("losetup").args(["--detach", &self.name]).output();
    }
}

/// `sync` and `syncfs` make everything durable, so all data is there after the server is killed.
#[test]
fn sync_makes_everything_durable() {
    if !can_mount() {
        return;
    }
    for options in ["noio_uring", "rw"] {
        let device = Device::new();
        device.mount("mnt", options);
        assert_eq!(device.kind("mnt"), "fuseblk.buttress");
        let file = device.bench.path("mnt/home/file");
        fs::write(&file, [7; 100_000]).expect("it is written");
        fs::write(device.bench.path("mnt/name"), "").expect("it is written");
        run("sync", &["--file-system", text(&file)]);
        fs::write(device.bench.path("mnt/later"), "").expect("it is written");
        device.kill("mnt");
        let output = device.bench.command(&["mount", &device.name, "home"]).output();
        let said = String::from_utf8(output.expect("it starts").stderr).expect("text");
        let point = device.bench.path("mnt");
        assert!(said.contains(&format!("run umount {} first", point.display())), "{said}");
        device.unmount("mnt");
        device.check();
        device.mount("mnt", options);
        assert_eq!(fs::read(&file).expect("it is there"), [7; 100_000]);
        assert!(device.bench.path("mnt/name").exists());
        device.unmount("mnt");
        device.check();
    }
}

/// An unmount by a program that knows nothing of `buttress` returns when the volume is closed and
/// the device is free. So Linux can mount the volume at once, and finds everything.
#[test]
fn an_unmount_waits_for_the_volume() {
    if !can_mount() {
        return;
    }
    let device = Device::new();
    for round in 0..5 {
        let options = if round % 2 == 0 { "noio_uring" } else { "rw" };
        device.mount("mnt", options);
        device.mount("home", "subvol=home");
        for number in 0..200 {
            let place = if number % 2 == 0 { "mnt" } else { "home" };
            let name = device.bench.path(&format!("{place}/{round}-{number}"));
            fs::write(name, format!("{number} ").repeat(100)).expect("it is written");
        }
        // The mounts can end in any order, and a bind mount counts as a mount.
        let home = device.bench.path("home");
        run("mount", &["--bind", text(&home), text(&home)]);
        device.unmount(if round == 1 { "mnt" } else { "home" });
        device.unmount(if round == 1 { "home" } else { "mnt" });
        device.unmount("home");
        device.check();
        run("mount", &["-t", "btrfs", &device.name, text(&device.bench.path("mnt"))]);
        for number in 0..200 {
            let place = if number % 2 == 0 { "mnt" } else { "mnt/home" };
            let name = device.bench.path(&format!("{place}/{round}-{number}"));
            let found =
                fs::read_to_string(&name).unwrap_or_else(|error| panic!("{name:?}: {error}"));
            assert_eq!(found, format!("{number} ").repeat(100));
        }
        run("umount", &[text(&device.bench.path("mnt"))]);
    }
}

/// While the device is mounted, no other program can claim it. A signal to the server ends the
/// mount.
#[test]
fn the_kernel_has_claimed_the_device() {
    if !can_mount() {
        return;
    }
    let device = Device::new();
    let succeeds = |program: &str, args: &[&str]| {
        let output: Output = Command::new(program).args(args).output().expect("it starts");
        output.status.success()
    };
    device.mount("mnt", "rw");
    let mnt = device.bench.path("mnt");
    assert!(!succeeds("mkfs.btrfs", &["-f", &device.name]));
    assert!(!succeeds("mount", &["-t", "btrfs", &device.name, text(&device.bench.path("home"))]));
    // For this scrub, the server opens the top of its own mount for a moment, so that the kernel
    // writes data back. This open file must not keep the mount busy.
    fs::write(device.bench.path("mnt/file"), "x").expect("it is written");
    device.bench.ok(&["scrub", "start", text(&mnt)]);
    let pid = device.server("mnt");
    run("kill", &["-TERM", &pid.to_string()]);
    while fs::exists(format!("/proc/{pid}")).unwrap_or(false) {
        std::thread::yield_now();
    }
    device.check();
    assert_eq!(device.bench.ok(&["cat", &format!("{}:/file", device.name)]), "x");
    // The kernel claims no device for a read-only mount, which may become writable. With
    // `nofuseblk`, the kernel knows no device.
    for options in ["ro", "nofuseblk"] {
        device.mount("mnt", options);
        assert_eq!(device.kind("mnt"), "fuse.buttress", "{options}");
        device.bench.ok(&["umount", text(&mnt)]);
    }
}

/// A device that the kernel has mounted is overwritten by no verb, also by none that is given a
/// size. The mounted volume stays as it is.
#[test]
fn a_mounted_device_is_not_overwritten() {
    let needed = ["mkfs.ext4", "e2fsck", "mount", "umount", "losetup"];
    if !has(&needed, Some("/dev/loop-control")) || !is_root() {
        return;
    }
    let bench = bench();
    let image = bench.path("image");
    fs::File::create(&image).and_then(|file| file.set_len(256 << 20)).expect("a file");
    run("mkfs.ext4", &["-q", text(&image)]);
    fs::create_dir(bench.path("mnt")).expect("a folder");
    let name = run("losetup", &["--find", "--show", text(&image)]).trim().to_owned();
    let device = Device { bench, name };
    let mnt = device.bench.path("mnt");
    run("mount", &["-t", "ext4", &device.name, text(&mnt)]);
    fs::write(mnt.join("file"), [7; 100_000]).expect("it is written");
    device.unmount("mnt");
    // Linux itself changes nothing below this mount.
    run("mount", &["-t", "ext4", "-o", "ro", &device.name, text(&mnt)]);
    let before = fs::read(&device.name).expect("root reads it");
    for words in [
        &["mkfs", "--force"][..],
        &["mkfs", "--force", "--size", "200M"],
        &["mkfs", "--force", "--size", "1G"],
        &["cache", "format", "--force", "--size", "200M"],
    ] {
        let output = device.bench.command(&[words, &[&device.name]].concat()).output();
        let output = output.expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("in use"), "{words:?}: {said}");
        assert!(fs::read(&device.name).expect("root reads it") == before, "{words:?}");
    }
    device.unmount("mnt");
    run("e2fsck", &["-f", "-n", &device.name]);
    run("mount", &["-t", "ext4", &device.name, text(&mnt)]);
    assert_eq!(fs::read(mnt.join("file")).expect("it is there"), [7; 100_000]);
    device.unmount("mnt");
    // A device that is free is made anew.
    device.bench.ok(&["mkfs", "--force", "--size", "200M", &device.name]);
    device.check();
}

/// The blocks of a device are shared with no file. The device is refused before it is written.
#[test]
fn a_device_that_shares_nothing_is_not_written() {
    if !has(&["losetup", "btrfs"], Some("/dev/loop-control")) || !is_root() {
        return;
    }
    let device = Device::new();
    let words = ["mkfs", "--force", "--rootdir", "mnt", "--reflink", &device.name];
    device.bench.fails(&words, 2, &["only an image file"]);
    device.check();
    assert!(device.bench.ok(&["ls", &format!("{}:/", device.name)]).contains("home"));
}
