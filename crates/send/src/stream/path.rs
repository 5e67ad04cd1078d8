//! Paths of a stream.
//!
//! # Invariants
//!
//! - **P1** A path is relative to the top of the subvolume and stays below it: it consists of
//!   names, and no name is empty, `.`, `..`, or longer than the format allows. The empty path is
//!   the top itself.
//! - **P2** A path has at most [`PATH_BYTES_MAX`] bytes, the limit of a receiver's system call.

use std::fmt;

use buttress_format::limits::NAME_MAX;

/// Longest path that a stream may hold, in bytes: Linux's `PATH_MAX` without the zero at the end.
pub const PATH_BYTES_MAX: usize = 4095;

/// A path that was checked (P1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamPath<'a>(&'a [u8]);

impl<'a> StreamPath<'a> {
    /// The top of the subvolume.
    pub const TOP: StreamPath<'static> = StreamPath(b"");

    /// Checks a path.
    ///
    /// # Errors
    ///
    /// The rule that the path breaks.
    pub fn new(bytes: &'a [u8]) -> Result<Self, &'static str> {
        if bytes.is_empty() {
            return Ok(Self(bytes));
        }
        if bytes.len() > PATH_BYTES_MAX {
            return Err("is too long");
        }
        if bytes[0] == b'/' {
            return Err("is absolute");
        }
        if bytes.contains(&0) {
            return Err("has a zero byte");
        }
        for name in bytes.split(|byte| *byte == b'/') {
            match name {
                b"" => return Err("has an empty name"),
                b"." | b".." => return Err("has a name that leads elsewhere (\".\" or \"..\")"),
                name if name.len() > NAME_MAX => return Err("has a name that is too long"),
                _ => {}
            }
        }
        Ok(Self(bytes))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether this is the top of the subvolume.
    #[must_use]
    pub fn is_top(self) -> bool {
        self.0.is_empty()
    }

    /// The parent directory and the name in it; `None` for the top.
    #[must_use]
    pub fn split(self) -> Option<(StreamPath<'a>, &'a [u8])> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (StreamPath(&self.0[..slash]), &self.0[slash + 1..]),
            None => (StreamPath(b""), self.0),
        })
    }

    /// The names from the top down.
    pub fn names(self) -> impl Iterator<Item = &'a [u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }
}

impl fmt::Debug for StreamPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for StreamPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { f.write_str("(top)") } else { self.0.escape_ascii().fmt(f) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P1: a path out of the subvolume is refused.
    #[test]
    fn paths_stay_below_the_top() {
        for bad in ["/", "/a", "a//b", "a/", ".", "..", "a/../b", "../a", "a/.", "a\0b"] {
            assert!(StreamPath::new(bad.as_bytes()).is_err(), "{bad:?}");
        }
        assert!(StreamPath::new(&[b'a'; 256]).is_err());
        let longest = [b"ab/".repeat(1364), b"abc".to_vec()].concat();
        assert_eq!(longest.len(), PATH_BYTES_MAX);
        assert!(StreamPath::new(&longest).is_ok(), "P2");
        assert!(StreamPath::new(&[&longest[..], b"d"].concat()).is_err(), "P2");
        for good in ["", "a", "a/b", "...", "a/.b/c d", "o257-7-0"] {
            assert!(StreamPath::new(good.as_bytes()).is_ok(), "{good:?}");
        }
    }

    /// A path divides into the directory and the last name.
    #[test]
    fn paths_divide() {
        let path = StreamPath::new(b"a/b/c").expect("a path");
        let (dir, name) = path.split().expect("not the top");
        assert_eq!((dir.as_bytes(), name), (&b"a/b"[..], &b"c"[..]));
        assert_eq!(
            StreamPath::new(b"c").expect("a path").split(),
            Some((StreamPath::TOP, &b"c"[..]))
        );
        assert_eq!(StreamPath::TOP.split(), None);
    }
}
