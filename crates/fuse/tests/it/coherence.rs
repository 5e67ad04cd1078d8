//! One file is used through the kernel's cache and by direct requests. No request waits for itself,
//! and no read returns old bytes.
//!
//! Each step has a deadline. If a step misses it, the test ends the connection, so that the test
//! fails and does not hang.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use io_uring::{IoUring, opcode, types};
use rustix::fs::{
    Advice, FallocateFlags, OFlags, SeekFrom, copy_file_range, fadvise, fallocate, fcntl_setfl,
    seek,
};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::mounted::{Mounted, mounted_with};
use crate::volume::Volume;

const DEADLINE: Duration = Duration::from_secs(60);
pub(crate) const PAGE: usize = 4096;
/// The length of the file. It ends within its last page.
const LEN: usize = 2 * PAGE + 1808;
const ROUNDS: usize = 30;
pub(crate) const MODES: [&str; 2] = ["writeback_cache", "nowriteback_cache"];

/// Memory that direct requests take.
#[repr(align(4096))]
pub(crate) struct Aligned(pub(crate) [u8; 4 * PAGE]);

impl Aligned {
    pub(crate) fn new(byte: u8) -> Box<Self> {
        Box::new(Self([byte; 4 * PAGE]))
    }
}

/// A mapped file.
pub(crate) struct View {
    start: *mut u8,
    len: usize,
}

// SAFETY: threads share a view only to read and write single bytes and numbers.
unsafe impl Sync for View {}

impl View {
    pub(crate) fn new(file: &File, len: usize) -> Self {
        let (any, both) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a new mapping replaces no other.
        let start = unsafe { mmap(any, len, both, MapFlags::SHARED, file, 0) }.expect("a map");
        Self { start: start.cast(), len }
    }

    pub(crate) fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: the byte is within the mapping. Other threads may change it, so the read is
        // volatile.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// The number at the start of a page.
    fn number(&self, page: usize) -> u32 {
        assert!((page + 1) * PAGE <= self.len);
        // SAFETY: the number is within the mapping. Other threads may change it, so one volatile
        // read loads all of it.
        u32::from_le(unsafe { self.start.add(page * PAGE).cast::<u32>().read_volatile() })
    }

    pub(crate) fn set(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: the byte is within the mapping.
        unsafe { self.start.add(at).write_volatile(byte) }
    }

    fn sync(&self) {
        // SAFETY: the range is the whole mapping.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) }.expect("durable");
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping lives as long as the view, and one thread uses it.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the range is the whole mapping, which no code uses any more.
        unsafe { munmap(self.start.cast(), self.len) }.expect("unmapped");
    }
}

pub(crate) fn open(path: &Path, flags: OFlags) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(flags.bits().cast_signed()).open(path).expect("a file")
}

/// Makes a file of [`LEN`] bytes, of which the kernel has no cached page.
fn cold(path: &Path) {
    fs::write(path, vec![7; LEN]).expect("written");
    let file = open(path, OFlags::empty());
    file.sync_all().expect("durable");
    fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
}

fn switch(file: &File, direct: bool) {
    fcntl_setfl(file, if direct { OFlags::DIRECT } else { OFlags::empty() }).expect("switched");
}

/// Does some work before a deadline. If the work does not end, this function ends the connection to
/// the kernel.
pub(crate) fn in_time(mount: &Mounted, what: &str, work: impl FnOnce() + Send) {
    let device = fs::metadata(mount.path("")).expect("attributes").dev();
    let (done, is_done) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            work();
            // If the deadline was missed, the receiver is gone.
            let _ = done.send(());
        });
        if is_done.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
            let connection = format!("/sys/fs/fuse/connections/{}/abort", device & 0xff);
            let _ = fs::write(connection, "1");
            mount.kill();
            panic!("{what} did not end");
        }
    });
}

