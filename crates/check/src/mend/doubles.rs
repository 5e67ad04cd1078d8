//! Proposes repairs of what is there twice: directories with several names, and names that lead to
//! several inodes.
//!
//! # Invariants
//!
//! - **DO1** A directory keeps the name by which the top of its subvolume is reached without
//!   passing the directory itself. So no repair cuts off a folder and what is below it.
//! - **DO2** Only a name in two of its three places takes other names away. A name that the inode
//!   states comes before one that only the directory has. Among equals the oldest entry stays.
//! - **DO3** Of two inodes with one name, the one with the older entry keeps it. The other one gets
//!   a name with its number, and no inode loses its last name.

use std::collections::{BTreeMap, BTreeSet};

use buttress_format::limits::NAME_MAX;
use buttress_format::{
    DirEntry, FileKind, Generation, Ino, InodeExtrefs, InodeRef, InodeRefs, Key, Kind, TreeId,
    extref_hash, name_hash,
};

use crate::error::Result;
use crate::mend::editor::{Edit, Editor, Fix};
use crate::mend::listing;
use crate::mend::names::{self, Stated};
use crate::report::Report;
use buttress_issue::{Issue, Name};

/// Changes of items that build on each other. They become edits when all are made.
struct Draft<'e> {
    editor: &'e Editor,
    tree: TreeId,
    items: BTreeMap<Key, Vec<u8>>,
}

impl<'e> Draft<'e> {
    fn new(editor: &'e Editor, tree: TreeId) -> Self {
        Self { editor, tree, items: BTreeMap::new() }
    }

    fn bytes(&self, key: &Key) -> Result<Vec<u8>> {
        match self.items.get(key) {
            Some(bytes) => Ok(bytes.clone()),
            None => Ok(self.editor.get(self.tree, key)?.unwrap_or_default()),
        }
    }

    /// Changes the entries of an item.
    fn entries(&mut self, key: Key, change: impl FnOnce(&mut Vec<DirEntry>)) -> Result<()> {
        let mut entries = DirEntry::parse_all(&self.bytes(&key)?).unwrap_or_default();
        change(&mut entries);
        self.items.insert(key, DirEntry::encode_all(&entries));
        Ok(())
    }

    /// Changes the names that an inode states for a directory in the item for few names.
    fn refs(&mut self, ino: Ino, dir: u64, change: impl FnOnce(&mut Vec<InodeRef>)) -> Result<()> {
        let key = Key::new(ino.0, Kind::INODE_REF, dir);
        let mut names = InodeRefs::parse(&self.bytes(&key)?).unwrap_or_default();
        change(&mut names);
        let bytes = if names.is_empty() { Vec::new() } else { InodeRefs::encode(&names) };
        self.items.insert(key, bytes);
        Ok(())
    }

    /// The inode does not state a name any more.
    fn unstate(&mut self, ino: Ino, dir: u64, name: &[u8]) -> Result<()> {
        self.refs(ino, dir, |names| names.retain(|one| one.name != name))?;
        let key = Key::new(ino.0, Kind::INODE_EXTREF, extref_hash(Ino(dir), name));
        let bytes = self.bytes(&key)?;
        if !bytes.is_empty() {
            let mut names = InodeExtrefs::parse(&bytes).unwrap_or_default();
            names.retain(|one| one.parent.0 != dir || one.name != name);
            let bytes = if names.is_empty() { Vec::new() } else { InodeExtrefs::encode(&names) };
            self.items.insert(key, bytes);
        }
        Ok(())
    }

    /// A directory does not have a name for an inode any more, in any of its items.
    fn unlist(&mut self, ino: Ino, dir: u64, name: &[u8]) -> Result<()> {
        let goes = |entry: &DirEntry| entry.name == name && names::leads_to(entry, ino);
        let lists = listing::of(self.editor, self.tree, Ino(dir))?;
        for (index, _) in lists.named(name).filter(|(_, entry)| goes(entry)) {
            self.entries(Key::new(dir, Kind::DIR_INDEX, index), |all| all.retain(|e| !goes(e)))?;
        }
        let key = Key::new(dir, Kind::DIR_ITEM, name_hash(name));
        self.entries(key, |all| all.retain(|entry| !goes(entry)))
    }

