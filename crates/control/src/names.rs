//! Names in JSON: one form for every verb, in both directions.
//!
//! # Invariants
//!
//! - **J1** A name, path, link target or value of an attribute is a string of
//!   [`buttress_base::text`]. UTF-8 stays as it is, and other bytes become escape sequences. So two
//!   different names have different strings.
//! - **J2** Text for people (messages, lines on a terminal) uses [`crate::location::show`] instead.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use buttress_base::text;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serializer};

/// Returns a path of the host in the form of JSON (J1).
#[must_use]
pub fn of_path(path: impl AsRef<Path>) -> String {
    text::encode(path.as_ref().as_os_str().as_bytes())
}

/// Returns the path of a name in the form of JSON. A text that cannot be decoded is the path.
pub(crate) fn to_path(name: &str) -> PathBuf {
    let bytes = text::decode(name).unwrap_or_else(|| name.as_bytes().to_vec());
    OsString::from_vec(bytes).into()
}

fn path_of<E: Error>(name: &str) -> Result<PathBuf, E> {
    let bytes = text::decode(name).ok_or_else(|| E::custom("a name with half a mark"))?;
    Ok(OsString::from_vec(bytes).into())
}

/// For fields: `#[serde(with = "names::path")]`.
pub mod path {
    use super::{Deserialize, Deserializer, Path, PathBuf, Serializer, of_path, path_of};

    /// Writes a path.
    ///
    /// # Errors
    ///
    /// The error of the output.
    pub fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&of_path(path))
    }

    /// Reads a path.
    ///
    /// # Errors
    ///
    /// A value that is no string, or a string with an incomplete escape sequence.
    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<PathBuf, D::Error> {
        path_of(&String::deserialize(from)?)
    }
}

/// For optional fields: `#[serde(default, with = "names::path_or_none")]`.
pub mod path_or_none {
    use super::{Deserialize, Deserializer, PathBuf, Serializer, of_path, path_of};

    /// Writes a path or null.
    ///
    /// # Errors
    ///
    /// The error of the output.
    #[allow(clippy::ref_option, reason = "serde calls it so")]
    pub fn serialize<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
        match path {
            Some(path) => to.serialize_some(&of_path(path)),
            None => to.serialize_none(),
        }
    }

    /// Reads a path or null.
    ///
    /// # Errors
    ///
    /// The errors of [`super::path::deserialize`].
    pub fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<Option<PathBuf>, D::Error> {
        Option::<String>::deserialize(from)?.as_deref().map(path_of).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Document {
        #[serde(with = "path")]
        image: PathBuf,
        #[serde(default, with = "path_or_none", skip_serializing_if = "Option::is_none")]
        target: Option<PathBuf>,
    }

    /// J1: paths that are not UTF-8 survive JSON in both directions.
    #[test]
    fn paths_round_trip_as_json() {
        for bytes in [&b"/a/lit\xe9"[..], b"/a/lit\\xe9", b"/new\nline", b""] {
            let image = PathBuf::from(OsString::from_vec(bytes.to_vec()));
            for target in [None, Some(image.join("b"))] {
                let document = Document { image: image.clone(), target };
                let text = serde_json::to_string(&document).expect("any bytes are valid JSON");
                let back: Document = serde_json::from_str(&text).expect("and back");
                assert_eq!(back, document, "{text}");
            }
        }
    }
}
