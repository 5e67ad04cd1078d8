//! A mounted volume that is unmounted and checked when a test is done with it.
//!
//! A process of its own serves the volume: this program, started once more. If a process maps a
//! file of a volume that it serves itself, it may wait for itself. The reason is that the kernel
//! writes the file back while it holds the lock of the process' memory.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;

use buttress_fuse::{Options, Unmounted};
use buttress_test_program::is_met;

use crate::volume::Volume;

/// A variable with the task of the other process: image, mount point and options, a line each.
const SERVE: &str = "BUTTRESS_TEST_SERVE";

/// An option of tests only: unused inodes lose their handles as soon as possible.
pub(crate) const FEW_HANDLES: &str = "few handles";

/// An option of tests only: the server tells the kernel to forget inodes above [`KNOWN_MAX`].
pub(crate) const FEW_KNOWN: &str = "few known";
pub(crate) const KNOWN_MAX: usize = 500;

/// An option of tests only: further mounts can share the volume.
pub(crate) const SHARED: &str = "shared";

/// The order to the server to report how many inodes the kernel knows.
const KNOWN: &str = "known";

const READY: &str = "ready";
const CLOSED: &str = "closed";

/// A volume that is mounted and served.
pub(crate) struct Mounted {
    volume: Option<Volume>,
    path: PathBuf,
    server: Option<Server>,
}

struct Server {
    child: Child,
    orders: ChildStdin,
    says: BufReader<ChildStdout>,
}

/// Mounts a new volume. Returns `None`, and prints a message, if that is impossible here.
pub(crate) fn mounted() -> Option<Mounted> {
    mounted_with("")
}

/// Mounts a new volume with options.
pub(crate) fn mounted_with(options: &str) -> Option<Mounted> {
    can_mount().then(|| Mounted::new(Volume::new(), options))
}

/// Mounts a new volume of `len` bytes with options.
pub(crate) fn mounted_small(len: u64, options: &str) -> Option<Mounted> {
    can_mount().then(|| Mounted::new(Volume::with_len(len), options))
}

/// Mounts a new volume with options. `look` gets the image before the mount.
pub(crate) fn mounted_behind<T>(
    options: &str,
    look: impl FnOnce(&Path) -> T,
) -> Option<(Mounted, T)> {
    can_mount().then(|| {
        let volume = Volume::new();
        let seen = look(&volume.image());
        (Mounted::new(volume, options), seen)
    })
}

fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    is_met(can, "root and /dev/fuse") && crate::has_transport()
}

impl Mounted {
    fn new(volume: Volume, options: &str) -> Self {
        let path = volume.mount_point();
        let server = Server::start(&volume.image(), &path, options);
        Self { volume: Some(volume), path, server: Some(server) }
    }

    /// The image with the volume.
    pub(crate) fn image(&self) -> PathBuf {
        self.volume.as_ref().expect("it is there until the end").image()
    }

    /// A path in the volume.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Ends the mount as a signal would, and returns whether a program still used it.
    pub(crate) fn unmount(&mut self) -> Unmounted {
        let server = self.server.as_mut().expect("it is mounted");
        server.orders.write_all(b"unmount\n").expect("the server listens");
        match server.hear(&["Clean", "Busy"]) {
            "Clean" => Unmounted::Clean,
            _ => Unmounted::Busy,
        }
    }

    /// Waits until the server of a removed mount has closed the volume and ended.
    pub(crate) fn finish(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.hear(&[CLOSED]);
            drop(server.orders);
            assert!(server.child.wait().expect("it is our child").success(), "the server failed");
        }
    }

    /// Kills the process that serves the volume, so that all waiting requests fail.
    pub(crate) fn kill(&self) {
        let server = self.server.as_ref().expect("it is mounted");
        let pid = rustix::process::Pid::from_child(&server.child);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
    }

    /// How many inodes the kernel knows.
    pub(crate) fn known(&mut self) -> usize {
        let server = self.server.as_mut().expect("it is mounted");
        writeln!(server.orders, "{KNOWN}").expect("the server listens");
        loop {
            let mut line = String::new();
            assert!(server.says.read_line(&mut line).expect("the server speaks") > 0);
            if let Some(count) = line.trim_end().strip_suffix(KNOWN) {
                return count.trim().parse().expect("a number");
            }
        }
    }

    /// Unmounts, and gives the volume back.
    pub(crate) fn into_volume(mut self) -> Volume {
        if self.server.is_some() && !self.is_gone() {
            // The result is ignored. A process that another test has just forked may still hold
            // inherited files of this mount.
            self.unmount();
        }
        self.finish();
        self.volume.take().expect("it is there until the end")
    }

    /// Unmounts, and mounts the same volume again.
    pub(crate) fn again(self) -> Self {
        self.again_with("")
    }

    /// As [`Self::again`], with options.
    pub(crate) fn again_with(self, options: &str) -> Self {
        Self::new(self.into_volume(), options)
    }

    fn is_gone(&self) -> bool {
        let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
        !mounts.contains(&format!(" {} ", self.path.display()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The test has failed already; leave no mount behind, and check nothing.
            if let Some(server) = &mut self.server {
                let _ = server.child.kill();
                let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
            }
            return;
        }
        let Some(volume) = self.volume.take() else { return };
        let rest =
            Self { volume: Some(volume), path: self.path.clone(), server: self.server.take() };
        let volume = rest.into_volume();
        volume.check_volume();
    }
}

