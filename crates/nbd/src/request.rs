//! A request: 28 bytes that become checked numbers before anything is done with them.
//!
//! # Invariants
//!
//! - **Q1** A request that [`Request::check`] accepts lies within the export. Its length is valid
//!   for its command, and the export allows the command.

use std::ops::Range;

use crate::error::{Fault, Nonsense};
use crate::export::Export;
use crate::terms::{PAYLOAD_MAX, Terms};
use crate::wire::{self, Fields, command, command_flag as flag};

pub(crate) const REQUEST_LEN: usize = 28;

/// The client's identifier of a request, opaque to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cookie(pub(crate) u64);

/// A request as it was received. Its fields are not checked yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: Cookie,
    pub(crate) offset: u64,
    pub(crate) len: u32,
}

impl Request {
    /// Parses a request. Reports only errors that hide the start of the next request.
    pub(crate) fn parse(bytes: &[u8; REQUEST_LEN]) -> Result<Self, Nonsense> {
        const WHOLE: &str = "the fields are as long as the array";
        let mut fields = Fields(bytes);
        let magic = fields.u32().expect(WHOLE);
        if magic != wire::REQUEST_MAGIC {
            return Err(Nonsense::RequestMagic(magic));
        }
        let request = Self {
            flags: fields.u16().expect(WHOLE),
            command: fields.u16().expect(WHOLE),
            cookie: Cookie(fields.u64().expect(WHOLE)),
            offset: fields.u64().expect(WHOLE),
            len: fields.u32().expect(WHOLE),
        };
        // The server is not willing to read the `len` bytes that would follow.
        if request.command == command::WRITE && request.len > PAYLOAD_MAX {
            return Err(Nonsense::WriteLen(request.len));
        }
        Ok(request)
    }

    pub(crate) fn is_durable(&self) -> bool {
        self.flags & flag::FUA != 0
    }

    /// Checks that the request can be served (Q1), and returns its range.
    pub(crate) fn check(&self, export: &Export, terms: Terms) -> Result<Range<u64>, Fault> {
        // Any request may have the flag for durability, which has no effect on a request without a
        // change.
        let flags = match self.command {
            command::READ if terms.structured => flag::DF,
            command::READ | command::WRITE | command::TRIM | command::FLUSH => 0,
            command::WRITE_ZEROES => flag::NO_HOLE,
            command::BLOCK_STATUS if terms.allocation => flag::REQ_ONE,
            command::BLOCK_STATUS => return Err(Fault::NoContext),
            _ => return Err(Fault::Command),
        };
        if self.flags & !(flags | flag::FUA) != 0 {
            return Err(Fault::Flags);
        }
        if self.command == command::FLUSH {
            // A flush has no range, and some clients send an arbitrary offset and length.
            return Ok(0..0);
        }
        let changes = !matches!(self.command, command::READ | command::BLOCK_STATUS);
        if changes && export.read_only() {
            return Err(Fault::ReadOnly);
        }
        match self.command {
            command::READ if self.len > PAYLOAD_MAX => return Err(Fault::Length),
            command::BLOCK_STATUS if self.len == 0 => return Err(Fault::Length),
            _ => {}
        }
        match self.offset.checked_add(u64::from(self.len)) {
            Some(end) if end <= export.len() => Ok(self.offset..end),
            _ if changes => Err(Fault::WritePastEnd),
            _ => Err(Fault::ReadPastEnd),
        }
    }
}
