//! Requests of a file in direct mode that wait together.
//!
//! # Invariants
//!
//! - **O1** What the kernel did not serve whole is served again, by calls that finish or fail (D1).

use std::io::{self, IoSlice};

use buttress_base::AlignedBuf;

use crate::device::{Device, Refused, Write, check, total_len};
use crate::error::{Error, Operation};
use crate::file::{FileDevice, IOVEC_MAX, is_aligned, may_go_direct};
use crate::ring;

/// How many bytes are given to a device at once: who reads meanwhile waits behind them.
const AT_ONCE_MAX: u64 = 8 << 20;

impl FileDevice {
    /// [`Device::write_many`]: in direct mode at once; through the page cache nobody waits anyway.
    pub(crate) fn write_at_once(&self, writes: &[Write<'_>]) -> Result<(), Refused> {
        let mut rest = writes;
        while !rest.is_empty() {
            let before = writes.len() - rest.len();
            let (part, after) = rest.split_at(part_len(rest));
            self.write_part(part)
                .map_err(|Refused { index, error }| Refused { index: before + index, error })?;
            rest = after;
        }
        Ok(())
    }

    fn write_part(&self, writes: &[Write<'_>]) -> Result<(), Refused> {
        let served = if writes.len() > 1 { self.give_to_ring(writes)? } else { None };
        for (index, write) in writes.iter().enumerate() {
            let whole = served.as_ref().is_some_and(|served| served[index]);
            if !whole {
                self.write_vectored_at(write.offset, &write.bufs)
                    .map_err(|error| Refused { index, error })?;
            }
        }
        Ok(())
    }

    /// Which of them are on the device whole; none where they cannot go at once.
    fn give_to_ring(&self, writes: &[Write<'_>]) -> Result<Option<Vec<bool>>, Refused> {
        let Some(direct) = &self.direct else { return Ok(None) };
        let mut requests: Vec<(u64, &[IoSlice<'_>])> = Vec::with_capacity(writes.len());
        for (index, write) in writes.iter().enumerate() {
            let len = total_len(&write.bufs);
            check(self, Operation::Write, write.offset, len)
                .map_err(|error| Refused { index, error })?;
            let fits = write.bufs.len() <= IOVEC_MAX
                && write.bufs.iter().all(|buf| may_go_direct(buf))
                && self.direct_for(write.offset, len).is_some();
            if !fits {
                return Ok(None);
            }
            requests.push((write.offset, &write.bufs));
        }
        let Some(answers) = self.rings.write(direct, &requests) else { return Ok(None) };
        let mut served = Vec::with_capacity(writes.len());
        for (index, (write, answer)) in writes.iter().zip(answers).enumerate() {
            let len = total_len(&write.bufs);
            let whole = is_whole(answer, len).map_err(|source| Refused {
                index,
                error: self.io_error(Operation::Write, write.offset, len, source),
            })?;
            served.push(whole);
        }
        Ok(Some(served))
    }

    /// [`Device::write_behind_flush`] in direct mode: the caller waits twice, not three times.
    /// False where that has to be done by calls.
    pub(crate) fn flush_and_write(&self, offset: u64, buf: &[u8]) -> Result<bool, Error> {
        let len = buf.len() as u64;
        check(self, Operation::Write, offset, len)?;
        let Some(direct) = self.direct_for(offset, len) else { return Ok(false) };
        let copy = (!is_aligned(buf)).then(|| AlignedBuf::copy_of(buf));
        let aligned = copy.as_deref().unwrap_or(buf);
        let Some((flushed, written)) = self.rings.flush_and_write(direct, offset, aligned) else {
            return Ok(false);
        };
        flushed.map_err(|source| self.io_error(Operation::Flush, 0, self.len(), source))?;
        is_whole(written, len)
            .map_err(|source| self.io_error(Operation::Write, offset, len, source))
    }
}

/// How many writes at the front of a list go at once: one at least.
fn part_len(writes: &[Write<'_>]) -> usize {
    let mut bytes = 0;
    let fits = |write: &&Write<'_>| {
        bytes += total_len(&write.bufs);
        bytes <= AT_ONCE_MAX
    };
    writes.iter().take(ring::ENTRIES).take_while(fits).count().max(1)
}

/// Whether all of `len` was written; not if the kernel was interrupted, or short of something for a moment (O1).
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
        // Not every file system can do without its cache.
        let device = FileDevice::open(&path, options)
            .or_else(|_| FileDevice::open(&path, OpenOptions::WRITE));
        (dir, device.expect("a file"))
    }

    /// Many writes at once, of one buffer and of several, that may go direct and that may not, do what one after
    /// the other does.
    #[test]
    fn many_writes_are_as_one_by_one() {
        for direct in [false, true] {
            let (_dir, device) = device(direct);
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
                device.write_many(&writes).expect("a file");
            }
            let superblock = AlignedBuf::copy_of(&model[..4096]);
            device.write_behind_flush(8192, &superblock, Class::Metadata).expect("a file");
            model.copy_within(..4096, 8192);
            let mut found = AlignedBuf::zeroed(LEN as usize);
            device.read_at(0, &mut found).expect("a file");
            assert!(found[..] == model[..], "direct: {direct}");
        }
    }

    /// The one that is refused is named, and nothing lies past the end.
    #[test]
    fn which_one_failed_is_said() {
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
            let error = device.write_behind_flush(LEN, &buf, Class::Metadata).expect_err("the end");
            assert!(matches!(error, Error::PastEnd { .. }), "{error}");
        }
    }
}
