//! Errors of the server, of one connection, and of one request.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// A failure of the server as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is no address.
    #[error("{0:?} is not an address: unix:PATH, 127.0.0.1:PORT or [::1]:PORT")]
    Address(String),
    /// Other machines could read and write the device through this address.
    #[error(
        "{0} can be reached from other machines, and nothing here is encrypted or authenticated; allow it with --allow-remote, or listen on 127.0.0.1 or a unix socket"
    )]
    NotLocal(SocketAddr),
    /// Another server answers at this socket file.
    #[error("{}: another server listens there already", .0.display())]
    Taken(PathBuf),
    /// Another kind of file has the socket's name.
    #[error("{}: is there already, and is not a socket", .0.display())]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The name or description is longer than the protocol allows.
    #[error("the export's name and description may have 4096 bytes each")]
    TooLong,
    /// The last writes may not be durable.
    #[error("what was written last may be lost")]
    Flush(#[source] Arc<buttress_block::Error>),
    /// The system failed while waiting for connections.
    #[error("waiting for connections")]
    Wait(#[source] io::Error),
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Disconnect {
    /// The client asked for the end, or closed between two requests.
    #[error("the client is done")]
    Done,
    /// The server is stopping.
    #[error("the server is stopping")]
    Stopping,
    /// The connection failed, or the client was silent in the middle of a message.
    #[error("the connection failed")]
    Io(#[source] io::Error),
    /// The client broke the protocol, so the rest of its input is meaningless.
    #[error("the client sent {0}")]
    Protocol(Nonsense),
    /// An answer that was sent in part could not be completed.
    #[error("reading failed in the middle of an answer")]
    Torn(#[source] Box<buttress_block::Error>),
    /// A panic of the server, which is a bug.
    #[error("the server failed")]
    Panicked,
}

/// Input that a client must not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Nonsense {
    /// Flags of the handshake that the server did not offer.
    #[error("handshake flags {0:#x}")]
    Flags(u32),
    /// An option without the magic number of options.
    #[error("an option that begins with {0:#x}")]
    OptionMagic(u64),
    /// An option too long to be even skipped.
    #[error("option {option} with {len} bytes")]
    OptionLen {
        /// Its number.
        option: u32,
        /// The length that it claims, in bytes.
        len: u32,
    },
    /// More options than any client needs.
    #[error("too many options")]
    Options,
    /// `NBD_OPT_EXPORT_NAME` names an unknown export, and the protocol has no error reply to this
    /// option.
    #[error("the name of an export that is not here")]
    Name,
    /// A request without the magic number of requests.
    #[error("a request that begins with {0:#x}")]
    RequestMagic(u32),
    /// A write with more payload than any client may send.
    #[error("a write of {0} bytes")]
    WriteLen(u32),
}

impl From<io::Error> for Disconnect {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<Nonsense> for Disconnect {
    fn from(nonsense: Nonsense) -> Self {
        Self::Protocol(nonsense)
    }
}

/// Why one request failed. The connection goes on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    /// The device failed.
    #[error("the device failed")]
    Device(#[source] buttress_block::Error),
    /// This flush or an earlier one failed.
    #[error("a flush failed, so nothing can be said to be durable")]
    Flush(#[source] Arc<buttress_block::Error>),
    /// A change of a read-only export.
    #[error("the export is for reading only")]
    ReadOnly,
    /// A read, or a question, beyond the end.
    #[error("beyond the end of the export")]
    ReadPastEnd,
    /// A change beyond the end.
    #[error("beyond the end of the export")]
    WritePastEnd,
    /// A command that the server did not offer.
    #[error("not a command of this server")]
    Command,
    /// Flags that the server did not offer for this command.
    #[error("not a flag of this command here")]
    Flags,
    /// A length of zero for a command that needs bytes, or a length above the protocol's limit.
    #[error("not a length for this command")]
    Length,
    /// A read in one piece that is longer than the largest piece.
    #[error("too long to be read in one piece")]
    OnePiece,
    /// A query for a context that was not negotiated.
    #[error("no metadata context was negotiated")]
    NoContext,
}
