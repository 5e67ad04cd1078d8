//! The walk adds up the directory entries and the references of a tree. If these `Sums` differ,
//! this module finds the wrong names.
//!
//! The walk finds that some directory entry lacks its inode reference, or that some reference lacks
//! its entry. The walk does not find which name that is. This module makes records of all names of
//! the tree and sorts them. Then it looks up the text of each name that has no counterpart.
//!
//! # Invariants
//!
//! - **N1** This module only looks at trees with sums that disagree, so it costs nothing on a
//!   healthy volume. Its memory is that of the results that the walk remembered.

use std::io;

use buttress_format::{
    DirEntry, FileKind, Ino, InodeExtrefs, InodeItem, InodeRef, InodeRefs, Key, Kind, ids,
    name_hash,
};
use buttress_sorter::{Record, Sorter};
use buttress_tree::Cursor;
use xxhash_rust::xxh3::xxh3_64;

use crate::context::{Context, Tree};
use crate::inode::Sums;
use crate::walk::each_leaf;
use buttress_issue::{Issue, Name};

/// Words of a record: relation ([`LINK`] and so on), directory, index, inode, hash of the name,
/// side, file type. [`LOOKUP`] and [`NAMELESS`] use some of these words differently.
const WORDS: usize = 7;

/// Relation of a name that a directory lists (side 0) to the inode's reference for it (side 1).
const LINK: u64 = 0;
/// Relation of a name that a directory lists (side 0) to the item that a lookup of the name finds
/// (side 1).
const LOOKUP: u64 = 1;
/// Relation of an inode without names (side 0) to the orphan item that makes a mount remove the
/// inode (side 1).
const NAMELESS: u64 = 2;

const SIDE: usize = 5;
/// The word for an unknown file type, of an inode that has no inode item.
const MISSING: u64 = u64::MAX;

/// Finds the wrong names, and reports them.
pub(crate) fn explain(context: &Context<'_>, tree: &Tree, sums: &Sums) -> io::Result<()> {
    let names = Sorter::<WORDS>::new(context.sort_bytes() / 4, 1);
    let mut writer = names.writer();
    let mut outcome = Ok(());
    let mut current = Current::default();
    let wants_links = sums.entries != sums.references;
    let wants_lookups = sums.odd_dirs > 0;
    let wants_nameless = sums.nameless != sums.orphans;
    each_leaf(context, tree, &mut |leaf| {
        for slot in 0..leaf.len() {
            let (key, bytes) = (leaf.key(slot), leaf.item(slot));
            let records = records_of(&key, bytes, &mut current);
            let wanted = records.into_iter().filter(|record| match record[0] {
                LINK => wants_links,
                LOOKUP => wants_lookups,
                _ => wants_nameless,
            });
            for record in wanted {
                if outcome.is_ok() {
                    outcome = writer.put(record);
                }
            }
        }
    });
    outcome?;
    writer.finish();

    let mut sorted = names.merge()?;
    let mut waiting: Option<Record<WORDS>> = None;
    while let Some(record) = sorted.next_record()? {
        match waiting.take() {
            Some(first) if first[..SIDE] == record[..SIDE] && first[SIDE] != record[SIDE] => {
                let is_known = record[SIDE + 1] != MISSING && first[SIDE + 1] != MISSING;
                if first[SIDE + 1] != record[SIDE + 1] && record[0] == LINK && is_known {
                    let (dir, ino) = (Ino(record[1]), Ino(record[3]));
                    let name = entry_name(context, tree, &record).unwrap_or_default();
                    let tree = tree.id;
                    context.add(Issue::DirEntryKind { tree, dir, ino, name: Name(name) });
                }
            }
            Some(first) => {
                report_unmatched(context, tree, &first);
                waiting = Some(record);
            }
            None => waiting = Some(record),
        }
    }
    if let Some(last) = waiting {
        report_unmatched(context, tree, &last);
    }
    Ok(())
}

/// The inode that the current items belong to.
#[derive(Default)]
struct Current {
    ino: u64,
    /// The file type, if the inode item was read.
    kind: Option<FileKind>,
    /// The inode has no links. Its removal also removes its directory entries, so these need no
    /// counterpart.
    is_going: bool,
}

