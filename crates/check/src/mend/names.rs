//! Proposes repairs of names, which are stored as `DIR_INDEX` items, `DIR_ITEM` items and
//! references of inodes.
//!
//! # Invariants
//!
//! - **NM1** A name is stored three times. Two places that agree correct the third. A name in one
//!   place alone is removed only if its inode does not exist, or has that name elsewhere.
//! - **NM2** An existing inode keeps at least one name.

use buttress_format::{
    DirEntry, FileKind, Ino, InodeExtrefs, InodeItem, InodeRef, InodeRefs, Key, Kind, TreeId,
    name_hash,
};

use crate::error::Result;
use crate::mend::doubles;
use crate::mend::editor::{Edit, Editor, Fix};
use crate::mend::listing;
use buttress_issue::Name;

/// The first index that a name can have.
pub(super) const FIRST_INDEX: u64 = 2;

/// A name as an inode states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) dir: u64,
    pub(super) index: u64,
    pub(super) name: Vec<u8>,
}

/// Every name that an inode states.
pub(super) fn stated(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Vec<Stated>> {
    let mut names = Vec::new();
    for (key, bytes) in editor.items(tree, ino.0, Kind::INODE_REF)? {
        for InodeRef { index, name } in InodeRefs::parse(&bytes).unwrap_or_default() {
            names.push(Stated { dir: key.offset, index, name });
        }
    }
    for (_, bytes) in editor.items(tree, ino.0, Kind::INODE_EXTREF)? {
        for one in InodeExtrefs::parse(&bytes).unwrap_or_default() {
            names.push(Stated { dir: one.parent.0, index: one.index, name: one.name });
        }
    }
    Ok(names)
}

/// The inode item, if it exists and can be read.
pub(super) fn inode(editor: &Editor, tree: TreeId, ino: Ino) -> Result<Option<InodeItem>> {
    let bytes = editor.get(tree, &Key::new(ino.0, Kind::INODE_ITEM, 0))?;
    Ok(bytes.and_then(|bytes| InodeItem::parse(&bytes).ok()))
}

/// An entry for an inode.
pub(super) fn entry(editor: &Editor, ino: Ino, kind: FileKind, name: &[u8]) -> DirEntry {
    DirEntry {
        location: Key::new(ino.0, Kind::INODE_ITEM, 0),
        transid: editor.superblock.generation,
        kind,
        name: name.to_vec(),
        data: Vec::new(),
    }
}

pub(super) fn put_index(tree: TreeId, dir: Ino, index: u64, entry: &DirEntry) -> Edit {
    Edit::Put(tree, Key::new(dir.0, Kind::DIR_INDEX, index), entry.to_bytes())
}

/// Adds an entry to the item that a lookup of its name finds. An entry of the same name is
/// replaced.
pub(super) fn put_lookup(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    entry: &DirEntry,
) -> Result<Edit> {
    let key = Key::new(dir.0, Kind::DIR_ITEM, name_hash(&entry.name));
    let mut entries = editor.entries(tree, &key)?;
    entries.retain(|other| other.name != entry.name && name_hash(&other.name) == key.offset);
    entries.push(entry.clone());
    Ok(Edit::Put(tree, key, DirEntry::encode_all(&entries)))
}

/// Takes entries out of an item.
fn without(
    editor: &Editor,
    tree: TreeId,
    key: Key,
    goes: impl Fn(&DirEntry) -> bool,
) -> Result<Edit> {
    let mut entries = editor.entries(tree, &key)?;
    entries.retain(|entry| !goes(entry));
    Ok(match entries.is_empty() {
        true => Edit::Remove(tree, key),
        false => Edit::Put(tree, key, DirEntry::encode_all(&entries)),
    })
}

/// Changes the names that an inode states for one directory: `change` is called with these names.
pub(super) fn put_stated(
    editor: &Editor,
    tree: TreeId,
    ino: Ino,
    dir: Ino,
    change: impl FnOnce(&mut Vec<InodeRef>),
) -> Result<Edit> {
    let key = Key::new(ino.0, Kind::INODE_REF, dir.0);
    let bytes = editor.get(tree, &key)?.unwrap_or_default();
    let mut names = InodeRefs::parse(&bytes).unwrap_or_default();
    change(&mut names);
    Ok(match names.is_empty() {
        true => Edit::Remove(tree, key),
        false => Edit::Put(tree, key, InodeRefs::encode(&names)),
    })
}

/// An index that no name of a directory has.
pub(super) fn free_index(editor: &Editor, tree: TreeId, dir: Ino) -> Result<u64> {
    let last = editor.last_below(tree, &Key::new(dir.0, Kind::DIR_INDEX, u64::MAX))?;
    let last = last.filter(|key| key.objectid == dir.0 && key.kind == Kind::DIR_INDEX);
    Ok(last.map_or(FIRST_INDEX, |key| key.offset.saturating_add(1).max(FIRST_INDEX)))
}

pub(super) fn leads_to(entry: &DirEntry, ino: Ino) -> bool {
    entry.location.kind == Kind::INODE_ITEM && entry.location.objectid == ino.0
}

/// Whether a lookup of this name finds this inode.
pub(super) fn is_found(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    ino: Ino,
    name: &[u8],
) -> Result<bool> {
    let key = Key::new(dir.0, Kind::DIR_ITEM, name_hash(name));
    let entries = editor.entries(tree, &key)?;
    Ok(entries.iter().any(|entry| entry.name == name && leads_to(entry, ino)))
}

/// Proposes a fix if an inode states a name that its directory does not list.
pub(super) fn entry_missing(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    ino: Ino,
    name: &Name,
) -> Result<Option<Fix>> {
    let name_bytes = &name.0;
    let Some(item) = inode(editor, tree, ino)? else { return Ok(None) };
    let all = stated(editor, tree, ino)?;
    let Some(own) = all.iter().find(|one| one.dir == dir.0 && one.name == *name_bytes) else {
        return Ok(None);
    };
    if inode(editor, tree, dir)?.is_none() {
        let first = Key::new(dir.0, Kind(0), 0);
        if !editor.items_from(tree, first, |key| key.objectid == dir.0)?.is_empty() {
            return Ok(None);
        }
        let says = format!("{tree}: inode {ino} is no more in directory {dir}, which is not there");
        let edit = put_stated(editor, tree, ino, dir, |names| {
            names.retain(|one| one.name != *name_bytes);
        })?;
        return Ok(Some(Fix { says, edits: vec![edit] }));
    }
    let lists = listing::of(editor, tree, dir)?;
    if lists.named(name_bytes).any(|(_, entry)| leads_to(entry, ino)) {
        // The name is stated twice, or the directory has the entry under another index.
        // `reference_missing` corrects the index.
        return doubles::stated_twice(editor, tree, dir, ino, name);
    }
    let mut edits = Vec::new();
    let mut index = own.index;
    let mut is_taken = index < FIRST_INDEX;
    for other in lists.at(index) {
        let other_ino = Ino(other.location.objectid);
        let theirs = stated(editor, tree, other_ino)?;
        is_taken |= other.location.kind != Kind::INODE_ITEM
            || theirs
                .iter()
                .any(|one| one.dir == dir.0 && one.index == own.index && one.name == other.name);
    }
    if is_taken {
        index = free_index(editor, tree, dir)?;
        edits.push(put_stated(editor, tree, ino, dir, |names| {
            names.retain(|one| one.name != *name_bytes);
            names.push(InodeRef { index, name: name_bytes.clone() });
        })?);
    }
    let entry = entry(editor, ino, FileKind::from_mode(item.mode), name_bytes);
    edits.push(put_index(tree, dir, index, &entry));
    let says = format!("{tree}: directory {dir} lists \"{name}\" again, for inode {ino}");
    Ok(Some(Fix { says, edits }))
}

/// Proposes a fix if a directory lists a name that its inode does not state.
pub(super) fn reference_missing(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    ino: Ino,
    name: &Name,
) -> Result<Option<Fix>> {
    let name_bytes = &name.0;
    let lists = listing::of(editor, tree, dir)?;
    let all = stated(editor, tree, ino)?;
    let is_stated = |index: u64| {
        all.iter().any(|one| one.dir == dir.0 && one.index == index && one.name == *name_bytes)
    };
    let mut ours =
        lists.named(name_bytes).filter(|(index, entry)| leads_to(entry, ino) && !is_stated(*index));
    let Some((index, _)) = ours.next() else { return Ok(None) };
    let key = Key::new(dir.0, Kind::DIR_INDEX, index);
    let Some(item) = inode(editor, tree, ino)? else {
        let first = Key::new(ino.0, Kind(0), 0);
        if !editor.items_from(tree, first, |key| key.objectid == ino.0)?.is_empty() {
            return Ok(None);
        }
        let mut edits = vec![Edit::Remove(tree, key)];
        let at = Key::new(dir.0, Kind::DIR_ITEM, name_hash(name_bytes));
        let goes = |entry: &DirEntry| entry.name == *name_bytes && leads_to(entry, ino);
        if editor.entries(tree, &at)?.iter().any(goes) {
            edits.push(without(editor, tree, at, goes)?);
        }
        let says = format!("{tree}: \"{name}\" in directory {dir} goes: there is no inode {ino}");
        return Ok(Some(Fix { says, edits }));
    };
    if let Some(same) = all.iter().find(|one| one.dir == dir.0 && one.name == *name_bytes) {
        let is_listed = |entry: &DirEntry| entry.name == *name_bytes && leads_to(entry, ino);
        if lists.at(same.index).iter().any(is_listed) {
            let says = format!("{tree}: directory {dir} lists \"{name}\" once, not twice");
            return Ok(Some(Fix { says, edits: vec![Edit::Remove(tree, key)] }));
        }
        let edit = put_stated(editor, tree, ino, dir, |names| {
            names.retain(|one| one.name != *name_bytes);
            names.push(InodeRef { index, name: name_bytes.clone() });
        })?;
        let says = format!("{tree}: inode {ino} says that \"{name}\" has index {index}");
        return Ok(Some(Fix { says, edits: vec![edit] }));
    }
    if let Some(other) = all.iter().find(|one| one.dir == dir.0 && one.index == index) {
        if is_found(editor, tree, dir, ino, name_bytes)?
            && !is_found(editor, tree, dir, ino, &other.name)?
        {
            let edit = put_stated(editor, tree, ino, dir, |names| {
                names.retain(|one| one.name != other.name);
                names.push(InodeRef { index, name: name_bytes.clone() });
            })?;
            let says = format!("{tree}: inode {ino} says that its name is \"{name}\"");
            return Ok(Some(Fix { says, edits: vec![edit] }));
        }
        let right = entry(editor, ino, FileKind::from_mode(item.mode), &other.name);
        let says = format!(
            "{tree}: directory {dir} lists \"{}\" for inode {ino}, not \"{name}\"",
            Name(other.name.clone())
        );
        return Ok(Some(Fix { says, edits: vec![put_index(tree, dir, index, &right)] }));
    }
    if FileKind::from_mode(item.mode) == FileKind::Directory && !all.is_empty() {
        return Ok(None);
    }
    let edit = put_stated(editor, tree, ino, dir, |names| {
        names.push(InodeRef { index, name: name_bytes.clone() });
    })?;
    let says = format!("{tree}: inode {ino} says that it is \"{name}\" in directory {dir}");
    Ok(Some(Fix { says, edits: vec![edit] }))
}

/// Proposes a fix if a directory lists a name that a lookup does not find.
pub(super) fn lookup_missing(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    name: &Name,
) -> Result<Option<Fix>> {
    let lists = listing::of(editor, tree, dir)?;
    for (index, entry) in lists.named(&name.0) {
        let is_right = match entry.location.kind {
            Kind::INODE_ITEM => {
                let ino = Ino(entry.location.objectid);
                stated(editor, tree, ino)?
                    .iter()
                    .any(|one| one.dir == dir.0 && one.index == index && one.name == name.0)
                    && inode(editor, tree, ino)?.is_some()
            }
            Kind::ROOT_ITEM => editor.root_item(TreeId(entry.location.objectid))?.is_some(),
            _ => false,
        };
        let key = Key::new(dir.0, Kind::DIR_ITEM, name_hash(&name.0));
        let found = editor.entries(tree, &key)?;
        let is_it = |one: &DirEntry| one.location == entry.location && one.kind == entry.kind;
        if is_right && !found.iter().any(|one| one.name == name.0 && is_it(one)) {
            if let Some(fix) = doubles::second_name(editor, tree, dir, name)? {
                return Ok(Some(fix));
            }
            let edits = vec![put_lookup(editor, tree, dir, entry)?];
            let says = format!("{tree}: a lookup of \"{name}\" in directory {dir} finds it again");
            return Ok(Some(Fix { says, edits }));
        }
    }
    Ok(None)
}

/// Proposes a fix if a lookup finds a name that the directory does not list.
pub(super) fn index_missing(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    name: &Name,
) -> Result<Option<Fix>> {
    let name_bytes = &name.0;
    let lists = listing::of(editor, tree, dir)?;
    let key = Key::new(dir.0, Kind::DIR_ITEM, name_hash(name_bytes));
    for found in editor.entries(tree, &key)? {
        let is_listed = lists
            .named(name_bytes)
            .any(|(_, one)| one.location == found.location && one.kind == found.kind);
        if found.name != *name_bytes || is_listed || found.location.kind != Kind::INODE_ITEM {
            continue;
        }
        let ino = Ino(found.location.objectid);
        let goes = |entry: &DirEntry| *entry == found;
        let item = inode(editor, tree, ino)?;
        let all = stated(editor, tree, ino)?;
        let is_stated = all.iter().any(|one| one.dir == dir.0 && one.name == *name_bytes);
        let is_other = lists.named(name_bytes).next().is_some();
        let is_dir_elsewhere = item.as_ref().is_some_and(|item| {
            FileKind::from_mode(item.mode) == FileKind::Directory && !all.is_empty()
        });
        let Some(item) = item.filter(|_| !is_other && !is_dir_elsewhere || is_stated) else {
            let first = Key::new(ino.0, Kind(0), 0);
            let is_empty = editor.items_from(tree, first, |key| key.objectid == ino.0)?.is_empty();
            if !(is_other || is_dir_elsewhere || is_empty) {
                return Ok(None);
            }
            let says = format!("{tree}: a lookup of \"{name}\" in directory {dir} is stale");
            return Ok(Some(Fix { says, edits: vec![without(editor, tree, key, goes)?] }));
        };
        if is_stated {
            return Ok(None);
        }
        let index = free_index(editor, tree, dir)?;
        let kind = FileKind::from_mode(item.mode);
        let edits = vec![
            put_index(tree, dir, index, &entry(editor, ino, kind, name_bytes)),
            put_stated(editor, tree, ino, dir, |names| {
                names.push(InodeRef { index, name: name_bytes.clone() });
            })?,
        ];
        let says = format!("{tree}: directory {dir} lists \"{name}\" again, for inode {ino}");
        return Ok(Some(Fix { says, edits }));
    }
    Ok(None)
}

/// Proposes a fix if an item is not at the hash of its name.
pub(super) fn wrong_hash(
    editor: &Editor,
    tree: TreeId,
    key: Key,
    name: &Name,
) -> Result<Option<Fix>> {
    let entries = editor.entries(tree, &key)?;
    let Some(found) = entries.into_iter().find(|entry| entry.name == name.0) else {
        return Ok(None);
    };
    let goes = |entry: &DirEntry| *entry == found;
    let mut edits = vec![without(editor, tree, key, goes)?];
    let at = Key { offset: name_hash(&name.0), ..key };
    let dir = key.objectid;
    if key.kind == Kind::XATTR_ITEM {
        if editor.get(tree, &at)?.is_some() {
            return Ok(None);
        }
        edits.push(Edit::Put(tree, at, found.to_bytes()));
        let says = format!("{tree}: inode {dir}: attribute \"{name}\" is where its name belongs");
        return Ok(Some(Fix { says, edits }));
    }
    if key.kind != Kind::DIR_ITEM {
        return Ok(None);
    }
    // If the directory lists the inode, `lookup_missing` adds the item at the right hash.
    let lists = listing::of(editor, tree, Ino(dir))?;
    if !lists.iter().any(|one| one.location == found.location) {
        if !editor.entries(tree, &at)?.is_empty() {
            return Ok(None);
        }
        edits.push(Edit::Put(tree, at, found.to_bytes()));
    }
    let says = format!("{tree}: directory {dir}: \"{name}\" is no more at a wrong place");
    Ok(Some(Fix { says, edits }))
}

/// Proposes a fix if entries state another file type than their inode.
pub(super) fn wrong_kind(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    ino: Ino,
    name: &Name,
) -> Result<Option<Fix>> {
    let Some(item) = inode(editor, tree, ino)? else { return Ok(None) };
    let kind = FileKind::from_mode(item.mode);
    if kind == FileKind::Unknown {
        return Ok(None);
    }
    let mut keys = vec![Key::new(dir.0, Kind::DIR_ITEM, name_hash(&name.0))];
    let lists = listing::of(editor, tree, dir)?;
    let indexes = lists.named(&name.0).filter(|(_, one)| leads_to(one, ino));
    keys.extend(indexes.map(|(index, _)| Key::new(dir.0, Kind::DIR_INDEX, index)));
    let mut edits = Vec::new();
    for key in keys {
        let mut entries = editor.entries(tree, &key)?;
        let wrong = |one: &&mut DirEntry| one.name == name.0 && leads_to(one, ino);
        entries.iter_mut().filter(wrong).for_each(|one| one.kind = kind);
        if !entries.is_empty() {
            edits.push(Edit::Put(tree, key, DirEntry::encode_all(&entries)));
        }
    }
    let says =
        format!("{tree}: entry \"{name}\" of directory {dir} has the file type of inode {ino}");
    Ok(Some(Fix { says, edits }))
}
