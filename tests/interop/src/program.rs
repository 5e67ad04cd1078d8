//! The `buttress` program and its mounts.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use buttress_test_program::mounts::NoCopies;

use crate::linux::{run, try_run};

/// Names another build of the program to test.
const PROGRAM: &str = "BUTTRESS_PROGRAM";

/// Longest wait for a mount to appear, and for the program to end after unmounting.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The program. If necessary, it is built with the profile and in the folder of this test.
///
/// # Panics
///
/// If the build fails.
pub fn program() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(path) = std::env::var_os(PROGRAM) {
            return path.into();
        }
        let test = std::env::current_exe().expect("a running program has a path");
        let profile = test.ancestors().nth(2).expect("target/PROFILE/deps/TEST");
        let target = profile.parent().expect("target/PROFILE");
        let name = profile.file_name().and_then(|name| name.to_str()).expect("ASCII");
        let name = if name == "debug" { "dev" } else { name };
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.toml");
        let words = ["build", "--quiet", "--package", "buttress-cli", "--profile", name];
        let places = ["--target-dir".as_ref(), target.as_os_str(), "--manifest-path".as_ref()];
        let words = words.iter().map(AsRef::as_ref).chain(places);
        run(&cargo, words.chain([manifest.as_os_str()]));
        profile.join("buttress")
    })
}

/// Runs the program to its end and returns what it printed.
///
/// # Panics
///
/// If the program fails.
#[track_caller]
pub fn buttress<'a>(arguments: impl IntoIterator<Item = &'a str>) -> String {
    run(program().to_str().expect("a UTF-8 path"), arguments)
}

/// A volume that the program has mounted.
#[derive(Debug)]
pub struct Mounted {
    folder: tempfile::TempDir,
    server: Child,
    mounted: bool,
}

impl Mounted {
    /// Mounts `image` on a new folder.
    ///
    /// # Panics
    ///
    /// If the mount does not appear.
    #[track_caller]
    #[must_use]
    pub fn new(image: &Path, options: &str) -> Self {
        let folder =
            tempfile::Builder::new().prefix("buttress-mount-").tempdir().expect("a folder");
        let mut command = Command::new(program());
        command.arg("mount").arg(image).arg(folder.path()).arg("--foreground");
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        // The server has its own process group, so that a Ctrl-C at the tests leaves the unmount to
        // the guard.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null());
        let server = command.spawn().expect("the program starts");
        let mut mount = Self { folder, server, mounted: true };
        let start = Instant::now();
        while !is_mount_point(mount.path()) {
            if let Ok(Some(status)) = mount.server.try_wait() {
                mount.mounted = false;
                panic!("the mount ended early: {status}");
            }
            assert!(start.elapsed() < TIMEOUT, "no mount after {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        mount
    }

    /// The mount point.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Whether requests come by io_uring. Threads with a name of their own serve its rings.
    ///
    /// # Panics
    ///
    /// If the threads of the server cannot be listed.
    #[must_use]
    pub fn is_over_io_uring(&self) -> bool {
        let tasks = format!("/proc/{}/task", self.server.id());
        std::fs::read_dir(tasks).expect("the server runs").flatten().any(|task| {
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            name.starts_with("fuse-ring")
        })
    }

    /// Runs a shell script in the mount's folder.
    ///
    /// # Panics
    ///
    /// If any of its commands fails.
    #[track_caller]
    pub fn shell(&self, script: &str) -> String {
        let script = format!("set -euo pipefail; cd '{}'; {script}", self.path().display());
        run("bash", ["-c", &script])
    }

    /// Unmounts as a user does, and waits until all is durable.
    ///
    /// # Panics
    ///
    /// If the volume cannot be unmounted, or the program ends with a failure.
    #[track_caller]
    pub fn unmount(mut self) {
        let status = self.end().unwrap_or_else(|text| panic!("{text}"));
        assert!(status.success(), "the mount ended with {status}");
    }

    /// Kills the program in the middle of its work, as a crash would, and unmounts the dead mount.
    ///
    /// # Panics
    ///
    /// If the kill or the unmount fails.
    #[track_caller]
    pub fn kill(mut self) {
        self.server.kill().expect("it runs");
        self.server.wait().expect("it ends");
        self.mounted = false;
        let lazily = ["--lazy".as_ref(), self.path().as_os_str()];
        try_run("umount", lazily).unwrap_or_else(|text| panic!("{text}"));
    }

    fn end(&mut self) -> Result<std::process::ExitStatus, String> {
        let mut last = String::new();
        for _ in 0..20 {
            let no_copies = NoCopies::wait();
            match try_run("umount", [self.path()]) {
                Ok(_) => {
                    self.mounted = false;
                    break;
                }
                Err(text) => last = text,
            }
            drop(no_copies);
            std::thread::sleep(Duration::from_millis(100));
        }
        if self.mounted {
            self.mounted = false;
            let _ = try_run("umount", ["--lazy".as_ref(), self.path().as_os_str()]);
        }
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if let Ok(Some(status)) = self.server.try_wait() {
                return if last.is_empty() || status.success() { Ok(status) } else { Err(last) };
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.server.kill();
        let _ = self.server.wait();
        Err(format!("the mount did not end {TIMEOUT:?} after it was unmounted {last}"))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted
            && let Err(text) = self.end()
        {
            eprintln!("{text}");
        }
    }
}

fn is_mount_point(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let path = path.to_string_lossy();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(&*path))
}
