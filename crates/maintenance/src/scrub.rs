//! Reads every copy of everything in use, and repairs damaged copies.
//!
//! # Invariants
//!
//! - **U1** The scrub checks the extents that a committed extent tree lists. It holds a view of
//!   that tree meanwhile, so that the space of these extents is not allocated again
//!   (`txn::engine::E3`). It often takes a new view, so that freed space can be used again.
//! - **U2** Checksums are looked up before the data is read. Data reaches the devices before its
//!   checksums are stored, so the data of a found checksum is on the devices.
//! - **U3** A sector without a checksum counts as right if its device has missed no transaction
//!   (`volume::DeviceTrust`). The rule holds even if neighbouring sectors have checksums.
//!
//! The scrub works beside writers. On a read-only volume it repairs nothing.

use buttress_base::thread::ScopedJoinHandle;
use std::sync::atomic::{AtomicUsize, Ordering};

use buttress_format::{Chunk, Extent, Header, Logical, header, limits};
use buttress_volume::{DeviceTrust, SOON_MAX, Volume};

use buttress_txn::{Result, View};

use crate::bound::{name, steps_through};
use crate::found::{FoundExtent, STEP_BYTES, extents};
use crate::scrub_progress::Content;
use crate::scrub_rows::Striped;
use crate::{Maintenance, ScrubOptions, ScrubProgress};

/// The number of data bytes in one read.
const RUN_BYTES: u64 = 1 << 20;
/// The most threads that check at the same time. Eight threads keep the devices busy.
const THREADS_MAX: usize = 8;

/// The way in which a group is scrubbed.
#[derive(Clone, Copy)]
struct How<'h> {
    repairs: bool,
    /// Whether the group was not written since its scrub began.
    is_still: &'h (dyn Fn() -> bool + Sync),
}

