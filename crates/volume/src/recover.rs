//! Recovery from bad copies.
//!
//! # Invariants
//!
//! - **R2** A repair writes the bytes that a good copy has at the moment of the repair. No write
//!   can come between reading the copy and the repair.
//! - **R3** A read counts each bad copy once. It does not count a copy that another thread repaired
//!   during this read. Bytes without a good copy are not counted by a read ahead, but by the later
//!   read.
//!
//! # Locks
//!
//! A repair has `Volume::repairs` exclusively, across its reads and writes.
//!
//! # Failure
//!
//! A failed repair counts as a failure of the device; the read still succeeds.

use std::fmt::Display;

use buttress_format::{DeviceId, Extent, Logical};

use crate::deferred::{DEFERRED_MAX, DeferredRepair};
use crate::device::Fault;
use crate::error::{Error, Kind};
use crate::volume::Volume;

/// Why a copy was not used.
pub(crate) struct Failure {
    pub(crate) mirror: u32,
    pub(crate) reason: String,
    pub(crate) source: Option<Box<Error>>,
    /// Whether the copy was read but has wrong content.
    pub(crate) is_mismatch: bool,
}

/// How a read counts failures (R3).
#[derive(Clone, Copy)]
pub(crate) struct Counting {
    /// The number of repairs when the read began.
    pub(crate) repairs: u64,
    pub(crate) is_ahead: bool,
}

impl Failure {
    /// The reason is general, since the error in `source` has the details.
    pub(crate) fn unread(mirror: u32, error: Error) -> Self {
        let reason = "it could not be read".to_owned();
        Self { mirror, reason, source: Some(Box::new(error)), is_mismatch: false }
    }

    fn is_abandoned(&self) -> bool {
        self.source.as_ref().is_some_and(|source| source.kind() == Kind::Abandoned)
    }
}

impl Volume {
    /// Tries copies until one is good, then rewrites the bad ones.
    pub(crate) fn recover<E: Display>(
        &self,
        at: Logical,
        buf: &mut [u8],
        order: &[u32],
        first: Failure,
        counting: Counting,
        mut verify: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), Error> {
        let mut bad = vec![first.mirror];
        let mut mismatches: Vec<u32> =
            first.is_mismatch.then_some(first.mirror).into_iter().collect();
        let mut last = first;
        // The caller gave up. Its copy is not bad, and no other one is needed.
        let order = if last.is_abandoned() { &[][..] } else { order };
        for &mirror in order {
            let failure = match self.read_mirror(at, buf, mirror) {
                Ok(()) => check_bytes(mirror, buf, &mut verify),
                Err(error) => Some(Failure::unread(mirror, error)),
            };
            match failure {
                None => {
                    bad.retain(|&other| other != mirror);
                    let (_, right) = self.put_right(at, buf, mirror, &bad, counting.repairs);
                    mismatches.retain(|mirror| !right.contains(mirror));
                    self.count_mismatches(at, &mismatches);
                    return Ok(());
                }
                Some(failure) if failure.is_abandoned() => {
                    last = failure;
                    break;
                }
                Some(failure) => {
                    mismatches.extend(failure.is_mismatch.then_some(mirror));
                    if !bad.contains(&mirror) {
                        bad.push(mirror);
                    }
                    last = failure;
                }
            }
        }
        if !counting.is_ahead {
            self.count_mismatches(at, &mismatches);
        }
        Err(Error::NoGoodMirror {
            logical: at,
            len: buf.len() as u64,
            mirrors_tried: bad.len() as u32,
            mirror: last.mirror,
            device: self.device_of(at, last.mirror),
            reason: last.reason,
            source: last.source,
        })
    }

    fn count_mismatches(&self, at: Logical, mirrors: &[u32]) {
        for &mirror in mirrors {
            self.counters.csum_failure();
            if let Some(device) = self.here(at, mirror) {
                device.count(Fault::Corruption);
            }
        }
    }

    /// Rewrites bad copies with bytes that were just read from the mirror `good`. Returns the
    /// number of rewritten copies.
    pub(crate) fn repair(&self, at: Logical, bytes: &[u8], good: u32, bad: &[u32]) -> u64 {
        self.put_right(at, bytes, good, bad, self.counters.repairs()).0
    }

    /// As [`Self::repair`], with the number of repairs at the time the copies were read. Also
    /// returns which copies other threads have repaired since.
    fn put_right(
        &self,
        at: Logical,
        bytes: &[u8],
        good: u32,
        bad: &[u32],
        repairs: u64,
    ) -> (u64, Vec<u32>) {
        let mut right = Vec::new();
        if bad.is_empty() || !self.writable() || self.is_on_seed(at) {
            return (0, right);
        }
        let repair = || DeferredRepair { at, bytes: bytes.to_vec(), good, bad: bad.to_vec() };
        if self.defer(repair) {
            return (0, right);
        }
        let _alone = self.repairs.write();
        // Another thread may have written here since. In that case the good bytes would be outdated
        // (R2).
        let mut now = vec![0; bytes.len()];
        if self.read_mirror(at, &mut now, good).is_err() || now != bytes {
            return (0, right);
        }
        let may_be_right = self.counters.repairs() != repairs;
        let mut rewritten = 0;
        for &mirror in bad {
            if self.here(at, mirror).is_none_or(|device| device.is_lost()) {
                continue;
            }
            // Another read found and repaired this copy, too (R3).
            if may_be_right && self.read_mirror(at, &mut now, mirror).is_ok() && now == bytes {
                right.push(mirror);
                continue;
            }
            match self.write_mirror(at, bytes, mirror) {
                Ok(()) => {
                    self.counters.repair();
                    rewritten += 1;
                    tracing::warn!(logical = at.0, mirror, len = bytes.len(), "rewrote a bad copy");
                }
                Err(error) => {
                    tracing::error!(logical = at.0, mirror, %error, "cannot rewrite a bad copy");
                }
            }
        }
        (rewritten, right)
    }

    /// Records that all chunks were added. Makes deferred repairs now, if the volume is writable.
    /// Before this call, a volume that is being opened repairs nothing.
    pub fn has_all_chunks(&self) {
        let waiting = self.deferred.lock().take().unwrap_or_default();
        for DeferredRepair { at, bytes, good, bad } in waiting {
            self.repair(at, &bytes, good, &bad);
        }
    }

    /// Keeps a repair for later while not all chunks are known; returns whether it was kept.
    fn defer(&self, repair: impl FnOnce() -> DeferredRepair) -> bool {
        let mut deferred = self.deferred.lock();
        let Some(waiting) = &mut *deferred else { return false };
        if waiting.len() < DEFERRED_MAX {
            waiting.push(repair());
        }
        true
    }

    /// Names the device of a copy, for a message.
    fn device_of(&self, at: Logical, mirror: u32) -> DeviceId {
        let map = self.map_of(Extent::new(at, 1));
        let Ok(entry) = map.find(at) else { return DeviceId(0) };
        let index = entry.piece(at, 1).first_stripe + mirror as usize;
        entry.chunk.stripes.get(index).map_or(DeviceId(0), |stripe| stripe.device)
    }
}

/// Checks bytes from a mirror, and returns the reason if they are wrong.
pub(crate) fn check_bytes<E: Display>(
    mirror: u32,
    bytes: &[u8],
    check: impl FnOnce(&[u8]) -> Result<(), E>,
) -> Option<Failure> {
    let reason = check(bytes).err()?.to_string();
    Some(Failure { mirror, reason, source: None, is_mismatch: true })
}
