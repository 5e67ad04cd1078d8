//! A file with the old bytes of everything that a repair overwrites, so that the repair can be
//! undone.
//!
//! # Invariants
//!
//! - **JO1** The old bytes are durable in the file before the device gets new bytes.
//! - **JO2** An undo refuses a volume that was written since the repair. The first superblock of
//!   each device must be the one from before the repair, or one that the repair wrote. If the first
//!   superblock is torn, the newest other copy must have the generation of such a superblock.
//! - **JO3** Records are put back from the last to the first. So the superblocks come first, then
//!   the overwritten nodes. An undo that was interrupted can be repeated.
//!
//! # On disk
//!
//! ```text
//! head     magic 8 | id of the volume 16
//! record   crc32c of what follows 4 | number of the device 8 | offset 8 | length 8 | the bytes
//! ```
//!
//! A record with an offset of all ones describes a first superblock: the one from before the
//! repair, or one that the repair is about to write. Such a record has the digest (SHA-256), then
//! the generation (8 bytes). The generation is zero if that superblock was torn.

use std::fs::File;
use std::io::{self, BufReader, Read, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_base::{Rank, Ranked};
use buttress_block::{Device, Error as BlockError, FailedWrite, Layer, Operation, Write};
use buttress_format::limits::{SUPER_OFFSETS, SUPER_SIZE};
use buttress_format::{CsumType, Superblock};

use crate::Volume;

const MAGIC: &[u8; 8] = b"bttrUND3";
/// The offset in a record that describes a superblock.
const SUPERBLOCK: u64 = u64::MAX;
const HEAD_LEN: usize = 28;
const DIGEST_LEN: usize = 32;
/// The largest record that is read back. No write of a repair is larger.
const RECORD_MAX: u64 = 64 << 20;

/// The reason why a journal is not written, or an undo changes nothing more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] BlockError),
    /// A device has no usable superblock.
    #[error(transparent)]
    Volume(#[from] crate::Error),
    /// The file cannot be made, read or written.
    #[error("the journal {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The journal does not fit the devices.
    #[error("{}: {why}", path.display())]
    Refused {
        /// The file.
        path: PathBuf,
        /// What is wrong, in words for the operator.
        why: &'static str,
    },
}

/// The result type of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The old bytes of one write: the number of the device, the offset, the bytes.
type Record = (u64, u64, Vec<u8>);

/// The devices that a repair writes through.
pub type Journaling = Vec<Arc<dyn Device>>;

/// A journal that is being written.
#[derive(Debug)]
pub struct Journal {
    /// `None` after a failure. The end of the file may then be torn, so nothing more may be
    /// written.
    file: Ranked<Option<File>>,
}

impl Journal {
    /// Makes the journal of a repair, and the devices to repair through. The file must not exist.
    ///
    /// # Errors
    ///
    /// When the file cannot be made, or a device has no usable superblock.
    pub fn create(path: &Path, devices: &[Arc<dyn Device>]) -> Result<(Arc<Self>, Journaling)> {
        let (mut ids, mut generations) = (Vec::new(), Vec::new());
        let mut fsid = [0; 16];
        for device in devices {
            let superblock = Volume::read_superblock(&**device)?;
            fsid = superblock.fsid;
            ids.push(superblock.dev_item.devid.0);
            generations.push(superblock.generation.0.to_le_bytes());
        }
        let failed = |source| Error::File { path: path.to_owned(), source };
        let file = begin(path, &fsid).map_err(failed)?;
        let journal = Arc::new(Self { file: Ranked::new(Rank::Leaf, Some(file)) });
        let mut known = Vec::with_capacity(devices.len());
        for ((device, id), generation) in devices.iter().zip(&ids).zip(generations) {
            let mut facts = facts_of(&first_superblock(&**device)?);
            // If the superblock is torn, the other copies give the generation. An undo needs the
            // generation if a power cut tore the superblock again during the repair.
            if facts[DIGEST_LEN..] == [0; 8] {
                facts[DIGEST_LEN..].copy_from_slice(&generation);
            }
            known.push((*id, SUPERBLOCK, facts));
        }
        journal.append(&known).map_err(failed)?;
        let wrap = |(device, id): (&Arc<dyn Device>, u64)| {
            let (inner, journal) = (Arc::clone(device), Arc::clone(&journal));
            Arc::new(Journaled { inner, id, journal }) as Arc<dyn Device>
        };
        let wrapped = devices.iter().zip(ids).map(wrap).collect();
        Ok((journal, wrapped))
    }

    fn append(&self, records: &[Record]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for (device, offset, old) in records {
            let head = [*device, *offset, old.len() as u64].map(u64::to_le_bytes).concat();
            bytes.extend(sum_of(&head, old));
            bytes.extend(head);
            bytes.extend(old);
        }
        let mut file = self.file.lock();
        // A journal that failed once takes no more records, since an undo never finds a record
        // behind a torn one.
        let Some(mut open) = file.take() else {
            return Err(io::Error::other("an earlier write to it failed"));
        };
        open.write_all(&bytes)?;
        open.sync_data()?;
        *file = Some(open);
        Ok(())
    }
}

/// A device that keeps the overwritten bytes in a journal.
#[derive(Debug)]
struct Journaled {
    inner: Arc<dyn Device>,
    id: u64,
    journal: Arc<Journal>,
}

impl Journaled {
    /// Reads the old bytes and keeps them (JO1), and the facts of a new superblock (JO2).
    fn keep<'b>(
        &self,
        writes: impl Iterator<Item = (u64, Vec<&'b [u8]>)>,
    ) -> Result<(), BlockError> {
        let mut records = Vec::new();
        for (offset, bufs) in writes {
            let len = bufs.iter().map(|buf| buf.len()).sum();
            if offset == SUPER_OFFSETS[0] && len == SUPER_SIZE {
                records.push((self.id, SUPERBLOCK, facts_of(&bufs.concat())));
            }
            let mut old = vec![0; len];
            self.inner.read_at(offset, &mut old)?;
            records.push((self.id, offset, old));
        }
        let len = records.iter().map(|(.., old)| old.len() as u64).sum();
        let offset = records.last().map_or(0, |(_, offset, _)| *offset);
        self.journal.append(&records).map_err(|source| BlockError::Io {
            device: format!("the journal of {}", self.inner.name()),
            operation: Operation::Write,
            offset,
            len,
            source,
        })
    }
}

/// Makes the file of a journal, durably, with its head.
fn begin(path: &Path, fsid: &[u8; 16]) -> io::Result<File> {
    let mut file = File::options().write(true).create_new(true).open(path)?;
    file.write_all(MAGIC)?;
    file.write_all(fsid)?;
    file.sync_all()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(file)
}

impl Layer for Journaled {
    type Inner = dyn Device;

    fn inner(&self) -> &(dyn Device + 'static) {
        &*self.inner
    }

    fn on_write(&self, offset: u64, buf: &[u8]) -> Result<(), BlockError> {
        self.keep(std::iter::once((offset, vec![buf])))?;
        self.inner.write_at(offset, buf)
    }

    fn on_write_many(&self, writes: &[Write<'_>]) -> Result<(), FailedWrite> {
        let each = writes.iter().map(|write| {
            let bufs = write.bufs.iter().map(|buf| &**buf).collect();
            (write.offset, bufs)
        });
        self.keep(each).map_err(|error| FailedWrite { index: 0, error })?;
        self.inner.write_many(writes)
    }

    fn takes_many(&self) -> bool {
        true
    }
}

/// Puts back the bytes that a repair overwrote. Returns their number.
///
/// # Errors
///
/// When the journal is of another volume, or the volume was written after the repair (JO2), or a
/// file or device fails.
pub fn undo(devices: &[Arc<dyn Device>], path: &Path) -> Result<u64> {
    let refuse = |why| Err(Error::Refused { path: path.to_owned(), why });
    let failed = |source| Error::File { path: path.to_owned(), source };
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
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
    let (known, records): (Vec<Record>, Vec<Record>) =
        read_records(&mut file).into_iter().partition(|(_, offset, _)| *offset == SUPERBLOCK);
    for (id, device) in &targets {
        let facts = facts_of(&first_superblock(&**device)?);
        let (_, generation) = facts.split_at(DIGEST_LEN);
        let is_torn = generation == [0; 8];
        // The other copies differ from the first copy in their bytes, and agree in the generation.
        let copies = Volume::read_superblock(&**device)?.generation.0.to_le_bytes();
        let is_known = |(of, _, other): &Record| {
            of == id && (*other == facts || is_torn && other.ends_with(&copies))
        };
        if !known.iter().any(is_known) {
            return refuse("the volume was written after the repair");
        }
    }
    let target = |id: u64| targets.iter().find(|(known, _)| *known == id);
    if known.iter().chain(&records).any(|(id, ..)| target(*id).is_none()) {
        return refuse("a device is missing");
    }
    let mut bytes = 0;
    for (id, offset, old) in records.iter().rev() {
        let Some((_, device)) = target(*id) else { continue };
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

/// Reads the records up to the end, or up to a torn record. If a record is torn, the device never
/// got the write that the record is for (JO1).
fn read_records(file: &mut impl Read) -> Vec<Record> {
    let mut records = Vec::new();
    loop {
        let mut head = [0; HEAD_LEN];
        if file.read_exact(&mut head).is_err() {
            return records;
        }
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| head[at + index]));
        let (device, offset, len) = (number(4), number(12), number(20));
        if len > RECORD_MAX {
            return records;
        }
        let mut old = vec![0; len as usize];
        if file.read_exact(&mut old).is_err() || sum_of(&head[4..], &old) != head[..4] {
            return records;
        }
        records.push((device, offset, old));
    }
}

/// The checksum of a record. Zeros, with which a torn file may end, never have a right checksum.
fn sum_of(head: &[u8], bytes: &[u8]) -> [u8; 4] {
    let sum = CsumType::Crc32c.digest(&[head, bytes].concat());
    [sum[0], sum[1], sum[2], sum[3]]
}

/// The bytes at the place of a device's first superblock, valid or not.
fn first_superblock(device: &dyn Device) -> Result<Vec<u8>> {
    let mut superblock = vec![0; SUPER_SIZE];
    device.read_at(SUPER_OFFSETS[0], &mut superblock)?;
    Ok(superblock)
}

/// The facts that a journal keeps about a first superblock.
fn facts_of(superblock: &[u8]) -> Vec<u8> {
    let mut facts = CsumType::Sha256.digest(superblock).to_vec();
    let parsed = Superblock::parse(superblock, SUPER_OFFSETS[0]);
    let generation = parsed.map_or(0, |superblock| superblock.generation.0);
    facts.extend(generation.to_le_bytes());
    facts
}
