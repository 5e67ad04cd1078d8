//! Requests beside other requests that wait for the device.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use crate::commands::{FS_INFO, call, trim};
use crate::mounted::{Mounted, mounted, mounted_with};
use crate::volume::{HOLD, HOLD_FLUSH, WAITS};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Dirty bytes of a file in the kernel, so many that other requests arrive while the kernel sends
/// them.
const HELD_LEN: usize = 8 << 20;
const ROUNDS: usize = 5;
/// Number of large files. All except two train the averages of the pool, which need a dozen reads.
const LARGE: usize = 20;
/// If a call takes longer than this, the test shows where all threads are.
const SUSPICIOUS: Duration = Duration::from_secs(5);

/// Makes this thread run on one processor, if that processor exists. So with a queue for each
/// processor, all its requests go to one queue.
fn settle(processor: usize) {
    let mut there = CpuSet::new();
    there.set(processor);
    let is_there = rustix::thread::sched_setaffinity(None, &there).is_ok();
    assert!(is_there || processor > 0, "there is a first processor");
}

/// Waits until a request waits for the device.
fn until_it_waits(waits: &Path, otherwise: &str) {
    let since = Instant::now();
    while !waits.exists() {
        assert!(since.elapsed() < TIMEOUT, "{otherwise}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Shows where the threads of this process wait in the kernel.
fn show_threads() {
    for task in fs::read_dir("/proc/self/task").expect("it is there").flatten() {
        let part = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        eprintln!("{} in {}\n{}", part("comm").trim(), part("wchan"), part("stack"));
    }
}

/// Does some work. If the work takes suspiciously long, another thread shows where all threads are.
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

/// A program reads, and the device does not answer. Requests of other threads are served, even on
/// the same processor. The device answers only after these requests, and fails if they take too
/// long.
#[test]
fn no_request_waits_for_the_device_of_another() {
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
    // After this call, the mount has all that the call needs in memory.
    assert_eq!(ask(), 5);
    let mut file = File::open(mount.path("read")).expect("it is there");
    let (hold, waits) = (mount.image().with_file_name(HOLD), mount.image().with_file_name(WAITS));
    fs::write(&hold, b"").expect("written");
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            settle(0);
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map(|_| bytes)
        });
        scope.spawn(|| {
            settle(0);
            until_it_waits(&waits, "no request reads from the device");
            assert_eq!(watched(ask), 5);
            fs::remove_file(&hold).expect("it was there");
        });
        let bytes = reader.join().expect("no panic").expect("the device answered");
        assert_eq!(bytes, vec![7; 64 << 10]);
    });
}

/// Reads whole files on the first processor, each in a thread. The device answers only when all
/// threads wait.
fn read_held(mount: &Mounted, names: &[String]) {
    let (hold, waits) = (mount.image().with_file_name(HOLD), mount.image().with_file_name(WAITS));
    fs::write(&hold, b"").expect("written");
    std::thread::scope(|scope| {
        for name in names {
            scope.spawn(move || {
                settle(0);
                fs::read(mount.path(name)).expect("the device answered");
            });
        }
        until_it_waits(&waits, "no request reads from the device");
        // The other reads reach the device one after the other, each when another thread has taken
        // over the queue.
        std::thread::sleep(Duration::from_millis(20) * u32::try_from(names.len()).expect("few"));
        fs::remove_file(&hold).expect("it was there");
    });
    fs::remove_file(&waits).expect("it was there");
}

/// All entries of a queue wait for the device. When it has answered, the threads that waited can
/// serve requests of another processor. This holds even if no request comes any more to their old
/// queue.
#[test]
fn threads_that_waited_help_again() {
    let Some(mount) = mounted() else { return };
    let small: Vec<String> = (0..9).map(|number| format!("small{number}")).collect();
    let large: Vec<String> = (0..LARGE).map(|number| format!("large{number}")).collect();
    for (names, len) in [(&small, 8 << 10), (&large, 64 << 10)] {
        for name in names {
            fs::write(mount.path(name), vec![7; len]).expect("written");
        }
    }
    let mount = mount.again();
    // After these calls, the mount finds the files without the device.
    for name in small.iter().chain(&large) {
        fs::metadata(mount.path(name)).expect("it is there");
    }
    for name in [&small[8], &large[0]] {
        fs::read(mount.path(name)).expect("it is there");
    }
    // After some large reads, the pool knows that large reads wait, and leaves them to helpers.
    for name in large[2..].chunks(1) {
        read_held(&mount, name);
    }
    read_held(&mount, &small[..8]);
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let (mount, name) = (&mount, &large[1]);
        scope.spawn(move || {
            settle(1);
            fs::read(mount.path(name)).expect("it is there");
            done.send(()).expect("the receiver is there");
        });
        let answer = is_done.recv_timeout(TIMEOUT / 2);
        if answer.is_err() {
            show_threads();
            // This request lets the waiting requests continue, so that the test ends.
            settle(0);
            drop(fs::metadata(mount.path("nobody")));
        }
        answer.expect("a thread has time for it");
    });
}

