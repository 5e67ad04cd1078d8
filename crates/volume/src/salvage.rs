//! A read-only volume made from the remains of a damaged one.
//!
//! # Invariants
//!
//! - **SA1** Nothing is written: the volume is read-only from the start, and no repair is made.
//! - **SA2** An impossible chunk is left out, and the others stay.

use std::sync::Arc;

use buttress_block::Device;
use buttress_format::{Chunk, DeviceItem, Superblock};

use crate::device::{DeviceTrust, VolumeDevice};
use crate::error::Error;
use crate::params::Params;
use crate::volume::Volume;

impl Volume {
    /// Assembles devices from items of the caller, without reading the devices. No chunk is in the
    /// map yet. A device may be shorter than chunks on it. Data past its end cannot be read.
    #[must_use]
    pub fn salvage(superblock: &Superblock, devices: Vec<(Arc<dyn Device>, DeviceItem)>) -> Self {
        let parts = devices.into_iter();
        let parts = parts.map(|(device, item)| VolumeDevice::new(device, item, DeviceTrust::Whole));
        let mut volume = Self::assemble(Params::of(superblock), parts.collect(), true);
        volume.is_salvage = true;
        volume.forbid_writes("it is damaged, and only read".to_owned());
        volume.has_all_chunks();
        volume
    }

    /// Adds chunks one by one. Of two chunks that overlap, only the first is added. Returns the
    /// chunks left out.
    pub fn salvage_chunks(&self, chunks: Vec<Chunk>) -> Vec<(Chunk, Error)> {
        let mut refused = Vec::new();
        for chunk in chunks {
            if let Err(error) = self.add_chunk(chunk.clone()) {
                refused.push((chunk, error));
            }
        }
        refused
    }
}
