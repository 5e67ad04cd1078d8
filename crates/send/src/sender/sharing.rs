//! Finds data that the receiver has already, in extents that a clone source shares with the file.
//!
//! # How
//!
//! The extent tree lists the users of an extent, either as (tree, inode, offset) or as the address
//! of a leaf. Snapshots share nodes, and with them references, so the listed tree is seldom a clone
//! source. But the inode number and the offset are likely the same in all snapshots. So each listed
//! inode is looked up in each clone source, and its extent is compared.
//!
//! # Invariants
//!
//! - **S1** A range is cloned only after its source was seen to show the same part of the same
//!   extent.

use std::collections::BTreeSet;
use std::ops::Range;

use buttress_format::{
    BackRef, Body, Compression, Extent, ExtentItem, FileExtent, Header, Ino, Key, Kind, Logical,
    TreeId,
};
use buttress_tree::{Cursor, Expect, NodePtr, NodeSource};
use buttress_txn::View;

use super::paths::join;
use super::tree::{Link, Tree};
use crate::error::Result;
use crate::stream::{PATH_BYTES_MAX, Source};

/// The most references of one extent that are read. If an extent has more references, the first
/// references are enough to find a source.
const REFS_MAX: usize = 256;

/// A part of an extent at its place in a file that is being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) ino: Ino,
    /// The offset in the file.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The extent that the piece is a part of.
    pub(super) extent: Extent,
    pub(super) compression: Compression,
    /// The offset in the (decompressed) extent.
    pub(super) skip: u64,
    /// Length of the file that is being sent.
    pub(super) size: u64,
}

/// The location of the bytes at the receiver.
pub(super) struct Shared {
    pub(super) source: Source,
    pub(super) path: Vec<u8>,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// An inode that may have an extent, and where the extent would begin in it.
type Candidate = (Ino, u64);

pub(super) struct Sharing<'s, 'v> {
    view: &'v View,
    /// The parent and the other sources.
    sources: Vec<&'s Tree<'v>>,
    new: &'s Tree<'v>,
    extents: Option<NodePtr>,
    /// The last extent that was asked for.
    last: (Logical, Vec<Candidate>),
}

impl<'s, 'v> Sharing<'s, 'v> {
    pub(super) fn new(
        view: &'v View,
        old: Option<&'s Tree<'v>>,
        others: &'s [Tree<'v>],
        new: &'s Tree<'v>,
    ) -> Self {
        let sources = old.into_iter().chain(others).collect();
        // Without an extent tree that can be read, everything is sent.
        let extents = view.committed_root(TreeId::EXTENT).ok().flatten();
        Self { view, sources, new, extents, last: (Logical(0), Vec::new()) }
    }

    /// Finds the place from which the receiver can clone the longest part of a piece, from its
    /// beginning on.
    pub(super) fn find(&mut self, piece: &Piece) -> Result<Option<Shared>> {
        self.look_up(piece.extent)?;
        let mut best: Option<(usize, Ino, u64, u64)> = None;
        for &(ino, base) in &self.last.1 {
            let Some(offset) = base.checked_add(piece.skip) else { continue };
            for (index, tree) in self.sources.iter().copied().chain([self.new]).enumerate() {
                let here = index == self.sources.len();
                // Of the subvolume itself, the receiver has only the parts that were sent already.
                if here && (ino > piece.ino || ino == piece.ino && offset >= piece.offset) {
                    continue;
                }
                let mut len = self.overlap(tree, (ino, base), offset, piece)?;
                if here && ino == piece.ino {
                    len = len.min(piece.offset - offset);
                }
                let len = self.whole(tree, (ino, offset), len, piece)?;
                if len > best.map_or(0, |(.., best)| best) {
                    best = Some((index, ino, offset, len));
                }
            }
        }
        let Some((index, ino, offset, len)) = best else { return Ok(None) };
        let tree = self.sources.get(index).copied().unwrap_or(self.new);
        // If the path of the source is too long for a stream, the bytes are sent.
        let path = whole_path(tree, ino)?.filter(|path| path.len() <= PATH_BYTES_MAX);
        let Some(path) = path else { return Ok(None) };
        Ok(Some(Shared { source: tree.source(), path, offset, len }))
    }

