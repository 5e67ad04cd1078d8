//! The fixed newstyle handshake: the options of a client before it reads and writes.
//!
//! # Place
//!
//! The handshake works on any pair of streams, so that tests and fuzzers need no socket. The stream
//! sets the time limit of the client.
//!
//! # Invariants
//!
//! - **H1** Memory for a client's input is at most [`OPTION_MAX`], whatever length the client
//!   claims.
//! - **H2** A handshake ends after at most [`OPTIONS_MAX`] options.
//!
//! # Failure
//!
//! An option that cannot be served is answered with a reason, and the handshake continues. A client
//! with input that makes no sense is disconnected: [`Disconnect::Protocol`].

use std::io::{self, Read, Write};

use crate::error::{Disconnect, Nonsense};
use crate::export::Export;
use crate::terms::{PAYLOAD_MAX, Terms, skip};
use crate::wire::{self, Fields, info, option, option_reply};

/// The longest option that is parsed. The longest useful option is a list of queries.
pub const OPTION_MAX: u32 = 64 << 10;
/// The longest option that is skipped. A longer option ends the connection.
const SKIP_MAX: u32 = 1 << 20;
/// The most options of one handshake. Real clients send fewer than ten.
pub const OPTIONS_MAX: u32 = 256;

/// Sends the greeting, and answers options until the client wants to begin.
///
/// # Errors
///
/// [`Disconnect`]: also [`Disconnect::Done`], for a client that only queried.
pub fn negotiate<R: Read, W: Write>(
    input: &mut R,
    output: &mut W,
    export: &Export,
) -> Result<Terms, Disconnect> {
    let mut hello = Vec::with_capacity(18);
    hello.extend_from_slice(&wire::SERVER_MAGIC.to_be_bytes());
    hello.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&(wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes());
    output.write_all(&hello)?;

    let flags = u32::from_be_bytes(take(input)?);
    let known = u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
    if flags & !known != 0 {
        return Err(Nonsense::Flags(flags).into());
    }
    let pads = flags & u32::from(wire::NO_ZEROES) == 0;
    let mut handshake = Handshake { input, output, export, pads, terms: Terms::default() };
    for _ in 0..OPTIONS_MAX {
        if let Some(terms) = handshake.option()? {
            return Ok(terms);
        }
    }
    Err(Nonsense::Options.into())
}

struct Handshake<'a, R, W> {
    input: &'a mut R,
    output: &'a mut W,
    export: &'a Export,
    /// The client wants the padding of the protocol's first version.
    pads: bool,
    terms: Terms,
}

/// A refusal of an option.
struct Refusal {
    reply: u32,
    why: &'static str,
}

const MALFORMED: Refusal =
    Refusal { reply: option_reply::INVALID, why: "the option is not well-formed" };
const UNKNOWN: Refusal = Refusal { reply: option_reply::UNKNOWN, why: "no export has this name" };

