//! Checks inodes by fragments. A fragment has the facts about an inode in one leaf. It is joined
//! with the fragment of the next leaf.
//!
//! # Invariants
//!
//! - **I1** Joining is associative. Threads may check leaves in any grouping. The [`Span`] of a
//!   shared node is valid for every tree of that node.
//! - **I2** An inode is checked once, when everything about it is in one [`Fragment`].
//! - **I3** If the [`Sums`] of a tree agree, each directory entry has exactly one inode reference,
//!   and each reference has an entry. The chance that wrong names go unnoticed is 2^-128. Sums that
//!   disagree do not tell which name is wrong. The module `names` finds that name.

use buttress_format::{FileKind, Incompat, Ino, InodeFlags, InodeItem, Key, Kind};
use xxhash_rust::xxh3::xxh3_128;

use crate::context::{Context, Tree};
use crate::verity;
use buttress_issue::Issue;

/// A sum of hashes: equal for equal multisets, in whatever order the hashes were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum([u64; 2]);

impl Sum {
    /// Returns the hash of four words and a name.
    pub(crate) fn of(words: [u64; 4], name: &[u8]) -> Self {
        let mut bytes = [0; 32 + 255];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let len = name.len().min(255);
        bytes[32..32 + len].copy_from_slice(&name[..len]);
        let hash = xxh3_128(&bytes[..32 + len]);
        Self([hash as u64, (hash >> 64) as u64])
    }

    pub(crate) fn add(&mut self, other: Self) {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word = word.wrapping_add(other);
        }
    }

    /// Mixes a file type into every hash of the sum, by a factor. Entries and references then agree
    /// only if they agree on the type.
    pub(crate) fn mixed_with_kind(self, kind: FileKind) -> Self {
        // The factor is odd, so that the multiplication loses no information.
        let factor = 2 * u64::from(kind as u8) + 3;
        Self(self.0.map(|word| word.wrapping_mul(factor)))
    }
}

/// Sums over a whole tree. They must agree with each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Directory entries as the directories list them.
    pub(crate) entries: Sum,
    /// Directory entries as the inodes' references state them.
    pub(crate) references: Sum,
    /// The number of directories that list other names than they find by lookup.
    pub(crate) odd_dirs: u64,
    /// Inodes without a name.
    pub(crate) nameless: Sum,
    /// Inodes that are recorded as orphans, to be removed.
    pub(crate) orphans: Sum,
    pub(crate) inodes: u64,
}

impl Sums {
    fn add(&mut self, other: &Self) {
        self.entries.add(other.entries);
        self.references.add(other.references);
        self.odd_dirs += other.odd_dirs;
        self.nameless.add(other.nameless);
        self.orphans.add(other.orphans);
        self.inodes += other.inodes;
    }
}

/// The content of a file between two offsets, as far as it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// The offset of the first hole.
    pub(crate) hole: Option<u64>,
    /// The end of the last extent with written data; preallocated extents do not count.
    pub(crate) written_end: u64,
}

/// The known facts about one inode.
#[derive(Clone, Debug)]
pub(crate) struct Fragment {
    pub(crate) ino: Ino,
    pub(crate) item: Option<InodeItem>,
    pub(crate) names: u64,
    pub(crate) references: Sum,
    pub(crate) entries: Sum,
    pub(crate) listed: Sum,
    pub(crate) looked_up: Sum,
    pub(crate) name_bytes: u64,
    pub(crate) has_entries: bool,
    pub(crate) run: Option<Run>,
    pub(crate) bytes: u64,
    pub(crate) orphans: Sum,
    /// An offset at which an extent overlaps the preceding extent.
    pub(crate) overlap: Option<u64>,
    /// Whether the inode has items of a descriptor or of a Merkle tree.
    pub(crate) has_verity_items: bool,
}

impl Fragment {
    pub(crate) fn new(ino: Ino) -> Self {
        Self {
            ino,
            item: None,
            names: 0,
            references: Sum::default(),
            entries: Sum::default(),
            listed: Sum::default(),
            looked_up: Sum::default(),
            name_bytes: 0,
            has_entries: false,
            run: None,
            bytes: 0,
            orphans: Sum::default(),
            overlap: None,
            has_verity_items: false,
        }
    }

    /// Adds an extent, which lies after all earlier ones.
    pub(crate) fn add_extent(&mut self, next: Run) {
        match &mut self.run {
            None => self.run = Some(next),
            Some(run) => {
                if next.start < run.end {
                    self.overlap = self.overlap.or(Some(next.start));
                } else if next.start > run.end {
                    run.hole = run.hole.or(Some(run.end));
                }
                run.hole = run.hole.or(next.hole);
                run.end = run.end.max(next.end);
                run.written_end = run.written_end.max(next.written_end);
            }
        }
    }