impl Maintenance {
    /// Checks every copy of everything in use, superblocks first. `watch` is often called with the
    /// progress, and the scrub ends if it returns `false`. Returns the progress, and whether the
    /// scrub was complete.
    ///
    /// After a complete scrub, devices that had missed transactions are trusted again. For this
    /// effect the scrub must repair, begin at address 0, be complete and leave no error.
    ///
    /// # Errors
    ///
    /// When the extent tree cannot be read, or a commit had failed.
    pub fn scrub(
        &self,
        options: ScrubOptions,
        watch: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<(ScrubProgress, bool)> {
        self.engine().know_groups()?;
        let repairs = !options.read_only && self.engine().read_only().is_none();
        let mut progress = ScrubProgress { position: options.from, ..ScrubProgress::default() };
        for (group, used) in self.engine().commits().committed_groups() {
            // On a damaged volume the sum of the recorded sizes may exceed 64 bits.
            progress.total = progress.total.saturating_add(used);
            let copies = u64::from(self.volume().mirrors(group.start));
            progress.total_copies =
                progress.total_copies.saturating_add(used.saturating_mul(copies));
            if group.end() <= options.from {
                progress.done = progress.done.saturating_add(used);
            }
        }
        self.scrub_superblocks(repairs, &mut progress)?;
        let chunks = self.volume().chunks();
        for chunk in chunks.iter() {
            let end = chunk.logical.end(chunk.len);
            let wanted = progress.position < end && options.hold_groups;
            let held = wanted
                .then(|| {
                    self.engine().allocation().hold_for_scrub(
                        self.engine().storage(),
                        self.engine().commits(),
                        self.engine().reservations(),
                        chunk.logical,
                    )
                })
                .flatten();
            progress.groups_held += u64::from(held.is_some());
            let is_still = &|| match &held {
                Some(held) => held.is_held(),
                None => options.hold_groups && self.engine().read_only().is_some(),
            };
            let how = How { repairs, is_still };
            // A step over rows leaves out the last row, which the next step examines whole.
            let most = steps_through(chunk.len, STEP_BYTES / 2);
            let mut bound = self.loops().begin(name::SCRUB, most);
            while progress.position < end {
                bound.step()?;
                let from = progress.position.max(chunk.logical);
                let row = self.volume().row_bytes(chunk.logical);
                let striped = row.map(|row| Striped {
                    chunk: Extent::new(chunk.logical, chunk.len),
                    flags: chunk.flags,
                    row,
                });
                progress.position = match striped {
                    Some(striped) => self.scrub_rows(striped, from, repairs, &mut progress)?,
                    None => self.scrub_step(from, end, how, &mut progress)?,
                };
                note_places(chunk, &mut progress);
                if !watch(&progress) {
                    return Ok((progress, false));
                }
            }
        }
        if repairs && options.from == Logical(0) && progress.uncorrectable_errors == 0 {
            self.trust_again()?;
        }
        // Other work changes the used space during a scrub. At the end `total` becomes the number
        // of checked bytes, so that a progress bar ends full.
        progress.total = progress.done;
        progress.total_copies = progress.data_bytes_scrubbed + progress.tree_bytes_scrubbed;
        Ok((progress, true))
    }

    /// Scrubs some extents from an address on, and returns where to continue.
    fn scrub_step(
        &self,
        from: Logical,
        end: Logical,
        how: How<'_>,
        progress: &mut ScrubProgress,
    ) -> Result<Logical> {
        let view = self.engine().view();
        let (found, next) = extents(&view, from, end)?;
        progress.done += found.iter().map(|one| one.extent.len).sum::<u64>();
        progress.data_extents_scrubbed +=
            found.iter().filter(|one| one.level.is_none()).count() as u64;
        let pieces = pieces(&found);
        let mut rest = &pieces[..];
        while !rest.is_empty() {
            let (batch, after) = rest.split_at(self.batch_len(rest));
            let extents: Vec<_> = batch.iter().map(|piece| piece.extent).collect();
            self.volume().read_copies_soon(&extents);
            self.scrub_pieces(&view, batch, how, progress)?;
            rest = after;
        }
        Ok(next)
    }

    /// The number of pieces to scrub next. If some device gains by reading in advance, all copies
    /// of these pieces have at most [`SOON_MAX`] bytes. If no device gains by it, all pieces are
    /// scrubbed next.
    fn batch_len(&self, pieces: &[FoundExtent]) -> usize {
        if !self.volume().gains_by_batches() {
            return pieces.len();
        }
        let mut room = SOON_MAX;
        let fits = |piece: &&FoundExtent| {
            let copies = u64::from(self.volume().mirrors(piece.extent.start));
            let bytes = piece.extent.len.saturating_mul(copies);
            let is_in = room >= bytes;
            room = room.saturating_sub(bytes);
            is_in
        };
        pieces.iter().take_while(fits).count().max(1)
    }

    /// Scrubs pieces by several threads.
    fn scrub_pieces(
        &self,
        view: &View,
        pieces: &[FoundExtent],
        how: How<'_>,
        progress: &mut ScrubProgress,
    ) -> Result<()> {
        let next_piece = AtomicUsize::new(0);
        let work = || -> Result<ScrubProgress> {
            let mut mine = ScrubProgress::default();
            while let Some(piece) = pieces.get(next_piece.fetch_add(1, Ordering::Relaxed)) {
                match piece.level {
                    Some(level) => self.scrub_node(piece, level, how.repairs, &mut mine)?,
                    None => self.scrub_data(view, piece.extent, how, &mut mine)?,
                }
            }
            Ok(mine)
        };
        let threads = buttress_base::thread::parallelism();
        let threads = threads.min(THREADS_MAX).min(pieces.len());
        let done: Vec<Result<ScrubProgress>> = buttress_base::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
            let mine = work();
            let join = |other: ScopedJoinHandle<'_, _>| {
                other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            others.into_iter().map(join).chain([mine]).collect()
        });
        for part in done {
            progress.sum(&part?);
        }
        Ok(())
    }

    fn scrub_node(
        &self,
        one: &FoundExtent,
        level: u8,
        repairs: bool,
        progress: &mut ScrubProgress,
    ) -> Result<()> {
        let geometry = *self.geometry();
        let size = geometry.csum.size();
        let verify = |_: usize, bytes: &[u8]| -> std::result::Result<(), &'static str> {
            let header = Header::parse(bytes).map_err(|_| "short")?;
            if geometry.csum.digest(&bytes[32..])[..size] != bytes[..size] {
                return Err("checksum");
            }
            let right = header.bytenr == one.extent.start
                && header.generation == one.generation
                && header.level == level
                && geometry.is_own(header.fsid)
                && bytes.len() >= header::HEADER_LEN;
            if right { Ok(()) } else { Err("header") }
        };
        let unit = geometry.nodesize as usize;
        let compared = self.volume().verify_copies(one.extent, unit, repairs, verify)?;
        progress.add(&compared, Content::Nodes);
        progress.tree_extents_scrubbed += 1;
        Ok(())
    }

    fn scrub_data(
        &self,
        view: &View,
        run: Extent,
        How { repairs, is_still }: How<'_>,
        progress: &mut ScrubProgress,
    ) -> Result<()> {
        let geometry = *self.geometry();
        let (sector, size) = (geometry.sectorsize as usize, geometry.csum.size());
        let sums = self.engine().read_csums(view, run)?;
        let has_sum = |index: usize| sums.sector(index).is_some();
        let mut first = 0;
        while first < sums.sectors() {
            let known = has_sum(first);
            let alike = (first..sums.sectors()).take_while(|index| has_sum(*index) == known);
            let count = alike.count();
            let start = run.start.end((first * sector) as u64);
            let part = Extent::new(start, (count * sector) as u64);
            if known {
                let verify = |at: usize, bytes: &[u8]| match sums.sector(first + at / sector) {
                    Some(sum) if geometry.csum.digest(bytes)[..size] != *sum => Err("checksum"),
                    _ => Ok(()),
                };
                let compared = self.volume().verify_copies(part, sector, repairs, verify)?;
                progress.add(&compared, Content::Data);
            } else {
                progress.no_csum += count as u64;
                if repairs {
                    for (device, rewritten) in self.volume().catch_up(part, 16 * sector)? {
                        progress.corrected_errors += rewritten;
                        progress.on(device).corrected_errors += rewritten;
                    }
                }
                if is_still() {
                    let unlike = self.volume().unlike(part, sector)?;
                    progress.no_csum_unlike += if is_still() { unlike } else { 0 };
                }
                // Checks whether each copy can be read at all.
                let compared =
                    self.volume().verify_copies(part, sector, repairs, |_, _| Ok::<_, &str>(()))?;
                progress.add(&compared, Content::Unsummed(sector as u64));
            }
            first += count;
        }
        Ok(())
    }

    /// Checks every copy of every superblock, and rewrites damaged ones.
    fn scrub_superblocks(&self, repairs: bool, progress: &mut ScrubProgress) -> Result<()> {
        // Superblocks of seeds are not repaired.
        let mut bad = 0;
        self.engine().commits().between_commits(|superblock| {
            for device in self.volume().devices().iter().filter(|device| !device.is_lost()) {
                let last = device.seed.unwrap_or(superblock.generation);
                let end = device.current_item().total_bytes.min(device.device.len());
                for (mirror, offset) in limits::SUPER_OFFSETS.into_iter().enumerate() {
                    if offset + limits::SUPER_SIZE as u64 >= end {
                        continue;
                    }
                    let found = Volume::read_superblock_mirror(&*device.device, mirror);
                    // The other copies are one commit behind until the volume is closed.
                    let oldest = last.0.saturating_sub(u64::from(mirror > 0));
                    let right = found.is_ok_and(|found| found.generation.0 >= oldest);
                    if right {
                        continue;
                    }
                    let (repaired, counts) = (repairs && !device.is_seed(), progress.on(device.id));
                    counts.super_errors += 1;
                    counts.corrected_errors += u64::from(repaired);
                    bad += u64::from(repaired);
                }
            }
        });
        progress.super_errors +=
            progress.devices.values().map(|device| device.super_errors).sum::<u64>();
        if bad > 0 {
            self.engine().settle_superblocks()?;
            progress.corrected_errors += bad;
        }
        Ok(())
    }

    /// Marks devices that had missed transactions as trusted. The caller has checked all their
    /// copies.
    fn trust_again(&self) -> Result<()> {
        let devices = self.volume().devices();
        let stale: Vec<_> = devices
            .iter()
            .filter(|d| matches!(d.trust(), DeviceTrust::Behind | DeviceTrust::Stale))
            .collect();
        if stale.is_empty() {
            return Ok(());
        }
        // Rewritten data must be durable before the superblock of its device becomes current.
        self.volume().flush()?;
        for device in stale {
            tracing::info!(id = %device.id, "a device that missed transactions has them now");
            device.heal();
        }
        self.engine().settle_superblocks()
    }
}

