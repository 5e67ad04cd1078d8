//! Sends several requests to a file in direct mode at once, so that the caller waits only once.
//!
//! # Invariants
//!
//! - **O1** If the kernel serves only a part of a request, the request is repeated by calls that
//!   finish it or fail (`device::D1`).
//! - **O2** After a failed durable write, the same bytes are written once more by a plain write. If
//!   the plain write fails too, the result is a failed write. If the plain write succeeds, the
//!   flush was at fault. A second flush would prove nothing, so the result is a failed flush
//!   (`device::D3`).

use std::io::{self, IoSlice};

use buttress_base::AlignedBuf;

use crate::device::{Device, FailedWrite, Unfinished, Write, check, total_len};
use crate::error::{Error, Operation};
use crate::file::{FileDevice, IOVEC_MAX, gather, is_aligned, may_go_direct};
use crate::ring::{self, Durable};

/// The most bytes of one batch. A concurrent read of the device waits behind a whole batch.
const AT_ONCE_MAX: u64 = 8 << 20;

impl FileDevice {
    /// Serves [`Device::write_many`]. In direct mode, the writes go to the kernel in batches, with
    /// one wait for each batch. Through the page cache, writes do not wait for the device.
    pub(crate) fn write_at_once(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        let mut rest = writes;
        while !rest.is_empty() {
            let before = writes.len() - rest.len();
            let (part, after) = rest.split_at(part_len(rest));
            self.write_part(part).map_err(|FailedWrite { index, error }| FailedWrite {
                index: before + index,
                error,
            })?;
            rest = after;
        }
        Ok(())
    }

