//! Devices that the calling program holds.
//!
//! # Place
//!
//! A program that formats a block device locks it by `flock(2)`, so that udev leaves it alone.
//! `systemd-repart` does so, and calls `mkfs.btrfs` meanwhile. That lock is held for this program.
//!
//! # Invariants
//!
//! - **H1** A lock of another program than a caller is respected.
//! - **H2** A block device that the kernel uses is refused, whichever program holds its lock. A
//!   writer claims a block device also without a lock (`block::file::F1`).

use std::path::Path;
use std::sync::Arc;

use buttress_block::{Device, OpenOptions};
use buttress_remote::OpenRequest;

use crate::closing::locked_by;
use crate::exit::{Failure, Result};
use crate::plan;

/// The longest chain of callers that is followed.
const CALLERS_MAX: usize = 64;

/// Opens a device. With a size, a file is made, or made longer.
pub(super) fn open(path: &Path, size: Option<u64>) -> Result<Arc<dyn Device>> {
    let asked = OpenRequest::default();
    match plan::open(path, size, &asked) {
        Err(failure) if failure.is_locked() && locked_by(path).is_some_and(is_caller) => {
            let how = OpenOptions { lock: false, ..OpenOptions::WRITE };
            let opened = buttress_remote::open(path, how, &asked).map_err(Failure::of_remote)?;
            Ok(opened.device())
        }
        opened => opened,
    }
}

/// Whether a process has called this one, or a caller of it (H1).
fn is_caller(pid: u32) -> bool {
    let mut process = std::process::id();
    for _ in 0..CALLERS_MAX {
        let Some(parent) = parent(process) else { return false };
        if parent == pid {
            return true;
        }
        process = parent;
    }
    false
}

/// The process that started another one. `None` for the first process, and for hidden ones.
fn parent(pid: u32) -> Option<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program stands in brackets, and can have any character.
    let (_, rest) = text.rsplit_once(')')?;
    rest.split_whitespace().nth(1)?.parse().ok().filter(|parent| *parent > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_found() {
        let own = std::process::id();
        let parent = parent(own).expect("a test has a parent");
        assert!(is_caller(parent));
        assert!(is_caller(1) || std::fs::read("/proc/1/stat").is_err());
        assert!(!is_caller(own), "no process calls itself");
    }
}
