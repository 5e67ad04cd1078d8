//! The first stream of an input that may hold several.

use std::io::{ErrorKind, Read, Result};

use super::{HEADER_LEN, MAGIC, number};

/// Reads an input up to the end of its first stream, and not a byte further. So a later reader of
/// the same file or pipe finds the next stream.
///
/// It checks nothing: bytes that are no stream are passed on to the receiver, which refuses them.
#[derive(Debug)]
pub struct OneStream<R> {
    input: R,
    /// A header that was read; from `passed` on it must still be passed on.
    header: Vec<u8>,
    passed: usize,
    /// Bytes of the current command that follow its header.
    body: u64,
    is_begun: bool,
    is_ended: bool,
}

impl<R: Read> OneStream<R> {
    /// Takes an input at the beginning of a stream. The input must have no buffer of its own.
    pub fn new(input: R) -> Self {
        Self { input, header: Vec::new(), passed: 0, body: 0, is_begun: false, is_ended: false }
    }

    /// Reads the next header, or what the input has of it.
    fn advance(&mut self) -> Result<()> {
        let len = if self.is_begun { HEADER_LEN } else { MAGIC.len() + 4 };
        self.header.resize(len, 0);
        self.passed = 0;
        let mut got = 0;
        while got < len {
            match self.input.read(&mut self.header[got..]) {
                Ok(0) => break,
                Ok(more) => got += more,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.header.truncate(got);
        self.is_ended = got < len;
        if self.is_begun
            && let [l0, l1, l2, l3, n0, n1, ..] = self.header[..]
        {
            self.body = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
            self.is_ended |= u16::from_le_bytes([n0, n1]) == number::END;
        }
        self.is_begun = true;
        Ok(())
    }
}

impl<R: Read> Read for OneStream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.passed == self.header.len() && self.body == 0 && !self.is_ended {
            self.advance()?;
        }
        let header = &self.header[self.passed..];
        if !header.is_empty() {
            let len = header.len().min(buffer.len());
            buffer[..len].copy_from_slice(&header[..len]);
            self.passed += len;
            return Ok(len);
        }
        let most = usize::try_from(self.body).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let len = self.input.read(&mut buffer[..most])?;
        self.body -= len as u64;
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::{Command, StreamWriter, Version};

    fn stream(version: Version) -> Vec<u8> {
        let path = crate::stream::StreamPath::new(b"a").expect("a path");
        let mut writer = StreamWriter::new(Vec::new(), version);
        writer.command(&Command::Unlink { path }).expect("it fits");
        writer.finish().expect("memory takes all")
    }

    /// Each reader takes its stream, whatever the lengths of the reads, and leaves the rest.
    #[test]
    fn a_second_stream_stays_in_the_input() {
        let (one, two) = (stream(Version::One), stream(Version::Two));
        let both = [&one[..], &two].concat();
        for piece in [1, 7, 4096] {
            let mut input = &both[..];
            for wanted in [&one, &two] {
                let (mut reader, mut found) = (OneStream::new(&mut input), Vec::new());
                let mut buffer = vec![0; piece];
                loop {
                    let len = reader.read(&mut buffer).expect("memory");
                    if len == 0 {
                        break;
                    }
                    found.extend_from_slice(&buffer[..len]);
                }
                assert_eq!(&found, wanted, "pieces of {piece}");
            }
            assert!(input.is_empty());
        }
    }

    /// Bytes that are no stream, and streams that were cut, are passed on as they are.
    #[test]
    fn cut_streams_are_passed_on() {
        let whole = stream(Version::One);
        for len in 0..whole.len() {
            let mut found = Vec::new();
            OneStream::new(&whole[..len]).read_to_end(&mut found).expect("memory");
            assert_eq!(found, whole[..len]);
        }
    }
}