pub(crate) type Step = (&'static str, fn(&Path));

/// Steps with requests that hold a folio or the inode's lock in the kernel while they wait for an
/// answer. Each step makes other requests at the same time.
const STEPS: [Step; 12] = [
    ("a page fault up to the end of a file that is open for direct I/O", |path| {
        let file = open(path, OFlags::DIRECT);
        let view = View::new(&file, LEN);
        assert!((0..LEN).all(|at| view.get(at) == 7));
    }),
    ("a write through a mapping of a direct descriptor", |path| {
        let file = open(path, OFlags::DIRECT);
        let view = View::new(&file, LEN);
        view.set(LEN - 1, 8);
        view.sync();
        let mut memory = Aligned::new(0);
        let count = file.read_at(&mut memory.0, 0).expect("a direct read");
        assert_eq!((count, memory.0[LEN - 1], memory.0[LEN - 2]), (LEN, 8, 7));
    }),
    ("parts of pages beside a switch of O_DIRECT", |path| {
        let file = open(path, OFlags::empty());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    switch(&file, true);
                    switch(&file, false);
                }
            });
            let end = End(&is_over);
            for round in 0..20 * ROUNDS {
                fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
                file.write_all_at(&[round as u8; 512], 4 * PAGE as u64 + 512).expect("written");
                file.set_len(LEN as u64).expect("cut");
            }
            drop(end);
        });
    }),
    ("a read of a descriptor that was switched to O_DIRECT", |path| {
        let file = open(path, OFlags::empty());
        switch(&file, true);
        let mut memory = Aligned::new(0);
        assert_eq!(file.read_at(&mut memory.0, 0).expect("a read"), LEN);
        switch(&file, false);
        assert_eq!(file.read_at(&mut memory.0, PAGE as u64).expect("a read"), LEN - PAGE);
    }),
    ("readahead of a direct descriptor", |path| {
        let file = open(path, OFlags::DIRECT);
        fadvise(&file, 0, None, Advice::WillNeed).expect("advised");
        let mut memory = Aligned::new(0);
        assert_eq!(file.read_at(&mut memory.0, 0).expect("a read"), LEN);
    }),
    ("a pipe that is filled from a direct descriptor", |path| {
        let file = open(path, OFlags::DIRECT);
        let (reads, writes) = rustix::pipe::pipe().expect("a pipe");
        let none = rustix::pipe::SpliceFlags::empty();
        let mut left = LEN;
        while left > 0 {
            let count = rustix::pipe::splice(&file, None, &writes, None, left, none);
            let count = count.expect("spliced");
            assert!(count > 0, "{left} bytes are missing");
            rustix::io::read(&reads, &mut vec![0; count]).expect("it is there");
            left -= count;
        }
    }),
    ("a direct request with the file as its memory", |path| {
        let file = open(path, OFlags::DIRECT);
        let mut view = View::new(&file, LEN);
        let count = file.read_at(&mut view.bytes()[..PAGE], 0).expect("a read");
        assert_eq!(count, PAGE);
        assert_eq!(file.write_at(&view.bytes()[..PAGE], PAGE as u64).expect("written"), PAGE);
    }),
    ("a search for data and a cut, while the kernel holds pages", |path| {
        let mut file = open(path, OFlags::empty());
        for round in 1..ROUNDS {
            file.set_len(0).expect("cut");
            file.write_all_at(&[1; 100], (round * PAGE) as u64).expect("written");
            assert_eq!(seek(&file, SeekFrom::Data(0)), Ok((round * PAGE) as u64));
        }
        file.write_all(b"x").expect("written");
        drop(File::create(path).expect("cut by opening"));
    }),
    ("an allocation, a copy and a sync of a direct descriptor", |path| {
        let file = open(path, OFlags::DIRECT);
        let view = View::new(&file, LEN);
        for round in 0..ROUNDS {
            view.set(LEN - 1, round as u8);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, hole, 0, PAGE as u64).expect("a hole");
            let (mut from, mut to) = (PAGE as u64, 0);
            copy_file_range(&file, Some(&mut from), &file, Some(&mut to), PAGE).expect("copied");
            file.sync_all().expect("durable");
            assert_eq!((view.get(0), view.get(LEN - 1)), (7, round as u8));
        }
    }),
    ("direct reads at an end that the kernel alone knows", |path| {
        let (cached, direct) = (open(path, OFlags::empty()), open(path, OFlags::DIRECT));
        let mut memory = Aligned::new(9);
        for round in 0..ROUNDS {
            cached.set_len(0).expect("cut");
            cached.write_all_at(&[1], (3 * PAGE + round) as u64).expect("written");
            let count = direct.read_at(&mut memory.0[..PAGE], 0).expect("a read");
            assert_eq!(count, PAGE);
            assert!(memory.0[..PAGE].iter().all(|byte| *byte == 0));
        }
    }),
    ("direct writes beside a mapping of the file", |path| {
        let (file, memory) = (open(path, OFlags::DIRECT), Aligned::new(3));
        let view = View::new(&file, LEN);
        for _ in 0..ROUNDS {
            assert_eq!(view.get(0), view.get(PAGE - 1));
            file.write_all_at(&memory.0[..2 * PAGE], 0).expect("written");
            assert_eq!((view.get(0), view.get(LEN - 1)), (3, 7));
        }
    }),
    ("all of these from many threads", |path| {
        std::thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || {
                    let file = open(path, OFlags::DIRECT);
                    let cached = open(path, OFlags::empty());
                    let view = View::new(&file, PAGE);
                    let mut memory = Aligned::new(1);
                    for round in 0..ROUNDS {
                        let at = ((number + round) % 4 * PAGE) as u64;
                        fadvise(&file, 0, None, Advice::DontNeed).expect("advised");
                        view.get(round);
                        file.write_all_at(&memory.0[..PAGE], at).expect("written");
                        file.read_at(&mut memory.0, at).expect("a read");
                        cached.write_all_at(&[round as u8; 100], 5 * PAGE as u64).expect("written");
                        seek(&cached, SeekFrom::Data(0)).expect("data");
                        view.set(round, 1);
                        cached.set_len(LEN as u64).expect("cut");
                    }
                });
            }
        });
    }),
];

