//! Streams of subvolumes, as `btrfs send` writes them and `btrfs receive` reads them.
//!
//! # Where things are
//!
//! ```text
//! stream      the format: commands as checked types, reading, writing, printing
//! sender      reads a subvolume, and perhaps an older one; writes a stream
//! receiver    reads a stream; makes subvolumes
//! ```

pub mod stream;

mod error;
mod receiver;
mod sender;

pub use error::{Error, Result};
pub use receiver::{Event, Home, ReceiveOptions, Subvolumes, receive, receive_with};
pub use sender::{SendOptions, Sendable, send, sendable};
