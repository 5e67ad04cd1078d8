//! A part of a device as a device: a partition, or what begins at an offset.
//!
//! # Invariants
//!
//! - **W1** No request reaches a byte outside of the part. One that would is refused whole.
//! - **W2** All else is as with the device behind it: batches stay batches, and direct requests
//!   that are aligned there stay direct.

use std::io::IoSlice;
use std::sync::Arc;

use crate::device::{
    Class, Device, Extent, FailedWrite, Space, Unfinished, Write, check, total_len,
};
use crate::error::{Error, Operation};

/// A part of a device.
#[derive(Debug)]
pub struct Window {
    behind: Arc<dyn Device>,
    name: String,
    start: u64,
    len: u64,
}

impl Window {
    /// Makes the part that begins at the byte `start`, with `len` bytes. `name` is what messages
    /// call it.
    ///
    /// # Errors
    ///
    /// [`Error::Partition`] if the device has no such bytes, or the part is empty.
    pub fn new(
        behind: Arc<dyn Device>,
        start: u64,
        len: u64,
        name: impl Into<String>,
    ) -> Result<Self, Error> {
        let is_within = start.checked_add(len).is_some_and(|end| end <= behind.len());
        if !is_within || len == 0 {
            let (device, has) = (behind.name(), behind.len());
            let why = format!("{len} bytes at {start} are no part of its {has} bytes");
            return Err(Error::Partition { device, why });
        }
        Ok(Self { behind, name: name.into(), start, len })
    }

    /// Returns the place in the device behind it, for a range within the part (W1).
    fn at(&self, operation: Operation, offset: u64, len: u64) -> Result<u64, Error> {
        check(self, operation, offset, len)?;
        Ok(self.start + offset)
    }

    /// Writes as the device behind it takes them.
    fn moved<'a>(&self, writes: &[Write<'a>]) -> Result<Vec<Write<'a>>, FailedWrite> {
        let each = writes.iter().enumerate().map(|(index, write)| {
            let len = total_len(&write.bufs);
            let offset = self.at(Operation::Write, write.offset, len);
            let offset = offset.map_err(|error| FailedWrite { index, error })?;
            Ok(Write { offset, bufs: write.bufs.clone(), class: write.class })
        });
        each.collect()
    }
}

impl Device for Window {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn writable(&self) -> bool {
        self.behind.writable()
    }

    fn begin_writing(&self) -> Result<(), Error> {
        self.behind.begin_writing()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let at = self.at(Operation::Read, offset, buf.len() as u64)?;
        self.behind.read_at(at, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        let at = self.at(Operation::Write, offset, buf.len() as u64)?;
        self.behind.write_at(at, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        let at = self.at(Operation::Write, offset, total_len(bufs))?;
        self.behind.write_vectored_at(at, bufs)
    }

    fn write_classed_at(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        class: Class,
    ) -> Result<(), Error> {
        let at = self.at(Operation::Write, offset, total_len(bufs))?;
        self.behind.write_classed_at(at, bufs, class)
    }

    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        self.behind.write_many(&self.moved(writes)?)
    }

    fn writes_at_once(&self) -> bool {
        self.behind.writes_at_once()
    }

    fn write_many_and_flush(&self, writes: &[Write<'_>]) -> Result<(), Unfinished> {
        let moved = self.moved(writes).map_err(Unfinished::Write)?;
        self.behind.write_many_and_flush(&moved)
    }

    fn write_durably(&self, offset: u64, buf: &[u8], class: Class) -> Result<(), Error> {
        let at = self.at(Operation::Write, offset, buf.len() as u64)?;
        self.behind.write_durably(at, buf, class)
    }

    fn flush(&self) -> Result<(), Error> {
        self.behind.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        let at = self.at(Operation::Discard, offset, len)?;
        self.behind.discard(at, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), Error> {
        let at = self.at(Operation::Write, offset, len)?;
        self.behind.write_zeroes(at, len, space)
    }

    fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        let at = self.at(Operation::Read, offset, len)?;
        self.behind.extent_at(at, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const START: u64 = 3 << 12;
    const LEN: u64 = 64 << 10;

    /// W1: every kind of request stays within the part, and one past either end changes nothing.
    #[test]
    fn no_request_leaves_the_part() {
        let disk = Arc::new(MemoryDevice::new(1 << 20));
        let part = Window::new(Arc::clone(&disk) as _, START, LEN, "part").expect("it fits");
        let buf = [7; 4096];
        let bufs = [IoSlice::new(&buf)];
        let many = |offset| vec![Write { offset, bufs: bufs.to_vec(), class: Class::Data }];
        let all = |at: u64| {
            [
                part.write_at(at, &buf).is_ok(),
                part.write_vectored_at(at, &bufs).is_ok(),
                part.write_classed_at(at, &bufs, Class::Metadata).is_ok(),
                part.write_many(&many(at)).is_ok(),
                part.write_many_and_flush(&many(at)).is_ok(),
                part.write_durably(at, &buf, Class::Data).is_ok(),
                part.read_at(at, &mut [0; 4096]).is_ok(),
                part.extent_at(at, 4096).is_ok(),
                part.write_zeroes(at, 4096, Space::Keep).is_ok(),
                part.discard(at, 4096).is_ok(),
            ]
        };
        for at in [LEN - 4095, LEN, u64::MAX - START, u64::MAX - START - 4095, u64::MAX] {
            assert_eq!(all(at), [false; 10], "{at}");
        }
        let mut whole = vec![0; 1 << 20];
        disk.read_at(0, &mut whole).expect("memory");
        assert!(whole.iter().all(|&byte| byte == 0), "what was refused changed nothing");
        for at in [0, LEN - 4096] {
            assert_eq!(all(at), [true; 10], "{at}");
        }
        part.write_at(0, &buf).expect("memory");
        part.write_many(&many(LEN - 4096)).expect("memory");
        disk.read_at(0, &mut whole).expect("memory");
        let (start, end) = (START as usize, (START + LEN) as usize);
        assert!(whole[..start].iter().chain(&whole[end..]).all(|&byte| byte == 0));
        assert_eq!((whole[start], whole[end - 1]), (7, 7));
        assert_eq!((part.name(), part.len()), ("part".to_owned(), LEN));
    }

    /// A part that the device does not have is refused.
    #[test]
    fn a_part_lies_within_its_device() {
        let disk: Arc<dyn Device> = Arc::new(MemoryDevice::new(1 << 20));
        for (start, len) in [(0, 0), (1 << 20, 1), (1, 1 << 20), (u64::MAX, 2)] {
            assert!(Window::new(Arc::clone(&disk), start, len, "part").is_err(), "{start} {len}");
        }
    }
}