/// No answer waits for a notification that waits for the request.
#[test]
fn requests_are_answered_while_the_kernel_holds_its_locks() {
    for mode in MODES {
        let Some(mount) = mounted_with(mode) else { return };
        for (number, (what, step)) in STEPS.into_iter().enumerate() {
            let path = mount.path(&number.to_string());
            in_time(&mount, &format!("{what} ({mode})"), || {
                cold(&path);
                step(&path);
            });
        }
    }
}

/// Linux's btrfs, mounted.
struct Linux(Volume, PathBuf);

impl Linux {
    fn mount() -> Self {
        let volume = Volume::new();
        let at = volume.mount_point();
        let mount =
            Command::new("mount").args(["-o", "loop"]).arg(volume.image()).arg(&at).status();
        assert!(mount.expect("mount starts").success(), "Linux mounts the volume");
        Self(volume, at)
    }
}

impl Drop for Linux {
    fn drop(&mut self) {
        // Programs of other tests look at every mount, and a look keeps the mount busy for a
        // moment.
        let unmount = || Command::new("umount").arg(&self.1).status().is_ok_and(|s| s.success());
        let is_unmounted = (0..100).any(|_| {
            unmount() || {
                std::thread::sleep(Duration::from_millis(50));
                false
            }
        });
        if !std::thread::panicking() {
            assert!(is_unmounted, "it is unmounted");
            self.0.check_volume();
        }
    }
}

/// The number of pages that are written and read again and again, and the number of writes.
const PAGES: usize = 64;
const WRITES: u32 = 3000;
const DEPTH: usize = 4;

/// Tells the other threads that the test is over, even when it fails.
pub(crate) struct End<'a>(pub(crate) &'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Makes many direct writes of pages at a time, beside readers through the kernel's cache. No
/// reader sees the bytes from before an acknowledged write.
fn write_beside_readers(path: &Path) {
    fs::write(path, vec![0; PAGES * PAGE]).expect("written");
    let (direct, cached) = (open(path, OFlags::DIRECT), open(path, OFlags::empty()));
    cached.sync_all().expect("durable");
    let acknowledged: Vec<AtomicU32> = (0..PAGES).map(|_| AtomicU32::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let view = View::new(&cached, PAGES * PAGE);
    std::thread::scope(|scope| {
        let (acknowledged, is_over, cached) = (&acknowledged, &is_over, &cached);
        let (view, end) = (&view, End(is_over));
        for reader in 0..3 {
            scope.spawn(move || {
                let mut at = reader;
                while !is_over.load(Ordering::Relaxed) {
                    at = (at + 7) % PAGES;
                    let least = acknowledged[at].load(Ordering::SeqCst);
                    let found = if reader == 0 {
                        view.number(at)
                    } else {
                        let mut bytes = [0; 4];
                        cached.read_exact_at(&mut bytes, (at * PAGE) as u64).expect("a read");
                        u32::from_le_bytes(bytes)
                    };
                    assert!(found >= least, "page {at} has {found} after {least}");
                }
            });
        }
        let mut ring = IoUring::new(DEPTH as u32).expect("a ring");
        let mut memory: Vec<_> = (0..DEPTH).map(|_| Aligned::new(0)).collect();
        let fd = types::Fd(direct.as_raw_fd());
        let mut next = 0;
        while next < WRITES {
            for (slot, memory) in memory.iter_mut().enumerate() {
                let number = next + slot as u32;
                memory.0[..4].copy_from_slice(&(number + 1).to_le_bytes());
                let at = (number as usize % PAGES * PAGE) as u64;
                let write = opcode::Write::new(fd, memory.0.as_ptr(), PAGE as u32).offset(at);
                // SAFETY: the memory lives until the write is done, because the code below waits
                // for the write.
                unsafe { ring.submission().push(&write.build().user_data(number.into())) }
                    .expect("there is room");
            }
            next += DEPTH as u32;
            ring.submit_and_wait(DEPTH).expect("written");
            for done in ring.completion() {
                assert_eq!(done.result(), PAGE as i32);
                let number = done.user_data() as u32;
                acknowledged[number as usize % PAGES].store(number + 1, Ordering::SeqCst);
            }
        }
        drop(end);
    });
}

/// A read after an acknowledged write returns the written bytes, as on Linux's btrfs.
#[test]
fn readers_see_asynchronous_direct_writes_once_acknowledged() {
    for mode in MODES {
        let Some(mount) = mounted_with(mode) else { return };
        let path = mount.path("file");
        in_time(&mount, "writing beside readers", || write_beside_readers(&path));
    }
    let linux = Linux::mount();
    write_beside_readers(&linux.1.join("file"));
}
