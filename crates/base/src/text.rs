//! Any bytes as text that can be turned back: names in JSON, whatever a disk holds.
//!
//! # Invariants
//!
//! - **E1** Text of UTF-8 is itself, unless it holds U+FFFD. Each other byte, and each byte of a
//!   U+FFFD, is U+FFFD and two hexadecimal digits (`0xe9` is `\u{fffd}e9`).
//! - **E2** [`decode`] gives back what [`encode`] was given, so no two byte strings share a text.

use std::fmt::Write;

/// What stands before the digits of a byte.
const MARK: char = '\u{fffd}';

/// Bytes as text (E1).
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c == MARK {
                escape(c.encode_utf8(&mut [0; 4]).as_bytes(), &mut text);
            } else {
                text.push(c);
            }
        }
        escape(chunk.invalid(), &mut text);
    }
    text
}

/// A path of the host as text (E1): for fields of log events, and for JSON.
#[must_use]
pub fn of_path(path: &std::path::Path) -> String {
    encode(path.as_os_str().as_encoded_bytes())
}

fn escape(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        // Into a string: nothing can fail.
        let _ = write!(text, "{MARK}{byte:02x}");
    }
}

/// The bytes that a text stands for; nothing for a mark without two digits.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let mut parts = text.split(MARK);
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    /// What people have is untouched; what is no text is marked.
    #[test]
    fn text_stays_and_bytes_are_marked() {
        for text in ["", "plain", "new\nline", "new\\nline", "\u{1b}[31m", "\0", "é 日本 🦀"] {
            assert_eq!(encode(text.as_bytes()), text);
        }
        assert_eq!(encode(b"lit\xe9"), "lit\u{fffd}e9");
        assert_eq!(encode("\u{fffd}e9".as_bytes()), "\u{fffd}ef\u{fffd}bf\u{fffd}bde9");
        // Half a character, and the surrogate that other programs escape with.
        assert_eq!(encode(b"\xe6\x97"), "\u{fffd}e6\u{fffd}97");
        assert_eq!(encode(b"\xed\xb3\xa9"), "\u{fffd}ed\u{fffd}b3\u{fffd}a9");
        assert_eq!(decode("\u{fffd}e"), None);
        assert_eq!(decode("a\u{fffd}"), None);
        assert_eq!(decode("\u{fffd}+1"), None);
        assert_eq!(decode("\u{fffd}xx"), None);
    }

    /// E2: any bytes come back, those next to a mark and to half a character among them.
    #[test]
    fn any_bytes_round_trip() {
        let pieces: [&[u8]; 12] = [
            b"a",
            b"e9",
            b"\\",
            b"\n",
            b"\0",
            b"\xe9",
            b"\xef",
            b"\xbf",
            b"\xbd",
            b"\xef\xbf\xbd",
            b"\xf0\x9f\xa6\x80",
            b"\xed\xa0\x80",
        ];
        let mut rng = Rng::new(4);
        let mut seen = std::collections::HashMap::new();
        for round in 0..200_000 {
            let mut bytes = Vec::new();
            for _ in 0..rng.below(6) {
                if round % 2 == 0 {
                    bytes.push(rng.next_u64() as u8);
                } else {
                    bytes.extend_from_slice(pieces[rng.below(pieces.len() as u64) as usize]);
                }
            }
            let text = encode(&bytes);
            assert_eq!(decode(&text).as_deref(), Some(&bytes[..]), "{text:?}");
            let first = seen.entry(text).or_insert_with(|| bytes.clone());
            assert_eq!(*first, bytes, "two byte strings share a text");
        }
    }
}
