//! `IMG:/path`: names a place inside a volume, beside ordinary paths of the host.
//!
//! # Invariants
//!
//! - **P1** An argument that exists on the host as it is written is that host file.
//! - **P2** Otherwise the first `:/` (or a `:` at the end) behind the name of an existing file that
//!   is no directory divides volume from path; when no such file exists, the first one does.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

pub use buttress_dump::show;

/// A place in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The image file or block device.
    pub image: PathBuf,
    /// The path inside, beginning with a slash.
    pub path: Vec<u8>,
}

/// A place on either side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path of the host.
    Host(PathBuf),
    /// A place in a volume.
    Volume(VolumePath),
}

impl Location {
    /// Reads an argument that may name either side.
    pub fn parse(argument: &OsStr) -> Self {
        if Path::new(argument).symlink_metadata().is_ok() {
            return Self::Host(PathBuf::from(argument));
        }
        match divide(argument.as_bytes()) {
            Some(place) => Self::Volume(place),
            None => Self::Host(PathBuf::from(argument)),
        }
    }
}

impl VolumePath {
    /// Reads an argument that must name a place in a volume; a bare image names its root.
    pub fn parse(argument: &OsStr) -> Self {
        let whole = Self { image: PathBuf::from(argument), path: b"/".to_vec() };
        if Path::new(argument).symlink_metadata().is_ok() {
            return whole;
        }
        divide(argument.as_bytes()).unwrap_or(whole)
    }

    /// The parts of the path, without empty ones and `.`.
    pub fn components(&self) -> Vec<&[u8]> {
        let parts = self.path.split(|&byte| byte == b'/');
        parts.filter(|part| !part.is_empty() && *part != b".").collect()
    }

    /// As a person would write it.
    pub fn show(&self) -> String {
        format!("{}:{}", self.image.display(), show(&self.path))
    }
}

/// Finds the colon of P2.
fn divide(argument: &[u8]) -> Option<VolumePath> {
    let colons = argument.iter().enumerate().filter(|&(at, &byte)| {
        byte == b':' && at > 0 && matches!(argument.get(at + 1), None | Some(b'/'))
    });
    let mut places = colons.map(|(at, _)| {
        let path = &argument[at + 1..];
        VolumePath {
            image: PathBuf::from(OsString::from_vec(argument[..at].to_vec())),
            path: if path.is_empty() { b"/".to_vec() } else { path.to_vec() },
        }
    });
    let first = places.next()?;
    let holds_volume =
        |place: &VolumePath| place.image.metadata().is_ok_and(|metadata| !metadata.is_dir());
    if holds_volume(&first) {
        return Some(first);
    }
    Some(places.find(holds_volume).unwrap_or(first))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P2: without any such file on the host, the first colon before a slash divides.
    #[test]
    fn the_first_colon_before_a_slash_divides() {
        let place = Location::parse(OsStr::new("no-such.img:/etc/a:/b"));
        let Location::Volume(place) = place else { panic!("a place in a volume") };
        assert_eq!(place.image, Path::new("no-such.img"));
        assert_eq!(place.path, b"/etc/a:/b");
        assert_eq!(place.components(), [&b"etc"[..], b"a:", b"b"]);
    }

    /// P1: the host's own name wins; a colon without a slash is no volume.
    #[test]
    fn host_names_stay_host_names() {
        assert_eq!(Location::parse(OsStr::new("/")), Location::Host("/".into()));
        assert_eq!(Location::parse(OsStr::new("a:b")), Location::Host("a:b".into()));
    }

    /// P2: an existing image wins over an earlier colon.
    #[test]
    fn an_existing_image_divides() {
        let dir = tempfile::tempdir().expect("tempdir");
        let inner = dir.path().join("odd:");
        std::fs::create_dir(&inner).expect("mkdir");
        let image = inner.join("x.img");
        std::fs::write(&image, b"x").expect("write");
        let mut argument = image.clone().into_os_string();
        argument.push(":/a");
        let Location::Volume(place) = Location::parse(&argument) else { panic!("a volume") };
        assert_eq!(place.image, image);
    }
}
