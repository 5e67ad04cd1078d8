//! Names as people read them.

/// A name from a volume, safe to print: bytes that would move the cursor are escaped.
#[must_use]
pub fn show(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names from a disk cannot send escape sequences to the terminal.
    #[test]
    fn names_are_escaped() {
        assert_eq!(show(b"a\x1b[31mb\xff"), "a\\u{1b}[31mb\\xff");
    }
}
