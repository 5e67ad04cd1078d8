//! Patterns of paths.
//!
//! # What must hold
//!
//! - A match takes at most as many steps as the product of the lengths of pattern and path.

/// A pattern of paths:
///
/// - `?` matches one byte other than `/`.
/// - `*` matches any number of bytes other than `/`.
/// - `**` matches any number of bytes, `/` included.
/// - `[a-z]` matches one byte of a set, `[!a-z]` one byte outside of it.
///
/// A path matches if the pattern matches the path itself or one of the folders above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Glob {
    pieces: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Byte(u8),
    One,
    Any,
    All,
    Set { is_inverse: bool, ranges: Vec<(u8, u8)> },
}

impl Glob {
    /// Parses a pattern. A leading slash has no effect, because paths begin at the top of the
    /// volume.
    #[must_use]
    pub fn new(pattern: &[u8]) -> Self {
        let mut rest = pattern;
        while let [b'/', more @ ..] = rest {
            rest = more;
        }
        while let [more @ .., b'/'] = rest {
            rest = more;
        }
        let mut pieces = Vec::with_capacity(rest.len());
        while let [first, more @ ..] = rest {
            rest = more;
            pieces.push(match first {
                b'?' => Part::One,
                b'*' if rest.first() == Some(&b'*') => {
                    rest = &rest[1..];
                    Part::All
                }
                b'*' => Part::Any,
                b'[' => match set(rest) {
                    Some((piece, after)) => {
                        rest = after;
                        piece
                    }
                    None => Part::Byte(b'['),
                },
                b'\\' if !rest.is_empty() => {
                    let byte = rest[0];
                    rest = &rest[1..];
                    Part::Byte(byte)
                }
                byte => Part::Byte(*byte),
            });
        }
        Self { pieces }
    }

    /// Whether a path without a leading slash, or a folder above it, matches.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        // `states[i]`: the first `i` pieces match the bytes that were read so far.
        let count = self.pieces.len();
        let mut states = vec![false; count + 1];
        states[0] = true;
        self.pass_stars(&mut states);
        for byte in path {
            if *byte == b'/' && states[count] {
                return true;
            }
            let mut next = vec![false; count + 1];
            for (at, piece) in self.pieces.iter().enumerate() {
                if !states[at] {
                    continue;
                }
                match piece {
                    Part::Byte(wanted) => next[at + 1] |= byte == wanted,
                    Part::One => next[at + 1] |= *byte != b'/',
                    Part::Any => next[at] |= *byte != b'/',
                    Part::All => next[at] = true,
                    Part::Set { is_inverse, ranges } => {
                        let is_in = ranges.iter().any(|(low, high)| (low..=high).contains(&byte));
                        next[at + 1] |= *byte != b'/' && is_in != *is_inverse;
                    }
                }
            }
            states = next;
            self.pass_stars(&mut states);
        }
        states[count]
    }

    fn pass_stars(&self, states: &mut [bool]) {
        for (at, piece) in self.pieces.iter().enumerate() {
            if states[at] && matches!(piece, Part::Any | Part::All) {
                states[at + 1] = true;
            }
        }
    }
}

/// Returns the set after an opening bracket, and the bytes behind the closing bracket. Returns
/// `None` if no bracket closes it.
fn set(bytes: &[u8]) -> Option<(Part, &[u8])> {
    let (is_inverse, body) = match bytes {
        [b'!' | b'^', more @ ..] => (true, more),
        more => (false, more),
    };
    // A closing bracket right at the start is a member of the set.
    let end = 1 + body.iter().skip(1).position(|byte| *byte == b']')?;
    let mut ranges = Vec::new();
    let mut inside = &body[..end];
    loop {
        inside = match inside {
            [low, b'-', high, more @ ..] => {
                ranges.push((*low, *high));
                more
            }
            [byte, more @ ..] => {
                ranges.push((*byte, *byte));
                more
            }
            [] => break,
        };
    }
    Some((Part::Set { is_inverse, ranges }, &body[end + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Patterns match as in a shell. A folder that matches includes its whole content.
    #[test]
    fn patterns_match_as_in_a_shell() {
        let cases = [
            ("/home", "home/a/b", true),
            ("home/*", "home/a/b", true),
            ("home/*.txt", "home/a.txt", true),
            ("home/*.txt", "home/b/a.txt", false),
            ("**.txt", "home/b/a.txt", true),
            ("h?me", "home", true),
            ("h?me", "h/me", false),
            ("[a-f]x", "cx", true),
            ("[!a-f]x", "cx", false),
            ("[]x]", "]", true),
            ("a[", "a[", true),
            (r"\*", "*", true),
            (r"\*", "b", false),
            ("home", "homely", false),
            ("", "any", false),
        ];
        for (pattern, path, expected) in cases {
            let found = Glob::new(pattern.as_bytes()).matches(path.as_bytes());
            assert_eq!(found, expected, "{pattern} {path}");
        }
    }

    /// A pattern that makes backtracking slow is quick here.
    #[test]
    fn many_stars_end() {
        let pattern = "*a".repeat(200);
        assert!(!Glob::new(pattern.as_bytes()).matches(&[b'b'; 4000]));
    }
}
