//! Figures that a running mount or server reports: names and values, in the order in which they are
//! shown.

pub mod mount;
pub mod threads;

use serde_json::Value;

/// The figures of one part.
pub type Figures = Vec<(String, Value)>;