/// Turns one item into records. Each record of side 0 needs a match of side 1.
fn records_of(key: &Key, bytes: &[u8], current: &mut Current) -> Vec<Record<WORDS>> {
    let ino = key.objectid;
    if current.ino != ino {
        *current = Current { ino, ..Current::default() };
    }
    let link = |dir: u64, index: u64, name: &[u8], kind: Option<FileKind>| {
        let kind = kind.map_or(MISSING, |kind| kind as u64);
        [LINK, dir, index, ino, xxh3_64(name), 1, kind]
    };
    let entries = || DirEntry::parse_all(bytes).unwrap_or_default();
    match key.kind {
        Kind::INODE_ITEM => {
            let Ok(item) = InodeItem::parse(bytes) else { return Vec::new() };
            current.kind = Some(FileKind::from_mode(item.mode));
            current.is_going = item.nlink == 0;
            let is_nameless =
                item.nlink == 0 && (Ino::FIRST_FREE..=Ino::LAST_FREE).contains(&Ino(ino));
            if is_nameless { vec![[NAMELESS, ino, 0, 0, 0, 0, 0]] } else { Vec::new() }
        }
        Kind::INODE_REF => {
            let names = InodeRefs::parse(bytes).unwrap_or_default();
            let is_top =
                |name: &InodeRef| ino == key.offset && name.index == 0 && name.name == b"..";
            let others = names.iter().filter(|name| !is_top(name));
            others.map(|name| link(key.offset, name.index, &name.name, current.kind)).collect()
        }
        Kind::INODE_EXTREF => {
            let names = InodeExtrefs::parse(bytes).unwrap_or_default();
            names.iter().map(|n| link(n.parent.0, n.index, &n.name, current.kind)).collect()
        }
        Kind::DIR_INDEX | Kind::DIR_ITEM if current.is_going => Vec::new(),
        Kind::DIR_INDEX => {
            let mut records = Vec::new();
            for entry in entries() {
                let (at, hash) = (entry.location, xxh3_64(&entry.name));
                let kind = entry.kind as u64;
                if at.kind == Kind::INODE_ITEM {
                    records.push([LINK, ino, key.offset, at.objectid, hash, 0, kind]);
                }
                records.push([
                    LOOKUP,
                    ino,
                    location(&entry),
                    name_hash(&entry.name),
                    hash,
                    0,
                    key.offset,
                ]);
            }
            records
        }
        Kind::DIR_ITEM => {
            let record = |entry: DirEntry| {
                let hash = xxh3_64(&entry.name);
                [LOOKUP, ino, location(&entry), name_hash(&entry.name), hash, 1, key.offset]
            };
            entries().into_iter().map(record).collect()
        }
        Kind::ORPHAN_ITEM if key.objectid == ids::ORPHAN => {
            vec![[NAMELESS, key.offset, 0, 0, 0, 1, 0]]
        }
        _ => Vec::new(),
    }
}

fn location(entry: &DirEntry) -> u64 {
    let mut bytes = entry.location.to_bytes().to_vec();
    bytes.push(entry.kind as u8);
    xxh3_64(&bytes)
}

/// Reports a record that nothing matches.
fn report_unmatched(context: &Context<'_>, tree: &Tree, record: &Record<WORDS>) {
    let [what, first, _, ino, _, side, _] = *record;
    let id = tree.id;
    let issue = match (what, side) {
        (LINK, 0) => {
            let name = Name(entry_name(context, tree, record).unwrap_or_default());
            Issue::InodeRefMissing { tree: id, dir: Ino(first), ino: Ino(ino), name }
        }
        (LINK, _) => {
            let name = Name(reference_name(context, tree, record).unwrap_or_default());
            Issue::DirEntryMissing { tree: id, dir: Ino(first), ino: Ino(ino), name }
        }
        (LOOKUP, 0) => {
            let name = Name(listed_name(context, tree, record).unwrap_or_default());
            Issue::DirItemMissing { tree: id, dir: Ino(first), name }
        }
        (LOOKUP, _) => {
            let name = Name(listed_name(context, tree, record).unwrap_or_default());
            Issue::DirIndexMissing { tree: id, dir: Ino(first), name }
        }
        (_, 0) => Issue::OrphanMissing { tree: id, ino: Ino(first) },
        // This is an orphan item for an inode that has names or does not exist. The next mount
        // removes the item.
        _ => return,
    };
    context.add(issue);
}

fn find(context: &Context<'_>, tree: &Tree, key: Key) -> Option<Vec<u8>> {
    let found = Cursor::find(&context.source, tree.id, tree.root, &key).ok()??;
    Some(found.0.item(found.1).to_vec())
}

fn entry_name(context: &Context<'_>, tree: &Tree, record: &Record<WORDS>) -> Option<Vec<u8>> {
    let [_, dir, index, _, hash, ..] = *record;
    named_by(
        DirEntry::parse_all(&find(context, tree, Key::new(dir, Kind::DIR_INDEX, index))?),
        hash,
    )
}

fn listed_name(context: &Context<'_>, tree: &Tree, record: &Record<WORDS>) -> Option<Vec<u8>> {
    let [_, dir, _, _, hash, side, offset] = *record;
    let kind = if side == 0 { Kind::DIR_INDEX } else { Kind::DIR_ITEM };
    named_by(DirEntry::parse_all(&find(context, tree, Key::new(dir, kind, offset))?), hash)
}

fn named_by(entries: buttress_format::Result<Vec<DirEntry>>, hash: u64) -> Option<Vec<u8>> {
    let mut names = entries.ok()?.into_iter().map(|entry| entry.name);
    names.find(|name| xxh3_64(name) == hash)
}

fn reference_name(context: &Context<'_>, tree: &Tree, record: &Record<WORDS>) -> Option<Vec<u8>> {
    let [_, dir, index, ino, ..] = *record;
    if let Some(bytes) = find(context, tree, Key::new(ino, Kind::INODE_REF, dir))
        && let Some(name) = InodeRefs::parse(&bytes).ok()?.into_iter().find(|n| n.index == index)
    {
        return Some(name.name);
    }
    // The key of this item is a hash of the name, and the name is not known yet.
    let first = Key::new(ino, Kind::INODE_EXTREF, 0);
    let mut cursor = Cursor::seek(&context.source, tree.id, tree.root, &first).ok()?;
    while let Some((key, bytes)) = cursor.key().zip(cursor.item()) {
        if key.objectid != ino || key.kind != Kind::INODE_EXTREF {
            return None;
        }
        let names = InodeExtrefs::parse(bytes).unwrap_or_default();
        if let Some(name) = names.into_iter().find(|n| n.parent.0 == dir && n.index == index) {
            return Some(name.name);
        }
        cursor.advance().ok()?;
    }
    None
}
