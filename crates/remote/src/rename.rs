//! Gives the file system of a clone a new identifier, since the clone has the identifier of its
//! base.

use buttress_block::Device;
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{Incompat, Superblock};

use crate::device::RemoteDevice;
use crate::envelope::damaged;
use crate::error::Result;

impl RemoteDevice {
    /// Gives the btrfs on the device another identifier, as `btrfstune -m` does. The nodes of the
    /// btrfs keep the old identifier.
    ///
    /// # Errors
    ///
    /// [`crate::Error::Damaged`] if there is no btrfs; those of the device.
    pub fn rename(&self, fsid: [u8; 16]) -> Result<()> {
        let mut bytes = vec![0; SUPER_SIZE];
        self.read_at(SUPER_OFFSETS[0], &mut bytes)?;
        let mut superblock = Superblock::parse(&bytes, SUPER_OFFSETS[0])
            .map_err(|error| damaged(&self.name(), error.to_string()))?;
        if !superblock.incompat.has(Incompat::METADATA_UUID) {
            superblock.metadata_uuid = superblock.fsid;
            superblock.incompat = superblock.incompat.with(Incompat::METADATA_UUID);
        }
        superblock.fsid = fsid;
        let end = superblock.dev_item.total_bytes.min(self.len());
        for offset in SUPER_OFFSETS.into_iter().filter(|offset| offset + SUPER_SIZE as u64 <= end) {
            self.write_at(offset, &superblock.to_bytes(offset))?;
        }
        self.flush()?;
        Ok(())
    }
}
