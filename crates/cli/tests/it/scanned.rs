//! The other devices of a volume are found among the block devices of the machine.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::live::run;
use crate::unmounting::can_mount;
use crate::{Bench, bench, text};

/// A mirrored volume on two loop devices, with an old copy of the second one.
struct Pair {
    bench: Bench,
    devices: Vec<String>,
}

impl Pair {
    fn new() -> Self {
        let bench = bench();
        fs::create_dir(bench.path("mnt")).expect("a folder");
        for name in ["one", "two"] {
            let file = fs::File::create(bench.path(name)).expect("a file");
            file.set_len(256 << 20).expect("it is sparse");
        }
        bench.ok(&["mkfs", "--metadata", "raid1", "--data", "raid1", "one", "two"]);
        fs::copy(bench.path("two"), bench.path("old")).expect("a copy");
        let mut pair = Self { bench, devices: Vec::new() };
        pair.attach("one");
        pair.attach("two");
        pair
    }

    fn attach(&mut self, image: &str) -> String {
        let device = run("losetup", &["--find", "--show", text(&self.bench.path(image))]);
        self.devices.push(device.trim().to_owned());
        device.trim().to_owned()
    }

    fn detach(&mut self, device: &str) {
        let _ = Command::new("btrfs").args(["device", "scan", "--forget", device]).output();
        run("losetup", &["--detach", device]);
        // Linux detaches a device when the last program that looks at it has closed it.
        let behind = std::path::Path::new("/sys/block").join(device.trim_start_matches("/dev/"));
        let begun = Instant::now();
        while behind.join("loop/backing_file").exists() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{device} is still in use");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.devices.retain(|one| one != device);
    }

    fn mount(&self, device: &str, options: &str) {
        self.bench.ok(&["mount", device, text(&self.bench.path("mnt")), "-o", options]);
    }

    fn refused(&self, device: &str, options: &str) -> String {
        let point = self.bench.path("mnt");
        let output = self.bench.command(&["mount", device, text(&point), "-o", options]).output();
        let output = output.expect("it starts");
        assert!(!output.status.success(), "{device} {options}");
        String::from_utf8(output.stderr).expect("text")
    }

    fn unmount(&self) {
        self.bench.ok(&["umount", text(&self.bench.path("mnt"))]);
    }

    fn write(&self, name: &str) {
        fs::write(self.bench.path("mnt").join(name), name).expect("it is written");
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-i", "-l"]).arg(self.bench.path("mnt")).output();
        for device in std::mem::take(&mut self.devices) {
            let _ = Command::new("btrfs").args(["device", "scan", "--forget", &device]).output();
            let _ = Command::new("losetup").args(["--detach", &device]).output();
        }
    }
}

/// A mount by any device finds the other one, and its server is found by either. Images are never
/// picked up.
#[test]
fn the_other_device_is_found() {
    if !can_mount() {
        return;
    }
    let mut pair = Pair::new();
    let devices = pair.devices.clone();
    for device in &devices {
        pair.mount(device, "rw");
        pair.write(device.trim_start_matches("/dev/"));
        devices.iter().for_each(|device| drop(pair.bench.ok(&["check", device])));
        pair.unmount();
    }
    run("btrfs", &["check", "--check-data-csum", &devices[0]]);
    devices.iter().for_each(|device| pair.detach(device));
    let said = pair.refused(text(&pair.bench.path("one")), "rw");
    assert!(said.contains("has 2 devices"), "{said}");
}

/// Where two devices have one place, or one of them is old, the command line decides.
#[test]
fn the_command_line_decides_between_devices() {
    if !can_mount() {
        return;
    }
    let mut pair = Pair::new();
    let [one, two] = pair.devices.as_slice() else { panic!("two devices") };
    let (one, two) = (one.clone(), two.clone());
    fs::copy(pair.bench.path("two"), pair.bench.path("twin")).expect("a copy");
    let twin = pair.attach("twin");
    let said = pair.refused(&one, "rw");
    assert!(said.contains(&two) && said.contains(&twin) && said.contains("device="), "{said}");
    pair.mount(&one, &format!("device={two}"));
    for round in 0..3 {
        pair.write(&format!("{round}"));
        run("sync", &["--file-system", text(&pair.bench.path("mnt"))]);
    }
    pair.unmount();
    // The twin is old now, and its place is taken.
    pair.mount(&one, "rw");
    pair.unmount();
    pair.detach(&twin);

    pair.detach(&two);
    let old = pair.attach("old");
    let said = pair.refused(&one, "rw");
    assert!(said.contains(&format!("{old} is at transaction")), "{said}");
    let said = pair.refused(&old, "rw");
    assert!(said.contains(&format!("and {old} at")), "{said}");
    pair.mount(&one, "degraded");
    pair.write("without");
    pair.unmount();
    pair.mount(&one, &format!("device={old}"));
    assert!(pair.bench.path("mnt/without").exists());
    assert!(pair.bench.path("mnt/0").exists());
    pair.bench.ok(&["scrub", "start", text(&pair.bench.path("mnt"))]);
    pair.unmount();
    run("btrfs", &["check", "--check-data-csum", &one]);
}

/// A device that missed a degraded mount is older, also if that mount ended with a log. Nothing
/// that fsync wrote may be lost, however the devices are joined.
#[test]
fn a_log_of_a_degraded_mount_is_not_lost() {
    if !can_mount() {
        return;
    }
    let mut pair = Pair::new();
    let [one, two] = pair.devices.as_slice() else { panic!("two devices") };
    let (one, two) = (one.clone(), two.clone());
    pair.detach(&two);
    pair.mount(&one, "degraded");
    let path = pair.bench.path("mnt/file");
    let file = fs::File::create(&path).expect("a file");
    std::os::unix::fs::FileExt::write_all_at(&file, b"kept", 0).expect("it is written");
    file.sync_all().expect("it is durable");
    drop(file);
    let stats = pair.bench.ok(&["--json", "stats", text(&pair.bench.path("mnt"))]);
    let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    run("kill", &["-KILL", &stats["pid"].to_string()]);
    while fs::read_dir(pair.bench.path("mnt")).is_ok() {
        std::thread::yield_now();
    }
    run("umount", &["-i", text(&pair.bench.path("mnt"))]);
    let two = pair.attach("two");
    let said = pair.refused(&one, "rw");
    assert!(said.contains(&format!("{two} is at transaction")), "{said}");
    // Without the log of the other, this device would begin a history of its own.
    pair.refused(&two, "degraded");
    pair.mount(&one, &format!("device={two}"));
    assert_eq!(fs::read(&path).expect("it is there"), b"kept");
    pair.unmount();
}
