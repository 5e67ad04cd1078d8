//! Errors of a stream.

use std::io;

/// Why reading or writing a stream failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The input failed.
    #[error("cannot read the stream")]
    Read(#[source] io::Error),
    /// The output failed.
    #[error("cannot write the stream")]
    Write(#[source] io::Error),
    /// A value that is longer than the stream's fields can express, or than receivers accept.
    #[error("{what} is {len} bytes long, and a stream holds at most {max}")]
    DoesNotFit {
        /// The kind of value that does not fit.
        what: &'static str,
        /// Its length, in bytes.
        len: usize,
        /// The greatest length, in bytes.
        max: usize,
    },
    /// There is no stream at all.
    #[error("an empty stream")]
    Empty,
    /// The input does not begin as a stream does.
    #[error("not a send stream: it begins with something else than \"btrfs-stream\"")]
    Magic,
    /// A version that this crate does not know.
    #[error("stream version {0} is not known; known are 1 to 3")]
    Version(u32),
    /// The input ends before the stream does.
    #[error("the stream ends at byte {at}, in the middle: it is truncated")]
    Truncated {
        /// The offset in the stream, in bytes.
        at: u64,
    },
    /// A command is longer than the commands of any sender.
    #[error("the command at byte {at} claims to be {len} bytes long: the stream is damaged")]
    TooLong {
        /// Where it begins.
        at: u64,
        /// The length that it claims, in bytes.
        len: u32,
    },
    /// A command does not match its checksum.
    #[error("the command at byte {at} does not match its checksum: the stream is damaged")]
    Checksum {
        /// Where it begins.
        at: u64,
    },
    /// A command with a number that has no meaning.
    #[error("the command at byte {at} has the unknown number {number}")]
    Command {
        /// Where it begins.
        at: u64,
        /// Its number.
        number: u16,
    },
    /// A command that lacks an attribute, or has a wrong one.
    #[error("the command at byte {at}: {what} {problem}")]
    Attribute {
        /// Where it begins.
        at: u64,
        /// The attribute.
        what: &'static str,
        /// The fault of the attribute.
        problem: &'static str,
    },
}
