//! Shows the files below a place, with the pieces of their content.

use buttress_format::{DirEntry, FileExtent, FileKind, Ino, Key, Kind, Logical, RootItem, TreeId};
use buttress_tree::Result;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::progress::{Reports, Watch};
use crate::sharing::{Leaves, Sharing};
use crate::trees::{Trees, malformed};

/// The place at which a walk begins.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// The subvolume.
    pub tree: TreeId,
    /// The file or folder.
    pub ino: Ino,
    /// Whether it is a folder.
    pub is_folder: bool,
}

/// A part of a file's content.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The offset of the part in the file, in bytes.
    pub at: u64,
    /// Its file extent item.
    pub extent: FileExtent,
    /// The leaf that has the item, if other subvolumes have it, too.
    pub shared_leaf: Option<Logical>,
}

impl Piece {
    /// The address of its extent. `None` for data inside the item and for a hole.
    #[must_use]
    pub fn start(&self) -> Option<Logical> {
        self.extent.region().filter(|region| !region.is_hole()).map(|region| region.disk)
    }

    /// Whether the extent has other users than this file, as FIEMAP reports it.
    #[must_use]
    pub fn is_shared(&self, sharing: &Sharing) -> bool {
        self.shared_leaf.is_some() || self.start().is_some_and(|at| sharing.has_several_users(at))
    }
}

/// A regular file.
#[derive(Clone, Debug)]
pub struct File {
    /// The subvolume.
    pub tree: TreeId,
    /// Its inode number.
    pub ino: Ino,
    /// Its content, in order, without holes.
    pub pieces: Vec<Piece>,
}

/// Gets the files and folders that a walk meets, in order.
pub trait Visitor {
    /// A folder begins. The place where the walk begins has an empty name.
    fn enter(&mut self, name: &[u8]);
    /// The walk meets a regular file. A file with several names comes once for each name.
    fn file(&mut self, name: &[u8], file: &File);
    /// The folder ends.
    fn leave(&mut self);
}

/// One folder of the way down.
struct Frame {
    tree: TreeId,
    entries: std::vec::IntoIter<DirEntry>,
    /// The share of each entry of the whole walk. It is an estimate: all entries of a folder count
    /// alike.
    share: f64,
}

/// The target of an entry of a folder.
enum Target {
    Folder(TreeId, Ino),
    /// An empty folder that stands in a snapshot for a subvolume of its source.
    Stub,
    /// The walk does not enter the entry.
    None,
}

struct Walk<'w, 'v> {
    trees: &'w Trees<'v>,
    sharing: &'w Sharing,
    leaves: FxHashMap<TreeId, Leaves>,
    seen: FxHashSet<(TreeId, Ino)>,
}

/// Walks over everything below a place, and calls the visitor at each folder, before and after its
/// content. With `stay`, does not enter other subvolumes.
///
/// # Errors
///
/// A tree is damaged, or `watch` does not go on.
pub fn walk(
    trees: &Trees<'_>,
    sharing: &Sharing,
    start: Start,
    stay: bool,
    visitor: &mut dyn Visitor,
    watch: Watch<'_>,
) -> Result<()> {
    let mut reports = Reports::to(watch);
    let (leaves, seen) = (FxHashMap::default(), FxHashSet::default());
    let mut walk = Walk { trees, sharing, leaves, seen };
    if !start.is_folder {
        visitor.file(b"", &walk.file(start.tree, start.ino)?);
        return reports.end();
    }
    let mut frames = vec![walk.folder(start.tree, start.ino, 1.0)?];
    visitor.enter(b"");
    while let Some(frame) = frames.last_mut() {
        let (tree, share) = (frame.tree, frame.share);
        let Some(entry) = frame.entries.next() else {
            frames.pop();
            visitor.leave();
            continue;
        };
        if entry.kind == FileKind::Regular {
            reports.now.files += 1;
            visitor.file(&entry.name, &walk.file(tree, Ino(entry.location.objectid))?);
        } else if entry.kind == FileKind::Directory {
            match walk.target(tree, &entry, stay)? {
                Target::Folder(tree, ino) => {
                    let folder = walk.folder(tree, ino, share)?;
                    let is_empty = folder.entries.as_slice().is_empty();
                    frames.push(folder);
                    visitor.enter(&entry.name);
                    // Otherwise its entries have its share.
                    reports.add(if is_empty { share } else { 0.0 })?;
                    continue;
                }
                Target::Stub => {
                    visitor.enter(&entry.name);
                    visitor.leave();
                }
                Target::None => {}
            }
        }
        reports.add(share)?;
    }
    reports.end()
}