    /// Whether the inode has lost its last name. Its items are removed over several commits, and
    /// Linux does not keep the sums correct meanwhile. After a crash, some items are left. The
    /// orphan item makes the next mount remove them.
    fn is_going(&self) -> bool {
        self.names == 0 && self.item.is_some_and(|item| item.nlink == 0)
    }

    /// Joins the fragment from the next leaf.
    fn absorb(&mut self, right: Self) {
        self.item = self.item.or(right.item);
        self.names += right.names;
        self.references.add(right.references);
        self.entries.add(right.entries);
        self.listed.add(right.listed);
        self.looked_up.add(right.looked_up);
        self.name_bytes = self.name_bytes.saturating_add(right.name_bytes);
        self.has_entries |= right.has_entries;
        self.bytes = self.bytes.saturating_add(right.bytes);
        self.orphans.add(right.orphans);
        if let Some(run) = right.run {
            self.add_extent(run);
        }
        self.overlap = self.overlap.or(right.overlap);
        self.has_verity_items |= right.has_verity_items;
    }
}

/// The result of a run of leaves. An inode at an end of the run may continue in a leaf outside of
/// the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Span {
    first: Option<Fragment>,
    sums: Sums,
    last: Option<Fragment>,
    keys: Option<(Key, Key)>,
}

impl Span {
    /// Creates the span of a leaf with these keys.
    pub(crate) fn of_keys(keys: Option<(Key, Key)>) -> Self {
        Self { keys, ..Self::default() }
    }

    pub(crate) fn first_key(&self) -> Option<Key> {
        self.keys.map(|(first, _)| first)
    }

    pub(crate) fn last_key(&self) -> Option<Key> {
        self.keys.map(|(_, last)| last)
    }

    /// Adds the next inode of a leaf.
    pub(crate) fn push(&mut self, fragment: Fragment, checker: &mut InodeChecker<'_, '_>) {
        let one = Self { first: Some(fragment), ..Self::default() };
        self.append(one, checker);
    }

    /// Appends the next span (I1), and checks the inodes that are complete now.
    pub(crate) fn append(&mut self, right: Self, checker: &mut InodeChecker<'_, '_>) {
        self.keys = match (self.keys, right.keys) {
            (Some((first, _)), Some((_, last))) => Some((first, last)),
            (keys, other) => keys.or(other),
        };
        self.sums.add(&right.sums);
        let Some(next) = right.first else { return };
        let joined = match self.last.as_mut().or(self.first.as_mut()) {
            Some(open) if open.ino == next.ino => {
                open.absorb(next);
                None
            }
            _ => Some(next),
        };
        for fragment in [joined, right.last].into_iter().flatten() {
            if self.first.is_none() {
                self.first = Some(fragment);
            } else if let Some(whole) = self.last.replace(fragment) {
                checker.inode(whole, &mut self.sums);
            }
        }
    }

    /// Checks the first and the last inode, which [`Self::append`] left unchecked. The caller has
    /// appended all leaves of the tree.
    pub(crate) fn finish(mut self, checker: &mut InodeChecker<'_, '_>) -> Sums {
        for whole in [self.first.take(), self.last.take()].into_iter().flatten() {
            checker.inode(whole, &mut self.sums);
        }
        self.sums
    }
}

/// Checks inodes of one tree.
pub(crate) struct InodeChecker<'j, 'c> {
    context: &'j Context<'c>,
    tree: &'j Tree,
    has_hole_items: bool,
}

impl<'j, 'c> InodeChecker<'j, 'c> {
    pub(crate) fn new(context: &'j Context<'c>, tree: &'j Tree) -> Self {
        let has_hole_items = !context.superblock.incompat.has(Incompat::NO_HOLES);
        Self { context, tree, has_hole_items }
    }

