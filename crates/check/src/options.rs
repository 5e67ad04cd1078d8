//! Options of a check, and reports of its progress.

/// What to check, and with how much memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether to read every copy of all data and verify the checksums. Also reads every copy of
    /// every node.
    pub check_data_csum: bool,
    /// The largest number of bytes that sorting holds in memory. More records go to temporary
    /// files.
    pub memory_bytes: u64,
    /// The number of threads that walk trees; one for each processor if `None`, within a limit.
    pub threads: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self { check_data_csum: false, memory_bytes: 512 << 20, threads: None }
    }
}

impl Options {
    /// Returns the most thorough options, for tests.
    #[must_use]
    pub fn thorough() -> Self {
        Self { check_data_csum: true, ..Self::default() }
    }
}

/// The parts of a check, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// Superblocks and the log.
    Superblocks,
    /// Chunks and devices.
    Chunks,
    /// The root tree.
    Roots,
    /// All trees, and the files in them.
    Trees,
    /// Extents and their users, block groups, free space.
    Extents,
    /// Checksums, compared with the data if [`Options::check_data_csum`] is set.
    Csums,
    /// References of subvolumes.
    RootRefs,
    /// Quotas.
    Quotas,
}

impl Step {
    /// Every step.
    pub const ALL: [Self; 8] = [
        Self::Superblocks,
        Self::Chunks,
        Self::Roots,
        Self::Trees,
        Self::Extents,
        Self::Csums,
        Self::RootRefs,
        Self::Quotas,
    ];

    /// Returns the number of the step, from one.
    #[must_use]
    pub fn number(self) -> usize {
        self as usize + 1
    }

    /// Returns the title of the step, as `btrfs check` prints it.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Superblocks => "superblocks and log",
            Self::Chunks => "chunks and devices",
            Self::Roots => "root items",
            Self::Trees => "trees and fs roots",
            Self::Extents => "extents and free space",
            Self::Csums => "csums",
            Self::RootRefs => "root refs",
            Self::Quotas => "quota groups",
        }
    }
}

/// Receives the progress of a check, during the call.
pub trait Progress: Sync {
    /// Begins a step. `total_bytes` is the rough sum of all later [`Progress::advance`] calls of
    /// the step.
    fn step(&self, step: Step, total_bytes: u64);
    /// Adds bytes that were checked.
    fn advance(&self, bytes: u64);
}

/// Progress that is not reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn step(&self, _: Step, _: u64) {}
    fn advance(&self, _: u64) {}
}
