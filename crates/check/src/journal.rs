//! A file with the old bytes of everything that a repair overwrites, so that it can be undone.
//!
//! # Invariants
//!
//! - **JO1** The old bytes are durable in the file before the device gets new ones.
//! - **JO2** An undo writes only if the volume is as the repair left it, or if the repair did not
//!   reach its end. It also goes on with an undo that did not: then the superblock is older.
//! - **JO3** Records are put back from the last to the first. So the superblocks come first, then
//!   the nodes that were overwritten. An undo that was cut short can be made again.
//!
//! # On disk
//!
//! ```text
//! head     magic 8 | id of the volume 16
//! record   number of the device 8 | offset 8 | length 8 | crc32c of the bytes 4 | the bytes
//! end      all ones 8 | generation of the volume after the repair 8 | zero 8 | crc32c of nothing 4
//! ```

use std::fs::File;
use std::io::{self, BufReader, Read, Write as _};
use std::path::Path;
use std::sync::Arc;

use buttress_base::{Rank, Ranked};
use buttress_block::{Device, Error as BlockError, FailedWrite, Layer, Operation, Write};
use buttress_format::{CsumType, limits::SUPER_SIZE};
use buttress_volume::Volume;

use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"bttrUND1";
const END: u64 = u64::MAX;
const HEAD_LEN: usize = 28;
/// The largest record that is read back. No write of a repair is larger.
const RECORD_MAX: u64 = 64 << 20;

/// The old bytes of one write: the number of the device, the offset, the bytes.
type Record = (u64, u64, Vec<u8>);

/// The devices that a repair writes through.
pub type Journaling = Vec<Arc<dyn Device>>;

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    file: Ranked<File>,
}

impl Journal {
    /// Makes the journal of a repair, and the devices to repair through. The file must not exist.
    ///
    /// # Errors
    ///
    /// When the file cannot be made, or a device has no usable superblock.
    pub fn create(path: &Path, devices: &[Arc<dyn Device>]) -> Result<(Arc<Self>, Journaling)> {
        let mut ids = Vec::with_capacity(devices.len());
        let mut fsid = [0; 16];
        for device in devices {
            let superblock = Volume::read_superblock(&**device)?;
            fsid = superblock.fsid;
            ids.push(superblock.dev_item.devid.0);
        }
        let mut file = File::options().write(true).create_new(true).open(path)?;
        file.write_all(MAGIC)?;
        file.write_all(&fsid)?;
        file.sync_all()?;
        let journal = Arc::new(Self { file: Ranked::new(Rank::Leaf, file) });
        let wrap = |(device, id): (&Arc<dyn Device>, u64)| {
            let (inner, journal) = (Arc::clone(device), Arc::clone(&journal));
            Arc::new(Journaled { inner, id, journal }) as Arc<dyn Device>
        };
        let wrapped = devices.iter().zip(ids).map(wrap).collect();
        Ok((journal, wrapped))
    }

    /// Notes that the repair reached its end.
    ///
    /// # Errors
    ///
    /// When the file cannot be written, or no superblock can be read any more.
    pub fn finish(&self, devices: &[Arc<dyn Device>]) -> Result<()> {
        let generation = newest(devices)?;
        self.append(&[(END, generation, Vec::new())])?;
        Ok(())
    }

    fn append(&self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (device, offset, old) in records {
            bytes.extend(device.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            bytes.extend((old.len() as u64).to_le_bytes());
            bytes.extend(&CsumType::Crc32c.digest(old)[..4]);
            bytes.extend(old);
        }
        let mut file = self.file.lock();
        file.write_all(&bytes)?;
        file.sync_data()
    }
}

/// A device with its writes in a journal.
#[derive(Debug)]
struct Journaled {
    inner: Arc<dyn Device>,
    id: u64,
    journal: Arc<Journal>,
}

impl Journaled {
    /// Reads the old bytes and keeps them (JO1).
    fn keep(&self, ranges: impl Iterator<Item = (u64, usize)>) -> Result<(), BlockError> {
        let mut records = Vec::new();
        for (offset, len) in ranges {
            let mut old = vec![0; len];
            self.inner.read_at(offset, &mut old)?;
            records.push((self.id, offset, old));
        }
        let len = records.iter().map(|(.., old)| old.len() as u64).sum();
        let offset = records.first().map_or(0, |(_, offset, _)| *offset);
        self.journal.append(&records).map_err(|source| BlockError::Io {
            device: format!("the journal of {}", self.inner.name()),
            operation: Operation::Write,
            offset,
            len,
            source,
        })
    }
}

impl Layer for Journaled {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        &*self.inner
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), BlockError> {
        self.keep(std::iter::once((offset, buf.len())))?;
        self.inner.write_at(offset, buf)
    }

    fn on_write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        let len = |write: &Write<'_>| write.bufs.iter().map(|buf| buf.len()).sum();
        let ranges = writes.iter().map(|write| (write.offset, len(write)));
        self.keep(ranges).map_err(|error| FailedWrite { index: 0, error })?;
        self.inner.write_many(writes)
    }

    fn takes_many(&self) -> bool {
        true
    }
}

/// Puts back what a repair overwrote. Returns the number of bytes.
///
/// # Errors
///
/// When the journal is of another volume, or the volume was written after the repair (JO2), or a
/// file or device fails.
pub fn undo(devices: &[Arc<dyn Device>], path: &Path) -> Result<u64> {
    let refuse = |why: &str| Err(Error::Rebuild(format!("{}: {why}", path.display())));
    let mut file = BufReader::new(File::open(path)?);
    let mut head = [0; 24];
    if file.read_exact(&mut head).is_err() || &head[..8] != MAGIC {
        return refuse("this is no journal of a repair");
    }
    let mut targets = Vec::with_capacity(devices.len());
    for device in devices {
        let superblock = Volume::read_superblock(&**device)?;
        if superblock.fsid[..] != head[8..] {
            return refuse("the journal is of another volume");
        }
        targets.push((superblock.dev_item.devid.0, Arc::clone(device)));
    }
    let (records, end) = read_records(&mut file);
    if let Some(generation) = end
        && newest(devices)? > generation
    {
        return refuse("the volume was written after the repair");
    }
    let mut bytes = 0;
    for (id, offset, old) in records.iter().rev() {
        let Some((_, device)) = targets.iter().find(|(known, _)| known == id) else {
            return refuse("a device is missing");
        };
        device.write_at(*offset, old)?;
        if old.len() == SUPER_SIZE {
            device.flush()?;
        }
        bytes += old.len() as u64;
    }
    for device in devices {
        device.flush()?;
    }
    Ok(bytes)
}

/// Reads the records up to the end, or up to a torn record. The device never got the write after a
/// torn record (JO1).
fn read_records(file: &mut impl Read) -> (Vec<Record>, Option<u64>) {
    let mut records = Vec::new();
    loop {
        let mut head = [0; HEAD_LEN];
        if file.read_exact(&mut head).is_err() {
            return (records, None);
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
        let (device, offset, len) = (number(0), number(8), number(16));
        if device == END {
            return (records, Some(offset));
        }
        if len > RECORD_MAX {
            return (records, None);
        }
        let mut old = vec![0; len as usize];
        if file.read_exact(&mut old).is_err() || CsumType::Crc32c.digest(&old)[..4] != head[24..] {
            return (records, None);
        }
        records.push((device, offset, old));
    }
}

fn newest(devices: &[Arc<dyn Device>]) -> Result<u64> {
    let mut newest = 0;
    for device in devices {
        newest = newest.max(Volume::read_superblock(&**device)?.generation.0);
    }
    Ok(newest)
}
