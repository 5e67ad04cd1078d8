//! The properties of a block device's queue, as Linux reports them.
//!
//! # Place
//!
//! A durable write uses `RWF_DSYNC`, which Linux turns into a bio with FUA. Whether such a write
//! makes earlier writes durable depends on the device (kernel documentation,
//! `block/writeback_cache_control`):
//!
//! - Write-back cache without FUA: Linux flushes the whole cache after the write. Earlier writes
//!   become durable as well.
//! - Write-through cache: every completed write is durable, so earlier writes are, too.
//! - Write-back cache with FUA: only the write itself becomes durable.
//! - A stacked device has no queue of its own. It passes the write to one of its devices, and only
//!   that device flushes.
//!
//! Several durable writes at once cost one flush: Linux delays the flush until all of them are done
//! (`block/blk-flush.c`, C2). In a measurement on a loop device, a batch of 1, 2, 4, 8 or 16
//! durable writes caused one flush.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Returns whether a durable write to this block device also makes earlier writes durable. Returns
/// false if Linux does not say.
pub(crate) fn flushes_with_writes(device: &File) -> bool {
    let Ok(metadata) = device.metadata() else { return false };
    let (major, minor) = (rustix::fs::major(metadata.rdev()), rustix::fs::minor(metadata.rdev()));
    let device = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    // A partition has the queue of its disk.
    let disks = [device.clone(), device.join("..")];
    let Some(disk) = disks.iter().find(|disk| disk.join("queue").is_dir()) else { return false };
    let read =
        |name: &str| std::fs::read_to_string(disk.join("queue").join(name)).unwrap_or_default();
    disk.join("mq").is_dir() && says_so(&read("write_cache"), &read("fua"))
}

fn says_so(write_cache: &str, fua: &str) -> bool {
    match write_cache.trim() {
        "write through" => true,
        "write back" => fua.trim() == "0",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_it_is_said() {
        assert!(says_so("write back\n", "0\n"));
        assert!(!says_so("write back\n", "1\n"), "with FUA others are not flushed");
        assert!(says_so("write through\n", "0\n"));
        assert!(!says_so("", ""));
        assert!(!says_so("write back\n", ""));
    }
}
