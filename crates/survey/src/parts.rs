//! Where the parts of one file lie.

use buttress_format::{Body, Compression, FileExtent, Ino, InodeItem, Key, Kind, TreeId};
use buttress_tree::Result;
use serde::{Deserialize, Serialize};

use crate::trees::{Trees, malformed};

/// A file, and where its content lies.
///
/// Plain data: what the trees say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileParts {
    /// The flags of its inode.
    pub flags: u64,
    /// Its length in bytes.
    pub size: u64,
    /// Its parts, by offset. The ranges between them are holes.
    pub parts: Vec<Part>,
}

/// A part of a file.
///
/// Plain data: one item of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Its offset in the file, in bytes.
    pub at: u64,
    /// Its length in the file, in bytes.
    pub len: u64,
    /// The form of its content.
    pub form: Form,
}

/// The form in which a part of a file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// No content: it reads as zeros.
    Hole,
    /// Content in the item itself.
    Inline,
    /// Compressed content.
    Compressed,
    /// Plain content, or space for it, from this address of the volume on.
    Plain(u64),
}

/// Returns the parts of a file; `None` if there is no such file.
///
/// # Errors
///
/// A tree is damaged.
pub fn parts(trees: &Trees<'_>, tree: TreeId, ino: Ino) -> Result<Option<FileParts>> {
    let mut found = None;
    let mut parts = Vec::new();
    let range = (Key::new(ino.0, Kind(0), 0), Key::new(ino.0, Kind::EXTENT_DATA, u64::MAX));
    trees.each(tree, range, |key, item| {
        match key.kind {
            Kind::INODE_ITEM => {
                found = Some(InodeItem::parse(item).map_err(malformed(tree, *key))?);
            }
            Kind::EXTENT_DATA => {
                let extent = FileExtent::parse(item).map_err(malformed(tree, *key))?;
                let form = match &extent.body {
                    Body::Inline(_) => Form::Inline,
                    Body::Regular(region) | Body::Prealloc(region) if region.is_hole() => {
                        Form::Hole
                    }
                    _ if extent.compression != Compression::None => Form::Compressed,
                    Body::Regular(region) | Body::Prealloc(region) => {
                        Form::Plain(region.disk.0.saturating_add(region.offset))
                    }
                };
                parts.push(Part { at: key.offset, len: extent.file_len(), form });
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(found.map(|inode| FileParts { flags: inode.flags, size: inode.size, parts }))
}
