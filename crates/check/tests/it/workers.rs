//! Panics of worker threads reach the caller of a check.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, ThreadId};

use buttress_block::{Device, Error};
use buttress_check::{NoProgress, Options, check_devices};
use buttress_fs::{Filesystem, MakeOptions, NewInode};

use crate::victim::{Overlay, make_with, small_nodes};

/// A device on which reads of some bytes panic, except those of the thread that made it.
#[derive(Debug)]
struct Broken {
    behind: Overlay,
    spares: ThreadId,
    is_hit: fn(&[u8]) -> bool,
}

impl Device for Broken {
    fn name(&self) -> String {
        self.behind.name()
    }

    fn len(&self) -> u64 {
        self.behind.len()
    }

    fn writable(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.behind.read_at(offset, buf)?;
        let is_hit = thread::current().id() != self.spares && (self.is_hit)(buf);
        assert!(!is_hit, "a fault of a worker");
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.behind.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), Error> {
        self.behind.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.behind.discard(offset, len)
    }
}

/// Checks a volume on which reads of some bytes panic in all workers. The check ends.
#[track_caller]
fn ends(options: &MakeOptions, fill: fn(&Filesystem), is_hit: fn(&[u8]) -> bool) {
    let behind = Overlay::new(make_with(options, fill));
    let device = Broken { behind, spares: thread::current().id(), is_hit };
    let options = Options { check_data_csum: true, threads: Some(2), ..Options::default() };
    let device: Arc<dyn Device> = Arc::new(device);
    let checked =
        catch_unwind(AssertUnwindSafe(|| check_devices(vec![device], &options, &NoProgress)));
    assert!(checked.is_err(), "a worker's panic reached the caller");
}

/// More data than workers take and their queue holds: a piece is a MiB.
#[test]
fn check_of_data_ends_if_all_workers_panic() {
    let fill = |fs: &Filesystem| {
        let file = fs.root().create(b"file", NewInode::file(0o644)).expect("a file");
        let part = vec![0xAB; 1 << 20];
        for at in 0..64 {
            file.write_at(at << 20, &part).expect("a write");
        }
    };
    ends(&MakeOptions::default(), fill, |bytes| bytes.starts_with(&[0xAB; 512]));
}

/// More trees of two levels than workers take and their queue holds.
#[test]
fn walk_ends_if_all_workers_panic() {
    let fill = |fs: &Filesystem| {
        for number in 0..64 {
            let name = format!("sub {number}");
            let top = fs.root().create_subvolume(name.as_bytes(), 0o755, 0, 0);
            let top = top.expect("a subvolume");
            for number in 0..20 {
                let name = format!("file {number}");
                top.create(name.as_bytes(), NewInode::file(0o644)).expect("a file");
            }
        }
    };
    // The owner of a node is at byte 88, its level at byte 100.
    ends(&small_nodes(), fill, |bytes| {
        let owner = bytes.get(88..96).and_then(|owner| owner.try_into().ok());
        owner.map(u64::from_le_bytes).is_some_and(|owner| (256..400).contains(&owner))
            && bytes.get(100) == Some(&0)
    });
}