    /// The edits. An item without content is removed.
    fn edits(self) -> Result<Vec<Edit>> {
        let mut edits = Vec::new();
        for (key, bytes) in self.items {
            if !bytes.is_empty() {
                edits.push(Edit::Put(self.tree, key, bytes));
            } else if self.editor.get(self.tree, &key)?.is_some() {
                edits.push(Edit::Remove(self.tree, key));
            }
        }
        Ok(edits)
    }
}

/// A name that a directory may keep.
struct Candidate {
    name: Stated,
    is_stated: bool,
    is_listed: bool,
    is_found: bool,
    /// Whether the top is reached by this name without passing the directory (DO1).
    is_anchored: bool,
    since: Generation,
}

impl Candidate {
    /// Whether at least two of three places have the name.
    fn is_sure(&self) -> bool {
        let places = [self.is_stated, self.is_listed, self.is_found];
        places.into_iter().filter(|has| *has).count() > 1
    }

    /// The order in which names are preferred (DO1, DO2).
    fn order(&self) -> impl Ord {
        let Stated { dir, index, .. } = self.name;
        (!self.is_anchored, !self.is_stated, !self.is_listed, self.since, dir, index)
    }
}

/// Proposes a fix if an inode is a directory with several names.
pub(super) fn one_name(
    editor: &Editor,
    report: &Report,
    tree: TreeId,
    ino: Ino,
) -> Result<Option<Fix>> {
    let item = names::inode(editor, tree, ino)?;
    let kind = item.map(|item| FileKind::from_mode(item.mode));
    if kind != Some(FileKind::Directory) || ino == Ino::ROOT_DIR {
        return Ok(None);
    }
    let all = candidates(editor, report, tree, ino)?;
    let Some(stays) = all.iter().filter(|one| one.is_sure()).min_by_key(|one| one.order()) else {
        return Ok(None);
    };
    let others = || all.iter().filter(|one| !std::ptr::eq(*one, stays));
    if !stays.is_anchored || others().next().is_none() {
        return Ok(None);
    }
    let mut draft = Draft::new(editor, tree);
    for Candidate { name: Stated { dir, name, .. }, .. } in others() {
        draft.unlist(ino, *dir, name)?;
        draft.unstate(ino, *dir, name)?;
    }
    let Stated { dir, mut index, name } = stays.name.clone();
    if !stays.is_listed {
        let at = |index| Key::new(dir, Kind::DIR_INDEX, index);
        if index < names::FIRST_INDEX || !draft.bytes(&at(index))?.is_empty() {
            index = names::free_index(editor, tree, Ino(dir))?;
        }
        let entry = names::entry(editor, ino, FileKind::Directory, &name);
        draft.entries(at(index), |all| all.push(entry))?;
    }
    draft.unstate(ino, dir, &name)?;
    draft.refs(ino, dir, |names| names.push(InodeRef { index, name }))?;
    let text = |one: &Stated| format!("\"{}\" in directory {}", Name(one.name.clone()), one.dir);
    let gone: Vec<String> = others().map(|one| text(&one.name)).collect();
    let says = format!(
        "{tree}: directory {ino} keeps the name {}, and loses {}",
        text(&stays.name),
        gone.join(", ")
    );
    Ok(Some(Fix { says, edits: draft.edits()? }))
}

/// Every name that a directory states, or that the report has for it. A name with several indexes
/// counts once.
fn candidates(editor: &Editor, report: &Report, tree: TreeId, ino: Ino) -> Result<Vec<Candidate>> {
    let stated = names::stated(editor, tree, ino)?;
    let mut places: BTreeSet<(u64, Vec<u8>)> =
        stated.iter().map(|one| (one.dir, one.name.clone())).collect();
    for issue in &report.issues {
        if let Issue::InodeRefMissing { tree: of, dir, ino: its, name } = issue
            && (*of, *its) == (tree, ino)
        {
            places.insert((dir.0, name.0.clone()));
        }
    }
    let mut all = Vec::new();
    for (dir, name) in places {
        let own = stated.iter().filter(|one| one.dir == dir && one.name == name);
        let own: Vec<u64> = own.map(|one| one.index).collect();
        let lists = listing::of(editor, tree, Ino(dir))?;
        let mut listed: Vec<(u64, Generation)> = lists
            .named(&name)
            .filter(|(_, entry)| names::leads_to(entry, ino))
            .map(|(index, entry)| (index, entry.transid))
            .collect();
        // The index that the inode states comes first.
        listed.sort_by_key(|(index, _)| (!own.contains(index), *index));
        let first = listed.first().copied();
        let is_found = names::is_found(editor, tree, Ino(dir), ino, &name)?;
        if own.is_empty() && first.is_none() {
            continue;
        }
        let index = first.map(|(index, _)| index).or(own.first().copied()).unwrap_or_default();
        all.push(Candidate {
            is_stated: !own.is_empty(),
            is_listed: first.is_some(),
            is_found,
            is_anchored: is_anchored(editor, tree, ino, Ino(dir))?,
            since: first.map_or(Generation(u64::MAX), |(_, since)| since),
            name: Stated { dir, index, name },
        });
    }
    Ok(all)
}

