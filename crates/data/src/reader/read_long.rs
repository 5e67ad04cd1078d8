//! Long reads go straight into the caller's buffer. Concurrent readers of the same data share one
//! read. A read skips the parts that another thread is reading, and continues behind them.
//!
//! # Invariants
//!
//! - **L1** A thread that waits for another thread's claim holds no claim itself.
//! - **L2** A long read leaves nothing in the page cache, except copies of runs for which other
//!   threads wait when the read ends.

use std::ops::Range;

use buttress_base::activity::{self, Cause};
use buttress_format::Logical;

use super::read::check_cancelled;
use super::read_plan::{RUN_BYTES_MAX, Run, Source};
use crate::error::Result;
use crate::pages::{PageLookup, Purpose, RunClaim};
use crate::reader::Reader;

impl Reader {
    /// Reads a run. Parts that are in the page cache are copied from there.
    pub(crate) fn read_long(&self, source: &Source<'_>, run: &Run, out: &mut [u8]) -> Result<()> {
        let end = run.disk + run.len;
        let (low, high) = (self.params.ceil(run.disk), self.params.floor(end));
        if low >= high {
            return self.read_around(source, run, out);
        }
        // Other readers cannot use a partial sector.
        for edge in [run.disk..low, high..end] {
            let (offset, len) = (run.offset + (edge.start - run.disk), edge.end - edge.start);
            if len > 0 {
                let part = Run { offset, disk: edge.start, len, room: 0 };
                self.read_around(source, &part, &mut out[place(run, &edge)])?;
            }
        }
        let mut todo: Vec<_> = std::iter::once(low..high).collect();
        // The waits for other readers are one wait, however often this thread looks.
        let mut waiting = None;
        while !todo.is_empty() {
            let mut busy = Vec::new();
            for part in todo {
                self.read_part(source, run, part, out, &mut busy)?;
            }
            if let Some(first) = busy.first() {
                waiting.get_or_insert_with(|| activity::wait(Cause::Reader));
                self.pages.wait(Logical(first.start));
                check_cancelled()?;
            }
            todo = busy;
        }
        Ok(())
    }

    /// Reads whole sectors of a run, except sectors that another thread reads.
    fn read_part(
        &self,
        source: &Source<'_>,
        run: &Run,
        part: Range<u64>,
        out: &mut [u8],
        busy: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        let mut at = part.start;
        while at < part.end {
            let stop = match self.pages.find(Logical(at), part.end - at, false) {
                PageLookup::Ready { bytes, from } => {
                    let stop = part.end.min(at + (bytes.len() - from) as u64);
                    let out = &mut out[place(run, &(at..stop))];
                    out.copy_from_slice(&bytes[from..from + out.len()]);
                    stop
                }
                PageLookup::Loading { end } => {
                    let stop = part.end.min(end.0);
                    busy.push(at..stop);
                    stop
                }
                PageLookup::Claimed(first) => {
                    let claims = self.claim_on(first, part.end);
                    let stop = claims.last().map_or(at, |last| last.extent().end().0);
                    self.read_sectors(source, at, &mut out[place(run, &(at..stop))], Purpose::Now)?;
                    for claim in claims {
                        let extent = claim.extent();
                        let bytes = &out[place(run, &(extent.start.0..extent.end().0))];
                        claim.publish_copy(bytes);
                    }
                    stop
                }
            };
            at = stop;
        }
        Ok(())
    }

    /// Claims the sectors after a claim, up to the length of one request.
    fn claim_on<'p>(&'p self, first: RunClaim<'p>, end: u64) -> Vec<RunClaim<'p>> {
        let most = end.min(first.extent().start.0 + RUN_BYTES_MAX);
        let mut stop = first.extent().end();
        let mut claims = vec![first];
        while stop.0 < most
            && let Ok(next) = self.pages.claim(stop, most - stop.0)
        {
            stop = next.extent().end();
            claims.push(next);
        }
        claims
    }
}

/// The range of a run's part within the buffer of the run.
fn place(run: &Run, part: &Range<u64>) -> Range<usize> {
    (part.start - run.disk) as usize..(part.end - run.disk) as usize
}
