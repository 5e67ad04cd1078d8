//! Charges: the bytes for which quotas admitted a writer. Data reservations carry charges.
//!
//! # Invariants
//!
//! - **C1** The bytes of a charge are on the way for one subvolume until the charge ends
//!   (`quota_limits::L4`). A charge ends once: when it is dropped, or when a transaction makes an
//!   extent of its bytes.
//! - **C2** The charge of a reservation has at most as many bytes as the reservation. An allocation
//!   takes the charge of the allocated bytes out of the reservation.

use std::sync::Arc;

use buttress_format::{Generation, Logical, TreeId};

use crate::quota_limits::QuotaLimits;

/// Bytes of a subvolume for which quotas admitted a writer. A charge is empty if no limit was set.
#[derive(Debug, Default)]
#[must_use = "a dropped charge is no longer on the way"]
pub struct QuotaCharge {
    of: Option<(Arc<QuotaLimits>, TreeId)>,
    bytes: u64,
}

impl QuotaCharge {
    pub(crate) fn new(limits: Arc<QuotaLimits>, tree: TreeId, bytes: u64) -> Self {
        Self { of: Some((limits, tree)), bytes }
    }

    /// Cuts `bytes` off into a separate charge, or all bytes if the charge has fewer.
    pub fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        if bytes == 0 { Self::default() } else { Self { of: self.of.clone(), bytes } }
    }

    /// Adds the bytes of another charge. If the other charge is of another subvolume, the other
    /// charge ends instead.
    pub fn merge(&mut self, mut other: Self) {
        let tree = |charge: &Self| charge.of.as_ref().map(|(_, tree)| *tree);
        if self.bytes == 0 {
            *self = other;
        } else if tree(self) == tree(&other) {
            self.bytes += std::mem::take(&mut other.bytes);
        }
    }

    /// Ends the charge except for `bytes` of it.
    pub(crate) fn shrink_to(&mut self, bytes: u64) {
        drop(self.split(self.bytes.saturating_sub(bytes)));
    }

    /// Ends the charge, because a transaction made an extent of its bytes, or extended an extent by
    /// these bytes. `at` is the start of the extent.
    pub fn add_first_ref(mut self, at: Logical, generation: Generation) {
        let bytes = std::mem::take(&mut self.bytes);
        if let Some((limits, tree)) = self.of.as_ref().filter(|_| bytes > 0) {
            limits.add_first_ref(*tree, bytes, at, generation);
        }
    }
}

impl Drop for QuotaCharge {
    fn drop(&mut self) {
        if let Some((limits, tree)) = self.of.as_ref().filter(|_| self.bytes > 0) {
            limits.release(*tree, self.bytes);
        }
    }
}

/// A reservation of space for contents of files, with the charge of the writer. Dropping it gives
/// back the bytes that were not allocated.
#[derive(Debug)]
#[must_use = "a dropped reservation is given back at once"]
pub struct DataReservation {
    /// The reserved space.
    pub space: buttress_space::DataReservation,
    charge: QuotaCharge,
}

impl From<buttress_space::DataReservation> for DataReservation {
    fn from(space: buttress_space::DataReservation) -> Self {
        Self { space, charge: QuotaCharge::default() }
    }
}

impl DataReservation {
    /// Returns the bytes still reserved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.space.bytes()
    }

    /// Adds a charge for the reserved bytes (C2).
    pub fn charged(mut self, charge: QuotaCharge) -> Self {
        self.charge.merge(charge);
        self.charge.shrink_to(self.space.bytes());
        self
    }

    /// Cuts `bytes` off into a separate reservation.
    ///
    /// # Panics
    ///
    /// When fewer bytes are reserved; this is a bug of the caller.
    pub fn split(&mut self, bytes: u64) -> Self {
        let space = self.space.split(bytes);
        Self { space, charge: self.charge.split(bytes) }
    }

    /// Adds the bytes of another reservation of the same volume.
    ///
    /// # Panics
    ///
    /// When `other` belongs to another volume; this is a bug of the caller.
    pub fn merge(&mut self, other: Self) {
        let Self { space, charge } = other;
        self.space.merge(space);
        self.charge.merge(charge);
    }

    /// Keeps `bytes` and gives the rest back.
    ///
    /// # Panics
    ///
    /// When fewer bytes are reserved; this is a bug of the caller.
    pub fn shrink_to(&mut self, bytes: u64) {
        self.space.shrink_to(bytes);
        self.charge.shrink_to(bytes);
    }

    /// Takes the charge of allocated bytes. If the rest of the charge has more bytes than are still
    /// reserved, it shrinks to the reserved bytes.
    pub fn take_charge(&mut self, bytes: u64) -> QuotaCharge {
        let taken = self.charge.split(bytes);
        self.charge.shrink_to(self.space.bytes());
        taken
    }
}
