//! The item of the device tree about the last replacement of a device.

use crate::{
    DeviceId, Error, Key, Kind, Result,
    bytes::{Reader, Writer},
};

/// How far a replacement has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u64)]
pub enum ReplacePhase {
    /// No replacement has begun.
    Never = 0,
    /// The replacement goes on.
    #[default]
    Started = 1,
    /// The new device has the place of the old device.
    Finished = 2,
    /// The replacement ended early, and the old device stays.
    Canceled = 3,
    /// The replacement goes on when the volume is mounted again.
    Suspended = 4,
}

/// The last replacement of a device. While it goes on, the new device has the number
/// [`ReplaceItem::TARGET`] in its superblock, and no item in the chunk tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReplaceItem {
    /// The number of the device that is replaced.
    pub source: DeviceId,
    /// A place on the old device, in bytes. Everything before it was copied.
    pub cursor_left: u64,
    /// The end of the piece that is being copied.
    pub cursor_right: u64,
    /// 0 if data may be read from the old device; 1 if other copies are preferred.
    pub mode: u64,
    /// How far the replacement has come.
    pub phase: ReplacePhase,
    /// The time of the beginning, in seconds since 1970.
    pub started: u64,
    /// The time of the end or of the last suspension, in seconds since 1970; zero if there was
    /// none.
    pub stopped: u64,
    /// Failed writes to the new device.
    pub write_errors: u64,
    /// Errors that no copy could repair.
    pub read_errors: u64,
}

impl ReplaceItem {
    /// The key of the item in the device tree.
    pub const KEY: Key = Key::new(0, Kind::DEV_REPLACE, 0);
    /// Bytes on disk.
    pub const LEN: usize = 72;
    /// The number of the new device until the replacement is finished.
    pub const TARGET: DeviceId = DeviceId(0);

    /// Reads an item.
    ///
    /// # Errors
    ///
    /// When the item is not 72 bytes long, or its state is unknown.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new("replace item", bytes);
        let source = DeviceId(r.u64()?);
        let (cursor_left, cursor_right, mode) = (r.u64()?, r.u64()?, r.u64()?);
        let phase = match r.u64()? {
            0 => ReplacePhase::Never,
            1 => ReplacePhase::Started,
            2 => ReplacePhase::Finished,
            3 => ReplacePhase::Canceled,
            4 => ReplacePhase::Suspended,
            found => return Err(Error::Field { what: "replace item", field: "state", found }),
        };
        let (started, stopped) = (r.u64()?, r.u64()?);
        let (write_errors, read_errors) = (r.u64()?, r.u64()?);
        r.end()?;
        Ok(Self {
            source,
            cursor_left,
            cursor_right,
            mode,
            phase,
            started,
            stopped,
            write_errors,
            read_errors,
        })
    }

    /// The item's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.source.0).u64(self.cursor_left).u64(self.cursor_right).u64(self.mode);
        w.u64(self.phase as u64).u64(self.started).u64(self.stopped);
        w.u64(self.write_errors).u64(self.read_errors);
        w.0
    }

    /// Whether the replacement has begun and not ended.
    #[must_use]
    pub fn is_active(&self) -> bool {
        matches!(self.phase, ReplacePhase::Started | ReplacePhase::Suspended)
    }
}
