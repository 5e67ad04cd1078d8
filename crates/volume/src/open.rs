//! Opens a volume from named devices, or says why that is impossible.
//!
//! # Invariants
//!
//! - **O1** Opening writes nothing. The first write comes after everything was checked.
//! - **O2** A volume with an unknown feature that changes reading is refused. A volume with an
//!   unknown feature that changes writing is read-only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use buttress_block::Device;
use buttress_format::limits::SUPER_OFFSETS;
use buttress_format::{CompatRo, DeviceId, Incompat, ReplaceItem, Superblock};

use crate::device::{DeviceTrust, VolumeDevice};
use crate::error::{Error, Uuid};
use crate::params::{Params, Parity};
use crate::seed_ids::{self, Candidate};
use crate::target::Target;
use crate::volume::Volume;

/// How to open a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// Whether to allow writes, if nothing prevents them.
    pub writable: bool,
    /// Whether writes may begin later, by [`Volume::begin_writing`], if nothing prevents them.
    pub may_begin_writing: bool,
    /// Whether to open without missing devices. The volume is writable as long as every byte has a
    /// copy on a present device. Otherwise the volume is read-only, and a part of it is unreadable.
    pub degraded: bool,
    /// How chunks with parity are used.
    pub parity: Parity,
    /// Whether an image of metadata alone may be written, too. A repair may write such an image,
    /// since a repair writes no data.
    pub repairs: bool,
}

impl Volume {
    /// Joins devices into the volume that they are parts of. The map of the volume then has the
    /// chunks that the superblock names. These chunks are enough to read the chunk tree, which
    /// names all other chunks.
    ///
    /// Returns the newest superblock as well.
    ///
    /// # Errors
    ///
    /// The errors of [`Volume::read_superblock`], for each device; [`Error::ForeignDevice`],
    /// [`Error::DuplicateDevice`] and [`Error::MissingDevices`] when the devices do not make one
    /// volume; [`Error::Features`] when this program cannot read the volume.
    pub fn open(
        devices: Vec<Arc<dyn Device>>,
        options: OpenOptions,
    ) -> Result<(Self, Superblock), Error> {
        let candidates = candidates(devices)?;
        let mut newest = seed_ids::newest(&candidates).cloned().ok_or(Error::NoDevices)?;
        if newest.dev_item.devid == ReplaceItem::TARGET {
            // The target knows the newest commit. The item must be that of a member.
            let member = candidates.iter().map(|part| part.superblock.dev_item);
            let member = member
                .filter(|item| item.devid != ReplaceItem::TARGET)
                .max_by_key(|item| item.devid);
            newest.dev_item = member.unwrap_or(newest.dev_item);
        }
        Ok((Self::join(candidates, &newest, options)?, newest))
    }

    /// As [`Volume::open`], but opens a commit that another process keeps while that process goes
    /// on writing. `superblock` is the superblock of the commit; the superblocks on the devices may
    /// be newer.
    ///
    /// # Errors
    ///
    /// As [`Volume::open`].
    pub fn open_at(
        devices: Vec<Arc<dyn Device>>,
        superblock: &Superblock,
        options: OpenOptions,
    ) -> Result<Self, Error> {
        Self::join(candidates(devices)?, superblock, options)
    }

    pub(crate) fn join(
        candidates: Vec<Candidate>,
        newest: &Superblock,
        options: OpenOptions,
    ) -> Result<Self, Error> {
        check_features(newest)?;
        let seeds = seed_ids::seeds_of(&candidates, newest)?;
        check_duplicates(&candidates)?;
        let is_target = |part: &Candidate| part.superblock.dev_item.devid == ReplaceItem::TARGET;
        let (mut targets, candidates): (Vec<_>, Vec<_>) =
            candidates.into_iter().partition(is_target);
        // A target alone may lack anything, so no option opens it.
        let options =
            OpenOptions { degraded: options.degraded && !candidates.is_empty(), ..options };
        check_complete(&candidates, newest, options)?;
        let reason = read_only_reason(&candidates, newest, options);

        let parts = candidates.into_iter().map(|part| join(part, newest)).collect();
        let mut volume = Self::assemble(Params::of(newest), parts, options.degraded);
        volume.seeds = seeds;
        if let Some(Candidate { device, superblock }) = targets.pop() {
            volume.keep_target(Target::found(device, &superblock, newest));
        }
        volume.parity = options.parity;
        volume.opened_for_reading.store(!options.writable, Ordering::Release);
        if let Some(why) = reason {
            volume.forbid_writes(why);
        }
        volume.add_chunks(newest.sys_chunks.iter().map(|(_, chunk)| chunk.clone()).collect())?;
        Ok(volume)
    }
}