impl<R: Read, W: Write> Handshake<'_, R, W> {
    /// Serves one option; returns the terms if the option was the last one.
    fn option(&mut self) -> Result<Option<Terms>, Disconnect> {
        let magic = u64::from_be_bytes(take(self.input)?);
        if magic != wire::OPTION_MAGIC {
            return Err(Nonsense::OptionMagic(magic).into());
        }
        let option = u32::from_be_bytes(take(self.input)?);
        let len = u32::from_be_bytes(take(self.input)?);
        if len > OPTION_MAX {
            if len > SKIP_MAX || option == option::EXPORT_NAME {
                return Err(Nonsense::OptionLen { option, len }.into());
            }
            skip(self.input, u64::from(len))?;
            let refusal = Refusal { reply: option_reply::TOO_BIG, why: "the option is too long" };
            return self.refuse(option, &refusal).map(|()| None);
        }
        let mut data = vec![0; len as usize];
        self.input.read_exact(&mut data)?;

        let answered = match option {
            option::EXPORT_NAME => return self.export_name(&data).map(Some),
            option::ABORT => {
                // The client may be gone already.
                let _ = self.reply(option, option_reply::ACK, &[]);
                return Err(Disconnect::Done);
            }
            option::LIST => self.list(&data)?,
            option::INFO => self.go(option, &data)?,
            option::GO => match self.go(option, &data)? {
                Ok(()) => return Ok(Some(self.terms)),
                refused => refused,
            },
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.terms.structured = true;
                self.reply(option, option_reply::ACK, &[])?;
                Ok(())
            }
            option::STRUCTURED_REPLY => Err(MALFORMED),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, &data)?,
            option::STARTTLS => Err(Refusal {
                reply: option_reply::UNSUPPORTED,
                why: "this server does not speak TLS",
            }),
            _ => Err(Refusal {
                reply: option_reply::UNSUPPORTED,
                why: "this server does not know the option",
            }),
        };
        if let Err(refusal) = answered {
            self.refuse(option, &refusal)?;
        }
        Ok(None)
    }

    /// Serves `NBD_OPT_EXPORT_NAME`, the only option that cannot be refused.
    fn export_name(&mut self, name: &[u8]) -> Result<Terms, Disconnect> {
        if !self.export.is_named(name) {
            return Err(Nonsense::Name.into());
        }
        let mut answer = Vec::with_capacity(10 + wire::EXPORT_NAME_PADDING);
        answer.extend_from_slice(&self.export.len().to_be_bytes());
        answer.extend_from_slice(&self.export.flags(self.terms.structured).to_be_bytes());
        if self.pads {
            answer.resize(answer.len() + wire::EXPORT_NAME_PADDING, 0);
        }
        self.output.write_all(&answer)?;
        Ok(self.terms)
    }

    fn list(&mut self, data: &[u8]) -> io::Result<Result<(), Refusal>> {
        if !data.is_empty() {
            return Ok(Err(MALFORMED));
        }
        let name = self.export.name().as_bytes();
        let mut answer = Vec::with_capacity(4 + name.len());
        answer.extend_from_slice(&(name.len() as u32).to_be_bytes());
        answer.extend_from_slice(name);
        self.reply(option::LIST, option_reply::SERVER, &answer)?;
        self.reply(option::LIST, option_reply::ACK, &[])?;
        Ok(Ok(()))
    }

    /// Sends the facts about an export. If the option is `GO`, this answer ends the handshake.
    fn go(&mut self, option: u32, data: &[u8]) -> io::Result<Result<(), Refusal>> {
        let Some((name, wanted)) = parse_go(data) else { return Ok(Err(MALFORMED)) };
        if !self.export.is_named(name) {
            return Ok(Err(UNKNOWN));
        }
        let mut fact = info::EXPORT.to_be_bytes().to_vec();
        fact.extend_from_slice(&self.export.len().to_be_bytes());
        fact.extend_from_slice(&self.export.flags(self.terms.structured).to_be_bytes());
        self.reply(option, option_reply::INFO, &fact)?;

        // The limits are sent even to a client that did not ask for them. Otherwise the client may
        // send requests that are too long.
        let mut fact = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for size in [BLOCK_MIN, BLOCK_PREFERRED, PAYLOAD_MAX] {
            fact.extend_from_slice(&size.to_be_bytes());
        }
        self.reply(option, option_reply::INFO, &fact)?;

        let texts =
            [(info::NAME, self.export.name()), (info::DESCRIPTION, self.export.description())];
        for (kind, text) in texts {
            if wanted.chunks_exact(2).any(|wanted| wanted == kind.to_be_bytes()) {
                let mut fact = kind.to_be_bytes().to_vec();
                fact.extend_from_slice(text.as_bytes());
                self.reply(option, option_reply::INFO, &fact)?;
            }
        }
        self.reply(option, option_reply::ACK, &[])?;
        Ok(Ok(()))
    }

    /// Lists the metadata contexts, or selects the contexts that the client will query.
    fn contexts(&mut self, option: u32, data: &[u8]) -> io::Result<Result<(), Refusal>> {
        let selects = option == option::SET_META_CONTEXT;
        if selects {
            // An earlier selection is void, even if this selection fails.
            self.terms.allocation = false;
        }
        if !self.terms.structured {
            let why = "structured replies come first";
            return Ok(Err(Refusal { reply: option_reply::INVALID, why }));
        }
        let Some((name, asks)) = parse_queries(data, selects) else { return Ok(Err(MALFORMED)) };
        if !self.export.is_named(name) {
            return Ok(Err(UNKNOWN));
        }
        if asks {
            let id = if selects { wire::ALLOCATION_ID } else { 0 };
            let mut answer = id.to_be_bytes().to_vec();
            answer.extend_from_slice(wire::ALLOCATION);
            self.reply(option, option_reply::META_CONTEXT, &answer)?;
            self.terms.allocation |= selects;
        }
        self.reply(option, option_reply::ACK, &[])?;
        Ok(Ok(()))
    }

    fn refuse(&mut self, option: u32, refusal: &Refusal) -> Result<(), Disconnect> {
        Ok(self.reply(option, refusal.reply, refusal.why.as_bytes())?)
    }

    fn reply(&mut self, option: u32, reply: u32, data: &[u8]) -> io::Result<()> {
        let mut message = Vec::with_capacity(20 + data.len());
        message.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
        message.extend_from_slice(&option.to_be_bytes());
        message.extend_from_slice(&reply.to_be_bytes());
        message.extend_from_slice(&(data.len() as u32).to_be_bytes());
        message.extend_from_slice(data);
        self.output.write_all(&message)
    }
}

/// The smallest block. Ranges of any length can be served.
const BLOCK_MIN: u32 = 1;
/// The size of a page, and of a sector on most disks. For shorter writes such a disk reads a whole
/// sector, changes it and writes it.
const BLOCK_PREFERRED: u32 = 4096;

/// The name of the export, and the facts that are asked for, two bytes each.
fn parse_go(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u16()?;
    let wanted = fields.bytes(usize::from(count) * 2)?;
    fields.is_empty().then_some((name, wanted))
}

/// The name of the export, and whether any query is about allocation. A list without a query asks
/// for everything; a selection without a query selects nothing.
fn parse_queries(data: &[u8], selects: bool) -> Option<(&[u8], bool)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    let mut asks = count == 0 && !selects;
    for _ in 0..count {
        let query = fields.string()?;
        // A list may ask for all kinds of a family; a selection has to name one kind.
        asks |= query == wire::ALLOCATION || (!selects && query == b"base:");
    }
    fields.is_empty().then_some((name, asks))
}

fn take<const N: usize>(input: &mut impl Read) -> Result<[u8; N], Disconnect> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests;
