//! The requirements of the tests, with messages about missing requirements.

use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;

/// CI sets this variable: a missing requirement is then a failure, not a skip.
const REQUIRE: &str = "BUTTRESS_REQUIRE_LINUX";

/// Whether tests against Linux's own btrfs can run. Prints what is missing, once.
///
/// # Panics
///
/// If something is missing and `BUTTRESS_REQUIRE_LINUX` is set.
#[must_use]
pub fn has_linux_btrfs() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let mut lacking = Vec::new();
        if !rustix::process::geteuid().is_root() {
            lacking.push("root".to_owned());
        }
        if !Path::new("/dev/loop-control").exists() {
            lacking.push("loop devices (/dev/loop-control)".to_owned());
        }
        let known = |list: String| list.lines().any(|line| line.trim() == "btrfs");
        let mut kernel = std::fs::read_to_string("/proc/filesystems").is_ok_and(known);
        if !kernel {
            let _ = super::try_run("modprobe", ["btrfs"]);
            kernel = std::fs::read_to_string("/proc/filesystems").is_ok_and(known);
        }
        if !kernel {
            lacking.push("a kernel with btrfs".to_owned());
        }
        for program in ["mkfs.btrfs", "btrfs", "losetup", "mount", "umount"] {
            if !has_program(program) {
                lacking.push(program.to_owned());
            }
        }
        answer("tests against Linux's btrfs", &lacking)
    })
}

/// Whether tests through a mount of ours can run. Prints what is missing, once.
///
/// # Panics
///
/// If something is missing and `BUTTRESS_REQUIRE_LINUX` is set.
#[must_use]
pub fn can_mount_fuse() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let mut lacking = Vec::new();
        if !Path::new("/dev/fuse").exists() {
            let _ = super::try_run("modprobe", ["fuse"]);
        }
        if !Path::new("/dev/fuse").exists() {
            lacking.push("/dev/fuse".to_owned());
        }
        for program in ["fusermount3", "rsync", "git", "sqlite3", "fio", "tar"] {
            if !has_program(program) {
                lacking.push(program.to_owned());
            }
        }
        answer("tests through a FUSE mount", &lacking)
    })
}

/// Whether a program is on the search path, or in the folders of administrators' programs.
#[must_use]
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).exists())
        || ["/usr/sbin", "/sbin"].iter().any(|folder| Path::new(folder).join(name).exists())
}

fn answer(what: &str, lacking: &[String]) -> bool {
    if lacking.is_empty() {
        return true;
    }
    let text = format!(
        "\n==== SKIPPED: {what}: need root, loop devices, FUSE and btrfs-progs \
         (apt-get install btrfs-progs fio fuse3 rsync sqlite3 git attr acl); lacking here: {} ====\n",
        lacking.join(", ")
    );
    assert!(std::env::var_os(REQUIRE).is_none(), "{REQUIRE} is set.{text}");
    // This write bypasses the test harness, which hides the output of a passing test.
    let _ = std::io::stderr().write_all(text.as_bytes());
    false
}
