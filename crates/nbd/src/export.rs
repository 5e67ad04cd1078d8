//! The device as clients see it: its name, the allowed requests, and their work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use buttress_block::{Device, Extent, Space};

use crate::error::{Error, Fault};
use crate::flush::Flusher;
use crate::wire::{self, export_flag};

/// One device, offered under one name.
#[derive(Debug)]
pub struct Export {
    name: String,
    description: String,
    device: Arc<dyn Device>,
    read_only: bool,
    flusher: Flusher,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    requests: AtomicU64,
    failed: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    flushes: AtomicU64,
}

/// The counts of served requests and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Figures {
    /// Requests of all kinds.
    pub requests: u64,
    /// Requests that were answered with an error.
    pub failed: u64,
    /// Bytes read, holes included.
    pub read_bytes: u64,
    /// Bytes written, zeroes included.
    pub written_bytes: u64,
    /// Flushes asked for, by themselves or with a write.
    pub flushes: u64,
    /// Flushes that wait now until the device has ended another flush.
    pub flushes_waiting: u64,
}

impl Export {
    /// Offers a device under a name, which may be empty. A client that names no export gets this
    /// device, too. A device that cannot be written is offered for reading.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`].
    pub fn new(
        device: Arc<dyn Device>,
        name: impl Into<String>,
        read_only: bool,
    ) -> Result<Self, Error> {
        let (name, description) = (name.into(), device.name());
        if name.len() > wire::STRING_MAX {
            return Err(Error::TooLong);
        }
        let read_only = read_only || !device.writable();
        let (flusher, counters) = (Flusher::new(), Counters::default());
        Ok(Self { name, description: cut(description), device, read_only, flusher, counters })
    }

    /// The name under which the device is offered.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.device.len()
    }

    /// Whether the device's length is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether clients may only read.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    /// The counts of served requests and bytes.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            requests: of(&self.counters.requests),
            failed: of(&self.counters.failed),
            read_bytes: of(&self.counters.read_bytes),
            written_bytes: of(&self.counters.written_bytes),
            flushes: of(&self.counters.flushes),
            flushes_waiting: self.flusher.waiting(),
        }
    }

    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    pub(crate) fn is_named(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// The flags of the protocol, for a client with or without structured replies.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        use export_flag as flag;
        // All writes go to one device, and a flush covers all of them. So all connections see the
        // writes of each other, and a flush of one connection covers all connections.
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::CAN_MULTI_CONN;
        flags |= if self.read_only {
            flag::READ_ONLY
        } else {
            flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES
        };
        if structured { flags | flag::SEND_DF } else { flags }
    }

    pub(crate) fn count_request(&self) {
        self.counters.requests.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_failed(&self) {
        self.counters.failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count_read(&self, bytes: u64) {
        self.counters.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Fault> {
        self.device.read_at(offset, buf).map_err(Fault::Device)
    }

    pub(crate) fn extent_at(&self, offset: u64, len: u64) -> Result<Extent, Fault> {
        self.device.extent_at(offset, len).map_err(Fault::Device)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.check_writable()?;
        self.counters.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.device.write_at(offset, bytes).map_err(Fault::Device)
    }

    pub(crate) fn write_zeroes(&self, offset: u64, len: u64, space: Space) -> Result<(), Fault> {
        self.check_writable()?;
        self.counters.written_bytes.fetch_add(len, Ordering::Relaxed);
        self.device.write_zeroes(offset, len, space).map_err(Fault::Device)
    }

    pub(crate) fn trim(&self, offset: u64, len: u64) -> Result<(), Fault> {
        self.check_writable()?;
        self.device.discard(offset, len).map_err(Fault::Device)
    }

    /// Makes durable every change that was answered so far, on any connection.
    pub(crate) fn flush(&self) -> Result<(), Fault> {
        if self.read_only {
            return Ok(());
        }
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
        self.flusher.flush(&*self.device).map_err(Fault::Flush)
    }

    /// The last [`Export::flush`] of the server.
    pub(crate) fn finish(&self) -> Result<(), Error> {
        if self.read_only {
            return Ok(());
        }
        self.flusher.flush(&*self.device).map_err(Error::Flush)
    }

    fn check_writable(&self) -> Result<(), Fault> {
        if self.read_only { Err(Fault::ReadOnly) } else { Ok(()) }
    }
}

/// Cuts a text to the length that the protocol allows.
fn cut(mut text: String) -> String {
    let mut len = text.len().min(wire::STRING_MAX);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    text.truncate(len);
    text
}
