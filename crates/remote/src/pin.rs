//! Pins: commits that are kept under a name, each as a copy of its manifest.
//!
//! # Invariants
//!
//! - **I1** A pin is valid if, after its creation, the commit was still in the chain or under
//!   another pin. In that case the collector lists the pin before it deletes an object that the
//!   commit needs.

use bytes::Bytes;

use crate::chain::Chain;
use crate::envelope::{Kind, VolumeId};
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::units::CommitNumber;

const NAME_MAX: usize = 100;

/// A commit, as lists show it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Commit {
    /// Its number.
    pub number: CommitNumber,
    /// The name under which the commit is pinned, if it is.
    pub pin: Option<String>,
    /// The time of the commit by the writer's clock, in milliseconds since 1970.
    pub time_ms: u64,
    /// The machine that made the commit.
    pub host: String,
    /// The process id on that machine.
    pub pid: u32,
    /// The writer's epoch.
    pub epoch: u32,
    /// Whether the commit only records that a new writer has the volume.
    pub is_opening: bool,
}

impl std::fmt::Display for Commit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>8}  {} process {}", self.number.0, self.host, self.pid)?;
        match &self.pin {
            Some(name) => write!(f, "  kept as {name}"),
            None if self.is_opening => f.write_str("  opened"),
            None => Ok(()),
        }
    }
}

impl Commit {
    pub(crate) fn of(manifest: &Manifest, pin: Option<String>) -> Self {
        Self {
            number: manifest.number,
            pin,
            time_ms: manifest.time_ms,
            host: manifest.writer.host.clone(),
            pid: manifest.writer.pid,
            epoch: manifest.epoch,
            is_opening: manifest.is_opening,
        }
    }
}

fn wrong(chain: &Chain, why: String) -> Error {
    Error::Pin { place: chain.place.clone(), why }
}

/// Pins a commit under a name (I1). `other` is a pin that already keeps the commit.
pub(crate) fn create(
    chain: &Chain,
    volume: VolumeId,
    manifest: &Manifest,
    name: &str,
    other: Option<&str>,
) -> Result<()> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_plain) {
        let why = format!("{name:?} is no name of a pin: letters, digits, -, _ and . are");
        return Err(wrong(chain, why));
    }
    let object = chain.names.pin(name);
    let body = Bytes::from(manifest.encode(Kind::Pin, volume));
    match chain.store.create_once(&object, body.clone()) {
        Ok(()) => {}
        Err(source) if source.is_refusal() => return Err(Error::Store { name: object, source }),
        Err(_) => match chain.store.get(&object)? {
            Some(found) if found == body => {}
            Some(_) => return Err(wrong(chain, format!("there is a pin {name:?} already"))),
            None => chain.store.put(&object, &body)?,
        },
    }
    let is_kept = match other {
        Some(other) => get(chain, other).is_ok_and(|(_, kept)| kept == *manifest),
        None => chain.get(manifest.number)?.is_some(),
    };
    if !is_kept {
        chain.store.delete(&object)?;
        let number = manifest.number.0;
        return Err(wrong(chain, format!("commit {number} is not there any more")));
    }
    Ok(())
}

/// Returns the manifest that is pinned under a name.
pub(crate) fn get(chain: &Chain, name: &str) -> Result<(VolumeId, Manifest)> {
    let object = chain.names.pin(name);
    let found = chain.store.get_as(&object, |b| Manifest::decode(&object, Kind::Pin, b))?;
    found.ok_or_else(|| wrong(chain, format!("there is no pin {name:?}")))
}

/// Deletes a pin.
pub(crate) fn delete(chain: &Chain, name: &str) -> Result<()> {
    get(chain, name)?;
    chain.store.delete(&chain.names.pin(name))
}

/// Deletes a pin that may not be there.
pub(crate) fn delete_if_there(chain: &Chain, name: &str) -> Result<()> {
    chain.store.delete(&chain.names.pin(name))
}

/// All pins.
pub(crate) fn all(chain: &Chain) -> Result<Vec<(String, Manifest)>> {
    let mut pins = Vec::new();
    for meta in chain.store.list(&chain.names.folder("pin"))? {
        let name = meta.name.rsplit('/').next().unwrap_or_default().to_owned();
        let decode = |bytes: &Bytes| Manifest::decode(&meta.name, Kind::Pin, bytes);
        pins.extend(chain.store.get_as(&meta.name, decode)?.map(|(_, manifest)| (name, manifest)));
    }
    Ok(pins)
}

/// The commits that pins keep.
pub(crate) fn numbers(chain: &Chain) -> Result<Vec<CommitNumber>> {
    Ok(all(chain)?.into_iter().map(|(_, manifest)| manifest.number).collect())
}
