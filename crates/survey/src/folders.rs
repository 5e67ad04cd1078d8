//! The space that each folder takes on the devices.
//!
//! # How
//!
//! The extent tree counts the items of files that refer to an extent. If the walk meets all of
//! these items below one folder, the extent belongs to this folder alone.
//!
//! An item in a leaf that several subvolumes share counts once in the extent tree. So such an item
//! counts as met only if the walk has met it in each of these subvolumes.

use buttress_format::{Ino, Logical, TreeId};
use buttress_tree::Result;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use crate::progress::Watch;
use crate::sharing::Sharing;
use crate::trees::Trees;
use crate::walk::{File, Start, Visitor, walk};

/// The space of one folder and everything below it; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderRow {
    /// The path from the place at which the walk begins.
    pub path: Vec<u8>,
    /// Regular files, each once.
    pub files: u64,
    /// The content of all files as programs read it, without holes.
    pub data: u64,
    /// The extents with this content. Each extent counts once and whole, without the copies that a
    /// profile makes.
    pub disk: u64,
    /// The length of these extents unpacked.
    pub unpacked: u64,
    /// The part of `disk` that no file elsewhere uses. A deletion of the folder frees this part.
    pub exclusive: u64,
}

/// How files of a folder use one extent.
#[derive(Clone, Copy, Debug)]
struct Used {
    /// The number of items in leaves that only one subvolume has.
    refs: u64,
    disk: u64,
    unpacked: u64,
}

/// An item in a leaf that several subvolumes have: the leaf, the inode, and the offset in the file.
type SharedItem = (Logical, Ino, u64);

/// The extent of a shared item, and the number of subvolumes in which the walk met the item.
#[derive(Clone, Copy, Debug)]
struct Met {
    /// The extent. `None` if the data is inside the item.
    extent: Option<Logical>,
    len: u64,
    times: u32,
}

#[derive(Default)]
struct Tally {
    path: Vec<u8>,
    files: u64,
    data: u64,
    /// Bytes of data inside items, in leaves that only one subvolume has.
    inline: u64,
    extents: FxHashMap<Logical, Used>,
    shared: FxHashMap<SharedItem, Met>,
}

impl Tally {
    fn add(&mut self, file: &File) {
        self.files += 1;
        for piece in &file.pieces {
            let extent = &piece.extent;
            self.data += extent.file_len();
            let start = piece.start();
            if let Some((region, start)) = extent.region().zip(start) {
                let (disk, unpacked) = (region.disk_len, extent.ram_bytes);
                let used = self.extents.entry(start).or_insert(Used { refs: 0, disk, unpacked });
                used.refs += u64::from(piece.shared_leaf.is_none());
            }
            let len = if start.is_some() { 0 } else { extent.to_bytes().len() as u64 };
            match piece.shared_leaf {
                None => self.inline += len,
                Some(leaf) => {
                    let new = Met { extent: start, len, times: 0 };
                    let item = (leaf, file.ino, piece.at);
                    self.shared.entry(item).or_insert(new).times += 1;
                }
            }
        }
    }

    fn row(&self, sharing: &Sharing, users: &FxHashMap<Logical, u32>) -> FolderRow {
        let mut row = FolderRow {
            path: self.path.clone(),
            files: self.files,
            data: self.data,
            disk: self.inline,
            unpacked: self.inline,
            exclusive: self.inline,
        };
        let mut more: FxHashMap<Logical, u64> = FxHashMap::default();
        let mut is_elsewhere: FxHashSet<Logical> = FxHashSet::default();
        for ((leaf, ..), met) in &self.shared {
            let is_whole = met.times >= users.get(leaf).copied().unwrap_or(u32::MAX);
            row.disk += met.len;
            row.unpacked += met.len;
            row.exclusive += if is_whole { met.len } else { 0 };
            if let Some(extent) = met.extent {
                *more.entry(extent).or_default() += 1;
                if !is_whole {
                    is_elsewhere.insert(extent);
                }
            }
        }
        for (at, used) in &self.extents {
            row.disk += used.disk;
            row.unpacked += used.unpacked;
            let refs = used.refs + more.get(at).copied().unwrap_or(0);
            if !is_elsewhere.contains(at) && refs >= sharing.refs(*at) {
                row.exclusive += used.disk;
            }
        }
        row
    }

    /// Adds the counts of a folder below.
    fn join(&mut self, mut below: Self) {
        self.files += below.files;
        self.data += below.data;
        self.inline += below.inline;
        if below.extents.len() > self.extents.len() {
            std::mem::swap(&mut self.extents, &mut below.extents);
        }
        for (at, used) in below.extents {
            self.extents.entry(at).or_insert(Used { refs: 0, ..used }).refs += used.refs;
        }
        if below.shared.len() > self.shared.len() {
            std::mem::swap(&mut self.shared, &mut below.shared);
        }
        for (item, met) in below.shared {
            self.shared.entry(item).or_insert(Met { times: 0, ..met }).times += met.times;
        }
    }
}

struct Folders<'f> {
    sharing: &'f Sharing,
    /// For each shared leaf, the number of subvolumes that have it.
    users: FxHashMap<Logical, u32>,
    depth: usize,
    /// Levels below the deepest folder that has a row.
    deeper: usize,
    /// The folders that the walk is in, if they have a row. The place at which the walk began is
    /// first.
    open: Vec<Tally>,
    seen: FxHashSet<(TreeId, Ino)>,
    rows: Vec<FolderRow>,
}

impl Visitor for Folders<'_> {
    fn enter(&mut self, name: &[u8]) {
        if self.open.len() > self.depth {
            self.deeper += 1;
            return;
        }
        let mut path = self.open.last().map(|above| above.path.clone()).unwrap_or_default();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(name);
        self.open.push(Tally { path, ..Tally::default() });
    }

    fn file(&mut self, _: &[u8], file: &File) {
        if self.open.is_empty() {
            self.open.push(Tally::default());
        }
        if self.seen.insert((file.tree, file.ino))
            && let Some(tally) = self.open.last_mut()
        {
            tally.add(file);
        }
    }

    fn leave(&mut self) {
        if self.deeper > 0 {
            self.deeper -= 1;
            return;
        }
        if let Some(done) = self.open.pop() {
            self.rows.push(done.row(self.sharing, &self.users));
            if let Some(above) = self.open.last_mut() {
                above.join(done);
            }
        }
    }
}

/// Returns a row for a place and for each folder below it, down to `depth` levels. A folder comes
/// after the folders below it.
///
/// # Errors
///
/// A tree is damaged, or `watch` does not go on.
pub fn folders(
    trees: &Trees<'_>,
    sharing: &Sharing,
    start: Start,
    (depth, stay): (usize, bool),
    watch: Watch<'_>,
) -> Result<Vec<FolderRow>> {
    let users = sharing.users_of_leaves(trees)?;
    let (open, rows, seen) = (Vec::new(), Vec::new(), FxHashSet::default());
    let mut visitor = Folders { sharing, users, depth, deeper: 0, open, seen, rows };
    walk(trees, sharing, start, stay, &mut visitor, watch)?;
    // Ends the row of a place that is a file. For a folder, all rows have ended.
    visitor.leave();
    Ok(visitor.rows)
}