/// Whether a way up from `from` reaches the top without passing `without`.
fn is_anchored(editor: &Editor, tree: TreeId, without: Ino, from: Ino) -> Result<bool> {
    let mut passed = BTreeSet::from([without]);
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        if at == Ino::ROOT_DIR {
            return Ok(true);
        }
        if passed.insert(at) {
            open.extend(names::stated(editor, tree, at)?.into_iter().map(|one| Ino(one.dir)));
        }
    }
    Ok(false)
}

/// Proposes a fix if an inode states a name twice: in two references, or in one with two indexes.
pub(super) fn stated_twice(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    ino: Ino,
    name: &Name,
) -> Result<Option<Fix>> {
    let all = names::stated(editor, tree, ino)?;
    let own: Vec<&Stated> =
        all.iter().filter(|one| one.dir == dir.0 && one.name == name.0).collect();
    let lists = listing::of(editor, tree, dir)?;
    let is_listed = |index: u64| {
        lists.at(index).iter().any(|entry| entry.name == name.0 && names::leads_to(entry, ino))
    };
    let Some(stays) = own.iter().find(|one| is_listed(one.index)).filter(|_| own.len() > 1) else {
        return Ok(None);
    };
    let mut draft = Draft::new(editor, tree);
    draft.unstate(ino, dir.0, &name.0)?;
    let one = InodeRef { index: stays.index, name: name.0.clone() };
    draft.refs(ino, dir.0, |names| names.push(one))?;
    let says = format!("{tree}: inode {ino} states \"{name}\" in directory {dir} once, not twice");
    Ok(Some(Fix { says, edits: draft.edits()? }))
}

/// Proposes a fix if a lookup finds a name twice for one inode.
pub(super) fn found_twice(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    name: &Name,
) -> Result<Option<Fix>> {
    let key = Key::new(dir.0, Kind::DIR_ITEM, name_hash(&name.0));
    let all = editor.entries(tree, &key)?;
    let mut draft = Draft::new(editor, tree);
    let mut is_changed = false;
    for (at, entry) in all.iter().enumerate().filter(|(_, entry)| entry.name == name.0) {
        let is_it = |one: &DirEntry| one.name == entry.name && one.location == entry.location;
        let mut others = all.iter().skip(at + 1).filter(|one| is_it(one));
        if all.iter().position(is_it) == Some(at) && others.next().is_some() {
            draft.entries(key, |all| {
                all.retain(|one| !is_it(one));
                all.push(entry.clone());
            })?;
            list_once(&mut draft, dir, name, entry)?;
            is_changed = true;
        }
    }
    let says =
        format!("{tree}: a lookup of \"{name}\" in directory {dir} finds it once, not twice");
    Ok(if is_changed { Some(Fix { says, edits: draft.edits()? }) } else { None })
}

/// A directory lists a name for an inode once, and the inode states it once: at the oldest index
/// that both have.
fn list_once(draft: &mut Draft<'_>, dir: Ino, name: &Name, entry: &DirEntry) -> Result<()> {
    let ino = Ino(entry.location.objectid);
    let lists = listing::of(draft.editor, draft.tree, dir)?;
    let is_it = |one: &DirEntry| one.name == name.0 && one.location == entry.location;
    let listed: Vec<(u64, Generation)> = lists
        .named(&name.0)
        .filter(|(_, one)| is_it(one))
        .map(|(index, one)| (index, one.transid))
        .collect();
    if listed.len() < 2 || entry.location.kind != Kind::INODE_ITEM {
        return Ok(());
    }
    let all = names::stated(draft.editor, draft.tree, ino)?;
    let has = |index: u64| {
        all.iter().any(|one| one.dir == dir.0 && one.index == index && one.name == name.0)
    };
    let both = listed.iter().filter(|(index, _)| has(*index));
    let Some((stays, _)) = both.min_by_key(|(index, since)| (*since, *index)) else {
        return Ok(());
    };
    for (index, _) in listed.iter().filter(|(index, _)| index != stays) {
        let key = Key::new(dir.0, Kind::DIR_INDEX, *index);
        draft.entries(key, |all| all.retain(|one| !is_it(one)))?;
    }
    draft.unstate(ino, dir.0, &name.0)?;
    let one = InodeRef { index: *stays, name: name.0.clone() };
    draft.refs(ino, dir.0, |names| names.push(one))
}

