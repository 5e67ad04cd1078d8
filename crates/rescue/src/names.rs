//! Keys and items of the names of inodes.

use std::ops::RangeInclusive;

use buttress_format::{
    DirEntry, FileKind, Generation, Ino, InodeExtref, InodeExtrefs, InodeItem, InodeRef, InodeRefs,
    Key, Kind, extref_hash, name_hash,
};

/// The keys of one kind that an inode can have.
pub(crate) fn span(ino: Ino, kind: Kind) -> RangeInclusive<Key> {
    Key::new(ino.0, kind, 0)..=Key::new(ino.0, kind, u64::MAX)
}

/// The key of an inode's item.
pub(crate) fn inode_key(ino: Ino) -> Key {
    Key::new(ino.0, Kind::INODE_ITEM, 0)
}

/// The key of the directory item that may have a name.
pub(crate) fn name_key(dir: Ino, name: &[u8]) -> Key {
    Key::new(dir.0, Kind::DIR_ITEM, name_hash(name))
}

/// The items that may have a name of an inode.
pub(crate) fn ref_keys(ino: Ino, dir: Ino, name: &[u8]) -> [Key; 2] {
    [
        Key::new(ino.0, Kind::INODE_REF, dir.0),
        Key::new(ino.0, Kind::INODE_EXTREF, extref_hash(dir, name)),
    ]
}

/// The names in one reference item of an inode, with their directories.
pub(crate) fn parse_refs(key: Key, item: &[u8]) -> Vec<(Ino, InodeRef)> {
    if key.kind == Kind::INODE_REF {
        let refs = InodeRefs::parse(item).unwrap_or_default();
        return refs.into_iter().map(|found| (Ino(key.offset), found)).collect();
    }
    let refs = InodeExtrefs::parse(item).unwrap_or_default();
    let plain =
        |found: InodeExtref| (found.parent, InodeRef { index: found.index, name: found.name });
    refs.into_iter().map(plain).collect()
}

/// The entry of a directory for a name of an inode.
pub(crate) fn entry_of(ino: Ino, inode: &InodeItem, name: &[u8]) -> DirEntry {
    DirEntry {
        location: inode_key(ino),
        transid: Generation(0),
        kind: FileKind::from_mode(inode.mode),
        name: name.to_vec(),
        data: Vec::new(),
    }
}
