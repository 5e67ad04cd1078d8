//! A mount with little memory for its server and its programs: nothing hangs, nothing is lost.

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::checker::check;
use crate::live::{Mounted, has};
use crate::{Bench, bench, text};

/// Memory of the server and the programs together.
const MEMORY: u64 = 256 << 20;

/// The length of a file that does not fit into this memory, and the distance between two written
/// bytes.
const LEN: usize = 320 << 20;
const PAGE: usize = 4096;

/// Names the file that the other process is to write.
const WRITE: &str = "BUTTRESS_TEST_PRESSURE";

/// The limit for one step. Even on a slow machine, a step that takes longer hangs.
const TIMEOUT: Duration = Duration::from_secs(240);

/// A control group with little memory. Dropping this value removes the group.
struct Group(PathBuf);

impl Group {
    /// Makes a group, of version 1 or 2. Returns `None`, and prints a message, if groups cannot be
    /// made here.
    fn new() -> Option<Self> {
        let name = format!("buttress-test-{}", std::process::id());
        let top = Path::new("/sys/fs/cgroup");
        let first = Self(top.join("memory").join(&name));
        let second = Self(top.join(&name));
        let is_limited = |group: &Self, limit: &str| {
            fs::create_dir(&group.0).is_ok()
                && fs::write(group.0.join(limit), MEMORY.to_string()).is_ok()
        };
        // Version 2 gives a group only the controllers that the parent group passes on.
        let _ = fs::write(top.join("cgroup.subtree_control"), "+memory");
        if is_limited(&second, "memory.max") {
            let _ = fs::write(second.0.join("memory.swap.max"), "0");
            return Some(second);
        }
        drop(second);
        if is_limited(&first, "memory.limit_in_bytes") {
            return Some(first);
        }
        let must = std::env::var_os("BUTTRESS_REQUIRE_LINUX").is_some();
        assert!(!must, "no control group with a limit of memory can be made");
        eprintln!("SKIPPED: no control group with a limit of memory can be made");
        None
    }

    fn join(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).expect("root may");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begun = Instant::now();
        // A process leaves the group only a moment after its end.
        while fs::remove_dir(&self.0).is_err() && begun.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// The first byte of a page in a round.
fn byte(page: usize, round: u8) -> u8 {
    (page % 251) as u8 ^ round
}

/// Not a test by itself: makes all pages of a mapped file dirty, twice, and syncs them. The memory
/// is smaller than all pages together.
#[test]
fn dirty_pages() {
    let Some(path) = std::env::var_os(WRITE) else { return };
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = file.expect("it opens");
    file.set_len(LEN as u64).expect("long enough");
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the mapping is new, as long as the file, and unmapped when its last byte is written.
    unsafe {
        let start = mmap(std::ptr::null_mut(), LEN, both, MapFlags::SHARED, &file, 0);
        let start = start.expect("it maps").cast::<u8>();
        for round in 1..=2 {
            for page in 0..LEN / PAGE {
                let at = start.add(page * PAGE);
                if round > 1 {
                    assert_eq!(at.read_volatile(), byte(page, round - 1), "page {page}");
                }
                at.write_volatile(byte(page, round));
            }
        }
        msync(start.cast(), LEN, MsyncFlags::SYNC).expect("durable");
        munmap(start.cast(), LEN).expect("it was mapped");
    }
}

/// Waits for a child. If it hangs, unmounts the volume.
fn wait(mut child: Child, bench: &Bench) {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            assert!(status.success(), "the program failed: {status}");
            return;
        }
        if begun.elapsed() > TIMEOUT {
            let _ = Command::new("umount").arg("-f").arg(bench.path("mnt")).status();
            let _ = child.kill();
            panic!("the program hangs");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A server and a program share less memory than the program has dirty mapped pages. The kernel
/// frees memory by writing to the server, which needs memory for these writes.
#[test]
fn a_server_with_little_memory_goes_on() {
    if !has(&["umount", "btrfs"], Some("/dev/fuse")) || !crate::live::is_root() {
        return;
    }
    let Some(group) = Group::new() else { return };
    let bench = bench();
    bench.volume("image", "1G");
    let mounted = Mounted::new(&bench, &["-o", "commit=1"]);
    group.join(mounted.pid());
    let path = bench.path("mnt/mapped");
    let mut command = Command::new("sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(group.0.join("cgroup.procs"));
    command.arg(std::env::current_exe().expect("this program"));
    command.args(["--exact", "pressure::dirty_pages", "--nocapture"]).env(WRITE, &path);
    wait(command.spawn().expect("it starts"), &bench);
    mounted.end();
    // Reads without the first server, so that the server's memory cannot hide a loss.
    let out = bench.path("out");
    bench.ok(&["cp", "image:/mapped", text(&out)]);
    let found = fs::read(&out).expect("it is there");
    assert_eq!(found.len(), LEN);
    let wrong = (0..LEN / PAGE).find(|page| found[page * PAGE] != byte(*page, 2));
    assert_eq!(wrong, None, "a page is lost");
    check(&bench.path("image"));
}
