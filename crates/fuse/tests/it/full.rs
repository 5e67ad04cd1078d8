//! A volume that is full.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{FallocateFlags, IFlags, OFlags, fallocate, ioctl_setflags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

use crate::mounted::{Mounted, mounted_small};
use crate::volume::open;

const MIB: usize = 1 << 20;
const LEN: usize = 4 * MIB;
/// Mappings and the buffers of direct I/O begin at a multiple of this.
const PAGE: usize = 4096;

fn create(mount: &Mounted, name: &str, flags: OFlags) -> File {
    let flags = flags.bits().cast_signed();
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(mount.path(name))
        .expect("a file")
}

/// Takes all free space for data.
fn fill(mount: &Mounted) {
    let filler = create(mount, "filler", OFlags::empty());
    let mut at = 0;
    for size in [MIB, 64 << 10, PAGE] {
        let refused = loop {
            match fallocate(&filler, FallocateFlags::empty(), at, size as u64) {
                Ok(()) => at += size as u64,
                Err(error) => break error,
            }
        };
        assert_eq!(refused, Errno::NOSPC);
    }
    filler.sync_all().expect("a sync");
    let (new, block) = (create(mount, "new", OFlags::DIRECT), vec![1; 2 * PAGE]);
    let refused = new.write_all_at(page(&block), 0).expect_err("it is full");
    assert_eq!(refused.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
}

/// The aligned page in a buffer of two pages.
fn page(bytes: &[u8]) -> &[u8] {
    let skip = bytes.as_ptr().align_offset(PAGE);
    &bytes[skip..skip + PAGE]
}

/// Stores into a map of the file.
fn write_mapped(file: &File, content: &[u8], at: usize) {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the new mapping covers the whole file, and is unmapped once, at the end. The file is
    // not truncated.
    unsafe {
        let memory = mmap(std::ptr::null_mut(), LEN, protection, MapFlags::SHARED, file, 0);
        let memory = memory.expect("a map");
        std::slice::from_raw_parts_mut(memory.cast::<u8>().add(at), content.len())
            .copy_from_slice(content);
        msync(memory, LEN, MsyncFlags::SYNC).expect("it is written");
        munmap(memory, LEN).expect("unmapped");
    }
}

fn write_buffered(file: &File, content: &[u8], at: usize) {
    file.write_all_at(content, at as u64).expect("a write");
    file.sync_all().expect("a sync");
}

/// N11: on a full volume, an extent that no other file shares is overwritten in place, through a
/// mapping, buffered and directly. No program gets an error, and no program is killed because its
/// mapping cannot be written.
#[test]
fn full_volume_is_written_in_place() {
    for options in ["writeback_cache", "nowriteback_cache"] {
        let Some(mount) = mounted_small(256 << 20, options) else { return };
        let file = create(&mount, "in-place", OFlags::empty());
        ioctl_setflags(&file, IFlags::NOCOW).expect("flags");
        let mut wanted = vec![1; LEN];
        write_buffered(&file, &wanted, 0);
        fill(&mount);
        let direct = create(&mount, "in-place", OFlags::DIRECT);
        for round in 0..3 {
            let mut change = |at: usize, len: usize, byte: u8| {
                wanted[at..at + len].fill(byte);
                vec![byte; len]
            };
            // Some pages are dirty in part. Each way of writing has ranges of its own, and ranges
            // that overlap those of the other ways.
            let from = round * 100_000;
            write_mapped(&file, &change(from + 700, 2 * MIB, 10 + round as u8), from + 700);
            write_buffered(&file, &change(from + MIB, MIB + 5000, 20 + round as u8), from + MIB);
            for number in 0..64 {
                let at = (number * 7 + round) * 2 * PAGE;
                let bytes = change(at, PAGE, 100 + number as u8);
                let bytes = bytes.repeat(2);
                direct.write_all_at(page(&bytes), at as u64).expect("a write past the cache");
            }
            write_mapped(&file, &change(LEN - 9000, 9000, 30 + round as u8), LEN - 9000);
        }
        let mut found = vec![0; LEN];
        file.read_exact_at(&mut found, 0).expect("a read");
        assert!(found == wanted, "{options}: mounted");
        drop((file, direct));
        let volume = mount.into_volume();
        let fs = open(&volume.image());
        let file = fs.resolve("in-place").expect("a file");
        found.fill(0);
        assert_eq!(file.read_at(0, &mut found).expect("a read"), LEN);
        assert!(found == wanted, "{options}: on the device");
        drop(file);
        fs.close().expect("a close");
        volume.check_volume();
    }
}
