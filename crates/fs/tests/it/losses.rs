//! Losses: what could not be written in the background is told, once, to everybody who asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use buttress_block::{Device, Error, Operation};
use buttress_fs::{ErrorKind, Filesystem, MountOptions};

use crate::checker::check;
use crate::volume::{content, file_with, memory, mount, pattern};

/// A device whose writes fail while somebody wants them to.
#[derive(Debug)]
struct Moody {
    below: Arc<dyn Device>,
    fails: AtomicBool,
}

impl Device for Moody {
    fn name(&self) -> String {
        "moody".to_owned()
    }

    fn len(&self) -> u64 {
        self.below.len()
    }

    fn writable(&self) -> bool {
        true
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.below.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::Io {
                device: self.name(),
                operation: Operation::Write,
                offset,
                len: buf.len() as u64,
                source: std::io::Error::other("a bad mood"),
            });
        }
        self.below.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), Error> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.below.discard(offset, len)
    }
}

/// The whole filesystem tells a loss once, whichever inode had it; the inode tells its own beside that.
#[test]
fn told_by_sync_and_close() {
    let below = memory(256);
    let moody = Arc::new(Moody { below: Arc::clone(&below), fails: AtomicBool::new(false) });
    let device: Arc<dyn Device> = Arc::clone(&moody) as _;
    let fs = Filesystem::open(vec![device], MountOptions::default()).expect("a mount");
    let kept = file_with(&fs.root(), "kept", &pattern(1, 100_000));
    fs.sync().expect("all is well");

    let lost = file_with(&fs.root(), "lost", &pattern(2, 100_000));
    let other = file_with(&fs.root(), "other", &pattern(3, 100_000));
    moody.fails.store(true, Ordering::Relaxed);
    lost.flush_data().expect_err("the device fails");
    drop(other.flush_data());
    moody.fails.store(false, Ordering::Relaxed);
    let error = fs.sync().expect_err("two files lost data");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    fs.sync().expect("told once");
    lost.sync().expect_err("the file tells its own loss");
    lost.sync().expect("told once");

    lost.write_at(0, &pattern(4, 100_000)).expect("write");
    moody.fails.store(true, Ordering::Relaxed);
    lost.flush_data().expect_err("the device fails");
    moody.fails.store(false, Ordering::Relaxed);
    assert_eq!(content(&kept), pattern(1, 100_000));
    drop((kept, lost, other));
    fs.close().expect_err("told by the last one who can");
    check(&below);
    let fs = mount(&below);
    assert_eq!(content(&fs.resolve("kept").expect("file")), pattern(1, 100_000));
    fs.close().expect("closed");
}
