//! Writing a stream.

use std::io::Write;

use super::MAGIC;
use super::command::Command;
use super::error::StreamError;

/// The versions that can be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The version that every receiver understands.
    #[default]
    One = 1,
    /// Adds larger writes, holes and allocations, compressed data, and times of creation.
    Two = 2,
    /// Adds fs-verity. Linux sends and receives it only if it was built with experiments.
    Three = 3,
}

impl Version {
    /// The version with this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::One, Self::Two, Self::Three].into_iter().find(|version| *version as u32 == number)
    }

    /// The most file data in one command, as in Linux's sender.
    #[must_use]
    pub fn write_bytes_max(self) -> usize {
        match self {
            Self::One => 48 << 10,
            Self::Two | Self::Three => 128 << 10,
        }
    }
}

/// Bytes buffered before a write to the output.
const GATHERED_BYTES: usize = 256 << 10;

/// A stream that is being written. The caller must end it with [`StreamWriter::finish`]
/// or [`StreamWriter::leave_open`].
#[derive(Debug)]
pub struct StreamWriter<W: Write> {
    output: W,
    version: Version,
    buffer: Vec<u8>,
    written: u64,
}

impl<W: Write> StreamWriter<W> {
    /// Begins a stream.
    pub fn new(output: W, version: Version) -> Self {
        let mut writer = Self::continuing(output, version);
        writer.buffer.extend_from_slice(MAGIC);
        writer.buffer.extend_from_slice(&(version as u32).to_le_bytes());
        writer
    }

    /// Continues a stream that another writer began and gave back by [`StreamWriter::leave_open`].
    /// The versions must be equal.
    pub fn continuing(output: W, version: Version) -> Self {
        let buffer = Vec::with_capacity(GATHERED_BYTES + (192 << 10));
        Self { output, version, buffer, written: 0 }
    }

    /// The stream's version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Bytes so far.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// Appends a command.
    ///
    /// # Errors
    ///
    /// When a write to the output fails; [`StreamError::DoesNotFit`] when the stream cannot
    /// represent the command. In the second case, nothing of the command is written.
    pub fn command(&mut self, command: &Command<'_>) -> Result<(), StreamError> {
        command.encode(self.version as u32, &mut self.buffer)?;
        if self.buffer.len() >= GATHERED_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), StreamError> {
        self.output.write_all(&self.buffer).map_err(StreamError::Write)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    /// Ends the stream, and gives the output back.
    ///
    /// # Errors
    ///
    /// When a write to the output fails.
    pub fn finish(mut self) -> Result<W, StreamError> {
        self.command(&Command::End)?;
        self.leave_open()
    }

    /// Gives the output back without an end, so that another writer can continue the stream.
    ///
    /// # Errors
    ///
    /// When a write to the output fails.
    pub fn leave_open(mut self) -> Result<W, StreamError> {
        self.flush()?;
        self.output.flush().map_err(StreamError::Write)?;
        Ok(self.output)
    }
}
