//! The terms that both sides of a connection agreed on, and the limits of the protocol.

use std::io::{self, Read};

/// The terms that client and server agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Answers may come in chunks, and errors carry a text.
    pub structured: bool,
    /// The client may ask which parts are holes.
    pub allocation: bool,
}

/// The longest read, and the longest payload of a write, that a client may assume by the protocol.
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// Skips `len` bytes of input.
pub(crate) fn skip(input: &mut impl Read, len: u64) -> io::Result<()> {
    let mut bin = [0; 4096];
    let mut left = len;
    while left > 0 {
        let piece = left.min(bin.len() as u64) as usize;
        input.read_exact(&mut bin[..piece])?;
        left -= piece as u64;
    }
    Ok(())
}
