//! An origin and its cache as one device.
//!
//! # Place
//!
//! The program opens this device. Volumes and network front ends use it.
//!
//! # Invariants
//!
//! - **C1** A flush makes everything durable that was acknowledged before the flush, on both
//!   devices.
//! - **C2** After the cache device failed in a commit, no write is acknowledged any more. Reads
//!   continue.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use buttress_base::{Rank, Ranked};
use buttress_block::error::Operation;
use buttress_block::{Class, Content, Device, Error as BlockError, Extent, Layer, Space};

use crate::background;
use crate::core::Core;
use crate::error::Error;
use crate::options::CacheOptions;
use crate::recover;
use crate::status::Status;
use crate::units::OriginBlock;

/// An origin with a write-back cache in front of it.
#[derive(Debug)]
pub struct CacheDevice {
    core: Arc<Core>,
    threads: Ranked<Vec<JoinHandle<()>>>,
}

/// The result of writing everything back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Blocks written to the origin.
    pub blocks: u64,
}

impl CacheDevice {
    /// Opens a cache and recovers its committed versions.
    ///
    /// # Errors
    ///
    /// Any [`Error`] except [`Error::NotBlank`]. After an error nothing was written.
    pub fn open(
        origin: Arc<dyn Device>,
        cache: Arc<dyn Device>,
        options: CacheOptions,
    ) -> Result<Self, Error> {
        let core = Arc::new(recover::open(origin, cache, options)?);
        let device = Self { core: Arc::clone(&core), threads: Ranked::new(Rank::Leaf, Vec::new()) };
        if core.options.background && device.writable() {
            let started = background::start(&core).map_err(|source| {
                let device = core.medium.name();
                let operation = Operation::Write;
                Error::from(BlockError::Io { device, operation, offset: 0, len: 0, source })
            })?;
            *device.threads.lock() = started;
            core.want_drain();
        }
        Ok(device)
    }

    /// Returns the current figures.
    #[must_use]
    pub fn status(&self) -> Status {
        self.core.status()
    }

    /// Bytes of a cache block.
    #[must_use]
    pub fn block_size(&self) -> u64 {
        self.core.geometry.block_size()
    }

    /// Blocks of the origin that are in the cache.
    #[must_use]
    pub fn cached_blocks(&self) -> u64 {
        self.core.index.len()
    }

    /// Writes back everything that was acknowledged before the call. Calls `progress` with the
    /// number of blocks of each batch.
    ///
    /// # Errors
    ///
    /// Those of both devices. Even after an error, the blocks of all freed entries are on the
    /// origin.
    pub fn drain(&self, mut progress: impl FnMut(u64)) -> Result<Drained, Error> {
        let drained = self.core.drain_all(&mut progress);
        if drained.is_err() {
            // This call returns its own failure, so an older failure need not be reported any more.
            self.core.drain_error.lock().take();
        }
        Ok(Drained { blocks: drained? })
    }

    /// Writes back until the low watermark is reached, in the calling thread. Caches without
    /// threads of their own need this call.
    ///
    /// # Errors
    ///
    /// Those of [`CacheDevice::drain`].
    pub fn drain_to_low(&self) -> Result<Drained, Error> {
        let blocks = self.core.drain_to_low(&|| false)?;
        Ok(Drained { blocks })
    }

    /// Writes back one batch of at most `writeback_jobs` blocks in the calling thread, without
    /// regard to the watermarks.
    ///
    /// # Errors
    ///
    /// Those of [`CacheDevice::drain`].
    pub fn drain_step(&self) -> Result<Drained, Error> {
        let blocks = self.core.drain_step()?;
        Ok(Drained { blocks })
    }

    /// Commits, without a flush of the origin.
    ///
    /// # Errors
    ///
    /// [`Error::Broken`].
    pub fn commit(&self) -> Result<(), Error> {
        self.core.commit()
    }

    /// Handles a message of the dm-writecache target: `flush`, `flush_on_suspend`, `cleaner`,
    /// `clear_stats`.
    ///
    /// # Errors
    ///
    /// [`Error::Option`] for an unknown message; for `flush`, also the errors of write-back.
    pub fn message(&self, message: &str) -> Result<(), Error> {
        match message {
            "flush" => self.drain(|_| {}).map(|_| ()),
            "flush_on_suspend" => {
                self.core.flush_on_suspend.store(true, Ordering::Relaxed);
                Ok(())
            }
            "cleaner" => {
                self.core.cleaner.store(true, Ordering::Relaxed);
                self.core.want_drain();
                Ok(())
            }
            "clear_stats" => {
                self.core.counters.clear();
                Ok(())
            }
            _ => {
                let why = "is none of flush, flush_on_suspend, cleaner, clear_stats".to_owned();
                Err(Error::Option { option: message.to_owned(), why })
            }
        }
    }

