//! The records that the walk over all trees makes for the check of extents, sorted by address.
//!
//! # On disk
//!
//! Temporary files only. A record is eight words, compared in order:
//!
//! ```text
//! word      0        1                2        3       4        5      6         7
//! item      address  0                length   refs    flags    level  generation
//! node      address  1                level    generation owner  first key: object, kind, offset
//! use       address  tag of the reference | its words (root or parent, inode, offset)
//!                                                               uses   recorded  length
//! checksums address  6                end      wanted  tree     inode  offset in the file
//! logged    address  7                length
//! ```

use buttress_format::{BackRef, Extent, Generation, Ino, Key, Kind, Logical, TreeId};
use buttress_tree::Node;

use buttress_sorter::Record as Words;

/// Words of a record.
pub(crate) const WORDS: usize = 8;

/// A record as it is sorted.
pub(crate) type Record = Words<WORDS>;

const ITEM: u64 = 0;
const NODE: u64 = 1;
const TREE: u64 = 2;
const SHARED: u64 = 3;
const DATA: u64 = 4;
const SHARED_DATA: u64 = 5;
const SUMS: u64 = 6;
const LOGGED: u64 = 7;

/// Set in the word of a node's level if the node refers to its children by its address.
const BY_ADDRESS: u64 = 1 << 8;

/// A record's meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The extent tree's record of an extent.
    Item { extent: Extent, refs: u64, flags: u64, level: Option<u8>, generation: Generation },
    /// A node that was met.
    Node { level: u8, by_address: bool, generation: Generation, owner: TreeId, first: Key },
    /// A user of an extent: the number of uses that the walk found, the number that the extent tree
    /// records, and the length that the user expects.
    Use { user: User, uses: u64, recorded: u64, len: u64 },
    /// Bytes of a file. `wanted` says whether the file has checksums for them.
    Sums { range: Extent, wanted: bool, written: bool, tree: TreeId, ino: Ino, offset: u64 },
    /// Data that a log references. It may have checksums, and no item covers it yet.
    Logged(Extent),
}

/// A user of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Tree(TreeId),
    Node(Logical),
    File(TreeId, Ino, u64),
    Leaf(Logical),
}

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tree(tree) => write!(f, "tree {tree}"),
            Self::Node(at) => write!(f, "node {at}"),
            // The offset is a difference, and wraps if the extent would begin before offset 0 of
            // its file.
            Self::File(tree, ino, offset) => {
                write!(f, "inode {ino} of {tree} at {}", *offset as i64)
            }
            Self::Leaf(at) => write!(f, "leaf {at}"),
        }
    }
}

impl User {
    /// Returns whether users of this kind use tree nodes. All others use data.
    pub(crate) fn is_of_node(self) -> bool {
        matches!(self, Self::Tree(_) | Self::Node(_))
    }

    fn words(self) -> [u64; 4] {
        match self {
            Self::Tree(tree) => [TREE, tree.0, 0, 0],
            Self::Node(at) => [SHARED, at.0, 0, 0],
            Self::File(tree, ino, offset) => [DATA, tree.0, ino.0, offset],
            Self::Leaf(at) => [SHARED_DATA, at.0, 0, 0],
        }
    }

    /// Returns the user and the count of a recorded reference. `None` if the reference is not a
    /// use.
    pub(crate) fn of(reference: &BackRef) -> Option<(Self, u32)> {
        Some(match *reference {
            BackRef::TreeBlock { root } => (Self::Tree(root), 1),
            BackRef::SharedBlock { parent } => (Self::Node(parent), 1),
            BackRef::Data { root, ino, offset, count } => (Self::File(root, ino, offset), count),
            BackRef::SharedData { parent, count } => (Self::Leaf(parent), count),
            BackRef::Owner { .. } => return None,
        })
    }
}

