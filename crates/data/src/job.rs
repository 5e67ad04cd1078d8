//! The data of one file on its way to the device, as the steps of writeback hand it on.
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

/// How a file's data shall be compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    pub(crate) codec: Codec,
    /// Whether data is compressed even if the sample says that it will not shrink.
    pub(crate) forced: bool,
    /// Whether the file has a property: incompressible data does not set the file's flag then.
    pub(crate) kept: bool,
}

impl Choice {
    /// This codec, whatever the sample says.
    pub(crate) fn forced(codec: Codec) -> Self {
        Self { codec, forced: true, kept: false }
    }
}

/// A part of a file, compressed; padded to whole sectors unless it is to be inline.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) range: Range<u64>,
    pub(crate) kind: Compression,
    pub(crate) bytes: Vec<u8>,
    pub(crate) sums: Vec<u8>,
}

/// Where a file's next extent would best lie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// Behind its last one, if that is known.
    pub(crate) at: Option<Logical>,
    /// What keeps its extents together otherwise, apart from those of other files.
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

/// What new extents of one file are made of.
pub(crate) struct Supply<'s, 'e> {
    pub(crate) reserved: DataReservation,
    pub(crate) goal: Goal,
    /// The rows of everything that is written in the same call.
    pub(crate) rows: &'s mut SharedRows<'e>,
}

/// Where a part of a run goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A whole new extent.
    Fresh(Extent),
    /// Into an extent that the file already shows at that place.
    InPlace {
        /// Its first byte on disk.
        disk: Logical,
        /// Whether it was preallocated and never written.
        prealloc: bool,
    },
}

impl Target {
    /// Whether the file shows the extent already, and goes on showing the same.
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
    /// What goes to the device instead of the range's own bytes.
    pub(crate) packed: Option<Packed>,
    /// The right that keeps other threads from moving the extent that is written in place. Held
    /// until the new data is visible.
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

/// What becomes of a run.
pub(crate) enum Plan {
    /// Content of an item in the tree, compressed or as it is.
    Inline(Option<Packed>),
    /// Parts with addresses.
    Extents(Vec<Placed>),
}

/// One file's round of writeback.
pub(crate) struct Job<'f> {
    pub(crate) file: &'f File,
    /// Length and flags of the file when its runs were taken.
    pub(crate) size: u64,
    pub(crate) flags: u64,
    /// How its runs shall be compressed.
    pub(crate) choice: Option<Choice>,
    /// The runs that were taken and have no place yet, each with those parts that were compressed.
    pub(crate) taken: Vec<(Run, Vec<Packed>)>,
    pub(crate) runs: Vec<(Run, Plan)>,
    pub(crate) failed: Option<Error>,
    /// The space that was reserved for the data.
    pub(crate) reserved: Option<DataReservation>,
    pub(crate) metadata: Option<MetaReservation>,
    /// Whether the file had more dirty data when this was taken. `metadata` is for all of it then.
    pub(crate) is_part: bool,
    pub(crate) claim: Claim<'f>,
}

impl<'f> Job<'f> {
    /// A job with new extents that have their places.
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

    /// Its extents, in order. `None` unless all are new extents with data that is written as it is.
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

    /// Takes the extents out of the job, and the claim.
    pub(crate) fn into_extents(self) -> (Vec<(Run, Vec<Placed>)>, Claim<'f>) {
        let extents = |(run, plan)| match plan {
            Plan::Extents(placed) => (run, placed),
            Plan::Inline(_) => unreachable!("it is made of extents alone"),
        };
        (self.runs.into_iter().map(extents).collect(), self.claim)
    }

    /// Nothing of it will be written.
    pub(crate) fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
    }

    /// Bytes that were taken and have no place yet.
    pub(crate) fn bytes(&self) -> u64 {
        self.taken.iter().map(|(run, _)| run.len).sum()
    }
}
