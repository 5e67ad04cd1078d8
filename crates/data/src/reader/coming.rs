//! Says to distant devices what a sequential reader will ask for next ([`Volume::expect`]), and
//! reads the metadata of that in advance: extent items and checksums.
//!
//! # Invariants
//!
//! - **C3** No reader waits for this work, and no failure here is reported to a reader. The work
//!   never waits for a thread that changes the file, and no such thread waits for it. So what it
//!   says may be old, and only hints come of it.
//! - **C4** What the page cache has is not said: its readers ask no device.
//!
//! [`Volume::expect`]: buttress_volume::Volume::expect

use std::ops::Range;

use buttress_format::{Body, Compression, Extent, Logical};
use buttress_txn::View;

use super::read_plan::is_checked;
use crate::error::Result;
use crate::extent_map::disk_extent;
use crate::file::File;
use crate::reader::Reader;
use crate::sequential::Coming;

/// The most extents that are looked at for one announcement.
const EXTENTS_MAX: usize = 4096;
/// Bytes of an extent that are looked up in the page cache by their beginning.
const STEP: u64 = 128 << 10;

impl Reader {
    /// Notes a read that is about to be made. Returns what its reader will ask for, if a device
    /// gains by knowing that. The caller passes it to [`announce`](Self::announce) on another
    /// thread.
    #[must_use]
    pub fn coming(&self, file: &File, offset: u64, len: usize) -> Option<Coming> {
        if !self.is_distant {
            return None;
        }
        let size = file.size();
        let end = offset.saturating_add(len as u64).min(size);
        let most = self.volume.ahead_bytes();
        if offset >= end || most == 0 {
            return None;
        }
        file.positions.lock().note(&(offset..end), size, most)
    }

    /// Says to the devices what comes, and reads the checksums of it (C3).
    pub fn announce(&self, file: &File, coming: &Coming) {
        // Extents that are about to be replaced, or are being changed, are of no use.
        if file.extents.try_read().is_none() || file.dirty.lock().has_unwritten() {
            return;
        }
        let view = self.engine.view();
        let done = self.say(&view, file, coming).and_then(|()| self.read_sums(&view, file, coming));
        if let Err(error) = done {
            tracing::debug!(%error, ino = %file.ino, "reading ahead failed");
        }
    }

    fn say(&self, view: &View, file: &File, coming: &Coming) -> Result<()> {
        let extents = self.stored(view, file, &coming.data)?;
        self.volume.expect(&self.absent(&extents));
        Ok(())
    }

    /// The parts of extents that the page cache lacks (C4).
    fn absent(&self, extents: &[Extent]) -> Vec<Extent> {
        let mut absent: Vec<Extent> = Vec::new();
        let steps = extents.iter().flat_map(steps);
        for step in steps.filter(|step| !self.pages.is_on() || !self.pages.holds(step.start)) {
            match absent.last_mut() {
                Some(last) if last.end() == step.start => last.len += step.len,
                _ => absent.push(step),
            }
        }
        absent
    }

    /// Reads checksums, which then are in memory: leaves of the checksum tree are kept.
    fn read_sums(&self, view: &View, file: &File, coming: &Coming) -> Result<()> {
        if self.params.options.ignore_csums || !is_checked(file) {
            return Ok(());
        }
        for extent in self.absent(&self.stored(view, file, &coming.sums)?) {
            self.engine.read_csums(view, extent)?;
        }
        Ok(())
    }

    /// The places on the volume of a part of a file, in the order of the file.
    fn stored(&self, view: &View, file: &File, range: &Range<u64>) -> Result<Vec<Extent>> {
        let mut found: Vec<Extent> = Vec::new();
        self.params.for_each_mapping(view, file, range.clone(), |mapping| {
            let (low, high) = (mapping.offset.max(range.start), mapping.end.min(range.end));
            let extent = match &mapping.extent.body {
                Body::Regular(region) if region.disk.0 == 0 => None,
                Body::Regular(region) if mapping.extent.compression == Compression::None => {
                    let place = |at: u64| region.disk.end(region.offset + (at - mapping.offset));
                    let start = place(low);
                    Some(Extent { start, len: self.params.ceil(place(high).0) - start.0 })
                }
                Body::Regular(region) => Some(disk_extent(region)),
                Body::Prealloc(_) | Body::Inline(_) => None,
            };
            match (found.last_mut(), extent) {
                (Some(last), Some(next)) if last.end() == next.start => last.len += next.len,
                (_, next) => found.extend(next),
            }
            Ok(found.len() < EXTENTS_MAX)
        })?;
        Ok(found)
    }
}

/// The parts of an extent that are looked up in the page cache one by one.
fn steps(extent: &Extent) -> impl Iterator<Item = Extent> + use<> {
    let (start, end) = (extent.start.0, extent.end().0);
    let starts = (start..end).step_by(STEP as usize);
    starts.map(move |at| Extent::new(Logical(at), STEP.min(end - at)))
}
