//! The plan of a run of an experiment.
//!
//! # What must hold
//!
//! - A plan holds values of the command line alone, and changes nothing.

use std::path::PathBuf;

use crate::subject::Added;

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A memory-backed folder for images.
    pub dir: PathBuf,
    /// Runs of each subject.
    pub runs: usize,
    /// 1 for the default size of the job. The published size is often larger.
    pub scale: f64,
    /// Only subjects with one of these words as the name, or in it; all when no word is given.
    pub only: Vec<String>,
    /// Also drive Buttress through a mount.
    pub mount: bool,
    /// Mount options for the subjects of Buttress, in addition to the options that these subjects
    /// have.
    pub options: Vec<Added>,
    /// Write each image through before it is used, so that the memory of the image is allocated.
    pub prefault: bool,
    /// The number of simulated processors (`processors`).
    pub processors: Option<usize>,
}

impl Plan {
    /// A number of the job at this scale, at least one.
    #[must_use]
    pub fn scaled(&self, number: u64) -> u64 {
        ((number as f64 * self.scale).round() as u64).max(1)
    }
}