    /// Serves [`Device::write_many_and_flush`]. If a durable write flushes the whole device, the
    /// last batch is written durably. That flush makes all earlier writes durable too, without
    /// another wait.
    pub(crate) fn write_at_once_and_flush(&self, writes: &[Write<'_>]) -> Result<(), Unfinished> {
        let mut last = writes;
        while part_len(last) < last.len() {
            last = &last[part_len(last)..];
        }
        let before = writes.len() - last.len();
        let later = |FailedWrite { index, error }| FailedWrite { index: before + index, error };
        self.write_at_once(&writes[..before]).map_err(Unfinished::Write)?;
        let is_durable = self.flushes_with_writes
            && self.write_durable_part(last).map_err(|why| match why {
                Unfinished::Write(refused) => Unfinished::Write(later(refused)),
                flush => flush,
            })?;
        if !is_durable {
            self.write_at_once(last).map_err(|refused| Unfinished::Write(later(refused)))?;
            self.flush().map_err(Unfinished::Flush)?;
        }
        Ok(())
    }

    /// Writes a batch durably. If the result is false, the caller must write the batch again (O1)
    /// and flush.
    fn write_durable_part(&self, writes: &[Write<'_>]) -> Result<bool, Unfinished> {
        if writes.is_empty() {
            return Ok(false);
        }
        let answers = self.give_to_ring(writes, Durable::Yes).map_err(Unfinished::Write)?;
        let Some(answers) = answers else { return Ok(false) };
        let mut all = true;
        let mut refused = None;
        for (index, (write, answer)) in writes.iter().zip(answers).enumerate() {
            match is_whole(answer, total_len(&write.bufs)) {
                Ok(whole) => all &= whole,
                // O2
                Err(source) => match self.write_vectored_at(write.offset, &write.bufs) {
                    Ok(()) => {
                        let error = self.io_error(Operation::Flush, 0, self.len(), source);
                        return Err(Unfinished::Flush(error));
                    }
                    // Keeps the first refused write and goes on. If a later answer shows that the
                    // flush failed, the result is the failed flush, because a failed flush is
                    // worse.
                    Err(error) => refused = refused.or(Some(FailedWrite { index, error })),
                },
            }
        }
        refused.map_or(Ok(all), |refused| Err(Unfinished::Write(refused)))
    }

    fn write_part(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        let served = if writes.len() > 1 { self.give_to_ring(writes, Durable::No)? } else { None };
        let mut served = served.into_iter().flatten();
        for (index, write) in writes.iter().enumerate() {
            let len = total_len(&write.bufs);
            let whole = served.next().map_or(Ok(false), |answer| is_whole(answer, len));
            let whole = whole.map_err(|source| {
                let error = self.io_error(Operation::Write, write.offset, len, source);
                FailedWrite { index, error }
            })?;
            if !whole {
                self.write_vectored_at(write.offset, &write.bufs)
                    .map_err(|error| FailedWrite { index, error })?;
            }
        }
        Ok(())
    }

    /// The kernel's answer to each write; `None` if the writes cannot be submitted together.
    fn give_to_ring(
        &self,
        writes: &[Write<'_>],
        durable: Durable,
    ) -> Result<Option<Vec<io::Result<usize>>>, FailedWrite> {
        let Some(direct) = self.past_cache() else { return Ok(None) };
        let mut copies = Vec::new();
        for (index, write) in writes.iter().enumerate() {
            let len = total_len(&write.bufs);
            check(self, Operation::Write, write.offset, len)
                .map_err(|error| FailedWrite { index, error })?;
            let is_aligned = write.bufs.iter().all(|buf| may_go_direct(buf));
            let fits =
                write.bufs.len() <= IOVEC_MAX && self.direct_for(write.offset, len).is_some();
            if !fits {
                return Ok(None);
            }
            // Unaligned buffers are copied, as in a single write. Memory for the copies is limited,
            // since a batch has at most `AT_ONCE_MAX` bytes, or is a single write.
            copies.push((!is_aligned).then(|| gather(&write.bufs, len)));
        }
        let copies: Vec<_> =
            copies.iter().map(|copy| copy.as_deref().map(|copy| [IoSlice::new(copy)])).collect();
        let requests: Vec<(u64, &[IoSlice<'_>])> = writes
            .iter()
            .zip(&copies)
            .map(|(write, copy)| (write.offset, copy.as_ref().map_or(&write.bufs[..], |c| &c[..])))
            .collect();
        Ok(self.rings.write(direct, &requests, durable))
    }

    /// Serves [`Device::write_durably`] in direct mode. One request writes and flushes, so the
    /// caller waits once. Returns false if this was not possible; the caller then writes and
    /// flushes with separate calls.
    pub(crate) fn write_with_flush(&self, offset: u64, buf: &[u8]) -> Result<bool, Error> {
        let len = buf.len() as u64;
        check(self, Operation::Write, offset, len)?;
        let Some(direct) = self.direct_for(offset, len) else { return Ok(false) };
        let copy = (!is_aligned(buf)).then(|| AlignedBuf::copy_of(buf));
        let buf = [IoSlice::new(copy.as_deref().unwrap_or(buf))];
        let Some(answers) = self.rings.write(direct, &[(offset, &buf)], Durable::Yes) else {
            return Ok(false);
        };
        let written = answers.into_iter().next().unwrap_or(Ok(0));
        is_whole(written, len)
            .map_err(|source| self.io_error(Operation::Write, offset, len, source))
    }
}

/// How many writes at the front of a list make one batch: at least one.
fn part_len(writes: &[Write<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |write: &&Write<'_>| {
        bytes += total_len(&write.bufs);
        bytes <= AT_ONCE_MAX
    };
    writes.iter().take(ring::ENTRIES).take_while(fits).count().max(1)
}

/// Whether all `len` bytes were written. Returns false if the write was partial, if a signal
/// interrupted it, or if the kernel was short of a resource for a moment (O1).
fn is_whole(answer: io::Result<usize>, len: u64) -> io::Result<bool> {
    match answer {
        Ok(written) => Ok(written as u64 == len),
        Err(error) => match error.kind() {
            io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => Ok(false),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::path::Path;
    use std::process::Command;

    use buttress_base::Rng;

    use super::*;
    use crate::device::Class;
    use crate::file::OpenOptions;

    const LEN: u64 = 64 << 20;

    fn device(direct: bool) -> (tempfile::TempDir, FileDevice) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        drop(FileDevice::create(&path, LEN).expect("a new file"));
        let options = OpenOptions { direct, ..OpenOptions::WRITE };
        // Not every file system supports direct I/O.
        let device = FileDevice::open(&path, options)
            .or_else(|_| FileDevice::open(&path, OpenOptions::WRITE));
        (dir, device.expect("a file"))
    }

    /// Many writes at once have the same result as single writes in order. This holds for one
    /// buffer and several, in direct mode and through the page cache.
    #[test]
    fn many_writes_are_as_one_by_one() {
        for (direct, flushes_with_writes) in [(false, false), (true, false), (true, true)] {
            let (_dir, mut device) = device(direct);
            device.flushes_with_writes = flushes_with_writes;
            let mut rng = Rng::new(7);
            let mut model = vec![0_u8; LEN as usize];
            for round in 0..20 {
                let mut at = 0;
                let mut pieces: Vec<(u64, Vec<AlignedBuf>)> = Vec::new();
                loop {
                    at +=
                        rng.below(40) * 4096 + if round % 4 == 3 { rng.below(3) * 512 } else { 0 };
                    let bufs: Vec<_> = (0..=rng.below(3))
                        .map(|_| {
                            let mut buf = AlignedBuf::zeroed(4096 * (1 + rng.below(8)) as usize);
                            rng.fill(&mut buf);
                            buf
                        })
                        .collect();
                    let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
                    if at + len > LEN || pieces.len() == 150 {
                        break;
                    }
                    pieces.push((at, bufs));
                    at += len;
                }
                let mut writes = Vec::new();
                for (at, bufs) in &pieces {
                    let mut to = *at as usize;
                    for buf in bufs {
                        model[to..to + buf.len()].copy_from_slice(buf);
                        to += buf.len();
                    }
                    let bufs = bufs.iter().map(|buf| IoSlice::new(buf)).collect();
                    writes.push(Write { offset: *at, bufs, class: Class::Data });
                }
                match round % 2 {
                    0 => device.write_many(&writes).expect("a file"),
                    _ => device.write_many_and_flush(&writes).expect("a file"),
                }
            }
            device.write_many_and_flush(&[]).expect("a file");
            let superblock = AlignedBuf::copy_of(&model[..4096]);
            device.write_durably(8192, &superblock, Class::Metadata).expect("a file");
            model.copy_within(..4096, 8192);
            let mut found = AlignedBuf::zeroed(LEN as usize);
            device.read_at(0, &mut found).expect("a file");
            assert!(found[..] == model[..], "direct: {direct}");
        }
    }

    /// Durable writes flush the device, separately or with each write. The test reads the flush
    /// count of Linux.
    #[test]
    fn devices_are_flushed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        drop(FileDevice::create(&path, LEN).expect("a new file"));
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(&path).output();
        let Some(attached) = attached.ok().filter(|output| output.status.success()) else {
            eprintln!("SKIPPED: attaches a loop device, which only root may");
            return;
        };
        let name = String::from_utf8(attached.stdout).expect("a path");
        let name = name.trim_end();
        let flushes = || {
            let disk = Path::new(name).file_name().expect("a name");
            let stat = Path::new("/sys/block").join(disk).join("stat");
            let stat = std::fs::read_to_string(stat).expect("it is there");
            // Field 16 of the kernel's `block/stat`: flushes that were served.
            stat.split_whitespace().nth(15).map(|count| count.parse::<u64>().expect("a number"))
        };
        let test = || {
            for direct in [false, true] {
                let options = OpenOptions { direct, ..OpenOptions::WRITE };
                let mut device = FileDevice::open(name, options).expect("it is free");
                for flushes_with_writes in [device.flushes_with_writes, false] {
                    device.flushes_with_writes = flushes_with_writes;
                    let content = AlignedBuf::copy_of(&[7; 8192]);
                    let write = |offset| Write {
                        offset,
                        bufs: vec![IoSlice::new(&content)],
                        class: Class::Metadata,
                    };
                    let before = flushes();
                    device.write_many_and_flush(&[write(0), write(1 << 20)]).expect("a device");
                    let between = flushes();
                    device.write_durably(8192, &content, Class::Metadata).expect("a device");
                    let after = flushes();
                    assert!(
                        before < between && between < after,
                        "{before:?} {between:?} {after:?}"
                    );
                }
            }
        };
        let outcome = catch_unwind(AssertUnwindSafe(test));
        Command::new("losetup").args(["--detach", name]).status().expect("losetup");
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// O2: a failed durable write is reported as a failed write, by its index, if a plain write
    /// fails too.
    #[test]
    fn a_device_that_takes_no_writes() {
        let (dir, mut device) = device(true);
        if device.direct.is_none() {
            eprintln!("SKIPPED: no direct mode for temporary files");
            return;
        }
        device.direct = Some(File::open(dir.path().join("image")).expect("it is there"));
        device.flushes_with_writes = true;
        let buf = AlignedBuf::zeroed(4096);
        let write = |at| Write { offset: at, bufs: vec![IoSlice::new(&buf)], class: Class::Data };
        let writes: Vec<_> = (0..40).map(|n| write(n * 8192)).collect();
        let unfinished = device.write_many_and_flush(&writes).expect_err("only for reading");
        let Unfinished::Write(refused) = unfinished else { panic!("{unfinished:?}") };
        assert_eq!(refused.index, 0);
        let unfinished = device.write_many_and_flush(&writes[..2]).expect_err("only for reading");
        let Unfinished::Write(refused) = unfinished else { panic!("{unfinished:?}") };
        assert_eq!(refused.index, 0);
        device.write_durably(0, &buf, Class::Metadata).expect_err("only for reading");
    }

    /// The refused write is reported, and nothing is written past the end.
    #[test]
    fn refused_write_is_named() {
        for direct in [false, true] {
            let (_dir, device) = device(direct);
            let buf = AlignedBuf::zeroed(8192);
            let write =
                |offset| Write { offset, bufs: vec![IoSlice::new(&buf)], class: Class::Data };
            let mut writes: Vec<_> = (0..50).map(|n| write(n * 8192)).collect();
            writes.push(write(LEN - 4096));
            let refused = device.write_many(&writes).expect_err("past the end");
            assert_eq!(refused.index, 50);
            assert!(matches!(refused.error, Error::PastEnd { .. }), "{}", refused.error);
            let unfinished = device.write_many_and_flush(&writes).expect_err("past the end");
            let Unfinished::Write(refused) = unfinished else { panic!("{unfinished:?}") };
            assert_eq!(refused.index, 50);
            let error = device.write_durably(LEN, &buf, Class::Metadata).expect_err("the end");
            assert!(matches!(error, Error::PastEnd { .. }), "{error}");
        }
    }
}
