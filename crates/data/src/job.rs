//! The data of one file during writeback. The steps of writeback pass the job on.
//!
//! # Invariants
//!
//! - **J1** A job holds the claim of its file from the step that takes its runs to the step that
//!   finishes its ordered extents.

use std::ops::Range;

use buttress_format::{Compression, Extent, Logical};
use buttress_txn::{DataReservation, MetaReservation, NocowWriter, SharedRows};

use crate::claim::Claim;
use crate::codec::Codec;
use crate::dirty::Run;
use crate::error::Error;
use crate::file::File;

/// The way to compress a file's data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) codec: Codec,
    /// Whether data is compressed even if the sample says that it will not shrink.
    pub(crate) forced: bool,
    /// Whether the file has the compression property. If so, incompressible data does not set the
    /// inode's flag `NOCOMPRESS`.
    pub(crate) kept: bool,
}

impl Choice {
    /// A choice of this codec that ignores the sample.
    pub(crate) fn forced(codec: Codec) -> Self {
        Self { codec, forced: true, kept: false }
    }
}

/// A compressed part of a file, padded to whole sectors unless it becomes an inline extent.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) range: Range<u64>,
    pub(crate) kind: Compression,
    pub(crate) bytes: Vec<u8>,
    pub(crate) sums: Vec<u8>,
}

/// The preferred address of a file's next extent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The address after the file's last extent, if that is known.
    pub(crate) at: Option<Logical>,
    /// Without `at`, the allocator keeps extents of one stream together and apart from extents of
    /// other files.
    pub(crate) stream: u64,
}

impl File {
    pub(crate) fn goal(&self) -> Goal {
        Goal { at: self.dirty.lock().goal, stream: self.stream() }
    }

    pub(crate) fn set_goal(&self, goal: Goal) {
        self.dirty.lock().goal = goal.at;
    }
}

/// Reservation, preferred address and rows for new extents of one file.
pub(crate) struct Supply<'s, 'e> {
    pub(crate) reserved: DataReservation,
    pub(crate) goal: Goal,
    /// The rows of parity data that this call fills. All files that the call writes share these
    /// rows.
    pub(crate) rows: &'s mut SharedRows<'e>,
}

/// The extent that a part of a run is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A whole new extent.
    Fresh(Extent),
    /// An extent that the file already has at this offset: a write in place.
    InPlace {
        /// Address of the first byte to write.
        disk: Logical,
        /// Whether the extent was preallocated and never written.
        prealloc: bool,
    },
}

impl Target {
    /// Whether the file already has this extent as data, so that its items do not change.
    pub(crate) fn is_overwrite(self) -> bool {
        matches!(self, Self::InPlace { prealloc: false, .. })
    }
}

/// A part of a run with its address.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) range: Range<u64>,
    pub(crate) target: Target,
    pub(crate) sums: Vec<u8>,
    /// The compressed bytes to write instead of the range's own bytes.
    pub(crate) packed: Option<Packed>,
    /// The right that keeps other threads from moving the extent that is written in place. It is
    /// held until the new data is visible.
    pub(crate) _right: Option<NocowWriter>,
}

impl Placed {
    pub(crate) fn disk(&self) -> Extent {
        match self.target {
            Target::Fresh(extent) => extent,
            Target::InPlace { disk, .. } => {
                Extent { start: disk, len: self.range.end - self.range.start }
            }
        }
    }
}

/// How a run is stored.
pub(crate) enum Plan {
    /// As an inline extent in the tree, compressed or not.
    Inline(Option<Packed>),
    /// As extents, in parts with addresses.
    Extents(Vec<Placed>),
}

/// One file's round of writeback.
pub(crate) struct Job<'f> {
    pub(crate) file: &'f File,
    /// Length and flags of the file when its runs were taken.
    pub(crate) size: u64,
    pub(crate) flags: u64,
    /// The compression of the file's runs.
    pub(crate) choice: Option<Choice>,
    /// Taken runs that have no address yet, each with its compressed parts.
    pub(crate) taken: Vec<(Run, Vec<Packed>)>,
    pub(crate) runs: Vec<(Run, Plan)>,
    pub(crate) failed: Option<Error>,
    /// The space that was reserved for the data.
    pub(crate) reserved: Option<DataReservation>,
    pub(crate) metadata: Option<MetaReservation>,
    /// Whether the file had more dirty data when the job took its runs. In that case `metadata`
    /// covers all of that data.
    pub(crate) is_part: bool,
    pub(crate) claim: Claim<'f>,
}

impl<'f> Job<'f> {
    /// A job of new extents that have addresses.
    pub(crate) fn of_extents(
        file: &'f File,
        size: u64,
        flags: u64,
        runs: Vec<(Run, Vec<Placed>)>,
        metadata: Option<MetaReservation>,
        claim: Claim<'f>,
    ) -> Self {
        let runs = runs.into_iter().map(|(run, placed)| (run, Plan::Extents(placed))).collect();
        Self {
            file,
            size,
            flags,
            choice: None,
            taken: Vec::new(),
            runs,
            failed: None,
            reserved: None,
            metadata,
            is_part: false,
            claim,
        }
    }

    /// The job's extents, in order. `None` if an extent is not new or is compressed.
    pub(crate) fn new_extents(&self) -> Option<Vec<&Placed>> {
        let mut extents = Vec::with_capacity(self.runs.len());
        for (_, plan) in &self.runs {
            let Plan::Extents(placed) = plan else { return None };
            extents.extend(placed);
        }
        let is_new =
            |part: &&Placed| matches!(part.target, Target::Fresh(_)) && part.packed.is_none();
        (self.failed.is_none() && !extents.is_empty() && extents.iter().all(is_new))
            .then_some(extents)
    }

    /// Takes the extents and the claim out of the job.
    pub(crate) fn into_extents(self) -> (Vec<(Run, Vec<Placed>)>, Claim<'f>) {
        let extents = |(run, plan)| match plan {
            Plan::Extents(placed) => (run, placed),
            Plan::Inline(_) => unreachable!("it is made of extents alone"),
        };
        (self.runs.into_iter().map(extents).collect(), self.claim)
    }

    /// Marks the job as failed: none of its data will be written. Keeps the first error.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Bytes of taken runs that have no address yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.taken.iter().map(|(run, _)| run.len).sum()
    }
}
