//! `quota` and `qgroup` of ours: Linux has the same groups, counts and limits afterwards, and the
//! output is that of btrfs-progs. Limits of simple quotas stop writers.

use std::os::unix::process::CommandExt;
use std::process::Command;

use buttress_interop::linux::{Images, can_mount_fuse, has_linux_btrfs};
use buttress_interop::program::{Mounted, buttress, program};

use crate::quotas::{enable_simple_quotas, groups};

const MIB: u64 = 1 << 20;

fn text(images: &Images) -> &str {
    images.path().to_str().expect("ASCII")
}

/// The standard output of the program under the name `btrfs`.
#[track_caller]
fn as_btrfs(words: &[&str]) -> String {
    let output = Command::new(program()).arg0("btrfs").args(words).output().expect("it starts");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The lines of a table. For groups of higher levels, btrfs-progs 6.2 prints a count of groups in
/// place of a path. The count is cut off.
fn rows(text: &str) -> Vec<String> {
    let is_above = |line: &str| line.starts_with(|digit: char| ('1'..='9').contains(&digit));
    let row = |line: &str| match line.rsplit_once("  ") {
        Some((row, _)) if is_above(line) => row.to_owned(),
        _ => line.to_owned(),
    };
    text.lines().map(row).collect()
}

/// Makes a volume with subvolumes, a snapshot, shared files, and groups of higher levels.
fn volume(simple: bool) -> Images {
    let images = Images::new(1, 600 << 20);
    let image = text(&images);
    let at = |path: &str| format!("{image}:{path}");
    buttress(["mkfs", image]);
    buttress(["subvolume", "create", &at("/before")]);
    if simple {
        buttress(["quota", "enable", "--simple", image]);
    } else {
        buttress(["quota", "enable", image]);
    }
    buttress(["qgroup", "create", "1/7", image]);
    buttress(["qgroup", "create", "2/1", image]);
    buttress(["subvolume", "create", &at("/live"), &at("/other")]);
    buttress(["qgroup", "assign", "0/257", "1/7", image]);
    buttress(["qgroup", "assign", "1/7", "2/1", image]);
    buttress(["qgroup", "limit", "100M", "1/7", image]);
    buttress(["qgroup", "limit", "-e", "200M", &at("/other")]);
    let file = images.scratch().join("file");
    let noise: Vec<u8> = (0..3 * MIB).map(|at| (at * at / 7) as u8).collect();
    std::fs::write(&file, &noise).expect("a file");
    let file = file.to_str().expect("ASCII");
    for path in ["/before/a", "/live/a", "/live/b", "/other/a"] {
        buttress(["cp", file, &at(path)]);
    }
    buttress(["cp", "--reflink=always", &at("/before/a"), &at("/before/shared")]);
    buttress(["subvolume", "snapshot", &at("/live"), &at("/copy")]);
    buttress(["rm", &at("/live/b")]);
    images
}

/// Full quotas are counted here as Linux counts them, and shown as btrfs-progs shows them.
#[test]
pub(crate) fn full_quotas_are_counted_as_linux_counts_them() {
    if !has_linux_btrfs() {
        return;
    }
    let images = volume(false);
    let image = text(&images);
    assert_eq!(as_btrfs(&["quota", "rescan", image]), "quota rescan started\n");
    let ours = as_btrfs(&["qgroup", "show", "-pcre", image]);
    let sorted = as_btrfs(&["qgroup", "show", "--raw", "--sort=-rfer,path", image]);
    images.check();
    let mount = images.mount("");
    let theirs = mount.btrfs("qgroup show -pcre");
    assert_eq!(rows(&ours), rows(&theirs), "ours\n{ours}\nLinux\n{theirs}");
    assert_eq!(rows(&sorted), rows(&mount.btrfs("qgroup show --raw --sort=-rfer,path")));
    let before = groups(&mount);
    mount.btrfs("quota rescan -w");
    assert_eq!(before, groups(&mount), "what Linux counts anew");
    mount.unmount();
    images.check();
    // After `disable`, quotas leave nothing behind.
    buttress(["quota", "disable", image]);
    assert!(buttress(["quota", "status", image]).contains("no"));
    images.check();
    let mount = images.mount("");
    mount.btrfs("quota enable");
    mount.btrfs("quota rescan -w");
    mount.unmount();
    let shown = buttress(["qgroup", "show", image]);
    assert!(shown.contains("<toplevel>"), "{shown}");
    images.check();
}

/// Linux continues with simple quotas that are made here, and we continue with simple quotas that
/// Linux made.
#[test]
pub(crate) fn simple_quotas_are_made_by_both() {
    if !has_linux_btrfs() {
        return;
    }
    let images = volume(true);
    images.check_volume();
    let ours = as_btrfs(&["qgroup", "show", "-pcre", text(&images)]);
    let mount = images.mount("");
    let theirs = mount.btrfs("qgroup show -pcre");
    assert_eq!(rows(&ours), rows(&theirs), "ours\n{ours}\nLinux\n{theirs}");
    mount.shell("head -c 2000000 /dev/urandom > other/linux; rm before/a; sync");
    mount.unmount();
    images.check_volume();
    let image = text(&images);
    buttress(["qgroup", "remove", "0/257", "1/7", image]);
    buttress(["quota", "disable", image]);
    images.check_volume();
    let mount = images.mount("");
    if !enable_simple_quotas(&mount) {
        return;
    }
    mount.shell("head -c 1000000 /dev/urandom > live/linux; sync");
    mount.btrfs("qgroup create 1/9");
    let theirs = mount.btrfs("qgroup show -pcre");
    mount.unmount();
    assert_eq!(rows(&as_btrfs(&["qgroup", "show", "-pcre", image])), rows(&theirs));
    buttress(["qgroup", "destroy", "1/9", image]);
    images.check_volume();
}

/// Runs a script on a mount, which must fail, and returns its error output.
fn refused(mount: &Mounted, script: &str) -> String {
    let script = format!("cd '{}' && {script}", mount.path().display());
    let output = Command::new("bash").args(["-c", &script]).output().expect("bash");
    assert!(!output.status.success(), "{script} was not refused");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writers get `EDQUOT` at the limit of a group, also direct writes and preallocations. After space
/// was freed, they can write again. Linux refuses writes above the limit as well.
#[test]
fn limits_stop_writers() {
    if !has_linux_btrfs() || !can_mount_fuse() {
        return;
    }
    let images = Images::new(1, 1 << 30);
    let image = text(&images);
    buttress(["mkfs", image]);
    let mount = Mounted::new(images.path(), "");
    let at = mount.path().to_str().expect("ASCII");
    buttress(["quota", "enable", "--simple", at]);
    buttress(["subvolume", "create", &format!("{at}/a"), &format!("{at}/b")]);
    buttress(["qgroup", "create", "1/1", at]);
    buttress(["qgroup", "assign", "0/256", "1/1", at]);
    buttress(["qgroup", "assign", "0/257", "1/1", at]);
    buttress(["qgroup", "limit", "40M", "1/1", at]);
    buttress(["qgroup", "limit", "20M", &format!("{at}/a")]);
    let write = |file: &str, count: u64, more: &str| {
        format!("dd if=/dev/urandom of={file} bs=1M count={count} conv=fsync status=none {more}")
    };
    mount.shell(&write("a/first", 10, ""));
    let said = refused(&mount, &write("a/second", 15, ""));
    assert!(said.contains("quota"), "{said}");
    let said = refused(&mount, &write("a/direct", 15, "oflag=direct"));
    assert!(said.contains("quota"), "{said}");
    let said = refused(&mount, "fallocate -l 15M a/aside");
    assert!(said.contains("quota"), "{said}");
    // Writes without a limit still work, and so do removals.
    mount.shell(&write("free", 60, ""));
    // Removed data counts until a commit, which an fsync of the top makes.
    mount.shell("rm -f a/*; sync .");
    mount.shell(&write("a/third", 15, ""));
    // The two groups together have a limit, too.
    mount.shell(&write("b/first", 15, ""));
    let said = refused(&mount, &write("b/second", 15, ""));
    assert!(said.contains("quota"), "{said}");
    mount.shell("sync");
    mount.unmount();
    images.check_volume();
    let mount = images.mount("");
    for line in groups(&mount) {
        let words: Vec<&str> = line.split(' ').collect();
        let most = match words[0] {
            "0/256" => 20 * MIB,
            "1/1" => 40 * MIB,
            _ => continue,
        };
        let used: u64 = words[1].parse().expect("a number");
        assert!(used <= most, "{line}");
    }
    let is_refused = |script: &str| mount.shell(&format!("if {script}; then echo no; fi"));
    assert_eq!(is_refused(&format!("{} 2>/dev/null", write("b/third", 30, ""))), "");
    mount.unmount();
    images.check_volume();
}