/// The devices with their superblocks, by number.
pub(crate) fn candidates(devices: Vec<Arc<dyn Device>>) -> Result<Vec<Candidate>, Error> {
    let mut candidates = Vec::with_capacity(devices.len());
    for device in devices {
        let superblock = Volume::read_superblock(&*device)?;
        candidates.push(Candidate { device, superblock });
    }
    candidates.sort_by_key(|candidate| candidate.superblock.dev_item.devid);
    Ok(candidates)
}

fn check_features(superblock: &Superblock) -> Result<(), Error> {
    let unknown = superblock.incompat.without(Incompat::READABLE);
    if unknown.0 == 0 { Ok(()) } else { Err(Error::Features { features: unknown.names() }) }
}

/// Fails if two candidates have the same number. The candidates are sorted, so equal numbers are
/// neighbours.
fn check_duplicates(candidates: &[Candidate]) -> Result<(), Error> {
    for pair in candidates.windows(2) {
        let [first, second] = pair else { continue };
        let id = first.superblock.dev_item.devid;
        if id == second.superblock.dev_item.devid {
            let (first, second) = (first.device.name(), second.device.name());
            return Err(Error::DuplicateDevice { id, first, second });
        }
    }
    Ok(())
}

/// Fails if a required device is missing.
fn check_complete(
    candidates: &[Candidate],
    newest: &Superblock,
    options: OpenOptions,
) -> Result<(), Error> {
    let (expected, given) = (newest.num_devices, candidates.len() as u64);
    let fsid = Uuid(newest.fsid);
    if given > expected {
        return Err(Error::TooManyDevices { fsid, expected, given });
    }
    if given == expected || options.degraded {
        return Ok(());
    }
    let found: Vec<DeviceId> =
        candidates.iter().map(|part| part.superblock.dev_item.devid).collect();
    let stripes = newest.sys_chunks.iter().flat_map(|(_, chunk)| &chunk.stripes);
    let mut missing: Vec<DeviceId> =
        stripes.map(|stripe| stripe.device).filter(|id| !found.contains(id)).collect();
    missing.sort_unstable();
    missing.dedup();
    Err(Error::MissingDevices { fsid, expected, found, missing })
}

/// Says why a readable volume is not writable (O2).
fn read_only_reason(
    candidates: &[Candidate],
    newest: &Superblock,
    options: OpenOptions,
) -> Option<String> {
    if !options.writable && !options.may_begin_writing {
        return Some("it was opened for reading only".to_owned());
    }
    let mut features = newest.incompat.without(Incompat::WRITABLE).names();
    features.extend(newest.compat_ro.without(CompatRo::WRITABLE).names());
    if !features.is_empty() {
        return Some(format!("it uses features that are only read: {}", features.join(", ")));
    }
    let forbids =
        |flag: u64| newest.flags & flag != 0 && !(options.repairs && flag & METADUMP != 0);
    if let Some(why) = FLAGS.iter().find(|(flag, _)| forbids(*flag)) {
        return Some(why.1.to_owned());
    }
    let is_own = |part: &&Candidate| part.superblock.fsid == newest.fsid;
    let is_needed = |part: &&Candidate| options.writable && is_own(part) && !part.device.writable();
    let refusing = candidates.iter().find(is_needed)?;
    Some(format!("{} is open for reading only", refusing.device.name()))
}

/// An image of metadata alone, in both of its formats.
const METADUMP: u64 = 3 << 33;

/// Flags of the superblock that forbid writing.
const FLAGS: &[(u64, &str)] = &[
    (1 << 32, "it is a seed for other filesystems"),
    (1 << 33, "it is an image of metadata alone"),
    (1 << 34, "it is an image of metadata alone"),
    (1 << 35, "a change of its identifier was not finished"),
    (1 << 36, "a change of its identifier was not finished"),
    (1 << 38, "a conversion to a block-group tree was not finished"),
    (1 << 39, "a change of its data checksums was not finished"),
    (1 << 40, "a change of its metadata checksums was not finished"),
];

fn join(candidate: Candidate, newest: &Superblock) -> VolumeDevice {
    let Candidate { device, superblock } = candidate;
    let is_seed = superblock.fsid != newest.fsid;
    let newest = newest.generation;
    let trust = match newest.0.saturating_sub(superblock.generation.0) {
        _ if is_seed => DeviceTrust::Whole,
        0 => DeviceTrust::Whole,
        1 => DeviceTrust::Behind,
        _ => DeviceTrust::Stale,
    };
    if trust != DeviceTrust::Whole {
        tracing::warn!(
            device = device.name(),
            generation = superblock.generation.0,
            newest = newest.0,
            "device missed transactions that the others have; its copies are read last until a scrub"
        );
    }
    let is_torn = superblock.bytenr != SUPER_OFFSETS[0];
    let mut device = VolumeDevice::new(device, superblock.dev_item, trust);
    device.seed = is_seed.then_some(superblock.generation);
    device.torn.store(is_torn && !is_seed, Ordering::Relaxed);
    device
}
