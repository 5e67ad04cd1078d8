//! Streams of subvolumes: what `btrfs send` writes and `btrfs receive` reads.
//!
//! # Where things are
//!
//! ```text
//! stream      the format: commands as checked types, reading, writing, printing
//! sender      two subvolumes in, a stream out
//! ```

pub mod stream;

mod error;
mod sender;

pub use error::{Error, Result};
pub use sender::{SendOptions, Sendable, send, sendable};
