//! Losses: a failed background writeback is reported once to each kind of caller.

use std::sync::Arc;

use buttress_block::{Device, Operation};
use buttress_fs::{ErrorKind, Filesystem, MountOptions};
use buttress_sim::{FaultDevice, FaultKind, Faults};

use crate::checker::check;
use crate::volume::{content, file_with, memory, mount, pattern};

/// A sync of the volume reports a loss once, whichever inode had it. A sync of that inode also
/// reports it once.
#[test]
fn told_by_sync_and_close() {
    let below = memory(256);
    let faults = Faults::none();
    let device: Arc<dyn Device> = FaultDevice::new(Arc::clone(&below), &faults);
    let fs = Filesystem::open(vec![device], MountOptions::default()).expect("a mount");
    let kept = file_with(&fs.root(), "kept", &pattern(1, 100_000));
    fs.sync().expect("all is well");

    let lost = file_with(&fs.root(), "lost", &pattern(2, 100_000));
    let other = file_with(&fs.root(), "other", &pattern(3, 100_000));
    faults.strike(0, Some(Operation::Write), FaultKind::Gone);
    lost.flush_data().expect_err("the device fails");
    drop(other.flush_data());
    faults.heal();
    let error = fs.sync().expect_err("two files lost data");
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    fs.sync().expect("told once");
    lost.sync().expect_err("the file tells its own loss");
    lost.sync().expect("told once");

    lost.write_at(0, &pattern(4, 100_000)).expect("write");
    faults.strike(0, Some(Operation::Write), FaultKind::Gone);
    lost.flush_data().expect_err("the device fails");
    faults.heal();
    assert_eq!(content(&kept), pattern(1, 100_000));
    drop((kept, lost, other));
    fs.close().expect_err("told by the last call that can");
    check(&below);
    let fs = mount(&below);
    assert_eq!(content(&fs.resolve("kept").expect("file")), pattern(1, 100_000));
    fs.close().expect("closed");
}
