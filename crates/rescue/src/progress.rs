//! How the work tells where it is.

/// A part of the work.
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
    /// What it does.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Scan => "scanning",
            Self::Index => "names",
            Self::Files => "files",
        }
    }
}

/// Is told where the work is.
pub trait Progress: Sync {
    /// A step begins; `total_bytes` is how much [`Progress::advance`] will add up to, about.
    fn step(&self, step: Step, total_bytes: u64);
    /// So many bytes were looked at.
    fn advance(&self, bytes: u64);
    /// Whether to go on. What is done so far stays, and a later run goes on from there.
    fn goes_on(&self) -> bool {
        true
    }
}

/// Progress that goes nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn step(&self, _: Step, _: u64) {}
    fn advance(&self, _: u64) {}
}
