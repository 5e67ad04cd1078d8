//! Devices, and the parts of devices that chunks take.

use crate::{
    DeviceId, Generation, Logical, Result,
    bytes::{Reader, Writer},
};

/// A device of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DeviceItem {
    /// The number of the device.
    pub devid: DeviceId,
    /// The size of the device in bytes.
    pub total_bytes: u64,
    /// Bytes that chunks take.
    pub bytes_used: u64,
    /// Alignment of I/O.
    pub io_align: u32,
    /// Width of I/O.
    pub io_width: u32,
    /// Bytes of a sector.
    pub sector_size: u32,
    /// Unused: zero. Linux calls it `type`.
    pub kind: u64,
    /// The generation of a seed's superblock; zero for other devices.
    pub generation: Generation,
    /// Unused: zero.
    pub start_offset: u64,
    /// Unused: zero.
    pub dev_group: u32,
    /// Unused: zero.
    pub seek_speed: u8,
    /// Unused: zero.
    pub bandwidth: u8,
    /// The device's own uuid.
    pub uuid: [u8; 16],
    /// The volume's uuid.
    pub fsid: [u8; 16],
}

impl DeviceItem {
    /// Bytes on disk.
    pub const LEN: usize = 98;

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When the item is not 98 bytes long, or uses more bytes than the device has.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("device item", bytes);
        let item = Self::read(&mut r)?;
        r.end()?;
        Ok(item)
    }

    pub(crate) fn read(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            devid: DeviceId(r.u64()?),
            total_bytes: r.u64()?,
            bytes_used: r.u64()?,
            io_align: r.u32()?,
            io_width: r.u32()?,
            sector_size: r.u32()?,
            kind: r.u64()?,
            generation: Generation(r.u64()?),
            start_offset: r.u64()?,
            dev_group: r.u32()?,
            seek_speed: r.u8()?,
            bandwidth: r.u8()?,
            uuid: r.array()?,
            fsid: r.array()?,
        })
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::LEN);
        w.u64(self.devid.0).u64(self.total_bytes).u64(self.bytes_used);
        w.u32(self.io_align).u32(self.io_width).u32(self.sector_size);
        w.u64(self.kind).u64(self.generation.0).u64(self.start_offset);
        w.u32(self.dev_group).u8(self.seek_speed).u8(self.bandwidth);
        w.bytes(&self.uuid).bytes(&self.fsid);
        w.0
    }
}

/// A part of a device that a chunk takes; its key is (device, DEV_EXTENT, offset on the device).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DevExtent {
    /// Tree of the chunk: 3.
    pub chunk_tree: u64,
    /// Object of the chunk: 256.
    pub chunk_objectid: u64,
    /// The first address of the chunk.
    pub chunk_offset: Logical,
    /// Bytes taken.
    pub length: u64,
    /// Uuid of the chunk tree.
    pub chunk_tree_uuid: [u8; 16],
}

impl DevExtent {
    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When the item is not 48 bytes long.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("device extent", bytes);
        let item = Self {
            chunk_tree: r.u64()?,
            chunk_objectid: r.u64()?,
            chunk_offset: Logical(r.u64()?),
            length: r.u64()?,
            chunk_tree_uuid: r.array()?,
        };
        r.end()?;
        Ok(item)
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(48);
        w.u64(self.chunk_tree).u64(self.chunk_objectid).u64(self.chunk_offset.0).u64(self.length);
        w.bytes(&self.chunk_tree_uuid);
        w.0
    }
}
