//! Errors between a logical address and the devices.

use std::fmt;

use buttress_format::{DeviceId, Extent, Generation, Logical};

/// A failure of the volume, with its facts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device failed outside of any chunk, for example at a superblock or a flush.
    #[error("device {device} failed")]
    Device {
        /// The device.
        device: DeviceId,
        /// The error of its driver.
        source: buttress_block::Error,
    },
    /// A device failed that is not yet a part of a volume.
    #[error("cannot read {device}")]
    Candidate {
        /// The name of the device.
        device: String,
        /// The error of its driver.
        source: buttress_block::Error,
    },
    /// One copy could not be read or written.
    #[error("mirror {mirror} of {logical} failed on device {device}")]
    Mirror {
        /// The address in the volume.
        logical: Logical,
        /// The number of the copy, from zero.
        mirror: u32,
        /// The device of the copy.
        device: DeviceId,
        /// The error of its driver.
        source: buttress_block::Error,
    },
    /// Every copy was tried, and none is good. The fields describe the last copy.
    #[error(
        "no good copy of {len} bytes at {logical}: {mirrors_tried} tried, \
         the last (mirror {mirror} on device {device}): {reason}"
    )]
    NoGoodMirror {
        /// The address in the volume.
        logical: Logical,
        /// The number of bytes.
        len: u64,
        /// The number of copies that were tried.
        mirrors_tried: u32,
        /// The last copy tried, from zero.
        mirror: u32,
        /// The device of that copy.
        device: DeviceId,
        /// The reason, from the caller's check or from the device.
        reason: String,
        /// The device's failure, if a device failed.
        source: Option<Box<Error>>,
    },
    /// There is no chunk at this address.
    #[error("no chunk maps {logical}")]
    NotMapped {
        /// The address in the volume.
        logical: Logical,
    },
    /// A write to a chunk with parity that would leave a row half written.
    #[error("{logical} is in the middle of a row with parity, which is written as a whole")]
    NotARow {
        /// The address in the volume.
        logical: Logical,
    },
    /// The chunk at this address has fewer copies.
    #[error("{logical} has {mirrors} copies, and mirror {mirror} was asked for")]
    NoSuchMirror {
        /// The address in the volume.
        logical: Logical,
        /// The number of the requested copy, from zero.
        mirror: u32,
        /// The number of copies.
        mirrors: u32,
    },
    /// Two chunks claim the same addresses.
    #[error("chunk at {} overlaps the one at {}", chunk.start, with.start)]
    Overlap {
        /// The refused chunk.
        chunk: Extent,
        /// The existing chunk.
        with: Extent,
    },
    /// A chunk contradicts itself.
    #[error("chunk at {logical} cannot be: {why}")]
    Layout {
        /// The chunk.
        logical: Logical,
        /// The fault.
        why: &'static str,
    },
    /// A part of a chunk lies past the end of its device.
    #[error("chunk at {logical} ends at {end} on device {device}, which has {device_len} bytes")]
    ChunkPastEnd {
        /// The chunk.
        logical: Logical,
        /// The device of the stripe.
        device: DeviceId,
        /// The end of the stripe on the device.
        end: u64,
        /// The length of the device.
        device_len: u64,
    },
    /// A chunk cannot be read without a device that is missing.
    #[error("chunk at {logical} needs device {device} of filesystem {fsid}, which is missing")]
    MissingStripe {
        /// The address of the chunk, or an address in it.
        logical: Logical,
        /// The device.
        device: DeviceId,
        /// The filesystem.
        fsid: Uuid,
    },
    /// The filesystem has more devices than were given.
    #[error(
        "filesystem {fsid} has {expected} devices; given: {}; missing: {} (the option degraded goes \
         on without)",
        Numbers(found),
        Numbers(missing)
    )]
    MissingDevices {
        /// The filesystem.
        fsid: Uuid,
        /// The number of its devices.
        expected: u64,
        /// The given devices.
        found: Vec<DeviceId>,
        /// The missing devices with known numbers.
        missing: Vec<DeviceId>,
    },
    /// More devices were given than the filesystem has: a former device of the filesystem is among
    /// them.
    #[error("filesystem {fsid} has {expected} devices, and {given} were given")]
    TooManyDevices {
        /// The filesystem.
        fsid: Uuid,
        /// The number of its devices.
        expected: u64,
        /// The number of given devices.
        given: u64,
    },
    /// A device was given that belongs to another filesystem.
    #[error("{device} belongs to filesystem {found}, not to {expected}")]
    ForeignDevice {
        /// The name of the device.
        device: String,
        /// The filesystem that it belongs to.
        found: Uuid,
        /// The filesystem that it should belong to.
        expected: Uuid,
    },
    /// Two given devices claim to be the same part of the filesystem.
    #[error("{first} and {second} both claim to be device {id} of the filesystem")]
    DuplicateDevice {
        /// The number that both devices claim.
        id: DeviceId,
        /// Name of the first device.
        first: String,
        /// Name of the second device.
        second: String,
    },
    /// No device was given.
    #[error("no device given")]
    NoDevices,
    /// There is no btrfs on the device.
    #[error("{device} holds no btrfs{}", Instead(found.as_deref()))]
    NotBtrfs {
        /// The name of the device.
        device: String,
        /// The format on the device, if it is known.
        found: Option<String>,
    },
    /// There is a btrfs on the device, and its superblock is damaged.
    #[error("the superblock at {offset} of {device} is damaged")]
    Superblock {
        /// Name of the device.
        device: String,
        /// The offset of the damaged copy.
        offset: u64,
        /// The fault.
        source: buttress_format::Error,
    },
    /// The device is shorter than the filesystem on it.
    #[error("{device} is truncated: it has {found} bytes, and its filesystem needs {expected}")]
    Truncated {
        /// The name of the device.
        device: String,
        /// Its length.
        found: u64,
        /// The length that its superblock states.
        expected: u64,
    },
    /// The filesystem uses features that this program does not know.
    #[error("the filesystem uses features that are not supported: {}", features.join(", "))]
    Features {
        /// By name, or by number.
        features: Vec<String>,
    },
    /// No sprout can be made from this volume.
    #[error("no volume can grow from this one: {why}")]
    NoSeed {
        /// The reason.
        why: &'static str,
    },
    /// The seed was written after the volume was grown from it, or is not the volume's seed.
    #[error("{device}: the seed has generation {found}, and the volume was grown from {expected}")]
    SeedChanged {
        /// The seed's device.
        device: String,
        /// The generation of its superblock.
        found: Generation,
        /// The generation in the chunk tree.
        expected: Generation,
    },
    /// A write to a volume that may not be written.
    #[error("the volume is read-only: {why}")]
    ReadOnly {
        /// The reason.
        why: String,
    },
}

