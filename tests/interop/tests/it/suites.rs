//! Outside suites of file systems, on a mount of ours. `fsx` does everything to one file and knows
//! its required content. `pjdfstest` knows the rules of POSIX on names, modes, owners and times.
//!
//! They are not part of the machine that the other tests need: `cargo install fsx pjdfstest` adds
//! them. Without them the tests report that and are skipped, also where everything else is
//! required.

use std::path::PathBuf;
use std::process::Command;

use buttress_interop::linux::{Images, has_linux_btrfs};

use crate::mounted::{Volume, ready};

/// Every operation that `fsx` has, with lengths that cross extents and pages.
const FSX: &str = "flen = 1048576
[opsize]
max = 131072
[weights]
close_open = 1.0
invalidate = 2.0
mapread = 10.0
mapwrite = 10.0
read = 10.0
write = 15.0
truncate = 5.0
fsync = 2.0
fdatasync = 2.0
posix_fallocate = 5.0
punch_hole = 8.0
sendfile = 3.0
posix_fadvise = 2.0
copy_file_range = 6.0
";

/// Without what needs other systems, or a mount of its own.
const PJDFSTEST: &str = "[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// Where a program of a suite is, as `cargo install` leaves it.
fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo/bin"));
    let found = std::env::split_paths(&path)
        .chain(home)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file());
    if found.is_none() {
        eprintln!("SKIPPED: no {program} here; `cargo install {program}` gets it");
    }
    found
}

/// Three files at once, each with a seed of its own; `BUTTRESS_FSX` says how many operations.
#[test]
fn fsx() {
    let Some(program) = found("fsx").filter(|_| ready()) else { return };
    let count = std::env::var("BUTTRESS_FSX").unwrap_or_else(|_| "3000".to_owned());
    let volume = Volume::new("1G");
    let mount = volume.mount();
    let config = volume.images.scratch().join("fsx.toml");
    std::fs::write(&config, FSX).expect("a file");
    let runs: Vec<_> = (1..=3)
        .map(|seed: u32| {
            let mut run = Command::new(&program);
            run.arg("-q").arg("-f").arg(&config).args(["-N", &count, "-S", &seed.to_string()]);
            run.arg("-P").arg(config.parent().expect("a folder"));
            run.arg(mount.path().join(format!("file-{seed}"))).spawn().expect("it is there")
        })
        .collect();
    for mut run in runs {
        assert!(run.wait().expect("our child").success(), "fsx met what it had not written");
    }
    volume.judge(mount);
}

/// What fails on Linux's btrfs may fail here; nothing else.
#[test]
fn pjdfstest() {
    let Some(program) = found("pjdfstest").filter(|_| ready() && has_linux_btrfs()) else { return };
    let volume = Volume::new("1G");
    let config = volume.images.scratch().join("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST).expect("a file");
    let failures = |folder: &std::path::Path| -> Vec<String> {
        let output = Command::new(&program)
            .arg("-c")
            .arg(&config)
            .arg("-p")
            .arg(folder)
            .output()
            .expect("it is there");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let passed = text.lines().filter(|line| line.ends_with(" ok")).count();
        assert!(passed > 300, "it did not run: {text}{}", String::from_utf8_lossy(&output.stderr));
        let failed = text.lines().filter(|line| line.ends_with("FAILED"));
        let mut failed: Vec<_> =
            failed.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
        failed.sort();
        failed
    };
    let linux = Images::new(1, 1 << 30);
    linux.mkfs(&[]);
    let theirs = linux.mount("");
    let expected = failures(theirs.path());
    theirs.unmount();
    let mount = volume.mount();
    let found = failures(mount.path());
    mount.unmount();
    volume.images.check();
    assert!(found.iter().all(|name| expected.contains(name)), "{found:?}; on Linux's {expected:?}");
}
