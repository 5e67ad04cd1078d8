//! A manifest is one commit of a volume. It names all objects of the commit, directly or through
//! other objects.
//!
//! # Invariants
//!
//! - **N1** A manifest never changes. If two writers create one number, the nonce shows which
//!   writer made the manifest.
//! - **N2** A manifest that was decoded names no impossible length.

use serde::{Deserialize, Serialize};

use crate::envelope::{Kind, VolumeId, damaged, unwrap, wrap_manifest};
use crate::error::Result;
use crate::map::Ref;
use crate::segment::Shape;
use crate::units::{CommitNumber, LEN_MAX, NUMBER_MAX, ObjectNumber, SECTOR};
use buttress_store::buckets::is_elsewhere;

/// A manifest with more parts of one kind than this is invalid.
const PARTS_MAX: usize = 1 << 20;

/// The process that wrote an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Writer {
    /// A random id for each opening.
    pub id: String,
    /// The name of the machine.
    pub host: String,
    /// The boot of that machine, and the PID namespace.
    pub boot: String,
    /// The process id on that machine.
    pub pid: u32,
    /// The start time of that process, in the machine's ticks.
    pub start: u64,
}

/// A data object that the checkpoint of the map does not know yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recent {
    pub(crate) object: ObjectNumber,
    pub(crate) epoch: u32,
    pub(crate) sectors: u32,
    pub(crate) extents: u32,
    /// The crc32c of its extents.
    pub(crate) crc: u32,
}

impl Recent {
    pub(crate) fn shape(&self) -> Shape {
        Shape { sectors: self.sectors, extents: self.extents }
    }
}

/// A base: a volume from which this volume was cloned, and with which it shares objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Base {
    /// The prefix of its objects, as in [`buttress_store::buckets`].
    pub(crate) prefix: String,
    /// Objects with lower numbers belong to this base, or to an older base.
    pub(crate) below: ObjectNumber,
}

/// A part of the table of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TablePart {
    pub(crate) epoch: u32,
    /// The length of the whole object that holds the part.
    pub(crate) object_len: u32,
    pub(crate) at: Ref,
}

/// A local log that may hold writes that were acknowledged and are in no commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LocalLog {
    /// The identity of its folder.
    pub(crate) cache: String,
    /// The machine that has the folder.
    pub(crate) host: String,
    /// The folder on that machine.
    pub(crate) dir: String,
    /// The log is encrypted. In this case a log in clear text is no log of this writer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) sealed: bool,
}

/// The position up to which the content has the writes of a local log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LogMark {
    /// The log: the id of its writer.
    pub(crate) log: String,
    /// The content has all writes up to this position.
    pub(crate) position: u64,
}

/// The number of logs that a manifest remembers.
const MARKS_MAX: usize = 32;

/// One commit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    pub(crate) number: CommitNumber,
    pub(crate) epoch: u32,
    pub(crate) nonce: String,
    /// The nonce of the preceding manifest.
    pub(crate) follows: String,
    pub(crate) writer: Writer,
    /// The time by the writer's clock, in milliseconds since 1970. Nothing depends on it.
    pub(crate) time_ms: u64,
    /// The length of the device in bytes.
    pub(crate) device_len: u64,
    /// The length of a data object, in bytes.
    pub(crate) object_len: u64,
    /// A new writer numbers its objects from here on. No commit up to this one needs an object with
    /// such a number.
    pub(crate) next_object: ObjectNumber,
    /// The volumes from which this volume was cloned, the oldest first.
    #[serde(default)]
    pub(crate) bases: Vec<Base>,
    /// The pin in the newest base that keeps the shared objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) base_pin: Option<String>,
    /// The commit that wrote the checkpoint of the map.
    pub(crate) checkpoint: CommitNumber,
    pub(crate) leaves: Vec<(u32, Ref)>,
    /// The epochs of the objects that have leaves, so that leaves are read without the table.
    /// Manifests of earlier versions lack these epochs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) leaf_epochs: Vec<(ObjectNumber, u32)>,
    pub(crate) tables: Vec<TablePart>,
    /// Data objects since the checkpoint, in order.
    pub(crate) recent: Vec<Recent>,
    /// The commit only records that a new writer has the volume. Its content is that of the
    /// preceding commit.
    #[serde(default)]
    pub(crate) is_opening: bool,
    /// The local log of this writer, until it closes the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) local: Option<LocalLog>,
    /// The newest local logs, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) logs: Vec<LogMark>,
}

impl Manifest {
    /// Notes that the content has the writes of a local log up to a position.
    pub(crate) fn mark(&mut self, mark: LogMark) {
        match self.logs.iter_mut().find(|known| known.log == mark.log) {
            Some(known) => known.position = known.position.max(mark.position),
            None => self.logs.push(mark),
        }
        let excess = self.logs.len().saturating_sub(MARKS_MAX);
        self.logs.drain(..excess);
    }

    /// The position up to which the content has the writes of a local log, if the manifest
    /// remembers the log.
    pub(crate) fn marked(&self, log: &str) -> Option<u64> {
        self.logs.iter().find(|mark| mark.log == log).map(|mark| mark.position)
    }

    /// The manifest as an object of a kind: of a commit, or of a pin.
    pub(crate) fn encode(&self, kind: Kind, volume: VolumeId) -> Vec<u8> {
        let body = serde_json::to_vec(self).unwrap_or_default();
        let is_elsewhere = self.bases.iter().any(|base| is_elsewhere(&base.prefix));
        wrap_manifest(is_elsewhere, kind, volume, (self.number.0, self.epoch), &body)
    }

    /// Reads and checks a manifest (N2).
    pub(crate) fn decode(name: &str, kind: Kind, bytes: &[u8]) -> Result<(VolumeId, Self)> {
        let (envelope, body) = unwrap(name, kind, bytes)?;
        let this: Self =
            serde_json::from_slice(body).map_err(|error| damaged(name, error.to_string()))?;
        let wrong = |why: &str| Err(damaged(name, why.to_owned()));
        if this.number.0 != envelope.number || this.epoch != envelope.epoch {
            return wrong("it belongs under another number");
        }
        if this.number.0.max(this.next_object.0) > NUMBER_MAX || this.epoch == u32::MAX {
            return wrong("its numbers are impossible");
        }
        if !this.device_len.is_multiple_of(SECTOR) || this.device_len > LEN_MAX {
            return wrong("the length of the device is impossible");
        }
        if this.object_len < SECTOR || this.object_len > 1 << 30 {
            return wrong("the length of its data objects is impossible");
        }
        let parts = [this.leaves.len(), this.tables.len(), this.recent.len(), this.bases.len()];
        if this.leaf_epochs.len() > PARTS_MAX || parts.iter().any(|&count| count > PARTS_MAX) {
            return wrong("it has too many parts");
        }
        let frames = 2 * (this.object_len / SECTOR + 1);
        let fits = |recent: &Recent| u64::from(recent.sectors) <= frames;
        if !this.recent.iter().all(fits) {
            return wrong("a data object in it is too long");
        }
        Ok((envelope.volume, this))
    }
}
