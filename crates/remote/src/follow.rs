//! A reader that goes on to newer commits: each commit is opened as a device of its own.
//!
//! # Invariants
//!
//! - **F1** A device never changes its commit, so its readers always see the same content.
//! - **F2** A newer commit is taken only from the chain. The next manifest is in the chain if the
//!   manifest of the device's commit still exists after the next manifest was read (`chain::H1`).
//!   Otherwise the list of manifests shows the newest manifest.
//! - **F3** Devices of one line share the caches for data that was read. Commits of one chain never
//!   use the number of an object for two objects.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use buttress_base::{Rank, Ranked, clock};

use crate::cache::Settled;
use crate::core::Core;
use crate::device::RemoteDevice;
use crate::envelope::VolumeId;
use crate::error::{Error, Result};
use crate::manifest::{Manifest, Writer};
use crate::options::At;
use crate::units::CommitNumber;

/// How often manifests are listed while the next manifest is missing, since its number may be
/// deleted already.
const LIST: Duration = Duration::from_secs(60);

/// The state that the devices of a line share. A line is a device and the devices that were opened
/// for newer commits.
#[derive(Debug)]
pub(crate) struct Line {
    /// Devices from the oldest to the newest. A newer device may be closed early, if the engine
    /// does not take it.
    devices: Ranked<Vec<Weak<RemoteDevice>>>,
    listed: Ranked<Option<Instant>>,
}

impl Default for Line {
    fn default() -> Self {
        let devices = Ranked::new(Rank::Leaf, Vec::new());
        Self { devices, listed: Ranked::new(Rank::Leaf, None) }
    }
}

/// Finds the newest device of a line, without keeping any device open.
#[derive(Clone, Debug)]
pub struct Newest {
    line: Arc<Line>,
}

impl Newest {
    /// The newest device, unless it was closed.
    #[must_use]
    pub fn get(&self) -> Option<Arc<RemoteDevice>> {
        self.line.devices.lock().iter().rev().find_map(Weak::upgrade)
    }
}

impl RemoteDevice {
    /// How often a reader looks for a newer commit, if the options say so.
    #[must_use]
    pub fn follows(&self) -> Option<Duration> {
        self.core.options.follow
    }

    /// Returns a handle that finds the newest device of this device's line.
    #[must_use]
    pub fn newest(self: &Arc<Self>) -> Newest {
        let mut devices = self.line.devices.lock();
        if devices.iter().all(|device| device.strong_count() == 0) {
            *devices = vec![Arc::downgrade(self)];
        }
        drop(devices);
        Newest { line: Arc::clone(&self.line) }
    }

    /// Opens the newest commit, if it is newer than this device's commit (F1).
    ///
    /// # Errors
    ///
    /// Those of the store. [`Error::NoVolume`] if the volume is gone, or another volume is at its
    /// place.
    pub fn newer_commit(&self) -> Result<Option<Arc<Self>>> {
        let core = &self.core;
        if core.options.write || core.options.at != At::Newest {
            return Ok(None);
        }
        let Some((volume, manifest)) = self.newer_manifest()? else { return Ok(None) };
        if volume != core.volume {
            return Err(Error::NoVolume { place: core.chain.place.clone() });
        }
        let (chain, options) = (core.chain.clone(), core.options.clone());
        let mut newer = Core::new(chain, volume, manifest.clone(), Writer::this(), options, None);
        newer.lines = Arc::clone(&core.lines);
        newer.disk.clone_from(&core.disk);
        newer.load(&manifest)?;
        let mut device = Self::start(newer, &Settled::default())?;
        device.line = Arc::clone(&self.line);
        let device = Arc::new(device);
        let mut devices = self.line.devices.lock();
        devices.retain(|device| device.strong_count() > 0);
        devices.push(Arc::downgrade(&device));
        drop(devices);
        Ok(Some(device))
    }

    /// The newest manifest, if it differs from this device's manifest (F2).
    fn newer_manifest(&self) -> Result<Option<(VolumeId, Manifest)>> {
        let chain = self.core.chain.brief();
        let (here, nonce) = {
            let last = self.core.last.lock();
            (last.number, last.nonce.clone())
        };
        let newer = chain.follow(CommitNumber(here.0 + 1))?;
        let is_due = self.line.listed.lock().is_none_or(|at| clock::since(at) >= LIST);
        if newer.is_none() && !is_due {
            return Ok(None);
        }
        if newer.is_some() {
            let still = chain.get(here)?;
            if still.is_some_and(|(_, manifest)| manifest.nonce == nonce) {
                return Ok(newer);
            }
        }
        *self.line.listed.lock() = Some(clock::now());
        let none = || Error::NoVolume { place: chain.place.clone() };
        let head = chain.head()?.ok_or_else(none)?;
        Ok((head.1.nonce != nonce).then_some(head))
    }
}
