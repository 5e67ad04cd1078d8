//! Maintenance of a whole volume while another thread uses it through a mount of ours, and the
//! remains of Linux's maintenance after a crash.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use buttress_fs::{NewInode, SetAttr};
use buttress_interop::linux::{
    Images, Mount, can_mount_fuse, check, has_linux_btrfs, run, sparse_file, try_run, unmount,
};
use buttress_interop::manifest::{Depth, Manifest};
use buttress_interop::program::{Mounted, buttress, program};
use buttress_interop::scratch::Scratch;

use crate::open::{close, manifest, open};

fn ready() -> bool {
    can_mount_fuse() && rustix::process::geteuid().is_root()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// A worker that writes files and reads them, until a certain file exists.
struct Busy {
    child: Child,
    stop: PathBuf,
}

impl Busy {
    fn new(mount: &Mounted, scratch: &Scratch) -> Self {
        let stop = scratch.join("stop");
        let script = format!(
            "set -euo pipefail; mkdir busy; cd busy; i=0; while [ ! -e '{}' ]; do i=$((i+1)); \
             head -c $((i % 40 * 7001 + 1)) /dev/urandom > new; sum=$(md5sum < new); \
             if [ $((i % 5)) = 0 ]; then sync new; fi; mv new file-$((i % 37)); \
             [ \"$(md5sum < file-$((i % 37)))\" = \"$sum\" ]; done",
            stop.display()
        );
        let mut command = Command::new("bash");
        command.args(["-c", &script]).current_dir(mount.path()).stdout(Stdio::null());
        Self { child: command.spawn().expect("bash starts"), stop }
    }

    fn end(mut self) {
        std::fs::write(&self.stop, "").expect("a file");
        assert!(self.child.wait().expect("it ends").success(), "what was written was not read");
    }
}

/// Devices are added, removed and changed under a busy mount. Afterwards, Linux sees the same
/// files.
#[test]
pub(crate) fn devices_change_under_a_mount() {
    if !ready() || !has_linux_btrfs() {
        return;
    }
    let images = Images::new(3, 400 << 20);
    let scratch = Scratch::new();
    let (first, second, third) =
        (text(&images.paths()[0]), text(&images.paths()[1]), text(&images.paths()[2]));
    buttress(["mkfs", first, "--force"]);
    let mount = Mounted::new(images.path(), "");
    let place = text(mount.path());
    mount.shell(
        "mkdir still; for i in 1 2 3 4; do head -c 12M /dev/urandom > still/$i; done; sync .",
    );
    let still = mount.shell("cd still; md5sum *");
    let busy = Busy::new(&mount, &scratch);
    let said = buttress(["device", "add", first, second]);
    assert!(said.contains("device 2"), "{said}");
    let again = try_run(text(program()), ["device", "add", place, second]);
    assert!(again.is_err(), "it is in use");
    let said =
        buttress(["balance", "start", "-dconvert=raid1", "-mconvert=raid1", place, "--json"]);
    assert!(said.contains("\"paused\": false"), "{said}");
    let said = buttress(["device", "replace", place, second, third, "--json"]);
    assert!(said.contains("\"uncorrectable_errors\": 0"), "{said}");
    let state = scratch.join("state");
    let said = buttress(["scrub", "start", "--state", text(&state), place]);
    assert!(said.contains("no errors found"), "{said}");
    assert!(mount.shell("cd still; md5sum *") == still);
    let filters = ["-dconvert=single", "-mconvert=single", "--force"];
    buttress(["balance", "start", place].into_iter().chain(filters));
    buttress(["filesystem", "resize", "2:300M", place]);
    buttress(["device", "remove", place, "2"]);
    let said = buttress(["device", "stats", place, "--check"]);
    assert!(said.contains(first) && !said.contains(third), "{said}");
    busy.end();
    assert!(mount.shell("cd still; md5sum *") == still);
    let before = Manifest::of_folder(mount.path());
    mount.unmount();
    let alone = images.paths()[..1].to_vec();
    check(images.path());
    let after = manifest(&alone);
    before.assert_same("the mount", &after, "the library", Depth::Copy);
    let folder = Scratch::new();
    run("mount", ["-o", "loop,ro", first, text(folder.path())]);
    let seen = Manifest::of_folder(folder.path());
    unmount(folder.path());
    seen.assert_same("Linux", &after, "the library", Depth::Volume);
}

fn status(place: &str) -> String {
    buttress(["balance", "status", "--json", place])
}

/// Waits until the balance of `child` runs. Returns whether it ran at all.
fn running(child: &mut Child, place: &str) -> bool {
    for _ in 0..3000 {
        if status(place).contains("running") {
            return true;
        }
        if child.try_wait().expect("a child").is_some() {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("a balance neither runs nor ends");
}

fn balance(place: &str) -> Child {
    let mut command = Command::new(program());
    command.args(["balance", "start", "--full-balance", "--json", place]);
    command.stdout(Stdio::piped()).spawn().expect("it starts")
}

/// A balance is paused, shown, resumed and cancelled, on a mounted volume and on an image.
#[test]
fn a_balance_is_paused() {
    if !ready() {
        return;
    }
    let images = Images::new(1, 1 << 30);
    let image = text(images.path());
    buttress(["mkfs", image, "--force"]);
    let mount = Mounted::new(images.path(), "");
    mount.shell("for i in $(seq 30); do head -c 9M /dev/urandom > $i; done");
    // So many extents take longer to move than the requests below take.
    mount.shell("head -c 48M /dev/urandom | split -a 4 -b 8k - s; sync .");
    let sums = mount.shell("md5sum *");
    let nothing = try_run(text(program()), ["balance", "pause", image]);
    assert!(nothing.is_err(), "none is running");
    // The balance may end before the pause arrives. In that case another balance begins.
    let pause = |place: &str| {
        for _ in 0..50 {
            let mut child = balance(place);
            if !running(&mut child, place) {
                drop(child.wait());
                continue;
            }
            let asked = try_run(text(program()), ["balance", "pause", place]);
            let output = child.wait_with_output().expect("it ends");
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if !said.contains("\"paused\": true") {
                assert!(said.contains("\"paused\": false") && output.status.success(), "{said}");
                continue;
            }
            assert!(asked.is_ok(), "{asked:?}");
            assert_eq!(output.status.code(), Some(1));
            assert!(status(place).contains("paused"));
            let again = ["balance", "start", "--full-balance", place];
            assert!(try_run(text(program()), again).is_err());
            return;
        }
        panic!("every balance ended before it could be paused");
    };
    pause(text(mount.path()));
    buttress(["balance", "resume", image]);
    assert!(status(image).contains("none"));
    pause(image);
    buttress(["balance", "cancel", image]);
    assert!(status(image).contains("none"));
    // A running balance is also stopped by a cancel, and by the unmount.
    let cancelled = (0..50).any(|_| {
        let mut child = balance(image);
        let cancel = || try_run(text(program()), ["balance", "cancel", image]);
        let asked = running(&mut child, image).then(cancel);
        let output = child.wait_with_output().expect("it ends");
        if let Some(Ok(_)) = asked {
            assert!(!status(image).contains("running"));
            return true;
        }
        assert!(output.status.success(), "it ended before the cancel arrived: {asked:?}");
        false
    });
    assert!(cancelled, "every balance ended before it could be cancelled");
    let mut child = balance(image);
    let ran = running(&mut child, image);
    assert!(mount.shell("md5sum *") == sums);
    mount.unmount();
    drop(child.wait());
    if ran && status(image).contains("paused") {
        buttress(["balance", "cancel", image]);
    }
    pause(image);
    buttress(["balance", "resume", image]);
    assert!(status(image).contains("none"));
    check(images.path());
}

/// A volume with its image on another volume of Linux, where a clone copies the image in an
/// instant. Such a copy has the state that a crash would have left.
struct Outer {
    scratch: Scratch,
    mount: Option<Mount>,
    _images: Images,
}

impl Outer {
    fn new() -> Self {
        let images = Images::new(1, 4 << 30);
        images.mkfs(&[]);
        let mount = images.mount("nodatasum");
        Self { scratch: Scratch::new(), mount: Some(mount), _images: images }
    }

    fn path(&self) -> &Path {
        self.mount.as_ref().expect("it is mounted").path()
    }

    /// Copies of a volume that Linux was balancing, each in the middle of a group.
    fn interrupted(&self) -> Vec<PathBuf> {
        let image = self.path().join("image");
        sparse_file(&image, 768 << 20);
        run("mkfs.btrfs", ["-q", "-n", "4096", text(&image)]);
        let inner = self.scratch.join("inner");
        std::fs::create_dir(&inner).expect("a folder");
        run("mount", ["-o", "loop,noatime", text(&image), text(&inner)]);
        let filled = try_run("bash", ["-c", &format!("cd '{}'; {FILLING}", inner.display())]);
        // The load of the machine decides how many copies are made in the middle of a group.
        let mut copies = Vec::new();
        let outcome = filled.and_then(|_| {
            (0..10).try_for_each(|round| {
                if copies.is_empty() {
                    copies = self.balanced(&inner, &image, round)?;
                }
                Ok(())
            })
        });
        unmount(&inner);
        outcome.unwrap_or_else(|error: String| panic!("{error}"));
        copies
    }

    /// Balances once, and copies the image several times meanwhile.
    fn balanced(&self, inner: &Path, image: &Path, round: u32) -> Result<Vec<PathBuf>, String> {
        let copies = self.path().join(format!("round{round}"));
        std::fs::create_dir(&copies).expect("a folder");
        let script = format!(
            "set -euo pipefail; cd '{}'; touch '{}'/balancing; \
             (btrfs balance start --full-balance . > /dev/null; rm '{}'/balancing) & \
             i=0; while [ -e '{}'/balancing ] && [ $i -lt {COPIES} ]; do btrfs filesystem sync .; \
             cp --reflink=always '{}' '{}'/copy$i; i=$((i+1)); sleep 0.02; done; wait",
            inner.display(),
            self.scratch.path().display(),
            self.scratch.path().display(),
            self.scratch.path().display(),
            image.display(),
            copies.display(),
        );
        try_run("bash", ["-c", &script])?;
        let copies = (0..COPIES).map(|number| copies.join(format!("copy{number}")));
        let is_one = |copy: &PathBuf| {
            copy.exists()
                && try_run("btrfs", ["inspect-internal", "dump-tree", "-t", "root", text(copy)])
                    .is_ok_and(|said| said.contains("(TREE_RELOC ROOT_ITEM"))
        };
        Ok(copies.filter(is_one).take(3).collect())
    }
}

const COPIES: usize = 40;

/// The content of the volume: small files, a large file, and snapshots that differ.
const FILLING: &str = "set -euo pipefail; btrfs -q subvolume create sub; \
     for d in 0 1 2 3 4 5 6 7; do mkdir sub/$d; for f in $(seq 500); do \
     head -c $((f * 7 % 2900 + 1)) /dev/urandom > sub/$d/$f; done; done; \
     head -c 20M /dev/urandom > sub/big; btrfs -q subvolume snapshot -r sub first; \
     for f in $(seq 3 11 500); do echo more >> sub/4/$f; done; \
     btrfs -q subvolume snapshot sub second; sync";

impl Drop for Outer {
    fn drop(&mut self) {
        let _ = try_run("umount", [text(&self.scratch.join("inner"))]);
        if let Some(mount) = self.mount.take() {
            mount.unmount();
        }
    }
}

/// After a crash in a balance of Linux, the volume is read here, and the balance is cancelled or
/// resumed.
#[test]
pub(crate) fn a_balance_that_a_crash_interrupted() {
    if !has_linux_btrfs() {
        return;
    }
    let outer = Outer::new();
    let copies = outer.interrupted();
    assert!(!copies.is_empty(), "no copy was made in the middle of a group");
    let expected = manifest(&[outer.path().join("image")]);
    for (number, copy) in copies.iter().enumerate() {
        let copies = vec![copy.clone()];
        let seen = manifest(&copies);
        expected.assert_same("the volume", &seen, "what a crash left", Depth::Volume);
        let filesystem = open(&copies, true);
        assert_eq!(filesystem.read_only_reason(), None);
        let mtime = Some(filesystem.root().attr().mtime);
        drop(filesystem.root().create(b"written", NewInode::file(0o644)).expect("a file"));
        assert!(filesystem.balance_status().expect("it").is_some(), "it can go on");
        if number % 2 == 0 {
            filesystem.resume_balance(&mut |_| true).expect("the rest");
        }
        filesystem.root().unlink(b"written").expect("removed");
        let set = SetAttr { mtime, ..SetAttr::default() };
        filesystem.root().set_attr(&set).expect("as it was");
        close(filesystem);
        check(copy);
        buttress(["check", text(copy), "--check-data-csum"]);
        expected.assert_same("the volume", &manifest(&copies), "what is left", Depth::Copy);
        let said = run("btrfs", ["inspect-internal", "dump-tree", "-t", "root", text(copy)]);
        assert!(!said.contains("TREE_RELOC ROOT_ITEM"), "{said}");
        // Linux continues the balance that we did not continue.
        let folder = Scratch::new();
        run("mount", ["-o", "loop", text(copy), text(folder.path())]);
        let seen = Manifest::of_folder(folder.path());
        let _ = try_run("btrfs", ["balance", "cancel", text(folder.path())]);
        unmount(folder.path());
        seen.assert_same("Linux", &expected, "the volume", Depth::Copy);
        if number % 2 == 1 {
            use_up(copy);
        }
    }
}

/// Changes and deletes subvolumes that share nodes, also nodes that the interrupted balance has
/// moved.
fn use_up(copy: &Path) {
    let copies = vec![copy.to_owned()];
    for deleted in ["first", "sub"] {
        let filesystem = open(&copies, true);
        let second = filesystem.root().lookup(b"second").expect("a snapshot");
        for number in (1..500).step_by(7) {
            let name = format!("{number}");
            let folder = second.lookup(deleted.len().to_string().as_bytes()).expect("a folder");
            folder.unlink(name.as_bytes()).expect("a file less");
            let sub = filesystem.root().lookup(b"sub").expect("a subvolume");
            let folder = sub.lookup(deleted.len().to_string().as_bytes()).expect("a folder");
            let file = folder.lookup(name.as_bytes()).expect("a file");
            file.write_at(0, b"changed").expect("a write");
        }
        drop(second);
        filesystem.root().delete_subvolume(deleted.as_bytes()).expect("a deletion");
        filesystem.sync().expect("it");
        close(filesystem);
        check(copy);
        buttress(["check", text(copy), "--check-data-csum"]);
    }
}
