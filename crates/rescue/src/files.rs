//! The names and inodes of one subvolume.
//!
//! # Invariants
//!
//! - **FI1** A directory entry or an inode reference is enough to know a name.
//! - **FI2** Each name leads to one inode. If a directory entry and an inode reference disagree,
//!   the directory entry is believed.

use std::collections::{BTreeMap, BTreeSet};

use buttress_format::{
    DirEntry, FileKind, Ino, InodeExtrefs, InodeItem, InodeRefs, Key, Kind, TreeId,
};

use crate::salvage::Salvage;
use crate::tree::{Gaps, Leaves};

/// The target of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Child {
    /// An inode of this subvolume.
    Inode(Ino),
    /// Another subvolume.
    Subvolume(TreeId),
}

/// The facts that are known of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InodeFacts {
    pub(crate) item: Option<InodeItem>,
    /// The kind that a name gives for the inode.
    pub(crate) kind: Option<FileKind>,
}

/// The names and inodes of one subvolume.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pub(crate) inodes: BTreeMap<Ino, InodeFacts>,
    pub(crate) names: BTreeMap<Ino, BTreeMap<Vec<u8>, Child>>,
    pub(crate) gaps: Gaps,
}

impl Index {
    /// Reads all of a tree.
    pub(crate) fn read(salvage: &Salvage, tree: &Leaves) -> Self {
        let mut index = Self::default();
        let mut by_inodes: Vec<(Ino, Vec<u8>, Ino)> = Vec::new();
        let gaps = tree.all(salvage, &mut |key, bytes| index.take(&key, bytes, &mut by_inodes));
        index.gaps = gaps;
        for (dir, name, ino) in by_inodes {
            let names = index.names.entry(dir).or_default();
            names.entry(name).or_insert(Child::Inode(ino));
        }
        index
    }

    fn known(&mut self, ino: Ino) -> &mut InodeFacts {
        self.inodes.entry(ino).or_insert(InodeFacts { item: None, kind: None })
    }

    fn take(&mut self, key: &Key, bytes: &[u8], by_inodes: &mut Vec<(Ino, Vec<u8>, Ino)>) {
        let ino = Ino(key.objectid);
        match key.kind {
            Kind::INODE_ITEM => {
                if let Ok(item) = InodeItem::parse(bytes) {
                    self.known(ino).item = Some(item);
                }
            }
            Kind::DIR_ITEM | Kind::DIR_INDEX => {
                for entry in DirEntry::parse_all(bytes).unwrap_or_default() {
                    self.entry(ino, entry);
                }
            }
            Kind::INODE_REF => {
                let dir = Ino(key.offset);
                for found in InodeRefs::parse(bytes).unwrap_or_default() {
                    // The top folder's own reference points to itself.
                    if dir != ino {
                        by_inodes.push((dir, found.name, ino));
                    }
                }
                self.known(ino);
            }
            Kind::INODE_EXTREF => {
                for found in InodeExtrefs::parse(bytes).unwrap_or_default() {
                    by_inodes.push((found.parent, found.name, ino));
                }
                self.known(ino);
            }
            Kind::EXTENT_DATA => {
                self.known(ino);
            }
            _ => {}
        }
    }

    fn entry(&mut self, dir: Ino, entry: DirEntry) {
        let child = match entry.location.kind {
            Kind::INODE_ITEM => {
                let ino = Ino(entry.location.objectid);
                self.known(ino).kind = Some(entry.kind);
                Child::Inode(ino)
            }
            Kind::ROOT_ITEM => Child::Subvolume(TreeId(entry.location.objectid)),
            _ => return,
        };
        self.names.entry(dir).or_default().insert(entry.name, child);
    }

    /// Returns the kind of an inode, if it is known.
    pub(crate) fn kind(&self, ino: Ino) -> Option<FileKind> {
        let known = self.inodes.get(&ino)?;
        let by_item = known.item.map(|item| FileKind::from_mode(item.mode));
        let by_names = || self.names.contains_key(&ino).then_some(FileKind::Directory);
        by_item.or(known.kind).or_else(by_names)
    }

    /// Returns the inodes that no path reaches. An inode below another unreached inode is left out.
    pub(crate) fn unreached(&self, reached: &BTreeSet<Ino>) -> Vec<Ino> {
        let left: BTreeSet<Ino> = self
            .inodes
            .iter()
            .filter(|(ino, known)| {
                // An inode that was deleted while open has no name, and is not restored.
                !reached.contains(ino) && known.item.is_none_or(|item| item.nlink > 0)
            })
            .map(|(ino, _)| *ino)
            .chain(self.names.keys().copied().filter(|dir| !reached.contains(dir)))
            .collect();
        let mut below = BTreeSet::new();
        for dir in &left {
            for child in self.names.get(dir).into_iter().flat_map(BTreeMap::values) {
                if let Child::Inode(ino) = child
                    && ino != dir
                {
                    below.insert(*ino);
                }
            }
        }
        let tops: Vec<Ino> = left.iter().copied().filter(|ino| !below.contains(ino)).collect();
        // If folders form a loop, each folder is below another folder of the loop, so all folders
        // are returned.
        if tops.is_empty() { left.into_iter().collect() } else { tops }
    }
}
