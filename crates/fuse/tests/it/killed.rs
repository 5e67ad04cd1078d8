//! Programs that are killed while they wait for space.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::mounted::mounted_small;
use crate::volume::{HOLD_FLUSH, WAITS};

const MIB: u64 = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits until a condition holds, and fails with `what` if that takes too long.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < TIMEOUT, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a program waits in the kernel for the answer to a request.
fn waits_for_answer(child: &Child) -> bool {
    let place = fs::read_to_string(format!("/proc/{}/wchan", child.id())).unwrap_or_default();
    place.contains("request_wait_answer") || place.contains("fuse")
}

/// E6: programs wait for space that a commit frees, and the commit stands still. A killed program
/// ends before the commit does, whatever the signal and the call are. A program that is not killed
/// gets its space when the commit ends.
#[test]
fn killed_programs_end_while_a_commit_stands_still() {
    let Some(mount) = mounted_small(160 * MIB, "nowriteback_cache") else { return };
    let filler = File::create(mount.path("filler")).expect("created");
    let mut at = 0;
    let mut take = |len: u64| {
        rustix::fs::fallocate(&filler, FallocateFlags::empty(), at, len).map(|()| at += len)
    };
    let full = loop {
        if let Err(errno) = take(MIB) {
            break errno;
        }
    };
    assert_eq!(full, Errno::NOSPC);
    for name in ["through memory", "direct", "allocated", "stays"] {
        File::create(mount.path(name)).expect("created");
    }
    // A commit frees this space, and the commit waits for the device.
    filler.set_len(at - 8 * MIB).expect("shrinking always works");
    let (hold, waits) =
        (mount.image().with_file_name(HOLD_FLUSH), mount.image().with_file_name(WAITS));
    fs::write(&hold, b"").expect("written");
    let start = |program: &str, args: &[&str]| {
        let quiet =
            Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        quiet.expect("it starts")
    };
    std::thread::scope(|scope| {
        let root = File::open(mount.path("")).expect("a directory");
        scope.spawn(move || root.sync_all().expect("durable"));
        wait_until("no request makes anything durable", || waits.exists());
        let path = |name: &str| mount.path(name).display().to_string();
        let write = |name: &str, how: &str| {
            let target = format!("of={}", path(name));
            start("dd", &["if=/dev/zero", &target, "bs=7M", "count=1", "conv=notrunc", how])
        };
        let killed = [
            (write("through memory", "status=none"), Signal::KILL),
            (write("direct", "oflag=direct"), Signal::TERM),
            (start("fallocate", &["-l", "7M", &path("allocated")]), Signal::HUP),
        ];
        let mut stays = write("stays", "status=none");
        for (mut child, signal) in killed {
            wait_until("it never waits", || waits_for_answer(&child));
            // After this time, the request has passed the short waits and is in the queue for
            // space.
            std::thread::sleep(Duration::from_millis(200));
            assert!(child.try_wait().expect("it is ours").is_none(), "it had room");
            rustix::process::kill_process(Pid::from_child(&child), signal).expect("it is ours");
            wait_until("it does not die", || child.try_wait().expect("it is ours").is_some());
            let status = child.wait().expect("it is ours");
            assert_eq!(status.signal(), Some(signal.as_raw()));
        }
        assert!(stays.try_wait().expect("it is ours").is_none(), "it waits");
        assert!(hold.exists(), "the device was held up for all of it");
        fs::remove_file(&hold).expect("it was there");
        assert!(stays.wait().expect("it is ours").success());
    });
    assert_eq!(fs::metadata(mount.path("stays")).expect("it is there").len(), 7 * MIB);
    // The reservations of the killed programs are free again.
    drop(filler);
    fs::remove_file(mount.path("filler")).expect("removing always works");
    fs::write(mount.path("behind"), vec![1; 32 * MIB as usize]).expect("there is room");
}