impl Walk<'_, '_> {
    /// Returns the target of an entry (SV2).
    fn target(&mut self, tree: TreeId, entry: &DirEntry, stay: bool) -> Result<Target> {
        let (tree, ino) = match entry.location.kind {
            Kind::ROOT_ITEM if stay => return Ok(Target::None),
            Kind::ROOT_ITEM => {
                let below = TreeId(entry.location.objectid);
                if !self.has_its_name(tree, below)? {
                    return Ok(Target::Stub);
                }
                (below, self.top(below)?)
            }
            _ => (tree, Ino(entry.location.objectid)),
        };
        let is_new = self.seen.insert((tree, ino));
        Ok(if is_new { Target::Folder(tree, ino) } else { Target::None })
    }

    fn has_its_name(&self, above: TreeId, below: TreeId) -> Result<bool> {
        let key = Key::new(above.0, Kind::ROOT_REF, below.0);
        let found = self.trees.seek(TreeId::ROOT, &key)?;
        Ok(found.and_then(|cursor| cursor.key()) == Some(key))
    }

    fn top(&self, tree: TreeId) -> Result<Ino> {
        let item: Option<RootItem> = self.trees.view().committed_root_item(tree)?;
        Ok(item.map(|item| item.root_dirid).filter(|ino| ino.0 != 0).unwrap_or(Ino::ROOT_DIR))
    }

    /// The entries of a folder, in the order of readdir(3). `share` is that of the folder.
    fn folder(&mut self, tree: TreeId, ino: Ino, share: f64) -> Result<Frame> {
        self.seen.insert((tree, ino));
        let mut entries = Vec::new();
        self.trees.each(tree, all_of(ino, Kind::DIR_INDEX), |key, item| {
            let parsed = DirEntry::parse_all(item).map_err(malformed(tree, *key))?;
            entries.extend(parsed);
            Ok(())
        })?;
        let share = share / entries.len().max(1) as f64;
        Ok(Frame { tree, entries: entries.into_iter(), share })
    }

    fn file(&mut self, tree: TreeId, ino: Ino) -> Result<File> {
        let leaves = match self.leaves.entry(tree) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                new.insert(self.sharing.leaves(self.trees, tree)?)
            }
        };
        let (from, to) = all_of(ino, Kind::EXTENT_DATA);
        let mut file = File { tree, ino, pieces: Vec::new() };
        let Some(mut cursor) = self.trees.seek(tree, &from)? else { return Ok(file) };
        while let Some((leaf, slot)) = cursor.current() {
            let key = leaf.key(slot);
            if key > to {
                break;
            }
            let extent = FileExtent::parse(leaf.item(slot)).map_err(malformed(tree, key))?;
            if extent.region().is_none_or(|region| !region.is_hole()) {
                let shared_leaf = Some(leaf.logical()).filter(|leaf| leaves.has(*leaf));
                file.pieces.push(Piece { at: key.offset, extent, shared_leaf });
            }
            cursor.advance()?;
        }
        Ok(file)
    }
}

/// Returns the first and the last key that an inode's items of one kind can have.
pub(crate) fn all_of(ino: Ino, kind: Kind) -> (Key, Key) {
    (Key::new(ino.0, kind, 0), Key::new(ino.0, kind, u64::MAX))
}
