//! Progress reports of a rescue.

/// A step of a rescue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The devices are searched for nodes.
    Scan,
    /// Names and inodes of a subvolume are read.
    Index,
    /// Files are written, or verified.
    Files,
}

impl Step {
    /// Describes the step.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Scan => "scanning",
            Self::Index => "names",
            Self::Files => "files",
        }
    }
}

/// Receives progress reports.
pub trait Progress: Sync {
    /// A step begins. The values passed to [`Progress::advance`] add up to about `total_bytes`.
    fn step(&self, step: Step, total_bytes: u64);
    /// The work has processed `bytes` more bytes.
    fn advance(&self, bytes: u64);
    /// Whether to go on. If not, files that were restored so far stay, and a later run continues
    /// from there.
    fn goes_on(&self) -> bool {
        true
    }
}

/// Ignores all progress reports.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn step(&self, _: Step, _: u64) {}
    fn advance(&self, _: u64) {}
}