/// The kind of an error: the side that must act, and its possible action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The device; retry elsewhere, or report it.
    Io,
    /// The data; repair it, or run the checker.
    Corrupt,
    /// The caller; the request cannot be right.
    Invalid,
    /// The user; the filesystem needs a feature that is not supported.
    Unsupported,
    /// No side: the program that needs the answer is about to end.
    Abandoned,
}

impl Error {
    /// Says which side must act.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Device { source, .. }
            | Self::Candidate { source, .. }
            | Self::Mirror { source, .. } => {
                if source.is_io() {
                    Kind::Io
                } else if source.is_abandoned() {
                    Kind::Abandoned
                } else {
                    Kind::Invalid
                }
            }
            Self::NoGoodMirror { source: Some(source), .. } => source.kind(),
            Self::NoGoodMirror { source: None, .. }
            | Self::NotMapped { .. }
            | Self::Overlap { .. }
            | Self::Layout { .. }
            | Self::ChunkPastEnd { .. }
            | Self::Superblock { .. }
            | Self::Truncated { .. } => Kind::Corrupt,
            Self::MissingStripe { .. } | Self::MissingDevices { .. } => Kind::Io,
            Self::NoSuchMirror { .. }
            | Self::ForeignDevice { .. }
            | Self::DuplicateDevice { .. }
            | Self::TooManyDevices { .. }
            | Self::NoDevices
            | Self::NotBtrfs { .. }
            | Self::NotARow { .. }
            | Self::NoSeed { .. }
            | Self::SeedChanged { .. }
            | Self::ReadOnly { .. } => Kind::Invalid,
            Self::Features { .. } => Kind::Unsupported,
        }
    }
}

/// Sixteen bytes that name a filesystem or device, printed in the usual form.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Device numbers, as a part of a sentence.
struct Numbers<'a>(&'a [DeviceId]);

impl fmt::Display for Numbers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("unknown");
        }
        for (index, id) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{}", id.0)?;
        }
        Ok(())
    }
}

/// The format found instead of btrfs, as a part of a sentence.
struct Instead<'a>(Option<&'a str>);

impl fmt::Display for Instead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |found| write!(f, ", but {found}"))
    }
}
