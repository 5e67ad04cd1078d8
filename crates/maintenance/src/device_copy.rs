//! Copies a device to another while the volume is in use, and verifies the copy.
//!
//! # Invariants
//!
//! - **DC1** The cursor never passes a byte that was not copied. It is recorded in a transaction
//!   that begins after the copy, so the commit makes both durable.

use buttress_format::{DeviceId, ReplaceItem};
use buttress_volume::Pair;

use buttress_txn::{Error, Result};

use crate::bound::name;
use crate::{BalanceProgress, Maintenance, ScrubOptions, ScrubProgress};

/// Bytes of one copy from one device to another.
const COPY_BYTES: u64 = 1 << 20;
/// Bytes between two records of the cursor, which the next commit makes durable.
const RECORD_BYTES: u64 = 16 << 20;
/// Bytes between two commits of the copy itself.
const COMMIT_BYTES: u64 = 1 << 30;

impl Maintenance {
    /// Copies what lies behind the cursor, and verifies all of the new device.
    pub(crate) fn copy_and_verify(
        &self,
        id: DeviceId,
        pair: &Pair,
        record: &mut ReplaceItem,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<ScrubProgress> {
        let is_continued = record.cursor_left > 0;
        let mut round = |record: &mut ReplaceItem| {
            self.copy_pair(id, pair, record, &mut *watch)?;
            self.volume().turn_pair(pair);
            // The scrub finds and repairs data that the old device could not read.
            let is_well = || self.expect_pair(id, pair).is_ok();
            let (found, _) = self.scrub(ScrubOptions::default(), &mut |_| is_well())?;
            self.expect_pair(id, pair).map(|()| found)
        };
        let found = round(record)?;
        if !is_continued || found.uncorrectable_errors == 0 {
            return Ok(found);
        }
        // The old device is still there, so it decides what was damaged before (DP3).
        tracing::warn!("the new device has errors where it was not copied now; copying all of it");
        self.volume().turn_pair_back(pair);
        (record.cursor_left, record.cursor_right) = (0, 0);
        self.record(*record);
        round(record)
    }

    /// Fails if a device of the pair has failed, or if the caller stopped the copy.
    fn expect_pair(&self, id: DeviceId, pair: &Pair) -> Result<()> {
        if pair.has_failed() {
            return Err(Error::Busy("the new device fails; the old one stays"));
        }
        if self.volume().device(id).is_none_or(|device| device.is_lost()) {
            return Err(Error::Busy("the old device fails: replace it as one that is missing"));
        }
        if self.turn().is_stopped() { Err(Error::Stopped) } else { Ok(()) }
    }

    /// Copies all data of chunks behind the cursor from one device to the same places of the other
    /// device, beside writers. New chunks are written to both devices meanwhile. The cursor goes
    /// along, and commits record it.
    fn copy_pair(
        &self,
        id: DeviceId,
        pair: &Pair,
        record: &mut ReplaceItem,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<()> {
        let chunks = self.volume().chunks();
        let stripes = chunks.iter().flat_map(|chunk| {
            let mine = chunk.stripes.iter().filter(|stripe| stripe.device == id);
            mine.map(|stripe| (stripe.offset, chunk.stripe_bytes()))
        });
        let mut stripes: Vec<(u64, u64)> = stripes.collect();
        stripes.sort_unstable();
        let mut progress = BalanceProgress {
            expected: stripes.len() as u64,
            bytes: stripes.iter().map(|(_, len)| len).sum(),
            ..BalanceProgress::default()
        };
        let mut bytes = vec![0; COPY_BYTES as usize];
        let parts = |(_, len): &(u64, u64)| len.div_ceil(COPY_BYTES);
        let mut bound = self.loops().begin(name::COPY, stripes.iter().map(parts).sum());
        let from = record.cursor_left;
        let (mut unrecorded, mut uncommitted) = (0, 0);
        for (offset, len) in stripes {
            let done = from.saturating_sub(offset).min(len);
            progress.moved += done;
            for within in (done..len).step_by(COPY_BYTES as usize) {
                bound.step()?;
                let part = &mut bytes[..(len - within).min(COPY_BYTES) as usize];
                self.volume().copy_pair(pair, offset + within, part);
                let copied = part.len() as u64;
                progress.moved += copied;
                // What could not be read is not copied: a continued copy tries it again.
                let end = offset + within + copied;
                record.cursor_left = pair.first_unread().map_or(end, |unread| unread.min(end));
                record.cursor_right = record.cursor_left;
                (unrecorded, uncommitted) = (unrecorded + copied, uncommitted + copied);
                if unrecorded >= RECORD_BYTES {
                    unrecorded = 0;
                    self.record(*record);
                }
                if uncommitted >= COMMIT_BYTES {
                    uncommitted = 0;
                    self.engine().commit()?;
                }
                self.expect_pair(id, pair)?;
                if !watch(&progress) {
                    return Err(Error::Stopped);
                }
            }
            progress.completed += 1;
        }
        Ok(())
    }
}
