//! Requests beside one that waits for the device.

use std::fs::{self, File};
use std::io::Read;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::thread::CpuSet;

use crate::mounted::mounted;
use crate::volume::{HOLD, WAITS};

const PATIENCE: Duration = Duration::from_secs(60);
/// Who is not answered for so long shows where all threads are.
const SUSPICIOUS: Duration = Duration::from_secs(5);

/// Runs on the first processor from now on: all requests are of one queue, where there is one for each.
fn settle() {
    let mut first = CpuSet::new();
    first.set(0);
    rustix::thread::sched_setaffinity(None, &first).expect("there is a first processor");
}

/// Shows where the threads of this process wait in the kernel.
fn show_threads() {
    for task in fs::read_dir("/proc/self/task").expect("it is there").flatten() {
        let part = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        eprintln!("{} in {}\n{}", part("comm").trim(), part("wchan"), part("stack"));
    }
}

/// Does something, beside somebody who tells where everybody is if it takes suspiciously long.
fn watched<T>(what: impl FnOnce() -> T) -> T {
    let (done, is_done) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if is_done.recv_timeout(SUSPICIOUS) == Err(mpsc::RecvTimeoutError::Timeout) {
                show_threads();
            }
        });
        let answer = what();
        drop(done);
        answer
    })
}

/// Somebody reads, and the device does not answer. Others are served, also those who ask on the same processor: the device
/// answers only after they were, or fails when it has waited for too long.
#[test]
fn nobody_waits_for_the_device_of_another() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("read"), vec![7; 64 << 10]).expect("written");
    fs::write(mount.path("asked"), b"").expect("written");
    let name = "user.name";
    rustix::fs::setxattr(mount.path("asked"), name, b"value", rustix::fs::XattrFlags::empty())
        .expect("attributes are kept");
    let mount = mount.again();
    let ask = || {
        let mut value = [0; 16];
        rustix::fs::getxattr(mount.path("asked"), name, &mut value).expect("it is there")
    };
    // What this needs of the device is in memory then.
    assert_eq!(ask(), 5);
    let mut file = File::open(mount.path("read")).expect("it is there");
    let (hold, waits) = (mount.image().with_file_name(HOLD), mount.image().with_file_name(WAITS));
    fs::write(&hold, b"").expect("written");
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            settle();
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        });
        scope.spawn(|| {
            settle();
            let since = Instant::now();
            while !waits.exists() {
                assert!(since.elapsed() < PATIENCE, "nobody reads from the device");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(watched(ask), 5);
            fs::remove_file(&hold).expect("it was there");
        });
        let bytes = reader.join().expect("no panic").expect("the device answered");
        assert_eq!(bytes, vec![7; 64 << 10]);
    });
}
