//! The cache device from `start_sector` on.

use std::sync::Arc;

use buttress_block::{Device, Error as BlockError};

use crate::error::Error;
use crate::layout::{HEADER_LEN, SECTOR, Superblock};

/// A part of a device, from one place to its end.
#[derive(Clone, Debug)]
pub(crate) struct CacheRegion {
    device: Arc<dyn Device>,
    start: u64,
}

impl CacheRegion {
    pub(crate) fn new(device: Arc<dyn Device>, start_sector: u64) -> Result<Self, Error> {
        let start = start_sector.checked_mul(SECTOR).filter(|&start| start < device.len());
        let Some(start) = start else {
            return Err(Error::TooSmall { device: device.name(), len: 0 });
        };
        Ok(Self { device, start })
    }

    pub(crate) fn name(&self) -> String {
        self.device.name()
    }

    pub(crate) fn len(&self) -> u64 {
        self.device.len() - self.start
    }

    pub(crate) fn writable(&self) -> bool {
        self.device.writable()
    }

    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), BlockError> {
        self.device.read_at(self.start + offset, buf)
    }

    pub(crate) fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), BlockError> {
        self.device.write_at(self.start + offset, buf)
    }

    pub(crate) fn flush(&self) -> Result<(), BlockError> {
        self.device.flush()
    }

    /// Reads and checks the superblock.
    pub(crate) fn superblock(&self) -> Result<Superblock, Error> {
        if self.len() < HEADER_LEN as u64 {
            return Err(Error::TooSmall { device: self.name(), len: self.len() });
        }
        let mut bytes = [0; HEADER_LEN];
        self.read_at(0, &mut bytes)?;
        Superblock::parse(&bytes, &self.name(), self.len())
    }
}
