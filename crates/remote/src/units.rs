//! Numbers with their units.

use serde::{Deserialize, Serialize};

/// Bytes of a sector, the unit of the map.
pub(crate) const SECTOR: u64 = 4096;
/// The longest device that a map can have: the number of a sector has 40 bits, and the number of a
/// page has 26 bits.
pub(crate) const LEN_MAX: u64 = SECTOR << 40;
/// No commit and no object has a higher number, so each number has a successor.
pub(crate) const NUMBER_MAX: u64 = u64::MAX / 2;

/// A sector of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sector(pub(crate) u64);

/// An object of a volume with data or a part of the map. No number is ever used twice.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub(crate) struct ObjectNumber(pub(crate) u64);

/// A manifest: the n-th commit of a volume.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct CommitNumber(pub u64);

/// Where a sector's content is: an object, and a frame in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) object: ObjectNumber,
    pub(crate) frame: u32,
}
