//! A stream as text, one line a command, in the words of `btrfs receive --dump`.
//!
//! Times are in UTC. What would move the cursor of a terminal is escaped, in values too.

use std::fmt::Write;

use buttress_format::Timespec;
use jiff::Timestamp;

use super::Uuid;
use super::command::{Command, Source};
use super::path::StreamPath;

/// Where the arguments begin, unless the path is longer.
const ARGUMENTS_AT: usize = 32;

/// Prints commands; remembers which subvolume they are about.
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
        let (word, path, rest) = self.parts(command)?;
        let shown = match command {
            Command::Subvol { .. } | Command::Snapshot { .. } => self.top(),
            _ => self.below(path),
        };
        let mut line = format!("{word:<16}{shown}");
        if !rest.is_empty() {
            let gap = ARGUMENTS_AT.saturating_sub(shown.len()).max(1);
            line.extend(std::iter::repeat_n(' ', gap));
            line.push_str(&rest);
        }
        Some(line)
    }

    fn top(&self) -> String {
        format!("./{}", escape(&self.subvolume))
    }

    fn below(&self, path: StreamPath<'_>) -> String {
        format!("{}/{}", self.top(), escape(path.as_bytes()))
    }

    #[allow(clippy::too_many_lines, reason = "one arm a command")]
    fn parts<'c>(&self, command: &Command<'c>) -> Option<(&'static str, StreamPath<'c>, String)> {
        let none = String::new();
        Some(match *command {
            Command::Subvol { name, source } => ("subvol", name, of(source, "")),
            Command::Snapshot { name, source, parent } => {
                ("snapshot", name, format!("{} {}", of(source, ""), of(parent, "parent_")))
            }
            Command::MkFile { path, .. } => ("mkfile", path, none),
            Command::MkDir { path, .. } => ("mkdir", path, none),
            Command::MkNod { path, mode, rdev, .. } => {
                ("mknod", path, format!("mode={mode:o} dev=0x{rdev:x}"))
            }
            Command::MkFifo { path, .. } => ("mkfifo", path, none),
            Command::MkSock { path, .. } => ("mksock", path, none),
            Command::Symlink { path, target, .. } => {
                ("symlink", path, format!("dest={}", escape(target)))
            }
            Command::Rename { path, to } => ("rename", path, format!("dest={}", self.below(to))),
            Command::Link { path, existing } => {
                ("link", path, format!("dest={}", escape(existing.as_bytes())))
            }
            Command::Unlink { path } => ("unlink", path, none),
            Command::Rmdir { path } => ("rmdir", path, none),
            Command::SetXattr { path, name, value } => {
                let text = format!("name={} data={} len={}", show(name), show(value), value.len());
                ("set_xattr", path, text)
            }
            Command::RemoveXattr { path, name } => {
                ("remove_xattr", path, format!("name={}", show(name)))
            }
            Command::Write { path, offset, data } => {
                ("write", path, format!("offset={offset} len={}", data.len()))
            }
            Command::Clone { path, offset, len, source_path, source_offset, .. } => {
                // btrfs receive prints this one as it is; control characters are no text on a terminal.
                let source = String::from_utf8_lossy(source_path.as_bytes());
                let source = source.replace(char::is_control, "?");
                let from = format!("{}/{source}", self.top());
                let text =
                    format!("offset={offset} len={len} from={from} clone_offset={source_offset}");
                ("clone", path, text)
            }
            Command::Truncate { path, size } => ("truncate", path, format!("size={size}")),
            Command::Chmod { path, mode } => ("chmod", path, format!("mode={mode:o}")),
            Command::Chown { path, uid, gid } => ("chown", path, format!("gid={gid} uid={uid}")),
            Command::Utimes { path, stamps } => {
                let (atime, mtime) = (time(stamps.atime), time(stamps.mtime));
                let text = format!("atime={atime} mtime={mtime} ctime={}", time(stamps.ctime));
                ("utimes", path, text)
            }
            Command::UpdateExtent { path, offset, len } => {
                ("update_extent", path, format!("offset={offset} len={len}"))
            }
            Command::Fallocate { path, mode, offset, len } => {
                ("fallocate", path, format!("mode={mode} offset={offset} len={len}"))
            }
            Command::FileAttr { path, flags } => {
                ("fileattr", path, format!("fileattr=0x{flags:x}"))
            }
            Command::EncodedWrite { path, offset, encoded, data } => {
                let text = format!(
                    "offset={offset} len={}, unencoded_file_len={}, unencoded_len={}, \
                     unencoded_offset={}, compression={}, encryption={}",
                    data.len(),
                    encoded.file_len,
                    encoded.ram_bytes,
                    encoded.offset,
                    encoded.compression,
                    encoded.encryption
                );
                ("encoded_write", path, text)
            }
            Command::EnableVerity { path, algorithm, block_size } => {
                ("enable_verity", path, format!("algorithm={algorithm} block_size={block_size}"))
            }
            Command::End => return None,
        })
    }
}

fn of(source: Source, prefix: &str) -> String {
    format!("{prefix}uuid={} {prefix}transid={}", uuid_text(&source.uuid), source.ctransid)
}

/// As people write it.
pub(crate) fn uuid_text(uuid: &Uuid) -> String {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        // Into a string: nothing can fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// A path: blanks and what is not printable as a C program would write it.
fn escape(bytes: &[u8]) -> String {
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

/// A value, as far as it is text.
fn show(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// `2026-11-21T11:07:01+0000`; `@` and seconds since 1970 where the year has more than four digits.
fn time(time: Timespec) -> String {
    match Timestamp::from_second(time.sec) {
        Ok(time) => time.strftime("%Y-%m-%dT%H:%M:%S+0000").to_string(),
        Err(_) => format!("@{}", time.sec),
    }
}