/// Proposes another name for an inode if a directory lists its name for another inode, too (DO3).
pub(super) fn second_name(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    name: &Name,
) -> Result<Option<Fix>> {
    let lists = listing::of(editor, tree, dir)?;
    let mut sure: Vec<(bool, Generation, u64, &DirEntry)> = Vec::new();
    for (index, entry) in lists.named(&name.0) {
        // A subvolume keeps its name: other items have it, too.
        let is_inode = entry.location.kind == Kind::INODE_ITEM;
        let is_right = match is_inode {
            true => {
                let ino = Ino(entry.location.objectid);
                let all = names::stated(editor, tree, ino)?;
                let is_it =
                    |one: &Stated| one.dir == dir.0 && one.index == index && one.name == name.0;
                all.iter().any(is_it) && names::inode(editor, tree, ino)?.is_some()
            }
            false => editor.root_item(TreeId(entry.location.objectid))?.is_some(),
        };
        if is_right {
            sure.push((is_inode, entry.transid, index, entry));
        }
    }
    sure.sort_by_key(|(is_inode, since, index, _)| (*is_inode, *since, *index));
    let Some((first, others)) = sure.split_first() else { return Ok(None) };
    let differs =
        |one: &&(bool, Generation, u64, &DirEntry)| one.0 && one.3.location != first.3.location;
    let Some((_, _, index, entry)) = others.iter().find(differs) else { return Ok(None) };
    let stays = first.3;
    let ino = Ino(entry.location.objectid);
    let Some(new) = free_name(editor, tree, dir, &name.0, ino)? else { return Ok(None) };
    let mut draft = Draft::new(editor, tree);
    draft.unlist(ino, dir.0, &name.0)?;
    draft.unstate(ino, dir.0, &name.0)?;
    let lookup = |name: &[u8]| Key::new(dir.0, Kind::DIR_ITEM, name_hash(name));
    draft.entries(lookup(&name.0), |all| {
        if !all.iter().any(|one| one.name == stays.name && one.location == stays.location) {
            all.push(stays.clone());
        }
    })?;
    let renamed = DirEntry { name: new.clone(), ..(*entry).clone() };
    let again = renamed.clone();
    draft.entries(Key::new(dir.0, Kind::DIR_INDEX, *index), |all| all.push(renamed))?;
    draft.entries(lookup(&new), |all| all.push(again))?;
    draft.refs(ino, dir.0, |all| all.push(InodeRef { index: *index, name: new.clone() }))?;
    let says = format!(
        "{tree}: inode {ino} is \"{}\" in directory {dir}, since inode {} is \"{name}\"",
        Name(new),
        stays.location.objectid
    );
    Ok(Some(Fix { says, edits: draft.edits()? }))
}

/// A name for an inode that its directory does not have: the old name and the inode's number.
fn free_name(
    editor: &Editor,
    tree: TreeId,
    dir: Ino,
    old: &[u8],
    ino: Ino,
) -> Result<Option<Vec<u8>>> {
    let lists = listing::of(editor, tree, dir)?;
    for number in 0..16 {
        let end = match number {
            0 => format!(".{ino}"),
            _ => format!(".{ino}.{number}"),
        };
        let keep = old.len().min(NAME_MAX - end.len());
        let new = [&old[..keep], end.as_bytes()].concat();
        let key = Key::new(dir.0, Kind::DIR_ITEM, name_hash(&new));
        let is_found = editor.entries(tree, &key)?.iter().any(|entry| entry.name == new);
        if !is_found && lists.named(&new).next().is_none() {
            return Ok(Some(new));
        }
    }
    Ok(None)
}
