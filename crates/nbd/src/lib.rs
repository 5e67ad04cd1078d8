//! The NBD door: one device for clients of the Network Block Device protocol.
//!
//! Protocol in, calls to a [`buttress_block::Device`] out. [`Server::bind`] takes a device and
//! addresses, [`Server::serve`] answers until its [`Stopper`] is used. The protocol is the fixed
//! newstyle handshake and, where the client wants them, structured replies and `base:allocation`.
//!
//! # Promises
//!
//! - What was answered before a flush was asked for is durable when the flush is answered, whichever
//!   connections the two came over. So clients may open several.
//! - Requests of one connection are served side by side and answered as they are done.
//! - Nothing a client says is believed: every length is bounded before memory is taken for it, every
//!   range lies within the device before the device hears of it.
//! - A client that is slow, silent or gone holds up nobody else, and memory and threads have limits:
//!   see [`Options`].
//!
//! # What is not spoken
//!
//! TLS (`NBD_OPT_STARTTLS` is refused in words), extended headers, `NBD_CMD_CACHE`, resizing.

#![forbid(unsafe_code)]

mod error;
mod wire;

mod errno;
mod export;
mod flush;

pub mod terms;

pub mod handshake;
mod request;
pub mod transmission;

mod address;
mod connections;
mod server;
mod stream;

pub use address::Address;
pub use error::{Disconnect, Error};
pub use export::{Export, Figures};
pub use server::{Options, Server, Stopper};
