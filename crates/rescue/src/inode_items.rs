//! The data of one inode, gathered from the items of a tree.

use std::ops::Range;

use buttress_format::{DirEntry, FileExtent, Generation, Ino, InodeItem, Key, Kind};

use crate::salvage::Salvage;
use crate::sums::Life;
use crate::tree::{Gap, Leaves};

/// One extent item of a file.
#[derive(Clone, Debug)]
pub(crate) struct FileItem {
    /// The offset in the file, in bytes.
    pub(crate) offset: u64,
    /// The parsed item, or the error.
    pub(crate) extent: Result<FileExtent, String>,
    /// The transactions in which the extent was provably in use.
    pub(crate) life: Life,
}

/// All known items of one inode.
#[derive(Clone, Debug, Default)]
pub(crate) struct InodeItems {
    pub(crate) item: Option<InodeItem>,
    pub(crate) pieces: Vec<FileItem>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Ranges of the file with items that cannot be read, and why.
    pub(crate) unknown: Vec<(Range<u64>, String)>,
    /// The reason why names or attributes may be missing, and whether items are certainly lost.
    pub(crate) may_lack: Option<(String, bool)>,
}

impl InodeItems {
    /// Gathers all items of an inode from a tree of one moment.
    pub(crate) fn read(salvage: &Salvage, tree: &Leaves, ino: Ino, moment: Generation) -> Self {
        let mut parts = Self::default();
        let from = Key::new(ino.0, Kind(0), 0);
        let to = Key::new(ino.0, Kind(Kind::EXTENT_DATA.0 + 1), 0);
        let gaps = tree.items(salvage, &from, Some(&to), &mut |key, bytes| {
            parts.take(&key, bytes, moment);
        });
        for gap in &gaps {
            parts.note(ino, gap);
        }
        if tree.over.whole.contains(&ino) {
            parts.may_lack = None;
        }
        parts
    }

    /// Gathers all items except those of the content.
    pub(crate) fn read_head(
        salvage: &Salvage,
        tree: &Leaves,
        ino: Ino,
        moment: Generation,
    ) -> Self {
        let mut parts = Self::default();
        let from = Key::new(ino.0, Kind(0), 0);
        let to = Key::new(ino.0, Kind(Kind::XATTR_ITEM.0 + 1), 0);
        let gaps = tree.items(salvage, &from, Some(&to), &mut |key, bytes| {
            parts.take(&key, bytes, moment);
        });
        for gap in &gaps {
            parts.note(ino, gap);
        }
        if tree.over.whole.contains(&ino) {
            parts.may_lack = None;
        }
        parts
    }

    /// Adds one item. `until` is the last transaction in which the item was provably in the tree.
    pub(crate) fn take(&mut self, key: &Key, bytes: &[u8], until: Generation) {
        match key.kind {
            Kind::INODE_ITEM => self.item = InodeItem::parse(bytes).ok(),
            Kind::XATTR_ITEM => {
                for entry in DirEntry::parse_all(bytes).unwrap_or_default() {
                    self.xattrs.push((entry.name, entry.data));
                }
            }
            Kind::EXTENT_DATA => {
                let extent = FileExtent::parse(bytes).map_err(|error| error.to_string());
                let from = extent.as_ref().map_or(until, |extent| extent.generation);
                let life = Life { from, until };
                self.pieces.push(FileItem { offset: key.offset, extent, life });
            }
            _ => {}
        }
    }

    /// Records an unreadable part of the tree that may contain items of the inode.
    pub(crate) fn note(&mut self, ino: Ino, gap: &Gap) {
        let data = |offset| Key::new(ino.0, Kind::EXTENT_DATA, offset);
        // The inode item is an inode's first item. So a gap that ends at the key of the inode item
        // contains no item of the inode.
        if gap.touches(&Key::new(ino.0, Kind::INODE_ITEM, 0), Some(&data(0))) {
            self.may_lack = Some((gap.why.clone(), gap.is_sure));
        }
        if gap.touches(&data(0), Some(&data(u64::MAX))) {
            let low = if gap.from < data(0) { 0 } else { gap.from.offset };
            let end = gap.to.filter(|to| *to < data(u64::MAX));
            let high = end.map_or(u64::MAX, |to| to.offset);
            if low < high {
                self.unknown.push((low..high, gap.why.clone()));
            }
        }
    }

    /// The size from the inode item, or else from the end of the extents.
    pub(crate) fn size(&self) -> u64 {
        let end = |piece: &FileItem| {
            let len = piece.extent.as_ref().map_or(0, FileExtent::file_len);
            piece.offset.saturating_add(len)
        };
        match &self.item {
            Some(item) => item.size,
            None => self.pieces.iter().map(end).max().unwrap_or(0),
        }
    }

    /// The bytes of all extents that are no holes.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = |piece: &FileItem| match &piece.extent {
            Ok(extent) => match extent.region() {
                Some(region) if region.is_hole() => 0,
                Some(region) => region.len,
                None => extent.ram_bytes,
            },
            Err(_) => 0,
        };
        self.pieces.iter().map(bytes).fold(0, u64::saturating_add)
    }

    /// Whether the extents add up to the inode's `nbytes`, so that gaps hide no extent.
    pub(crate) fn has_all_bytes(&self) -> bool {
        let found = self.bytes();
        self.item.is_some_and(|item| item.nbytes == found)
    }
}
