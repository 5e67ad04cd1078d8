//! The grammar of places: divides an argument into volume and path before anything is opened.
//!
//! `docs/format/locations.md` has the grammar for users.
//!
//! # Invariants
//!
//! - **L1** An argument that begins with a known scheme and `://` is a place in a store.
//! - **L2** Otherwise, if a file with exactly this name exists on the host, the argument is that
//!   file.
//! - **L3** Otherwise a `:/`, or a `:` at the end, divides volume and path. The dividing mark is
//!   the first mark behind the name of an existing file, or of a place inside a file. A directory
//!   does not count as a file here. If there is no such file, the first `:/` divides.
//! - **L4** In a place of a store the first `:/` after the scheme divides, or a `:` at the end. A
//!   `://` does not divide.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::inside::Inside;

/// The schemes that are known, and whether this program opens them.
const SCHEMES: [(&str, bool); 4] = [
    ("file", true),
    ("s3", cfg!(feature = "s3")),
    ("gs", cfg!(feature = "gs")),
    ("az", cfg!(feature = "az")),
];

/// The parts of an argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divided {
    /// The volume: a file, a block device, or a place in a store.
    pub volume: PathBuf,
    /// The path inside the volume, if a path was given. It begins with a slash.
    pub path: Option<Vec<u8>>,
}

/// Divides an argument into the volume and the path inside it.
#[must_use]
pub fn divide(argument: &OsStr) -> Divided {
    let bytes = argument.as_bytes();
    let whole = || Divided { volume: PathBuf::from(argument), path: None };
    if let Some(from) = after_scheme(bytes) {
        return colons(bytes, true).find(|&at| at >= from).map_or_else(whole, |at| cut(bytes, at));
    }
    if Path::new(argument).symlink_metadata().is_ok() {
        return whole();
    }
    let mut places = colons(bytes, false).map(|at| cut(bytes, at));
    let Some(first) = places.next() else { return whole() };
    let is_file = |place: &Divided| {
        place.volume.metadata().is_ok_and(|found| !found.is_dir())
            || Inside::of(&place.volume).is_some()
    };
    if is_file(&first) {
        return first;
    }
    places.find(is_file).unwrap_or(first)
}

/// Says whether a name is that of a place in a store (L1).
#[must_use]
pub fn is_remote(volume: &Path) -> bool {
    after_scheme(volume.as_os_str().as_bytes()).is_some()
}

fn after_scheme(bytes: &[u8]) -> Option<usize> {
    let at = bytes.windows(3).position(|word| word == b"://")?;
    let is_known = SCHEMES.iter().any(|(scheme, _)| scheme.as_bytes() == &bytes[..at]);
    is_known.then_some(at + 3)
}

/// The colons that may divide.
fn colons(bytes: &[u8], in_store: bool) -> impl Iterator<Item = usize> {
    bytes.iter().enumerate().filter_map(move |(at, &byte)| {
        let next = bytes.get(at + 1);
        let is_scheme = in_store && next == Some(&b'/') && bytes.get(at + 2) == Some(&b'/');
        let divides = byte == b':' && at > 0 && matches!(next, None | Some(b'/')) && !is_scheme;
        divides.then_some(at)
    })
}

fn cut(bytes: &[u8], at: usize) -> Divided {
    let path = &bytes[at + 1..];
    Divided {
        volume: PathBuf::from(OsString::from_vec(bytes[..at].to_vec())),
        path: Some(if path.is_empty() { b"/".to_vec() } else { path.to_vec() }),
    }
}

/// The kind of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// Folders of this machine.
    Folder,
    /// A bucket of a server that speaks S3.
    S3 {
        /// Its name.
        bucket: String,
    },
    /// A bucket of Google Cloud Storage.
    Google {
        /// Its name.
        bucket: String,
    },
    /// A container of Azure Blob Storage.
    Azure {
        /// Its name.
        container: String,
    },
}

/// A place in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The store.
    pub kind: StoreKind,
    /// The prefix of the volume's objects: for a folder its absolute path.
    pub prefix: String,
    /// Options in the order in which they were given.
    pub options: Vec<(String, String)>,
}

impl Place {
    /// Reads the name of a place in a store.
    ///
    /// # Errors
    ///
    /// [`Error::Place`] with the fault: a scheme that this program cannot open, a name that is not
    /// text, or a missing bucket.
    pub fn parse(volume: &Path) -> Result<Self> {
        let shown = volume.display().to_string();
        let wrong = |why: &str| Error::Place { place: shown.clone(), why: why.to_owned() };
        let text = volume.to_str().ok_or_else(|| wrong("a place in a store is text in UTF-8"))?;
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("has no scheme"))?;
        let opens = SCHEMES.iter().find(|(known, _)| *known == scheme);
        let (_, opens) = opens.ok_or_else(|| wrong("has a scheme that is not known"))?;
        if !opens {
            return Err(wrong(&format!("this program cannot open {scheme}:// places")));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let words = query.split('&').filter(|word| !word.is_empty());
        let pairs = words.map(|word| {
            let (key, value) = word
                .split_once('=')
                .ok_or_else(|| wrong(&format!("option {word:?} has no value")))?;
            Ok((key.to_owned(), unescaped(value).ok_or_else(|| wrong("half an escape"))?))
        });
        let options = pairs.collect::<Result<Vec<_>>>()?;
        let path = unescaped(path).ok_or_else(|| wrong("half an escape"))?;
        let parts = |path: &str| -> Result<String> {
            let parts = path.split('/').filter(|part| !part.is_empty());
            let parts: Vec<&str> = parts.collect();
            if parts.iter().any(|part| matches!(*part, "." | "..")) {
                return Err(wrong("has a part that is . or .."));
            }
            Ok(parts.join("/"))
        };
        if scheme == "file" {
            let from_top = path.strip_prefix('/').ok_or_else(|| {
                wrong("the path of a folder begins with a slash, as in file:///srv/volume")
            })?;
            let prefix = parts(from_top)?;
            if prefix.is_empty() {
                return Err(wrong("names no folder"));
            }
            return Ok(Self { kind: StoreKind::Folder, prefix, options });
        }
        let (bucket, prefix) = path.split_once('/').unwrap_or((&path, ""));
        if bucket.is_empty() {
            return Err(wrong("names no bucket"));
        }
        let bucket = bucket.to_owned();
        let kind = match scheme {
            "gs" => StoreKind::Google { bucket },
            "az" => StoreKind::Azure { container: bucket },
            _ => StoreKind::S3 { bucket },
        };
        Ok(Self { kind, prefix: parts(prefix)?, options })
    }
}

