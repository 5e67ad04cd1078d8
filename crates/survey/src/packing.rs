//! How well files are compressed, counted as `compsize` does.

use buttress_format::{Body, Compression, Logical};
use buttress_tree::Result;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

use crate::progress::Watch;
use crate::sharing::Sharing;
use crate::trees::Trees;
use crate::walk::{File, Start, Visitor, walk};

/// Bytes of extents of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// On the devices, each extent once, without copies of a profile.
    pub disk: u64,
    /// The length of these extents unpacked.
    pub unpacked: u64,
    /// The bytes of files that refer to these extents. Each reference counts.
    pub referenced: u64,
}

impl Sums {
    /// The sum of `self` and `other`.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            disk: self.disk + other.disk,
            unpacked: self.unpacked + other.unpacked,
            referenced: self.referenced + other.referenced,
        }
    }
}

/// Sums by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kinds {
    /// Not packed.
    pub none: Sums,
    /// Packed by zlib.
    pub zlib: Sums,
    /// Packed by LZO.
    pub lzo: Sums,
    /// Packed by zstd.
    pub zstd: Sums,
    /// Allocated and not written.
    pub prealloc: Sums,
}

impl Kinds {
    /// All kinds by their names, in the order in which they are shown.
    #[must_use]
    pub fn rows(&self) -> [(&'static str, Sums); 5] {
        [
            ("none", self.none),
            ("zlib", self.zlib),
            ("lzo", self.lzo),
            ("zstd", self.zstd),
            ("prealloc", self.prealloc),
        ]
    }
}

/// The result of the survey.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Packing {
    /// Names of regular files: a file with several names counts once for each name.
    pub files: u64,
    /// Extents of data, each once.
    pub extents: u64,
    /// References to these extents.
    pub refs: u64,
    /// Pieces of data inside tree items.
    pub inline: u64,
    /// Sums by kind of compression.
    pub kinds: Kinds,
}

#[derive(Default)]
struct Counter {
    found: Packing,
    seen: FxHashSet<Logical>,
}

impl Visitor for Counter {
    fn enter(&mut self, _: &[u8]) {}

    fn file(&mut self, _: &[u8], file: &File) {
        self.found.files += 1;
        for piece in &file.pieces {
            let extent = &piece.extent;
            let kinds = &mut self.found.kinds;
            let sums = match (&extent.body, extent.compression) {
                (Body::Prealloc(_), _) => &mut kinds.prealloc,
                (_, Compression::None) => &mut kinds.none,
                (_, Compression::Zlib) => &mut kinds.zlib,
                (_, Compression::Lzo) => &mut kinds.lzo,
                (_, Compression::Zstd) => &mut kinds.zstd,
            };
            sums.referenced += extent.file_len();
            match (&extent.body, piece.start()) {
                (Body::Inline(bytes), _) => {
                    self.found.inline += 1;
                    sums.disk += bytes.len() as u64;
                    sums.unpacked += extent.ram_bytes;
                }
                (Body::Regular(region) | Body::Prealloc(region), Some(start)) => {
                    self.found.refs += 1;
                    if self.seen.insert(start) {
                        self.found.extents += 1;
                        sums.disk += region.disk_len;
                        sums.unpacked += extent.ram_bytes;
                    }
                }
                _ => {}
            }
        }
    }

    fn leave(&mut self) {}
}

/// Sums over everything below a place.
///
/// # Errors
///
/// When a tree is damaged, or `watch` does not go on.
pub fn packing(trees: &Trees<'_>, start: Start, stay: bool, watch: Watch<'_>) -> Result<Packing> {
    let mut counter = Counter::default();
    walk(trees, &Sharing::default(), start, stay, &mut counter, watch)?;
    Ok(counter.found)
}
