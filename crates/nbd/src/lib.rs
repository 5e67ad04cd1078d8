//! The NBD front end: one device for clients of the Network Block Device protocol.
//!
//! The front end turns the protocol into calls to a [`buttress_block::Device`]. [`Server::bind`]
//! takes a device and addresses; [`Server::serve`] answers until its [`Stopper`] is used. The
//! protocol is the fixed newstyle handshake and, where the client wants them, structured replies
//! and `base:allocation`.
//!
//! # Guarantees
//!
//! - A flush covers every request that was answered before the flush was requested, on any
//!   connection. So clients may open several connections.
//! - Requests of one connection run in parallel and are answered as they are done.
//! - No client input is trusted. Every length is bounded before memory is taken for it. Every range
//!   is checked before the device gets it.
//! - A client that is slow, silent or gone delays no other client. Memory and threads have limits:
//!   see [`Options`].
//!
//! # Not supported
//!
//! TLS (`NBD_OPT_STARTTLS` is refused with a message), extended headers, `NBD_CMD_CACHE`, resizing.

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
