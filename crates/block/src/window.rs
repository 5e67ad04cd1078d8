//! A part of a device as a device of its own: a partition, or a range that begins at an offset.
//!
//! # Invariants
//!
//! - **W1** No request reaches a byte outside of the part. A request that leaves the part is
//!   refused as a whole.
//! - **W2** Every request goes on to the same method of the device behind it, with its range moved.
//!   So batches stay batches. A direct request stays direct if its moved range is aligned.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use crate::device::{
    Class, Device, Extent, FailedWrite, Read, Space, Unfinished, Write, check, total_len,
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
    /// Makes the part that begins at the byte `start`, with `len` bytes. Messages call the part
    /// `name`.
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

    /// Returns the offset on the device behind, for a range within the part (W1).
    fn at(&self, operation: Operation, offset: u64, len: u64) -> Result<u64, Error> {
        check(self, operation, offset, len)?;
        Ok(self.start + offset)
    }

    /// Returns the writes with offsets in the device behind the part. Fails for a write that leaves
    /// the part (W1).
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

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        let moved = reads.iter_mut().map(|read| {
            let offset = self.at(Operation::Read, read.offset, read.buf.len() as u64)?;
            Ok(Read { offset, buf: &mut *read.buf })
        });
        let mut moved = moved.collect::<Result<Vec<_>, Error>>()?;
        self.behind.read_many(&mut moved)
    }

    fn reads_at_once(&self) -> bool {
        self.behind.reads_at_once()
    }

    fn ahead_bytes(&self) -> u64 {
        self.behind.ahead_bytes()
    }

    fn expect(&self, ranges: &[Range<u64>]) {
        let moved = ranges.iter().filter_map(|range| {
            let start = self.at(Operation::Read, range.start, range.end - range.start).ok()?;
            Some(start..start + (range.end - range.start))
        });
        self.behind.expect(&moved.collect::<Vec<_>>());
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

    fn upload(&self) -> Result<(), Error> {
        self.behind.upload()
    }

    fn newer(&self) -> Result<Option<Arc<dyn Device>>, Error> {
        let Some(newer) = self.behind.newer()? else { return Ok(None) };
        Ok(Some(Arc::new(Self::new(newer, self.start, self.len, self.name.clone())?)))
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
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use super::*;
    use crate::MemoryDevice;

    const START: u64 = 3 << 12;
    const LEN: u64 = 64 << 10;

    /// W1: every kind of request stays within the part, and a request past either end changes
    /// nothing.
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
                part.read_many(&mut [Read { offset: at, buf: &mut [0; 4096] }]).is_ok(),
                part.extent_at(at, 4096).is_ok(),
                part.write_zeroes(at, 4096, Space::Keep).is_ok(),
                part.discard(at, 4096).is_ok(),
            ]
        };
        for at in [LEN - 4095, LEN, u64::MAX - START, u64::MAX - START - 4095, u64::MAX] {
            assert_eq!(all(at), [false; 11], "{at}");
        }
        let mut whole = vec![0; 1 << 20];
        disk.read_at(0, &mut whole).expect("memory");
        assert!(whole.iter().all(|&byte| byte == 0), "what was refused changed nothing");
        for at in [0, LEN - 4096] {
            assert_eq!(all(at), [true; 11], "{at}");
        }
        part.write_at(0, &buf).expect("memory");
        part.write_many(&many(LEN - 4096)).expect("memory");
        disk.read_at(0, &mut whole).expect("memory");
        let (start, end) = (START as usize, (START + LEN) as usize);
        assert!(whole[..start].iter().chain(&whole[end..]).all(|&byte| byte == 0));
        assert_eq!((whole[start], whole[end - 1]), (7, 7));
        assert_eq!((part.name(), part.len()), ("part".to_owned(), LEN));
    }

    /// Notes which methods were called, with the first byte of their range.
    #[derive(Debug, Default)]
    struct Spy {
        called: Mutex<BTreeSet<(&'static str, u64)>>,
    }

    impl Spy {
        fn saw(&self, method: &'static str, at: u64) {
            self.called.lock().expect("no panic").insert((method, at));
        }
    }

    impl Device for Spy {
        fn name(&self) -> String {
            "spy".to_owned()
        }

        fn len(&self) -> u64 {
            1 << 20
        }

        fn writable(&self) -> bool {
            self.saw("writable", 0);
            true
        }

        fn begin_writing(&self) -> Result<(), Error> {
            self.saw("begin_writing", 0);
            Ok(())
        }

        fn read_at(&self, offset: u64, _buf: &mut [u8]) -> Result<(), Error> {
            self.saw("read_at", offset);
            Ok(())
        }

        fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
            self.saw("read_many", reads[0].offset);
            Ok(())
        }

        fn reads_at_once(&self) -> bool {
            self.saw("reads_at_once", 0);
            true
        }

        fn ahead_bytes(&self) -> u64 {
            self.saw("ahead_bytes", 0);
            7
        }

        fn expect(&self, ranges: &[Range<u64>]) {
            self.saw("expect", ranges[0].start);
        }

        fn write_at(&self, offset: u64, _buf: &[u8]) -> Result<(), Error> {
            self.saw("write_at", offset);
            Ok(())
        }

        fn write_vectored_at(&self, offset: u64, _bufs: &[IoSlice<'_>]) -> Result<(), Error> {
            self.saw("write_vectored_at", offset);
            Ok(())
        }

        fn write_classed_at(
            &self,
            offset: u64,
            _bufs: &[IoSlice<'_>],
            _class: Class,
        ) -> Result<(), Error> {
            self.saw("write_classed_at", offset);
            Ok(())
        }

        fn write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
            self.saw("write_many", writes[0].offset);
            Ok(())
        }

        fn writes_at_once(&self) -> bool {
            self.saw("writes_at_once", 0);
            true
        }

        fn write_many_and_flush(&self, writes: &[Write<'_>]) -> Result<(), Unfinished> {
            self.saw("write_many_and_flush", writes[0].offset);
            Ok(())
        }

        fn write_durably(&self, offset: u64, _buf: &[u8], _class: Class) -> Result<(), Error> {
            self.saw("write_durably", offset);
            Ok(())
        }

        fn flush(&self) -> Result<(), Error> {
            self.saw("flush", 0);
            Ok(())
        }

        fn upload(&self) -> Result<(), Error> {
            self.saw("upload", 0);
            Ok(())
        }

        fn newer(&self) -> Result<Option<Arc<dyn Device>>, Error> {
            self.saw("newer", 0);
            Ok(Some(Arc::new(MemoryDevice::new(1 << 20))))
        }

        fn discard(&self, offset: u64, _len: u64) -> Result<(), Error> {
            self.saw("discard", offset);
            Ok(())
        }

        fn write_zeroes(&self, offset: u64, _len: u64, _space: Space) -> Result<(), Error> {
            self.saw("write_zeroes", offset);
            Ok(())
        }

        fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Error> {
            self.saw("extent_at", offset);
            Ok(Extent { len, content: crate::device::Content::Data })
        }
    }

    /// W2: each method of the part calls the same method of the device behind it, with the range
    /// moved. The test reads the list of methods from the source of the trait.
    #[test]
    fn every_method_comes_to_the_device_behind() {
        let spy = Arc::new(Spy::default());
        let part = Window::new(Arc::clone(&spy) as _, START, LEN, "part").expect("it fits");
        let buf = [7; 512];
        let bufs = [IoSlice::new(&buf)];
        let many = [Write { offset: 512, bufs: bufs.to_vec(), class: Class::Data }];
        part.begin_writing().expect("a spy");
        part.read_at(512, &mut [0; 512]).expect("a spy");
        part.read_many(&mut [Read { offset: 512, buf: &mut [0; 512] }]).expect("a spy");
        part.expect(&[512..1024, LEN..LEN + 1]);
        part.write_at(512, &buf).expect("a spy");
        part.write_vectored_at(512, &bufs).expect("a spy");
        part.write_classed_at(512, &bufs, Class::Data).expect("a spy");
        part.write_many(&many).expect("a spy");
        part.write_many_and_flush(&many).expect("a spy");
        part.write_durably(512, &buf, Class::Data).expect("a spy");
        part.flush().expect("a spy");
        part.upload().expect("a spy");
        part.discard(512, 512).expect("a spy");
        part.write_zeroes(512, 512, Space::Free).expect("a spy");
        part.extent_at(512, 512).expect("a spy");
        assert!(part.writable() && part.reads_at_once() && part.writes_at_once());
        assert_eq!(part.ahead_bytes(), 7);
        let newer = part.newer().expect("a spy").expect("it has one");
        assert_eq!((newer.name(), newer.len()), ("part".to_owned(), LEN));
        let source = include_str!("device.rs").split_once("pub trait Device").expect("a trait").1;
        let methods = source.split_once("\n}\n").expect("its end").0.lines();
        let methods = methods.filter_map(|line| line.strip_prefix("    fn ")?.split('(').next());
        // The part answers these methods itself. It has one length, and does not grow.
        let own = ["name", "len", "is_empty", "can_grow", "grow"];
        assert!(!part.can_grow() && part.grow(1 << 30).is_err());
        let methods = methods.filter(|method| !own.contains(method));
        let called = spy.called.lock().expect("no panic");
        let seen: BTreeSet<&str> = called.iter().map(|(method, _)| *method).collect();
        assert_eq!(seen, methods.collect::<BTreeSet<_>>());
        assert!(called.iter().all(|(_, at)| [0, START + 512].contains(at)), "{called:?}");
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
