//! Places in volumes, written `IMG:/path`, among ordinary paths of the host.
//!
//! [`buttress_remote::divide`] defines the grammar for all verbs.

use std::ffi::OsStr;
use std::path::PathBuf;

pub use buttress_dump::show;
use buttress_remote::{Inside, divide, is_remote};

/// A place in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumePath {
    /// The image file or block device.
    pub image: PathBuf,
    /// The path inside, beginning with a slash.
    pub path: Vec<u8>,
}

/// A place on the host or in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// A path of the host.
    Host(PathBuf),
    /// A place in a volume.
    Volume(VolumePath),
}

impl Location {
    /// Parses an argument that may be a path of the host or a place in a volume.
    pub fn parse(argument: &OsStr) -> Self {
        let found = divide(argument);
        match found.path {
            None if !is_remote(&found.volume) && Inside::of(&found.volume).is_none() => {
                Self::Host(found.volume)
            }
            path => Self::Volume(VolumePath::of(found.volume, path)),
        }
    }
}

impl VolumePath {
    /// Reads an argument that must name a place in a volume; a bare image names its root.
    pub fn parse(argument: &OsStr) -> Self {
        let found = divide(argument);
        Self::of(found.volume, found.path)
    }

    fn of(image: PathBuf, path: Option<Vec<u8>>) -> Self {
        Self { image, path: path.unwrap_or_else(|| b"/".to_vec()) }
    }

    /// The parts of the path, without empty parts and `.`.
    pub fn components(&self) -> Vec<&[u8]> {
        let parts = self.path.split(|&byte| byte == b'/');
        parts.filter(|part| !part.is_empty() && *part != b".").collect()
    }

    /// Returns the place in the form of the command line.
    pub fn show(&self) -> String {
        format!("{}:{}", self.image.display(), show(&self.path))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// If no such file exists on the host, the path begins after the first colon before a slash.
    #[test]
    fn the_first_colon_before_a_slash_divides() {
        let place = Location::parse(OsStr::new("no-such.img:/etc/a:/b"));
        let Location::Volume(place) = place else { panic!("a place in a volume") };
        assert_eq!(place.image, Path::new("no-such.img"));
        assert_eq!(place.path, b"/etc/a:/b");
        assert_eq!(place.components(), [&b"etc"[..], b"a:", b"b"]);
    }

    /// A name that exists on the host means the file of that name. A colon without a slash names no
    /// volume.
    #[test]
    fn host_names_stay_host_names() {
        assert_eq!(Location::parse(OsStr::new("/")), Location::Host("/".into()));
        assert_eq!(Location::parse(OsStr::new("a:b")), Location::Host("a:b".into()));
    }

    /// If a part before a later colon is an existing image, the path begins after that colon.
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
