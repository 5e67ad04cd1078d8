//! A stream as text, one line for each command, in the words of `btrfs receive --dump`.
//!
//! Times are in UTC. Bytes that would move the cursor of a terminal are escaped, in values too.

use std::fmt::Write;

use buttress_format::Timespec;
use jiff::Timestamp;

use super::Uuid;
use super::command::{Command, Source};
use super::path::StreamPath;

/// The column at which the arguments begin, unless the path is longer.
const ARGUMENTS_AT: usize = 32;

/// Prints commands; remembers the subvolume that the commands change.
#[derive(Debug, Default)]
pub struct Dump {
    subvolume: Vec<u8>,
}

impl Dump {
    /// A command's line, without the line break; nothing for the end of the stream.
    #[must_use]
    pub fn line(&mut self, command: &Command<'_>) -> Option<String> {
        if let Command::Subvol { name, .. } | Command::Snapshot { name, .. } = command {
            self.subvolume = name.as_bytes().to_vec();
        }
        let path = command.path()?;
        let top = format!("./{}", escape(&self.subvolume));
        let (word, rest) = (command.word(), command.arguments(&top));
        let shown = match command {
            Command::Subvol { .. } | Command::Snapshot { .. } => top,
            _ => below(&top, path),
        };
        let mut line = format!("{word:<16}{shown}");
        if !rest.is_empty() {
            let gap = ARGUMENTS_AT.saturating_sub(shown.len()).max(1);
            line.extend(std::iter::repeat_n(' ', gap));
            line.push_str(&rest);
        }
        Some(line)
    }
}

/// A path in the subvolume at `top`.
pub(super) fn below(top: &str, path: StreamPath<'_>) -> String {
    format!("{top}/{}", escape(path.as_bytes()))
}

/// The uuid and the transaction of a subvolume as text. Each field name begins with `prefix`.
pub(super) fn of(source: Source, prefix: &str) -> String {
    format!("{prefix}uuid={} {prefix}transid={}", uuid_text(&source.uuid), source.ctransid)
}

/// The usual text of a uuid, with dashes.
pub(crate) fn uuid_text(uuid: &Uuid) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Writing into a string cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Escapes a path. Blanks, and bytes that are not printable, become escape sequences as in C.
pub(super) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            0x07 => text.push_str("\\a"),
            0x08 => text.push_str("\\b"),
            0x1b => text.push_str("\\e"),
            0x0c => text.push_str("\\f"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            0x0b => text.push_str("\\v"),
            b' ' => text.push_str("\\ "),
            b'\\' => text.push_str("\\\\"),
            0x21..=0x7e => text.push(char::from(byte)),
            _ => {
                let _ = write!(text, "\\{byte:03o}");
            }
        }
    }
    text
}

/// Returns a value as text, up to its first zero byte. Control characters become `?`.
pub(super) fn show(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `2026-11-21T11:07:01+0000`; `@` and seconds since 1970 where the year has more than four digits.
pub(super) fn time(time: Timespec) -> String {
    match Timestamp::from_second(time.sec) {
        Ok(time) => time.strftime("%Y-%m-%dT%H:%M:%S+0000").to_string(),
        Err(_) => format!("@{}", time.sec),
    }
}