impl Server {
    fn start(image: &Path, target: &Path, options: &str) -> Self {
        let transport = crate::TRANSPORT;
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "mounted::serve", "--nocapture"])
            .env(SERVE, format!("{}\n{}\n{transport},{options}", image.display(), target.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let orders = child.stdin.take().expect("it is piped");
        let says = BufReader::new(child.stdout.take().expect("it is piped"));
        let mut server = Self { child, orders, says };
        server.hear(&[READY]);
        server
    }

    /// Waits for a line of the server that ends with one of the words. The test harness in the
    /// server prints other lines, too.
    fn hear(&mut self, words: &[&'static str]) -> &'static str {
        loop {
            let mut line = String::new();
            let count = self.says.read_line(&mut line).expect("the server speaks");
            assert!(count > 0, "the server ended before it said one of {words:?}");
            if let Some(word) = words.iter().find(|word| line.trim_end().ends_with(**word)) {
                return word;
            }
        }
    }
}

/// The work of the other process of every test. It is no test by itself.
#[test]
fn serve() {
    let Ok(task) = std::env::var(SERVE) else { return };
    // The messages of the mount go into the output of the tests.
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_max_level(tracing::Level::WARN)
        .init();
    let mut lines = task.split('\n');
    let mut next = || lines.next().expect("three lines").to_owned();
    let (image, target, words) = (next(), next(), next());
    let mut options = Options::default();
    let mut of_volume = Vec::new();
    for word in words.split(',').filter(|word| !word.is_empty()) {
        // [`FEW_HANDLES`] is no mount option. With this limit, idle inodes lose their handles in
        // any test.
        if word == FEW_HANDLES {
            options.handles_max = 0;
            continue;
        }
        if word == SHARED {
            options.shared = true;
            continue;
        }
        if word == FEW_KNOWN {
            (options.handles_max, options.known_max) = (0, KNOWN_MAX);
            continue;
        }
        let is_ours = options.accept(word).expect("a right value");
        let is_of_times = word.ends_with("atime") || word.ends_with("lazytime");
        assert!(is_ours || is_of_times, "{word} is known");
        of_volume.extend(is_of_times.then_some(word));
    }
    let fs = crate::volume::open_with(Path::new(&image), &of_volume.join(","));
    let session = buttress_fuse::mount(fs.clone(), Path::new(&target), &options).expect("a mount");
    assert_eq!(session.is_over_io_uring(), crate::TRANSPORT == "io_uring");
    let (unmounter, kernel_sync) = (session.unmounter(), session.kernel_sync());
    // An order to unmount ends the mount. With this lock, the answer to the order is printed before
    // [`CLOSED`].
    let speaking = Arc::new(Mutex::new(()));
    let answering = Arc::clone(&speaking);
    std::thread::spawn(move || {
        for order in std::io::stdin().lines() {
            let _speaking = answering.lock();
            if order.is_ok_and(|order| order == KNOWN) {
                println!("{} {KNOWN}", kernel_sync.known().inodes);
                continue;
            }
            println!("{:?}", unmounter.unmount().expect("root may unmount"));
        }
    });
    let serving = session.start().expect("it is served");
    println!("{READY}");
    serving.wait().expect("the session ends well");
    fs.close().expect("the last commit succeeds");
    let _speaking = speaking.lock();
    println!("{CLOSED}");
}