/// A search for data makes the kernel first send the dirty data of the file. The kernel needs one
/// entry of the queue for that data. So the server refuses a search that would take the last entry
/// of its queue.
#[test]
fn searches_leave_room_for_the_kernels_writes() {
    let Some(mount) = mounted_with("io_uring_q_depth=2") else { return };
    let all = std::thread::available_parallelism().expect("there are some").get();
    for round in 0..ROUNDS {
        let names: Vec<String> = (0..all * 2).map(|number| format!("{round} {number}")).collect();
        let files = names.iter().map(|name| {
            // The file stays open for writing. At the last close, the kernel would send the dirty
            // data too early.
            let mut file = File::create_new(mount.path(name)).expect("made");
            file.write_all(&vec![7; HELD_LEN]).expect("written");
            file
        });
        let files: Vec<File> = files.collect();
        let start = std::sync::Barrier::new(files.len());
        let (done, is_done) = mpsc::channel();
        std::thread::scope(|scope| {
            for (number, file) in files.iter().enumerate() {
                let (start, done) = (&start, done.clone());
                scope.spawn(move || {
                    settle(number % all);
                    start.wait();
                    // The receiver is gone if one of the searches was not answered.
                    let _ = done.send(rustix::fs::seek(file, SeekFrom::Data(0)));
                });
            }
            for _ in &files {
                let Ok(answer) = is_done.recv_timeout(TIMEOUT) else {
                    show_threads();
                    mount.kill();
                    panic!("no search can go on");
                };
                assert!(matches!(answer, Ok(0) | Err(Errno::INVAL)), "{answer:?}");
            }
        });
        for (name, file) in names.iter().zip(files) {
            assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)), Ok(0));
            let bytes = fs::read(mount.path(name)).expect("it is there");
            assert!(bytes.len() == HELD_LEN && bytes.iter().all(|byte| *byte == 7));
            fs::remove_file(mount.path(name)).expect("it was there");
        }
    }
}

const GET_LABEL: u64 = 0x8100_9431;
const SET_LABEL: u64 = 0x4100_9432;
/// A label, padded with zeros.
const NEW_LABEL: [u8; 256] = {
    let mut text = [0; 256];
    text[0] = b'l';
    text
};
/// More commands than may wait at once.
const LABELS: usize = 300;

/// Gets or sets the label. Returns the number of an error.
#[expect(unsafe_code, reason = "the commands have no names in rustix")]
fn label(top: &File, command: u64, text: &mut [u8; 256]) -> Result<(), i32> {
    // SAFETY: the command reads or writes 256 bytes, and `text` has 256 bytes.
    let done = unsafe { libc::ioctl(top.as_raw_fd(), command, text.as_mut_ptr()) };
    let error = std::io::Error::last_os_error();
    if done >= 0 { Ok(()) } else { Err(error.raw_os_error().expect("of the system")) }
}

/// A trim waits for the device, and may do so for minutes. Other commands are carried out
/// meanwhile.
#[test]
fn commands_do_not_wait_for_a_trim() {
    let Some(mount) = mounted() else { return };
    let top = File::open(mount.path("")).expect("it is there");
    top.sync_all().expect("durable");
    fs::write(mount.path("more"), vec![7; 4096]).expect("written");
    let (hold, waits) =
        (mount.image().with_file_name(HOLD_FLUSH), mount.image().with_file_name(WAITS));
    fs::write(&hold, b"").expect("written");
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        let top = &top;
        scope.spawn(move || trim(top, 0, u64::MAX, 0).expect("the device answers in the end"));
        until_it_waits(&waits, "no trim waits for the device");
        scope.spawn(move || {
            let answer = call(top, FS_INFO, &mut [0; 1024]);
            done.send(answer).expect("the receiver is there");
        });
        let answer = is_done.recv_timeout(TIMEOUT / 2);
        fs::remove_file(&hold).expect("it was there");
        assert_eq!(answer, Ok(Ok(())), "it does not wait for the trim");
    });
}

/// A commit waits for the device. Commands for the label wait for the commit, and so many wait that
/// some are refused. Other requests are answered, and the label can be read.
#[test]
fn labels_that_wait_for_a_commit_leave_threads_for_others() {
    let Some(mount) = mounted() else { return };
    fs::write(mount.path("asked"), b"").expect("written");
    let name = "user.name";
    rustix::fs::setxattr(mount.path("asked"), name, b"value", rustix::fs::XattrFlags::empty())
        .expect("attributes are kept");
    let top = File::open(mount.path("")).expect("it is there");
    top.sync_all().expect("durable");
    fs::write(mount.path("more"), vec![7; 4096]).expect("written");
    let (hold, waits) =
        (mount.image().with_file_name(HOLD_FLUSH), mount.image().with_file_name(WAITS));
    fs::write(&hold, b"").expect("written");
    let (refused, was_refused) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| top.sync_all().expect("the device answers in the end"));
        until_it_waits(&waits, "no commit waits for the device");
        for _ in 0..LABELS {
            let (top, refused) = (&top, refused.clone());
            scope.spawn(move || match label(top, SET_LABEL, &mut { NEW_LABEL }) {
                Ok(()) => {}
                Err(libc::EBUSY) => refused.send(()).expect("the receiver is there"),
                Err(errno) => panic!("{errno}"),
            });
        }
        was_refused.recv_timeout(TIMEOUT).expect("so many may not wait");
        let (done, is_done) = mpsc::channel();
        let (mount, top) = (&mount, &top);
        scope.spawn(move || {
            let mut value = [0; 16];
            let len = rustix::fs::getxattr(mount.path("asked"), name, &mut value);
            let mut shown = [1; 256];
            label(top, GET_LABEL, &mut shown).expect("it can be read");
            done.send((len, shown)).expect("the receiver is there");
        });
        let answer = is_done.recv_timeout(TIMEOUT / 2);
        if answer.is_err() {
            show_threads();
        }
        fs::remove_file(&hold).expect("it was there");
        let (len, shown) = answer.expect("a thread has time for it");
        assert_eq!((len, shown), (Ok(5), [0; 256]));
    });
    let mut shown = [0; 256];
    label(&top, GET_LABEL, &mut shown).expect("it can be read");
    assert_eq!(shown, NEW_LABEL);
}