/// Turns `%3A` into a colon, and so on.
fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn divided(argument: &str) -> (String, Option<String>) {
        let found = divide(OsStr::new(argument));
        let path = found.path.map(|path| String::from_utf8(path).expect("text"));
        (found.volume.display().to_string(), path)
    }

    /// L1, L4: a known scheme takes precedence. Behind the scheme, the first colon before a single
    /// slash divides.
    #[test]
    fn a_scheme_comes_before_all_else() {
        let some = |path: &str| Some(path.to_owned());
        for (argument, volume, path) in [
            ("s3://bucket/a", "s3://bucket/a", None),
            ("s3://bucket/a:/etc:/x", "s3://bucket/a", some("/etc:/x")),
            ("file:///tmp/vol:", "file:///tmp/vol", some("/")),
            (
                "s3://b/a?endpoint=http://127.0.0.1:7070:/etc",
                "s3://b/a?endpoint=http://127.0.0.1:7070",
                some("/etc"),
            ),
            ("http://no-such", "http", some("//no-such")),
            ("no-such.img:/etc/a:/b", "no-such.img", some("/etc/a:/b")),
            ("/", "/", None),
            ("a:b", "a:b", None),
        ] {
            assert_eq!(divided(argument), (volume.to_owned(), path), "{argument}");
        }
    }

    /// L3: an existing image wins over an earlier colon.
    #[test]
    fn an_existing_image_divides() {
        let dir = tempfile::tempdir().expect("tempdir");
        let inner = dir.path().join("odd:");
        std::fs::create_dir(&inner).expect("mkdir");
        let image = inner.join("x.img");
        std::fs::write(&image, b"x").expect("write");
        let mut argument = image.clone().into_os_string();
        argument.push(":/a");
        assert_eq!(divide(&argument), Divided { volume: image, path: Some(b"/a".to_vec()) });
    }

    /// L3: a place inside a disk divides as a file does, with any characters in a partition's
    /// label.
    #[test]
    fn a_place_inside_a_disk_divides() {
        let dir = tempfile::tempdir().expect("tempdir");
        let image = dir.path().join("x.img");
        std::fs::write(&image, b"x").expect("write");
        for part in ["#2", "@1MiB", "#label=a"] {
            let mut argument = image.clone().into_os_string();
            argument.push(part);
            let volume = PathBuf::from(&argument);
            argument.push(":/a:/b");
            assert_eq!(divide(&argument), Divided { volume, path: Some(b"/a:/b".to_vec()) });
        }
    }

    #[test]
    fn a_wrong_place_says_what_is_wrong() {
        for (text, word) in [
            ("gs:///a", "bucket"),
            ("s3:///a", "bucket"),
            ("file://a/b", "slash"),
            ("file:///", "folder"),
            ("file:///a/../b", ".."),
            ("file:///a?size", "size"),
            ("file:///a%4", "escape"),
        ] {
            let error = Place::parse(Path::new(text)).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        let place = Place::parse(Path::new("file:///srv//a%3Ab/?x=%26")).expect("right");
        assert_eq!((&*place.prefix, &*place.options[0].1), ("srv/a:b", "&"));
    }

    proptest! {
        /// Any bytes are divided without a panic, and no byte is lost.
        #[test]
        fn any_bytes_divide_and_join_again(
            scheme in prop::sample::select(vec!["", "s3://", "file://", "gs://", "x://"]),
            bytes in prop::collection::vec(
                prop_oneof![Just(b':'), Just(b'/'), Just(b'%'), Just(b'?'), any::<u8>()], 0..40),
        ) {
            let mut argument = scheme.as_bytes().to_vec();
            argument.extend(&bytes);
            let found = divide(OsStr::from_bytes(&argument));
            let mut joined = found.volume.as_os_str().as_bytes().to_vec();
            if let Some(path) = &found.path {
                prop_assert_eq!(path.first(), Some(&b'/'));
                joined.push(b':');
                joined.extend(path);
            }
            let bare = [&joined[..], b"/"].concat();
            prop_assert!(joined == argument || [&argument[..], b"/"].concat() == bare
                || [&argument[..], b"/"].concat() == joined);
            if is_remote(&found.volume) {
                let _ = Place::parse(&found.volume);
            }
        }
    }
}
