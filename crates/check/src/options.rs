//! What a check is asked for, and how it tells where it is.

/// What to look at, and with how much memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Reads all data, every copy, and verifies its checksums; every copy of every node, too.
    pub check_data_csum: bool,
    /// The most that sorting holds in memory; the rest goes to temporary files.
    pub memory_bytes: u64,
    /// Threads that walk trees; all processors when absent.
    pub threads: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self { check_data_csum: false, memory_bytes: 512 << 20, threads: None }
    }
}

impl Options {
    /// As thorough as can be: for tests.
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
    /// Chunks, devices.
    Chunks,
    /// The root tree.
    Roots,
    /// Every tree, and the files in them.
    Trees,
    /// Extents and their users, block groups, free space.
    Extents,
    /// Checksums; against data where that was asked for.
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

    /// Its number, from one.
    #[must_use]
    pub fn number(self) -> usize {
        self as usize + 1
    }

    /// What it does, in the words of `btrfs check`.
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

/// Is told where a check is, for the length of the call.
pub trait Progress: Sync {
    /// A step begins; `total_bytes` is how much [`Progress::advance`] will add up to, about.
    fn step(&self, step: Step, total_bytes: u64);
    /// So many bytes were looked at.
    fn advance(&self, bytes: u64);
}

/// Progress that goes nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn step(&self, _: Step, _: u64) {}
    fn advance(&self, _: u64) {}
}
