//! The compression of a file, and its level.

use std::fmt;

use buttress_format::{Compression, Incompat};

/// A compression and its level, as mount options and properties name them: `zstd`, `zlib:9`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    kind: Compression,
    level: i32,
}

impl Codec {
    /// The codec of a file that is marked for compression and names no codec.
    pub const DEFAULT: Self = Self { kind: Compression::Zlib, level: 3 };

    /// Reads `zlib`, `lzo` or `zstd`, with a level after a colon. Level 0 is the default level. As
    /// in Linux, a level out of range becomes the nearest possible level. Returns `None` also for a
    /// codec that is not built in.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, level.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (kind, default, low, high) = match name {
            "zlib" => (Compression::Zlib, 3, 1, 9),
            "lzo" if cfg!(feature = "lzo") => (Compression::Lzo, 0, 0, 0),
            "zstd" if cfg!(feature = "zstd") => (Compression::Zstd, 3, -15, 15),
            _ => return None,
        };
        let level = if level == 0 { default } else { level.clamp(low, high) };
        Some(Self { kind, level })
    }

    /// The compression.
    #[must_use]
    pub fn kind(self) -> Compression {
        self.kind
    }

    /// Returns the level; zero if the compression has no levels.
    #[must_use]
    pub fn level(self) -> i32 {
        self.level
    }

    /// Returns the text of the property. Linux reads only the name, so a level in the property does
    /// no harm.
    #[must_use]
    pub fn property(self) -> String {
        match Self::parse(self.name()) {
            Some(default) if default == self => self.name().to_owned(),
            _ => self.to_string(),
        }
    }

    /// The name without the level.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.kind {
            Compression::None => "none",
            Compression::Zlib => "zlib",
            Compression::Lzo => "lzo",
            Compression::Zstd => "zstd",
        }
    }
}

/// The feature that a reader of the volume needs once an extent is packed this way.
pub(crate) fn feature(kind: Compression) -> Incompat {
    match kind {
        Compression::None | Compression::Zlib => Incompat(0),
        Compression::Lzo => Incompat::COMPRESS_LZO,
        Compression::Zstd => Incompat::COMPRESS_ZSTD,
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            0 => f.write_str(self.name()),
            level => write!(f, "{}:{level}", self.name()),
        }
    }
}

#[cfg(all(test, feature = "lzo", feature = "zstd"))]
mod tests {
    use super::*;

    /// Names and levels as Linux understands them.
    #[test]
    fn names_and_levels() {
        let shown = |text| Codec::parse(text).map(|codec| codec.to_string());
        assert_eq!(shown("zstd").as_deref(), Some("zstd:3"));
        assert_eq!(shown("zstd:-15").as_deref(), Some("zstd:-15"));
        assert_eq!(shown("zstd:40").as_deref(), Some("zstd:15"));
        assert_eq!(shown("zlib:0").as_deref(), Some("zlib:3"));
        assert_eq!(shown("lzo:5").as_deref(), Some("lzo"));
        assert_eq!(shown("gzip"), None);
        assert_eq!(shown("zstd:fast"), None);
    }
}