/// Notes the address on each device that the scrub has reached in a chunk.
fn note_places(chunk: &Chunk, progress: &mut ScrubProgress) {
    let within = progress.position.distance(chunk.logical) / chunk.data_stripes().max(1);
    for stripe in &chunk.stripes {
        if let Some(device) = progress.devices.get_mut(&stripe.device) {
            device.last_physical = stripe.offset + within.min(chunk.stripe_bytes());
        }
    }
}

/// Divides extents into pieces that are read at once: each node alone, and data in runs, which may
/// cross extents.
pub(crate) fn pieces(found: &[FoundExtent]) -> Vec<FoundExtent> {
    let mut pieces: Vec<FoundExtent> = Vec::with_capacity(found.len());
    for one in found {
        let mut rest = one.extent;
        if let (None, Some(last)) = (one.level, pieces.last_mut())
            && last.level.is_none()
            && last.extent.end() == rest.start
            && last.extent.len < RUN_BYTES
        {
            let joined = rest.len.min(RUN_BYTES - last.extent.len);
            last.extent.len += joined;
            rest = Extent::new(rest.start.end(joined), rest.len - joined);
        }
        let step = if one.level.is_some() { rest.len } else { RUN_BYTES };
        while rest.len > 0 {
            let len = step.min(rest.len);
            pieces.push(FoundExtent { extent: Extent::new(rest.start, len), ..*one });
            rest = Extent::new(rest.start.end(len), rest.len - len);
        }
    }
    pieces
}
