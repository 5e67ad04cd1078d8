//! Volumes are damaged in every way, and what must come back does.

mod campaign;
mod content;
mod deleted;
mod facts;
mod mended;
mod volume;
