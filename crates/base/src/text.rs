//! Encodes any bytes as text that can be decoded. So JSON can have names that are not UTF-8.
//!
//! # Invariants
//!
//! - **E1** UTF-8 stays unchanged, unless it holds U+FFFD. Each byte that is not UTF-8, and each
//!   byte of a U+FFFD, becomes U+FFFD and two hexadecimal digits (`0xe9` becomes `\u{fffd}e9`).
//! - **E2** [`decode`] returns the bytes that [`encode`] got, so no two byte strings have the same
//!   text.

use std::fmt::Write;

/// The character before the digits of a byte.
const MARK: char = '\u{fffd}';

/// Encodes bytes as text (E1).
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

/// Encodes a path of the host as text (E1), for fields of log events and for JSON.
#[must_use]
pub fn of_path(path: &std::path::Path) -> String {
    encode(path.as_os_str().as_encoded_bytes())
}

fn escape(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        // Writing into a `String` cannot fail.
        let _ = write!(text, "{MARK}{byte:02x}");
    }
}

/// Returns the bytes of an encoded text, or `None` if a mark lacks its two digits.
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

    /// Text stays unchanged, and bytes that are not text are marked.
    #[test]
    fn text_stays_and_bytes_are_marked() {
        for text in ["", "plain", "new\nline", "new\\nline", "\u{1b}[31m", "\0", "é 日本 🦀"] {
            assert_eq!(encode(text.as_bytes()), text);
        }
        assert_eq!(encode(b"lit\xe9"), "lit\u{fffd}e9");
        assert_eq!(encode("\u{fffd}e9".as_bytes()), "\u{fffd}ef\u{fffd}bf\u{fffd}bde9");
        // The first bytes are an incomplete character. The second bytes are a surrogate, with which
        // other programs escape bytes.
        assert_eq!(encode(b"\xe6\x97"), "\u{fffd}e6\u{fffd}97");
        assert_eq!(encode(b"\xed\xb3\xa9"), "\u{fffd}ed\u{fffd}b3\u{fffd}a9");
        assert_eq!(decode("\u{fffd}e"), None);
        assert_eq!(decode("a\u{fffd}"), None);
        assert_eq!(decode("\u{fffd}+1"), None);
        assert_eq!(decode("\u{fffd}xx"), None);
    }

    /// E2: any bytes are restored, also next to a mark or to an incomplete character.
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