/// Makes the record of an extent item. `level` is for nodes.
pub(crate) fn item(
    extent: Extent,
    refs: u64,
    flags: u64,
    level: Option<u8>,
    generation: Generation,
) -> Record {
    let level = level.map_or(u64::MAX, u64::from);
    [extent.start.0, ITEM, extent.len, refs, flags, level, generation.0, 0]
}

/// The record of a node that was met.
pub(crate) fn node(node: &Node, by_address: bool) -> Record {
    let first = if node.is_empty() { Key::MIN } else { node.key(0) };
    let level = u64::from(node.level()) | if by_address { BY_ADDRESS } else { 0 };
    let (generation, owner) = (node.header().generation.0, node.owner().0);
    let kind = u64::from(first.kind.0);
    [node.logical().0, NODE, level, generation, owner, first.objectid, kind, first.offset]
}

/// Stores the transaction since which a use by a file exists, in the record of the use. Only a
/// rebuild needs this transaction. A rebuild has no recorded uses, so the word of the recorded
/// count is free for the transaction.
pub(crate) fn set_generation(used: &mut Record, generation: Generation) {
    used[6] = generation.0;
}

/// Makes the record of a use that was found. `len` is the length that the user expects.
pub(crate) fn met(at: Logical, user: User, len: u64) -> Record {
    let [tag, a, b, c] = user.words();
    [at.0, tag, a, b, c, 1, 0, len]
}

/// Makes the record of a use in the extent tree.
pub(crate) fn recorded(at: Logical, user: User, count: u32) -> Record {
    let [tag, a, b, c] = user.words();
    [at.0, tag, a, b, c, 0, u64::from(count), 0]
}

/// The record of bytes of a file. `wanted` says whether the file has checksums for them, and
/// `written` whether they are written, not only allocated.
pub(crate) fn sums(
    range: Extent,
    (wanted, written): (bool, bool),
    tree: TreeId,
    ino: Ino,
    offset: u64,
) -> Record {
    let start = range.start.0;
    let of = [tree.0, ino.0, offset];
    [start, SUMS, range.end().0, u64::from(wanted), of[0], of[1], of[2], u64::from(written)]
}

/// The record of data that a log references.
pub(crate) fn logged(extent: Extent) -> Record {
    [extent.start.0, LOGGED, extent.len, 0, 0, 0, 0, 0]
}

/// Returns whether two records are of the same use, so that they are joined.
pub(crate) fn same_use(a: &Record, b: &Record) -> bool {
    (TREE..=SHARED_DATA).contains(&a[1]) && a[..5] == b[..5]
}

/// Returns the address and the meaning of a record.
pub(crate) fn read(record: &Record) -> (Logical, Entry) {
    let [at, tag, a, b, c, x, y, z] = *record;
    let start = Logical(at);
    let use_of = |user| Entry::Use { user, uses: x, recorded: y, len: z };
    let entry = match tag {
        ITEM => Entry::Item {
            extent: Extent::new(start, a),
            refs: b,
            flags: c,
            level: u8::try_from(x).ok(),
            generation: Generation(y),
        },
        NODE => {
            let (generation, owner) = (Generation(b), TreeId(c));
            let first = Key::new(x, Kind(y as u8), z);
            let by_address = a & BY_ADDRESS != 0;
            Entry::Node { level: a as u8, by_address, generation, owner, first }
        }
        TREE => use_of(User::Tree(TreeId(a))),
        SHARED => use_of(User::Node(Logical(a))),
        DATA => use_of(User::File(TreeId(a), Ino(b), c)),
        SHARED_DATA => use_of(User::Leaf(Logical(a))),
        LOGGED => Entry::Logged(Extent::new(start, a)),
        _ => Entry::Sums {
            range: Extent::new(start, a.saturating_sub(at)),
            wanted: b != 0,
            written: z != 0,
            tree: TreeId(c),
            ino: Ino(x),
            offset: y,
        },
    };
    (start, entry)
}
