//! Restores the old file system from the image that a conversion has kept.
//!
//! # Invariants
//!
//! - **B1** Before the first write, each used block was found at its own place, or in a range that
//!   btrfs keeps for itself. All blocks of such ranges are read before the first write.
//! - **B2** The block of the first superblock of btrfs is written last. If the program is killed
//!   before this write, the rollback can be started again.

use std::sync::Arc;

use buttress_base::RangeSet;
use buttress_block::{Device, Error as DeviceError, Operation};
use buttress_format::limits::SUPER_OFFSETS;
use buttress_format::{Body, Compression, FileExtent, Key, Kind};
use buttress_fs::{Filesystem, Inode, MountOptions};

use crate::error::{Error, Result};
use crate::ext4::{BLOCK, Ext4};
use crate::items::{chunks, each_item};
use crate::plan::Used;
use crate::{IMAGE, SAVED};

/// The counts of a rollback.
#[derive(Clone, Copy, Debug, Default)]
pub struct Back {
    /// Bytes of the old file system that were still in place.
    pub kept_bytes: u64,
    /// Bytes that were written back.
    pub written_bytes: u64,
}

/// Restores the old file system from the image that a conversion has kept. All changes since the
/// conversion are lost. `options` have the limits of memory.
///
/// # Errors
///
/// [`Error::NoWayBack`] without the image, or if a balance, a defragmentation or a resize has moved
/// the image's content. Nothing is written then.
pub fn rollback(device: &Arc<dyn Device>, mut options: MountOptions) -> Result<Back> {
    options
        .parse_more("ro,subvolid=5,nologreplay")
        .map_err(|error| Error::NoWayBack(error.to_string()))?;
    let fs = Filesystem::open(vec![Arc::clone(device)], options)?;
    let found = read_back(&fs, device.len());
    fs.close()?;
    let (kept_bytes, moves) = found?;
    let written_bytes = write_back(&**device, &moves)?;
    Ok(Back { kept_bytes, written_bytes })
}

/// An offset on the device, and the old file system's bytes for it.
type Moved = (u64, Vec<u8>);

/// Checks that the used blocks outside of the reserved ranges are in place, and reads the other
/// blocks from the image (B1).
fn read_back(fs: &Filesystem, device_len: u64) -> Result<(u64, Vec<Moved>)> {
    let way = format!("{SAVED}/{IMAGE}");
    let image = fs.resolve(&way);
    let image = image.map_err(|_| Error::NoWayBack(format!("it has no {way}")))?;
    let len = image.attr().size;
    if len > device_len {
        return Err(Error::NoWayBack("the image is longer than the device".to_owned()));
    }
    let in_place = in_place(fs, &image)?;
    let ext4 = Ext4::open(Arc::new(ImageDevice { image: image.clone(), len }))?;
    let used = Used::find(&ext4, device_len)?;
    if let Some(gone) = used.stays.iter().find(|range| !in_place.contains_all(range)) {
        let what = format!("a block between the bytes {} and {} was moved", gone.start, gone.end);
        return Err(Error::NoWayBack(what));
    }
    let mut moves = Vec::new();
    for range in used.moves.iter() {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let read = image.read_at(range.start, &mut bytes)?;
        if read < bytes.len() {
            return Err(Error::NoWayBack("the image is cut short".to_owned()));
        }
        moves.push((range.start, bytes));
    }
    Ok((used.stays.total(), moves))
}

/// Ranges of the image that lie at their own place on the device.
fn in_place(fs: &Filesystem, image: &Inode) -> Result<RangeSet> {
    let chunks = chunks(fs)?;
    let id = image.id();
    let key = |at| Key::new(id.ino.0, Kind::EXTENT_DATA, at);
    let mut found = RangeSet::new();
    each_item(fs, id.tree, (key(0), key(u64::MAX)), |key, bytes| {
        let at = key.offset;
        let Ok(extent) = FileExtent::parse(bytes) else { return };
        let Body::Regular(region) = extent.body else { return };
        if region.is_hole() || extent.compression != Compression::None {
            return;
        }
        let start = region.disk.0 + region.offset;
        let chunk = chunks.iter().rev().find(|(logical, _)| logical.0 <= start);
        let place = chunk.and_then(|(logical, chunk)| match &chunk.stripes[..] {
            [one] if start + region.len <= logical.0 + chunk.len => {
                Some(one.offset + start - logical.0)
            }
            _ => None,
        });
        if place == Some(at) {
            found.insert(at..at + region.len);
        }
    })?;
    Ok(found)
}

/// Writes back the blocks that had to make room for btrfs. The block of btrfs's first superblock is
/// last (B2).
fn write_back(device: &dyn Device, moves: &[Moved]) -> Result<u64> {
    let first = SUPER_OFFSETS[0];
    let mut last = vec![0; BLOCK as usize];
    let mut written = 0;
    for at in SUPER_OFFSETS.into_iter().skip(1).filter(|at| at + BLOCK <= device.len()) {
        device.write_at(at, &vec![0; BLOCK as usize])?;
    }
    for (start, bytes) in moves {
        for (index, block) in bytes.chunks(BLOCK as usize).enumerate() {
            let at = start + index as u64 * BLOCK;
            if at == first {
                last[..block.len()].copy_from_slice(block);
            } else {
                device.write_at(at, block)?;
            }
            written += block.len() as u64;
        }
    }
    device.flush()?;
    device.write_at(first, &last)?;
    device.flush()?;
    Ok(written)
}

/// The image as a device that is read.
#[derive(Debug)]
struct ImageDevice {
    image: Inode,
    len: u64,
}

impl ImageDevice {
    fn refuse(&self, operation: Operation) -> DeviceError {
        DeviceError::ReadOnly { device: self.name(), operation }
    }
}

impl Device for ImageDevice {
    fn name(&self) -> String {
        format!("{SAVED}/{IMAGE}")
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn writable(&self) -> bool {
        false
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        let len = buf.len() as u64;
        let read = self.image.peek_at(offset, buf).map_err(std::io::Error::other);
        let source = match read {
            Ok(read) if read as u64 == len => return Ok(()),
            Ok(_) => std::io::Error::from(std::io::ErrorKind::UnexpectedEof),
            Err(error) => error,
        };
        let operation = Operation::Read;
        Err(DeviceError::Io { operation, device: self.name(), offset, len, source })
    }

    fn write_at(&self, _offset: u64, _buf: &[u8]) -> Result<(), DeviceError> {
        Err(self.refuse(Operation::Write))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Err(self.refuse(Operation::Discard))
    }
}
