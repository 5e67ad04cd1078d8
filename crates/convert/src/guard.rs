//! The device while a new volume is made on it, around the old file system.
//!
//! # Invariants
//!
//! - **G1** A request that would change a byte that the file system uses is refused.
//! - **G2** Until [`Guard::put_in_place`], the superblocks of the new volume are in memory alone.
//!   So a program that is killed earlier leaves the file system as it was.

use std::ops::Range;
use std::sync::Arc;

use buttress_base::RangeSet;
use buttress_block::{Device, Error, Layer, Operation};
use buttress_format::limits::{DEVICE_RESERVED, SUPER_OFFSETS, SUPER_SIZE};
use parking_lot::Mutex;

/// Linux allocates nothing in this many bytes after the start of a superblock copy.
const COPY_LEN: u64 = 64 << 10;

/// Where ext4 has its superblock.
const EXT_SUPER: Range<u64> = 1024..2048;

/// The ranges of a device with `len` bytes that no chunk of btrfs uses: the first mebibyte, and the
/// ranges of the other superblock copies.
pub(crate) fn reserved(len: u64) -> impl Iterator<Item = Range<u64>> {
    let copies = SUPER_OFFSETS.into_iter().skip(1).map(|at| at..at + COPY_LEN);
    let copies = copies.filter(move |copy| copy.start + SUPER_SIZE as u64 <= len);
    let copies = copies.map(move |copy| copy.start..copy.end.min(len));
    std::iter::once(0..DEVICE_RESERVED.min(len)).chain(copies)
}

/// A device on which a volume is made.
#[derive(Debug)]
pub(crate) struct Guard {
    device: Arc<dyn Device>,
    /// Bytes that the file system uses.
    used: RangeSet,
    /// The reserved ranges.
    areas: Vec<Range<u64>>,
    /// The new volume's content of each reserved range. Unranked: no other lock is taken under it.
    held: Mutex<Vec<Vec<u8>>>,
}

impl Guard {
    /// A guard of a device with a file system that uses these bytes.
    pub(crate) fn new(device: Arc<dyn Device>, used: RangeSet) -> Self {
        let areas: Vec<Range<u64>> = reserved(device.len()).collect();
        let held = areas.iter().map(|area| vec![0; (area.end - area.start) as usize]);
        let held = Mutex::new(held.collect());
        Self { device, used, areas, held }
    }

    /// Writes the superblocks, which ends the old file system. With the first superblock, the
    /// device has the new volume.
    pub(crate) fn put_in_place(&self) -> Result<(), Error> {
        self.device.flush()?;
        let put = |at: u64| {
            let mut copy = vec![0; SUPER_SIZE];
            self.on_read(at, &mut copy)?;
            self.device.write_at(at, &copy)
        };
        put(SUPER_OFFSETS[0])?;
        self.device.flush()?;
        self.device.write_at(EXT_SUPER.start, &[0; (EXT_SUPER.end - EXT_SUPER.start) as usize])?;
        self.device.flush()?;
        let others = SUPER_OFFSETS.into_iter().skip(1);
        for at in others.filter(|at| at + SUPER_SIZE as u64 <= self.device.len()) {
            put(at)?;
        }
        self.device.flush()
    }

    /// Calls `each` for the parts of a request. A part in a reserved range comes with the number of
    /// the range, any other part with `None`.
    fn parts(
        &self,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>, Option<usize>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut at = range.start;
        for (index, area) in self.areas.iter().enumerate() {
            let both = at.max(area.start)..range.end.min(area.end);
            if both.start >= both.end {
                continue;
            }
            if at < both.start {
                each(at..both.start, None)?;
            }
            at = both.end;
            each(both, Some(index))?;
        }
        if at < range.end { each(at..range.end, None) } else { Ok(()) }
    }

    /// Runs `work` on the held bytes of a part of a reserved range.
    fn held<R>(&self, part: &Range<u64>, index: usize, work: impl FnOnce(&mut [u8]) -> R) -> R {
        let start = self.areas[index].start;
        let within = (part.start - start) as usize..(part.end - start) as usize;
        work(&mut self.held.lock()[index][within])
    }

    /// An error for a write that would change the file system.
    fn refuse(&self, range: &Range<u64>) -> Error {
        let source = std::io::Error::other("the file system that is converted uses these bytes");
        let (offset, len) = (range.start, range.end - range.start);
        Error::Io { operation: Operation::Write, device: self.title(), offset, len, source }
    }
}

impl Layer for Guard {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.device
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.parts(offset..offset + buf.len() as u64, |part, held| {
            let to = &mut buf[(part.start - offset) as usize..(part.end - offset) as usize];
            match held {
                Some(index) => self.held(&part, index, |bytes| to.copy_from_slice(bytes)),
                None => self.device.read_at(part.start, to)?,
            }
            Ok(())
        })
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.parts(offset..offset + buf.len() as u64, |part, held| {
            let from = &buf[(part.start - offset) as usize..(part.end - offset) as usize];
            match held {
                Some(index) => self.held(&part, index, |bytes| bytes.copy_from_slice(from)),
                None if self.used.overlaps(&part) => return Err(self.refuse(&part)),
                None => self.device.write_at(part.start, from)?,
            }
            Ok(())
        })
    }

    /// Discards nothing: free space may hold data that helps to recover the old file system.
    fn on_discard(&self, _offset: u64, _len: u64) -> Result<(), Error> {
        Ok(())
    }
}
