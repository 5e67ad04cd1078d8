//! Copies a device to another while the volume is in use, and verifies the copy.
//!
//! # Invariants
//!
//! - **DC1** Before the old device goes, each byte in use on the new device was copied in this run
//!   or compared with a checksum. So a copy that goes on at a cursor takes nothing on trust.
//!   Data without checksums before the cursor is copied again: a write in place may have reached
//!   only one of the devices. So are chunks with parity, since no checksum covers the parity of
//!   such data, and metadata: a node of another history of the volume can have the right place and
//!   generation. Then the checksums themselves are those of the old device.
//! - **DC2** The old device decides. If the new device has errors where it was not copied in this
//!   run, all of it is copied again, and verified again.

use buttress_format::{DeviceId, Extent};
use buttress_volume::Pair;

use buttress_txn::{Error, Result};

use crate::bound::{name, steps_through};
use crate::found::{STEP_BYTES, extents};
use crate::scrub::pieces;
use crate::{BalanceProgress, Maintenance, ScrubOptions, ScrubProgress};

/// Bytes of one copy from one device to another.
const COPY_BYTES: u64 = 1 << 20;

/// A run of the copy.
struct Run<'r> {
    id: DeviceId,
    pair: &'r Pair,
    progress: BalanceProgress,
    watch: &'r mut dyn FnMut(&BalanceProgress) -> bool,
    bytes: Vec<u8>,
}

impl Maintenance {
    /// Copies what lies behind the cursor, and verifies all of the new device (DC1).
    pub(crate) fn copy_and_verify(
        &self,
        id: DeviceId,
        pair: &Pair,
        watch: &mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> Result<ScrubProgress> {
        let is_continued = pair.cursor() > 0;
        let mut round = || {
            let bytes = vec![0; COPY_BYTES as usize];
            let progress = BalanceProgress::default();
            let mut run = Run { id, pair, progress, watch: &mut *watch, bytes };
            let from = pair.cursor();
            self.copy_from(&mut run, from)?;
            self.copy_again(&mut run, from)?;
            self.volume().turn_pair(pair);
            // The scrub finds and repairs data that the old device could not read.
            let is_well = || self.expect_pair(id, pair).is_ok();
            let (found, _) = self.scrub(ScrubOptions::default(), &mut |_| is_well())?;
            self.expect_pair(id, pair).map(|()| found)
        };
        let found = round()?;
        if !is_continued || found.uncorrectable_errors == 0 {
            return Ok(found);
        }
        tracing::warn!("the new device has errors; copying all of it again");
        pair.set_cursor(0);
        self.volume().turn_pair_back(pair);
        round()
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

    /// Copies all data of chunks behind `from` from one device to the same places of the other
    /// device, beside writers. New chunks are written to both devices meanwhile. The cursor goes
    /// along.
    fn copy_from(&self, run: &mut Run<'_>, from: u64) -> Result<()> {
        let chunks = self.volume().chunks();
        let stripes = chunks.iter().flat_map(|chunk| {
            let has_parity = self.volume().row_bytes(chunk.logical).is_some();
            let mine = chunk.stripes.iter().filter(|stripe| stripe.device == run.id);
            mine.map(move |stripe| (stripe.offset, chunk.stripe_bytes(), has_parity))
        });
        let mut stripes: Vec<(u64, u64, bool)> = stripes.collect();
        stripes.sort_unstable();
        run.progress.expected = stripes.len() as u64;
        run.progress.bytes = stripes.iter().map(|(_, len, _)| len).sum();
        let parts = |(_, len, _): &(u64, u64, bool)| len.div_ceil(COPY_BYTES);
        let mut bound = self.loops().begin(name::COPY, stripes.iter().map(parts).sum());
        for (offset, len, has_parity) in stripes {
            let done = if has_parity { 0 } else { from.saturating_sub(offset).min(len) };
            run.progress.moved += done;
            for within in (done..len).step_by(COPY_BYTES as usize) {
                bound.step()?;
                let end = offset + len.min(within + COPY_BYTES);
                self.copy_range(run, offset + within, end)?;
                run.progress.moved += end - offset - within;
                run.pair.set_cursor(end.max(from));
                self.show(run)?;
            }
            run.progress.completed += 1;
        }
        Ok(())
    }

    /// Copies all metadata, and all data without checksums, that lies before `until` on the device
    /// (DC1).
    fn copy_again(&self, run: &mut Run<'_>, until: u64) -> Result<()> {
        let sector = u64::from(self.geometry().sectorsize);
        for chunk in self.volume().chunks().iter() {
            let lies_before =
                chunk.stripes.iter().any(|it| it.device == run.id && it.offset < until);
            if !lies_before || self.volume().row_bytes(chunk.logical).is_some() {
                continue;
            }
            let mut bound = self.loops().begin(name::COPY, steps_through(chunk.len, STEP_BYTES));
            let (mut at, end) = (chunk.logical, chunk.logical.end(chunk.len));
            while at < end {
                bound.step()?;
                self.expect_pair(run.id, run.pair)?;
                self.show(run)?;
                let view = self.engine().view();
                let (found, next) = extents(&view, at, end)?;
                for piece in &pieces(&found) {
                    let unsummed = if piece.level.is_some() {
                        (0..(piece.extent.len / sector) as usize).collect()
                    } else {
                        let sums = self.engine().read_csums(&view, piece.extent)?;
                        let all = 0..sums.sectors();
                        all.filter(|index| sums.sector(*index).is_none()).collect::<Vec<_>>()
                    };
                    for part in runs_of(unsummed.into_iter()) {
                        let start = piece.extent.start.end(part.start as u64 * sector);
                        let extent = Extent::new(start, part.len() as u64 * sector);
                        for (offset, len) in self.volume().places_on(run.id, extent)? {
                            self.copy_range(run, offset, offset + len)?;
                        }
                        self.show(run)?;
                    }
                }
                at = next;
            }
        }
        Ok(())
    }

    fn copy_range(&self, run: &mut Run<'_>, start: u64, end: u64) -> Result<()> {
        for at in (start..end).step_by(COPY_BYTES as usize) {
            let len = (end - at).min(COPY_BYTES) as usize;
            self.volume().copy_pair(run.pair, at, &mut run.bytes[..len]);
        }
        self.expect_pair(run.id, run.pair)
    }

    /// Tells the caller how far the copy has come. Fails if the caller stops it.
    fn show(&self, run: &mut Run<'_>) -> Result<()> {
        if (run.watch)(&run.progress) { Ok(()) } else { Err(Error::Stopped) }
    }
}

/// Joins ascending numbers that follow each other.
fn runs_of(numbers: impl Iterator<Item = usize>) -> Vec<std::ops::Range<usize>> {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(last) if last.end == number => last.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs_of;

    #[test]
    fn neighbours_are_joined() {
        assert_eq!(runs_of([].into_iter()), []);
        assert_eq!(runs_of([1, 2, 3, 7, 9, 10].into_iter()), [1..4, 7..8, 9..11]);
    }
}
