//! A device in front of another one. Requests that the layer does not handle go to the device
//! behind.
//!
//! # Invariants
//!
//! - **L1** Every write comes to [`Layer::on_write`], unless a layer has a method of its own for
//!   that kind of write. So a layer with only `on_write` sees all bytes that are written.
//! - **L2** A layer has the length of the device behind it.

use std::fmt;
use std::io::IoSlice;

use crate::device::{
    Class, Device, Extent, FailedWrite, Read, Space, Write, check, total_len, write_each_zero,
};
use crate::error::{Error, Operation};

/// How a layer handles requests. Every layer is a [`Device`] by the implementation below.
pub trait Layer: Send + Sync + fmt::Debug {
    /// The type of the device behind the layer.
    type Inner: Device + ?Sized;

    /// The device behind the layer.
    fn inner(&self) -> &Self::Inner;

    /// See [`Device::name`].
    fn title(&self) -> String {
        self.inner().name()
    }

    /// See [`Device::writable`].
    fn is_writable(&self) -> bool {
        self.inner().writable()
    }

    /// See [`Device::read_at`].
    ///
    /// # Errors
    ///
    /// Those of [`Device::read_at`].
    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.inner().read_at(offset, buf)
    }

    /// See [`Device::read_many`]. A layer that does not look at reads may pass them on in one call.
    ///
    /// # Errors
    ///
    /// Those of [`Device::read_many`].
    fn on_read_many(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        reads.iter_mut().try_for_each(|read| self.on_read(read.offset, read.buf))
    }

    /// See [`Device::reads_at_once`]. A layer that implements [`Layer::on_read_many`] returns true.
    fn reads_many(&self) -> bool {
        false
    }

    /// See [`Device::write_at`].
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_at`].
    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.inner().write_at(offset, buf)
    }

    /// See [`Device::write_classed_at`]. Writes without a class come to this method too, as data.
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_classed_at`].
    fn on_write_classed(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        _class: Class,
    ) -> Result<(), Error> {
        let mut at = offset;
        for buf in bufs {
            self.on_write(at, buf)?;
            at += buf.len() as u64;
        }
        Ok(())
    }

    /// See [`Device::write_many`].
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_many`].
    fn on_write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        for (index, write) in writes.iter().enumerate() {
            self.on_write_classed(write.offset, &write.bufs, write.class)
                .map_err(|error| FailedWrite { index, error })?;
        }
        Ok(())
    }

    /// See [`Device::writes_at_once`]. A layer may return true without [`Layer::on_write_many`].
    /// Such a layer gets the writes one by one.
    fn takes_many(&self) -> bool {
        false
    }

    /// See [`Device::write_durably`].
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_durably`].
    fn on_write_durably(&self, offset: u64, buf: &[u8], class: Class) -> Result<(), Error> {
        self.on_write_classed(offset, &[IoSlice::new(buf)], class)?;
        self.on_flush()
    }

    /// See [`Device::flush`].
    ///
    /// # Errors
    ///
    /// Those of [`Device::flush`].
    fn on_flush(&self) -> Result<(), Error> {
        self.inner().flush()
    }

    /// See [`Device::upload`].
    ///
    /// # Errors
    ///
    /// Those of [`Device::upload`].
    fn on_upload(&self) -> Result<(), Error> {
        self.inner().upload()
    }

    /// See [`Device::discard`].
    ///
    /// # Errors
    ///
    /// Those of [`Device::discard`].
    fn on_discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.inner().discard(offset, len)
    }

    /// See [`Device::write_zeroes`]. The range lies within the device.
    ///
    /// # Errors
    ///
    /// Those of [`Device::write_zeroes`].
    fn on_write_zeroes(&self, offset: u64, len: u64, _space: Space) -> Result<(), Error> {
        write_each_zero(offset, len, |at, buf| self.on_write(at, buf))
    }

    /// See [`Device::extent_at`].
    ///
    /// # Errors
    ///
    /// Those of [`Device::extent_at`].
    fn on_extent(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        self.inner().extent_at(offset, len)
    }
}

impl<L: Layer> Device for L {
    fn name(&self) -> String {
        self.title()
    }

    fn len(&self) -> u64 {
        self.inner().len()
    }

    fn can_grow(&self) -> bool {
        self.inner().can_grow()
    }

    fn grow(&self, len: u64) -> Result<(), Error> {
        self.inner().grow(len)
    }

    fn writable(&self) -> bool {
        self.is_writable()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        self.on_read(offset, buf)
    }

    fn read_many(&self, reads: &mut [Read<'_>]) -> Result<(), Error> {
        self.on_read_many(reads)
    }

    fn reads_at_once(&self) -> bool {
        self.reads_many()
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
        self.on_write_classed(offset, &[IoSlice::new(buf)], Class::Data)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Error> {
        check(self, Operation::Write, offset, total_len(bufs))?;
        self.on_write_classed(offset, bufs, Class::Data)
    }

    fn write_classed_at(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        class: Class,
    ) -> Result<(), Error> {
        check(self, Operation::Write, offset, total_len(bufs))?;
        self.on_write_classed(offset, bufs, class)
    }

    fn write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        self.on_write_many(writes)
    }

    fn writes_at_once(&self) -> bool {
        self.takes_many()
    }

    fn write_durably(&self, offset: u64, buf: &[u8], class: Class) -> Result<(), Error> {
        self.on_write_durably(offset, buf, class)
    }

    fn flush(&self) -> Result<(), Error> {
        self.on_flush()
    }

    fn upload(&self) -> Result<(), Error> {
        self.on_upload()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), Error> {
        self.on_discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), Error> {
        check(self, Operation::Write, offset, len)?;
        self.on_write_zeroes(offset, len, space)
    }

    fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Error> {
        self.on_extent(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::MemoryDevice;

    #[derive(Debug)]
    struct Seen {
        inner: MemoryDevice,
        bytes: Mutex<u64>,
    }

    impl Layer for Seen {
        type Inner = MemoryDevice;

        fn inner(&self) -> &MemoryDevice {
            &self.inner
        }

        fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), Error> {
            *self.bytes.lock().expect("no panic") += buf.len() as u64;
            self.inner.write_at(offset, buf)
        }
    }

    /// L1: the layer sees all bytes, whichever method writes them. The layer does not see requests
    /// past the end.
    #[test]
    fn a_layer_sees_every_write() {
        let seen = Seen { inner: MemoryDevice::new(1 << 20), bytes: Mutex::new(0) };
        let buf = [7; 512];
        let bufs = [IoSlice::new(&buf), IoSlice::new(&buf)];
        seen.write_at(0, &buf).expect("memory");
        seen.write_vectored_at(512, &bufs).expect("memory");
        seen.write_classed_at(2048, &bufs, Class::Metadata).expect("memory");
        let many = Write { offset: 4096, bufs: bufs.to_vec(), class: Class::Data };
        seen.write_many(&[many]).expect("memory");
        let last = Write { offset: 8192, bufs: bufs.to_vec(), class: Class::Data };
        seen.write_many_and_flush(&[last]).expect("memory");
        seen.write_durably(16384, &buf, Class::Data).expect("memory");
        seen.write_zeroes(0, 4096, Space::Keep).expect("memory");
        assert!(seen.write_vectored_at((1 << 20) - 512, &bufs).is_err());
        assert!(seen.write_zeroes(1 << 20, 512, Space::Free).is_err());
        assert_eq!(*seen.bytes.lock().expect("no panic"), 512 * 10 + 4096);
        assert_eq!((seen.name(), seen.len()), (seen.inner.name(), 1 << 20));
    }
}
