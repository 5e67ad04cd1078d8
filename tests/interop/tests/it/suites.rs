//! Outside suites of file systems, on a mount of ours. `fsx` makes all kinds of changes to one file
//! and knows the expected content. `pjdfstest` knows the rules of POSIX on names, modes, owners and
//! times. `stress-ng` makes rare requests, with many processes at once.
//!
//! A suite runs by io_uring if the machine has it, or else through `/dev/fuse`. With
//! `BUTTRESS_TRANSPORTS=all` it runs over both transports. CI installs the suites. Elsewhere `cargo
//! install fsx pjdfstest` and Debian's `stress-ng` add them. A test without its suite reports that
//! and is skipped. With `BUTTRESS_REQUIRE_SUITES`, a missing suite is a failure.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use buttress_interop::linux::{Images, has_linux_btrfs};
use buttress_interop::program::Mounted;
use buttress_test_program::has_fuse_uring;

use crate::mounted::{Volume, ready};

/// The mount option for requests by io_uring.
const URING: &str = "io_uring";

/// A mount option for each transport of this run: the first that the machine has, or all if
/// `BUTTRESS_TRANSPORTS` is set. The tests of the front end run over both in any case.
fn transports() -> Vec<&'static str> {
    let has_uring = has_fuse_uring();
    let count = if std::env::var_os("BUTTRESS_TRANSPORTS").is_some() { 2 } else { 1 };
    let transports = [URING, "noio_uring"].into_iter();
    transports.filter(|transport| has_uring || *transport != URING).take(count).collect()
}

/// Checks that requests come by the transport that a mount option asks for.
#[track_caller]
fn check_transport(mount: &Mounted, transport: &str) {
    assert_eq!(mount.is_over_io_uring(), transport == URING, "by -o '{transport}'");
}

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

/// The configuration, without tests that need other systems or a mount of their own.
const PJDFSTEST: &str = "[features]
posix_fallocate = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// The path of a suite's program, on the search path or where `cargo install` puts it.
fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo/bin"));
    let found = std::env::split_paths(&path)
        .chain(home)
        .map(|folder| folder.join(program))
        .find(|path| path.is_file());
    if found.is_none() {
        assert!(std::env::var_os("BUTTRESS_REQUIRE_SUITES").is_none(), "no {program} here");
        eprintln!("SKIPPED: no {program} here; `cargo install {program}` gets it");
    }
    found
}

/// Programs that run on a mount of a volume.
type Run = (&'static str, Volume, Mounted, Vec<Child>);

/// Waits for the programs on all mounts, then compares all views.
fn check_volume(runs: Vec<Run>, suite: &str) {
    let mut ended = Vec::new();
    for (transport, volume, mount, children) in runs {
        for child in children {
            let output = child.wait_with_output().expect("our child");
            let text = String::from_utf8_lossy(&output.stdout);
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{suite} failed by -o '{transport}': {text}{errors}");
        }
        check_transport(&mount, transport);
        ended.push((volume, mount));
    }
    for (volume, mount) in ended {
        volume.check_volume(mount);
    }
}

/// Works on two files at once on each mount, with different seeds. `BUTTRESS_FSX` sets the number
/// of operations.
#[test]
fn fsx() {
    let Some(program) = found("fsx").filter(|_| ready()) else { return };
    let count = std::env::var("BUTTRESS_FSX").unwrap_or_else(|_| "3000".to_owned());
    let begin = |transport| {
        let volume = Volume::new("1G");
        let mount = Mounted::new(volume.images.path(), transport);
        let config = volume.images.scratch().join("fsx.toml");
        std::fs::write(&config, FSX).expect("a file");
        let run = |seed: u32| {
            let mut run = Command::new(&program);
            run.arg("-q").arg("-f").arg(&config).args(["-N", &count, "-S", &seed.to_string()]);
            run.arg("-P").arg(config.parent().expect("a folder"));
            run.arg(mount.path().join(format!("file-{seed}")));
            run.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it is there")
        };
        let runs = vec![run(1), run(2)];
        (transport, volume, mount, runs)
    };
    check_volume(transports().into_iter().map(begin).collect(), "fsx");
}

/// The stressors of `stress-ng` for file systems, each for a second. Stressors of other parts of
/// the kernel are left out.
#[test]
fn stress() {
    let Some(program) = found("stress-ng").filter(|_| ready()) else { return };
    let begin = |transport| {
        let volume = Volume::new("1G");
        let mount = Mounted::new(volume.images.path(), transport);
        let mut run = Command::new(&program);
        run.args(["--class", "filesystem", "--sequential", "1", "--timeout", "1", "--verify"]);
        run.args(["--exclude", "procfs,binderfs,eventfd,ioprio,dnotify"]);
        // With the default sizes, some stressors fill the volume and end.
        run.args(["--hdd-bytes", "32m", "--iomix-bytes", "32m", "--fallocate-bytes", "32m"]);
        run.arg("--temp-path").arg(mount.path());
        let run = run.stdout(Stdio::piped()).stderr(Stdio::piped());
        let runs = vec![run.spawn().expect("it is there")];
        (transport, volume, mount, runs)
    };
    check_volume(transports().into_iter().map(begin).collect(), "stress-ng");
}

/// The tests of `pjdfstest` that fail in a folder.
fn failures(program: &Path, config: &Path, folder: &Path) -> Vec<String> {
    let mut run = Command::new(program);
    let output = run.arg("-c").arg(config).arg("-p").arg(folder).output().expect("it is there");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let passed = text.lines().filter(|line| line.ends_with(" ok")).count();
    assert!(passed > 300, "it did not run: {text}{}", String::from_utf8_lossy(&output.stderr));
    let failed = text.lines().filter(|line| line.ends_with("FAILED"));
    let mut failed: Vec<_> =
        failed.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    failed.sort();
    failed
}

/// The same tests fail here as on Linux's btrfs, and no others. On btrfs, a folder has one link,
/// whatever folders are in it.
#[test]
fn pjdfstest() {
    let Some(program) = found("pjdfstest").filter(|_| ready() && has_linux_btrfs()) else { return };
    let linux = Images::new(1, 1 << 30);
    let config = linux.scratch().join("pjdfstest.toml");
    std::fs::write(&config, PJDFSTEST).expect("a file");
    linux.mkfs(&[]);
    let theirs = linux.mount("");
    let expected = failures(&program, &config, theirs.path());
    theirs.unmount();
    for transport in transports() {
        let volume = Volume::new("1G");
        let mount = Mounted::new(volume.images.path(), transport);
        let found = failures(&program, &config, mount.path());
        check_transport(&mount, transport);
        mount.unmount();
        volume.images.check();
        assert_eq!(found, expected, "by -o '{transport}', and on Linux's btrfs");
    }
}
