//! The one place where a failed request becomes an error number of the protocol.

use std::io;

use buttress_block::Error;
use rustix::io::Errno;

use crate::error::Fault;

/// An error number of the protocol. The numbers are those of Linux, and the protocol has no others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Number {
    NotPermitted = 1,
    Io = 5,
    NoMemory = 12,
    Invalid = 22,
    NoSpace = 28,
    Overflow = 75,
}

/// Turns a failure into the number that the client gets.
pub(crate) fn from_fault(fault: &Fault) -> Number {
    match fault {
        Fault::Device(error) => from_device(error),
        Fault::Flush(_) => Number::Io,
        Fault::ReadOnly => Number::NotPermitted,
        Fault::WritePastEnd => Number::NoSpace,
        Fault::OnePiece => Number::Overflow,
        Fault::ReadPastEnd | Fault::Command | Fault::Flags | Fault::Length | Fault::NoContext => {
            Number::Invalid
        }
    }
}

fn from_device(error: &Error) -> Number {
    match error {
        Error::Io { source, .. } => from_io(source),
        Error::ReadOnly { .. } => Number::NotPermitted,
        // Ranges were checked against the length that the device had at the opening, so a range
        // error means that the device became shorter. The error type of `block` may get new
        // variants, which are failures, too.
        _ => Number::Io,
    }
}

fn from_io(error: &io::Error) -> Number {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Number::NoSpace,
        Some(Errno::NOMEM) => Number::NoMemory,
        Some(Errno::PERM | Errno::ROFS) => Number::NotPermitted,
        _ => Number::Io,
    }
}