    /// Returns how many bytes from `offset` on show the same part of the same extent as the piece.
    fn overlap(
        &self,
        tree: &Tree<'v>,
        (ino, base): Candidate,
        offset: u64,
        piece: &Piece,
    ) -> Result<u64> {
        let Some(mapping) = tree.mapping(ino, offset)? else { return Ok(0) };
        let Body::Regular(region) = &mapping.extent.body else { return Ok(0) };
        let same = region.extent() == piece.extent
            && mapping.extent.compression == piece.compression
            && mapping.start <= offset
            && mapping.start.checked_sub(region.offset) == Some(base);
        Ok(if same { (mapping.end - offset).min(piece.len) } else { 0 })
    }

    /// Cuts a length to a length that can be cloned: whole sectors, or up to the end of both files.
    fn whole(
        &self,
        tree: &Tree<'v>,
        (ino, offset): (Ino, u64),
        len: u64,
        piece: &Piece,
    ) -> Result<u64> {
        if len == 0 {
            return Ok(0);
        }
        let Some(item) = tree.inode_item(ino)? else { return Ok(0) };
        let len = len.min(item.size.saturating_sub(offset));
        let ends_both = offset + len == item.size && piece.offset + len == piece.size;
        let whole = len - len % tree.sector();
        Ok(if ends_both { len } else { whole })
    }

    /// Reads the users of an extent.
    fn look_up(&mut self, extent: Extent) -> Result<()> {
        if self.last.0 == extent.start {
            return Ok(());
        }
        self.last = (extent.start, Vec::new());
        let Some(root) = self.extents else { return Ok(()) };
        let store = &**self.view.store();
        let key = Key::new(extent.start.0, Kind::EXTENT_ITEM, extent.len);
        let mut cursor = Cursor::seek(store, TreeId::EXTENT, root, &key)?;
        let mut found = BTreeSet::new();
        let mut leaves = Vec::new();
        let mut count = 0;
        while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
            if key.objectid != extent.start.0 || count >= REFS_MAX {
                break;
            }
            let refs = match key.kind {
                Kind::EXTENT_ITEM => ExtentItem::parse(&key, bytes).map(|item| item.inline),
                Kind::EXTENT_DATA_REF | Kind::SHARED_DATA_REF => {
                    BackRef::keyed_parse(&key, bytes).map(|entry| vec![entry])
                }
                _ => Ok(Vec::new()),
            };
            // The extent tree only helps to send less, so damage in it is not reported.
            for entry in refs.unwrap_or_default() {
                count += 1;
                match entry {
                    BackRef::Data { ino, offset, .. } => {
                        found.insert((ino, offset));
                    }
                    BackRef::SharedData { parent, .. } => leaves.push(parent),
                    _ => {}
                }
            }
            cursor.advance()?;
        }
        for leaf in leaves {
            self.users_in_leaf(leaf, extent, &mut found);
        }
        self.last.1 = found.into_iter().collect();
        Ok(())
    }

    /// Adds the inodes that refer to the extent in a leaf.
    fn users_in_leaf(&self, leaf: Logical, extent: Extent, found: &mut BTreeSet<Candidate>) {
        let store = &**self.view.store();
        let mut head = vec![0; store.geometry().nodesize as usize];
        if store.volume().read_mirror(leaf, &mut head, 0).is_err() {
            return;
        }
        let Ok(header) = Header::parse(&head) else { return };
        let ptr = NodePtr { logical: leaf, generation: header.generation, level: 0 };
        let Ok(node) = store.node(header.owner, &Expect::root(ptr)) else { return };
        for slot in 0..node.len() {
            let key = node.key(slot);
            if key.kind != Kind::EXTENT_DATA {
                continue;
            }
            let Ok(item) = FileExtent::parse(node.item(slot)) else { continue };
            if let Body::Regular(region) = &item.body
                && region.extent() == extent
                && let Some(base) = key.offset.checked_sub(region.offset)
            {
                found.insert((Ino(key.objectid), base));
            }
        }
    }
}

/// The path of an inode's first name.
fn whole_path(tree: &Tree<'_>, ino: Ino) -> Result<Option<Vec<u8>>> {
    let mut names = Vec::new();
    let mut at = ino;
    while at != Ino::ROOT_DIR {
        let Some(Link { parent, name }) = tree.first_link(at)? else { return Ok(None) };
        names.push(name);
        at = parent;
        if names.len() > super::paths::DEPTH_MAX {
            return Ok(None);
        }
    }
    Ok(Some(names.iter().rev().fold(Vec::new(), |path, name| join(&path, name))))
}

/// The part of `range` that lies in `other`.
pub(super) fn common(range: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    let start = range.start.max(other.start);
    start..range.end.min(other.end).max(start)
}