    /// Checks one whole inode and adds it to the tree's sums (I2).
    fn inode(&mut self, whole: Fragment, sums: &mut Sums) {
        let tree = self.tree.id;
        let ino = whole.ino;
        sums.orphans.add(whole.orphans);
        if ino < Ino::FIRST_FREE || ino > Ino::LAST_FREE {
            return;
        }
        sums.inodes += 1;
        let is_going = whole.is_going();
        if !is_going {
            sums.entries.add(whole.entries);
            sums.odd_dirs += u64::from(whole.listed != whole.looked_up);
        }
        let Some(item) = whole.item else {
            self.context.add(Issue::InodeMissing { tree, ino });
            return;
        };
        let kind = FileKind::from_mode(item.mode);
        let has_odd_bits = item.mode & !0o17_7777 != 0;
        sums.references.add(whole.references.mixed_with_kind(kind));
        if kind == FileKind::Unknown || has_odd_bits {
            self.context.add(Issue::InodeMode { tree, ino, mode: item.mode });
        }
        if item.nlink == 0 && whole.names == 0 {
            sums.nameless.add(Sum::of([ino.0, 0, 0, 0], b""));
        } else if u64::from(item.nlink) != whole.names {
            let (found, expected) = (u64::from(item.nlink), whole.names);
            self.context.add(Issue::InodeLinks { tree, ino, found, expected });
        }
        self.generations(ino, &item);
        if kind == FileKind::Directory && !is_going {
            self.directory(&whole, &item);
        } else if kind != FileKind::Directory && whole.has_entries {
            self.odd(ino, "it is no directory and has entries");
        }
        match kind {
            FileKind::Regular => self.regular(&whole, &item),
            FileKind::Symlink if whole.run.is_none() => self.odd(ino, "a symbolic link to nothing"),
            FileKind::Symlink => {}
            _ if whole.run.is_some() => self.odd(ino, "it is no file and has extents"),
            _ => {}
        }
        // Implementations maintain the count of bytes only for files and symbolic links.
        let has_bytes = matches!(kind, FileKind::Regular | FileKind::Symlink);
        if has_bytes && !is_going && item.nbytes != whole.bytes {
            let (found, expected) = (item.nbytes, whole.bytes);
            self.context.add(Issue::InodeBytes { tree, ino, found, expected });
        }
        if let Some(offset) = whole.overlap {
            self.context.add(Issue::FileOverlap { tree, ino, offset });
        }
        if !is_going {
            self.verity(&whole, &item, kind);
        }
        if kind == FileKind::Symlink
            && item.flags & (InodeFlags::IMMUTABLE | InodeFlags::APPEND) != 0
        {
            self.odd(ino, "a symbolic link that is immutable or only appended to");
        }
    }

    fn verity(&self, whole: &Fragment, item: &InodeItem, kind: FileKind) {
        let (tree, ino) = (self.tree.id, whole.ino);
        if item.flags & InodeFlags::RO_VERITY == 0 {
            if whole.has_verity_items && !verity::has_orphan(self.context, self.tree, ino) {
                self.context.add(Issue::VerityLeft { tree, ino });
            }
        } else if kind != FileKind::Regular {
            self.odd(ino, "it is no file and has fs-verity");
        } else if let Some(why) = verity::fault(self.context, self.tree, ino, item) {
            self.context.add(Issue::VerityDamaged { tree, ino, why });
        }
    }

    fn odd(&self, ino: Ino, why: &'static str) {
        self.context.add(Issue::InodeOdd { tree: self.tree.id, ino, why });
    }

    fn generations(&self, ino: Ino, item: &InodeItem) {
        let key = Key::new(ino.0, Kind::INODE_ITEM, 0);
        for found in [item.generation, item.transid] {
            self.context.check_generation(self.tree.id, key, found);
        }
    }

    fn directory(&self, whole: &Fragment, item: &InodeItem) {
        let (tree, ino) = (self.tree.id, whole.ino);
        if item.nlink > 1 {
            self.odd(ino, "a directory with more than one link");
        }
        if whole.names > 1 {
            self.context.add(Issue::DirNames { tree, ino, names: whole.names });
        }
        let expected = whole.name_bytes.saturating_mul(2);
        if item.size != expected {
            let found = item.size;
            self.context.add(Issue::DirSize { tree, ino, found, expected });
        }
    }

    fn regular(&self, whole: &Fragment, item: &InodeItem) {
        let (tree, ino, size) = (self.tree.id, whole.ino, item.size);
        let sector = self.context.sectorsize();
        let size_end = size.checked_next_multiple_of(sector).unwrap_or(u64::MAX);
        if let Some(run) = whole.run
            && run.written_end > size_end
        {
            self.context.add(Issue::FileBeyondEnd { tree, ino, end: run.written_end, size });
        }
        if !self.has_hole_items || size == 0 || item.nlink == 0 {
            return;
        }
        let hole = match whole.run {
            None => Some(0),
            Some(run) if run.start > 0 => Some(0),
            Some(run) => run.hole.or((run.end < size).then_some(run.end)),
        };
        if let Some(offset) = hole.filter(|offset| *offset < size) {
            self.context.add(Issue::FileHole { tree, ino, offset });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums do not depend on order, and tell kinds apart.
    #[test]
    fn sums_are_of_multisets() {
        let hashes: Vec<Sum> = (0..5).map(|n| Sum::of([n, 1, 2, 3], b"name")).collect();
        let total = |order: &[usize]| {
            let mut sum = Sum::default();
            for &index in order {
                sum.add(hashes[index]);
            }
            sum
        };
        assert_eq!(total(&[0, 1, 2, 3, 4]), total(&[4, 2, 0, 3, 1]));
        assert_ne!(total(&[0, 1]), total(&[0, 2]));
        assert_ne!(
            total(&[0]).mixed_with_kind(FileKind::Regular),
            total(&[0]).mixed_with_kind(FileKind::Fifo)
        );
        let mut both = hashes[0].mixed_with_kind(FileKind::Regular);
        both.add(hashes[1].mixed_with_kind(FileKind::Regular));
        assert_eq!(both, total(&[0, 1]).mixed_with_kind(FileKind::Regular), "kinds distribute");
    }
}
