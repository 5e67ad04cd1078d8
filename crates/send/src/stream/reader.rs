//! Reading a stream, command by command.

use std::io::{ErrorKind, Read};

use super::command::Command;
use super::error::StreamError;
use super::{HEADER_LEN, MAGIC};

/// Longest command that is read. Known senders stay below 150 KiB; the limit leaves room for other
/// senders.
pub const COMMAND_BYTES_MAX: u32 = 4 << 20;

/// A stream that is being read.
#[derive(Debug)]
pub struct StreamReader<R> {
    input: R,
    version: u32,
    at: u64,
    buffer: Vec<u8>,
}

impl<R: Read> StreamReader<R> {
    /// Reads the beginning of a stream; `None` when the input has ended.
    ///
    /// # Errors
    ///
    /// If the input is no stream, or its version is not known.
    pub fn open(mut input: R) -> Result<Option<Self>, StreamError> {
        let mut head = [0; MAGIC.len() + 4];
        let len = fill(&mut input, &mut head)?;
        if len == 0 {
            return Ok(None);
        }
        if head[..len.min(MAGIC.len())] != MAGIC[..len.min(MAGIC.len())] {
            return Err(StreamError::Magic);
        }
        if len < head.len() {
            return Err(StreamError::Truncated { at: len as u64 });
        }
        let [.., a, b, c, d] = head;
        let version = u32::from_le_bytes([a, b, c, d]);
        if !(1..=3).contains(&version) {
            return Err(StreamError::Version(version));
        }
        Ok(Some(Self { input, version, at: head.len() as u64, buffer: Vec::new() }))
    }

    /// The stream's version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The number of bytes that were read.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.at
    }

    /// Reads one command. After [`Command::End`] there is nothing more.
    ///
    /// # Errors
    ///
    /// When the input ends, fails, or is damaged.
    pub fn command(&mut self) -> Result<Command<'_>, StreamError> {
        let start = self.at;
        let mut head = [0; HEADER_LEN];
        let len = fill(&mut self.input, &mut head)?;
        self.at += len as u64;
        if len < head.len() {
            return Err(StreamError::Truncated { at: self.at });
        }
        let [l0, l1, l2, l3, n0, n1, c0, c1, c2, c3] = head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        if len > COMMAND_BYTES_MAX {
            return Err(StreamError::TooLong { at: start, len });
        }
        let whole = HEADER_LEN + len as usize;
        if self.buffer.len() < whole {
            self.buffer.resize(whole, 0);
        }
        let command = &mut self.buffer[..whole];
        command[..6].copy_from_slice(&head[..6]);
        command[6..HEADER_LEN].fill(0);
        let got = fill(&mut self.input, &mut command[HEADER_LEN..])?;
        self.at += got as u64;
        if got < len as usize {
            return Err(StreamError::Truncated { at: self.at });
        }
        let crc = u32::from_le_bytes([c0, c1, c2, c3]);
        if buttress_format::crc32c_raw(0, command) != crc {
            return Err(StreamError::Checksum { at: start });
        }
        let number = u16::from_le_bytes([n0, n1]);
        Command::parse(number, &self.buffer[HEADER_LEN..whole], self.version, start)
    }

    /// Gives the input back: another stream may follow.
    pub fn into_inner(self) -> R {
        self.input
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> Result<usize, StreamError> {
    let mut done = 0;
    while done < buffer.len() {
        match input.read(&mut buffer[done..]) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(StreamError::Read(error)),
        }
    }
    Ok(done)
}