    /// Ends the threads and commits. With `flush_on_suspend` the call also writes everything back.
    /// The device stays usable: commits and write-back then happen inside the calls that need them.
    ///
    /// # Errors
    ///
    /// Those of the devices, and the last failure of write-back, if it was not reported yet.
    pub fn close(&self) -> Result<(), Error> {
        self.end()
    }

    fn end(&self) -> Result<(), Error> {
        background::stop(&self.core);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the cache panicked");
            }
        }
        if !self.writable() {
            return Ok(());
        }
        self.core.sync()?;
        if self.core.flush_on_suspend.load(Ordering::Relaxed) {
            self.core.drain_all(&mut |_| {})?;
        }
        match self.core.drain_error.lock().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<(), BlockError> {
        if operation != Operation::Read && !self.writable() {
            return Err(BlockError::ReadOnly { device: self.name(), operation });
        }
        if offset.checked_add(len).is_none_or(|end| end > self.len()) {
            let device_len = self.len();
            return Err(BlockError::PastEnd {
                device: self.name(),
                operation,
                offset,
                len,
                device_len,
            });
        }
        Ok(())
    }

    fn failed(&self, error: Error, operation: Operation, offset: u64, len: u64) -> BlockError {
        let source = std::io::Error::other(error);
        BlockError::Io { device: self.name(), operation, offset, len, source }
    }
}

impl Layer for CacheDevice {
    type Inner = dyn Device;

    fn inner(&self) -> &Self::Inner {
        &*self.core.origin
    }

    fn is_writable(&self) -> bool {
        self.core.origin.writable() && self.core.medium.writable()
    }

    fn on_read(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.check(Operation::Read, offset, buf.len() as u64)?;
        let len = buf.len() as u64;
        let read = self.core.read(offset, buf);
        read.map_err(|error| self.failed(error, Operation::Read, offset, len))
    }

    fn on_write_classed(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
        class: Class,
    ) -> Result<(), BlockError> {
        let len = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.check(Operation::Write, offset, len)?;
        let mut at = offset;
        for buf in bufs.iter().filter(|buf| !buf.is_empty()) {
            let written = self.core.write(at, buf, class);
            let len = buf.len() as u64;
            written.map_err(|error| self.failed(error, Operation::Write, at, len))?;
            at += len;
        }
        Ok(())
    }

    fn on_flush(&self) -> Result<(), BlockError> {
        if !self.writable() {
            return Ok(());
        }
        self.core.counters.flushes.add(1);
        self.core.sync().map_err(|error| self.failed(error, Operation::Flush, 0, self.len()))
    }

    fn on_discard(&self, offset: u64, len: u64) -> Result<(), BlockError> {
        self.check(Operation::Discard, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let done = self.core.discard(offset, len);
        done.map_err(|error| self.failed(error, Operation::Discard, offset, len))
    }

    fn on_write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), BlockError> {
        self.check(Operation::Write, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let done = self.core.write_zeroes(offset, len, space);
        done.map_err(|error| self.failed(error, Operation::Write, offset, len))
    }

    fn on_extent(&self, offset: u64, len: u64) -> Result<Extent, BlockError> {
        self.check(Operation::Read, offset, len)?;
        let block = OriginBlock(offset / self.block_size());
        let cached = self.core.index.next(block).map(|next| next.0 * self.block_size());
        match cached {
            Some(start) if start <= offset => {
                let run = self.core.index.run(block).0 * self.block_size();
                let end = run.max(start + self.block_size()).min(offset + len);
                Ok(Extent { len: end - offset, content: Content::Data })
            }
            Some(start) => self.core.origin.extent_at(offset, len.min(start - offset)),
            None => self.core.origin.extent_at(offset, len),
        }
    }
}

impl Drop for CacheDevice {
    fn drop(&mut self) {
        if self.core.broken.is_set() {
            background::stop(&self.core);
            return;
        }
        if let Err(error) = self.end() {
            tracing::error!(origin = %self.name(), %error, "closing the cache failed");
        }
    }
}
