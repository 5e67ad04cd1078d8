//! The options of a new volume that [`CreateOptions::with`](crate::CreateOptions::with) sets.

pub use buttress_format::{CsumType, Profile};
pub use buttress_fs::make::{FEATURES, Feature, Features, MakeError, MakeOptions};
