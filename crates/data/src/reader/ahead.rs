//! Read-ahead: a thread reads data before a reader asks for it, and no reader waits for this
//! thread.
//!
//! # Invariants
//!
//! - **B1** Read-ahead works as a reader. It finds extents with the file's `extents` held, and
//!   reads as a trial (`read_plan`). It never waits for a thread that changes the file or reads the
//!   same data.
//! - **B2** Read-ahead continues over extents and holes, and ends at the end of the file. It never
//!   reads device data that lies between two extents of the file.
//! - **B3** A failure here is reported to no reader. A reader that needs the bytes reads them
//!   itself.
//! - **B4** A late read-ahead reads nothing: data that its reader has passed would evict data that
//!   other readers use.

use std::ops::Range;

use buttress_format::{Body, Compression, Extent, Logical};

use super::read_plan::{PackedPart, Source, Validation};
use crate::error::Result;
use crate::file::File;
use crate::pages::Purpose;
use crate::reader::Reader;

/// A range of at least this many bytes belongs to a long sequence. Read-ahead then reads whole
/// regions.
const LONG: u64 = 512 << 10;

/// Ranges of a file that will probably be asked for soon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use = "it is read only by a call of `read_ahead`"]
pub struct Ahead(pub(crate) Vec<Range<u64>>);

impl Ahead {
    /// Whether there are no ranges.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Reader {
    /// Offers a job to a read-ahead thread. Returns whether the job was accepted. An accepted job
    /// may still never run.
    pub fn offer(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.helpers.offer(job)
    }

    /// Ends the threads that read ahead. Their current jobs are finished first.
    pub fn stop_helpers(&self) {
        self.helpers.stop();
    }

    /// Reads ranges into the caches. Skips data that is cached or being read.
    pub fn read_ahead(&self, file: &File, ahead: &Ahead) {
        let Some(extents) = file.extents.try_read() else { return };
        if file.dirty.lock().has_unwritten() {
            return;
        }
        let view = self.engine.view();
        let source = Source::now(&view, file, Validation::Trial);
        let end = self.params.ceil(file.size());
        let (mut places, mut packed) = (Vec::new(), Vec::new());
        for range in &ahead.0 {
            let range = file.streams.lock().awaited(range);
            let range = range.start..range.end.min(end);
            if range.is_empty() {
                continue;
            }
            if let Err(error) = self.find_ahead(&source, &range, &mut places, &mut packed) {
                tracing::debug!(%error, ino = %file.ino, "reading ahead failed");
                return;
            }
        }
        drop(extents);
        if self.pages.is_on() {
            let is_absent = |place: &&Place| !self.pages.holds(Logical(place.part.start));
            let soon: Vec<_> = places.iter().filter(is_absent).map(Place::extent).collect();
            self.engine.volume().read_soon(&soon);
        }
        let outcome = places
            .iter()
            .try_for_each(|place| self.read_place_ahead(&source, place))
            .and_then(|()| self.read_compressed_ahead(&source, &packed));
        if let Err(error) = outcome {
            tracing::debug!(%error, ino = %file.ino, "reading ahead failed");
        }
    }

    /// Finds the parts of uncompressed extents, and the compressed extents, in a range.
    fn find_ahead(
        &self,
        source: &Source<'_>,
        range: &Range<u64>,
        places: &mut Vec<Place>,
        packed: &mut Vec<PackedPart>,
    ) -> Result<()> {
        self.params.for_each_mapping(source.view, source.file, range.clone(), |mapping| {
            let (low, high) = (mapping.offset.max(range.start), mapping.end.min(range.end));
            match &mapping.extent.body {
                Body::Regular(region) if region.disk.0 == 0 => {}
                Body::Regular(region) if mapping.extent.compression == Compression::None => {
                    let place = |at: u64| region.disk.0 + region.offset + (at - mapping.offset);
                    let is_long = range.end - range.start >= LONG;
                    let reach = self.params.ceil(place(if is_long { mapping.end } else { high }));
                    places.push(Place { part: self.params.floor(place(low))..place(high), reach });
                }
                // Unpack the whole extent: a later read of any part finds it.
                Body::Regular(_) => {
                    let (low, high) = (mapping.offset, mapping.offset + 1);
                    packed.push(PackedPart { mapping, low, high });
                }
                Body::Prealloc(_) | Body::Inline(_) => {}
            }
            Ok(true)
        })
    }

    /// The maximum number of bytes that are read ahead at once. More bytes would evict the run that
    /// a reader is using.
    pub(crate) fn ahead_bytes_max(&self) -> u64 {
        self.params.ceil(self.pages.widest_window()).max(self.params.sector)
    }

    fn read_place_ahead(&self, source: &Source<'_>, place: &Place) -> Result<()> {
        let mut at = place.part.start;
        let most = self.ahead_bytes_max();
        while at < place.part.end && self.pages.is_on() {
            at = match self.pages.claim(Logical(at), (place.reach - at).min(most)) {
                Ok(claim) => {
                    let end = claim.extent().end().0;
                    self.load(source, claim, Purpose::Later)?;
                    end
                }
                Err(there) => there.0,
            };
        }
        Ok(())
    }
}

impl Place {
    fn extent(&self) -> Extent {
        Extent::new(Logical(self.part.start), self.part.end - self.part.start)
    }
}

/// A part of an extent by its addresses on the volume, and the address up to which it may be read.
struct Place {
    part: Range<u64>,
    reach: u64,
}
