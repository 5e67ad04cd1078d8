//! Regular expressions for paths, as `btrfs restore --path-regex` takes them.

use regex::bytes::{Regex, RegexBuilder};

/// A regular expression for paths from the top of a volume, which begin with a slash.
///
/// The expression must find something in the path itself, and in the path of each folder above it.
/// The top, `/`, is one of these folders. `^/(|a(|/b))$` finds the file `/a/b`, as with
/// btrfs-progs.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    ///
    /// A sentence that says what is wrong with the expression.
    pub fn new(text: &str, ignores_case: bool) -> Result<Self, String> {
        // Names are bytes, and `.` must match any byte. In the mode for bytes, only ASCII letters
        // have a case. An expression with a class of other letters compiles only in Unicode mode.
        let of_bytes = |is_unicode: bool| {
            let mut builder = RegexBuilder::new(text);
            builder.unicode(is_unicode).case_insensitive(ignores_case).dot_matches_new_line(true);
            builder.build()
        };
        let built = of_bytes(false).or_else(|error| of_bytes(true).map_err(|_| error));
        built.map(Self).map_err(|error| format!("not a regular expression: {error}"))
    }

    /// Returns whether a path matches. `path` is without the first slash.
    #[must_use]
    pub fn matches(&self, path: &[u8]) -> bool {
        let whole = [b"/", path].concat();
        let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        // The first slash is the top itself.
        ends.map(|at| at.max(1)).chain([whole.len()]).all(|end| self.0.is_match(&whole[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(text: &str, path: &str) -> bool {
        Pattern::new(text, false).expect("it compiles").matches(path.as_bytes())
    }

    /// The form that btrfs-progs ask for: a folder, with everything above and below it.
    const FORM: &str = "^/(|home(|/anna(|/Desktop(|/.*))))$";

    #[test]
    fn a_path_matches_with_each_folder_above() {
        for path in ["", "home", "home/anna", "home/anna/Desktop", "home/anna/Desktop/a/b"] {
            assert!(matches(FORM, path), "{path}");
        }
        for path in ["etc", "home/bert", "home/anna/x", "homes", "etc/home/anna/Desktop/a"] {
            assert!(!matches(FORM, path), "{path}");
        }
        // The expression does not match the folder above the file.
        assert!(!matches("^/(|a/b)$", "a/b"));
    }

    #[test]
    fn case_and_errors() {
        let any = Pattern::new("^/(|HOME(|/.*))$", true).expect("it compiles");
        assert!(any.matches(b"home/x") && !any.matches(b"hom"));
        assert!(any.matches(b"home/\xff\n"), "names are bytes");
        assert!(Pattern::new("(", false).is_err());
    }
}
