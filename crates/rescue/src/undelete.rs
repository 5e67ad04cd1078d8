//! Recovers files that exist in older trees and not in the current trees.
//!
//! # Invariants
//!
//! - **UN1** Content with checksums is recovered only if it matches a checksum that was recorded
//!   while its extent was in use. Content without checksums is recovered, and marked as unverified,
//!   if its space was not allocated again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use buttress_format::limits::NAME_MAX;
use buttress_format::{
    FileKind, Generation, Ino, InodeFlags, InodeItem, Kind, RootItem, RootRef, TreeId,
};
use buttress_tree::Expect;

use crate::content::Copier;
use crate::deleted::{DeletedInodes, DeletedItems, LiveSubvolume, OldSums, is_alive};
use crate::error::{Error, Result};
use crate::extents::RangeUse;
use crate::files::{Child, Index};
use crate::glob::Glob;
use crate::last_use::LastUse;
use crate::old_logs::OldLogs;
use crate::progress::Step;
use crate::report::{Condition, Entry, Kind as FileType, Summary};
use crate::restore::{host_name, joined};
use crate::salvage::Salvage;
use crate::scan;
use crate::state::State;
use crate::target::Dir;
use crate::tree::Leaves;
use crate::versions::Versions;

/// A point in the past. A file is wanted only if it still existed at this point or later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// A transaction.
    Generation(u64),
    /// Seconds since 1970.
    Time(i64),
}

/// The files to look for.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct UndeleteOptions {
    /// Recover only paths that match one of these patterns; all paths if the list is empty.
    pub paths: Vec<Glob>,
    /// Recover only files that still existed at this time.
    pub since: Option<Since>,
    /// Recover also older versions of files that still exist. A version gets the name of its file
    /// and the transaction that wrote it: `name.~17~`.
    pub versions: bool,
    /// Recover also data that should have a checksum, but has none. Data that fails its checksum is
    /// never recovered.
    pub unverified: bool,
}

/// Finds deleted files, and recovers them to a folder. With `None` the files are only read and
/// verified. `each` is called with every entry of the report.
///
/// # Errors
///
/// When no tree can be read, or the folder cannot be used.
pub fn undelete(
    salvage: &Salvage,
    options: &UndeleteOptions,
    target: Option<&Path>,
    each: &mut dyn FnMut(&Entry),
) -> Result<Summary> {
    let top = Dir::top(target).map_err(|source| Error::Target {
        path: target.map(|path| path.display().to_string()).unwrap_or_default(),
        source,
    })?;
    let mut state = State::newest(salvage)?;
    // What the next mount replays is not deleted, and what the log removes is.
    state.replay_log(salvage);
    salvage.progress().step(Step::Index, 0);
    let mut living = BTreeMap::new();
    for (id, tree) in state.trees.iter().filter(|(id, _)| id.is_fs_tree()) {
        let mut leaves = Leaves::walk(salvage, *id, tree.root, state.extents.as_ref());
        leaves.over = state.log.over(*id);
        let index = Index::read(salvage, &leaves);
        let places = leaves.leaves().iter().map(|leaf| (leaf.ptr.logical.0, leaf.ptr.generation));
        // Leaves below a log may have inodes that the log removes.
        let is_final = leaves.over.items.is_empty();
        let places = if is_final { places.collect() } else { HashSet::new() };
        living.insert(*id, LiveSubvolume { index, tree: leaves, leaves: places });
    }
    let deleted = DeletedInodes::find(salvage, &living, options.versions);
    let only = living.keys().copied().next();
    let only = only.filter(|id| living.len() == 1 && !has_other_file_tree(salvage, *id));
    let logs = OldLogs::find(salvage, only, &|id, ino| {
        options.versions || !is_alive(living.get(&id).map(|one| &one.index), ino)
    });
    let last_use = LastUse::new(salvage);
    let sums = OldSums::new(salvage);
    let since = options.since.map(|since| generation_of(salvage, since));
    let names = Names::new(salvage, &state, &living, (&deleted, &logs));
    let copier = Copier { salvage, sums: &sums, unverified: options.unverified };
    let mut summary = Summary::default();
    let mut made = Made { top, links: HashMap::new(), folders: Vec::new() };
    salvage.progress().step(Step::Files, 0);
    let sector = u64::from(salvage.superblock().sectorsize);
    let is_gone = |at: &(TreeId, Ino)| !is_alive(living.get(&at.0).map(|one| &one.index), at.1);
    let mut inodes: BTreeSet<(TreeId, Ino)> = deleted.inodes().chain(logs.inodes()).collect();
    inodes.retain(is_gone);
    for at in inodes {
        if !salvage.progress().goes_on() {
            summary.stopped = true;
            break;
        }
        let older = deleted.body(salvage, &last_use, at);
        let known = older.as_ref().map(|older| older.written.max(older.seen));
        let logged = logs.newest(salvage, at);
        let logged = logged.filter(|logged| known.is_none_or(|known| known < logged.generation));
        let body = match logged {
            Some(logged) => DeletedItems::of_log(older.clone(), &logged, sector)
                .map(|body| body.or_whole(older)),
            None => older,
        };
        let Some(body) = body else { continue };
        if since.is_some_and(|since| body.until < since) {
            continue;
        }
        for path in names.paths(at, &body) {
            let is_wanted = |glob: &Glob| glob.matches(&path.concat_with_slashes());
            if !options.paths.is_empty() && !options.paths.iter().any(is_wanted) {
                continue;
            }
            let entry = made.bring_back(&copier, &state, at, &body, &path);
            summary.count(&entry);
            each(&entry);
        }
    }
    let older = Versions {
        salvage,
        deleted: &deleted,
        logs: &logs,
        last_use: &last_use,
        now: state.generation,
    };
    let files: BTreeSet<(TreeId, Ino)> = deleted.living().chain(logs.inodes()).collect();
    for at in files.into_iter().filter(|at| options.versions && !is_gone(at)) {
        if !salvage.progress().goes_on() {
            summary.stopped = true;
            break;
        }
        let Some((path, subvolume)) = names.present(at).zip(living.get(&at.0)) else { continue };
        let is_wanted = |glob: &Glob| glob.matches(&path.concat_with_slashes());
        if !options.paths.is_empty() && !options.paths.iter().any(is_wanted) {
            continue;
        }
        for (generation, body) in older.of(subvolume, at) {
            if since.is_some_and(|since| body.until < since) {
                break;
            }
            let entry = made.bring_back(&copier, &state, at, &body, &path.of_version(generation));
            summary.count(&entry);
            each(&entry);
        }
    }
    made.finish();
    Ok(summary)
}

/// The first transaction at or after a time, according to root items of any age.
fn generation_of(salvage: &Salvage, since: Since) -> Generation {
    let time = match since {
        Since::Generation(number) => return Generation(number),
        Since::Time(time) => time,
    };
    let mut first = salvage.superblock().generation;
    each_root_item(salvage, &mut |kind, _, bytes| {
        if kind == Kind::ROOT_ITEM
            && let Ok(item) = RootItem::parse(bytes)
            && item.ctime.sec >= time
        {
            first = first.min(item.ctransid);
        }
    });
    first
}

/// Calls `visit` with each item of all root tree leaves.
fn each_root_item(salvage: &Salvage, visit: &mut dyn FnMut(Kind, &buttress_format::Key, &[u8])) {
    let leaves = salvage.scan().each();
    for leaf in leaves.filter(|node| node.level == 0 && node.owner == TreeId::ROOT) {
        let expect = Expect::root(leaf.ptr());
        let Some(node) = scan::read_copy(&salvage.devices, &salvage.geometry, leaf, &expect) else {
            continue;
        };
        for slot in 0..node.len() {
            let key = node.key(slot);
            visit(key.kind, &key, node.item(slot));
        }
    }
}

/// Whether nodes or root trees of any age tell of a file tree other than the given one.
fn has_other_file_tree(salvage: &Salvage, only: TreeId) -> bool {
    let is_other = |id: TreeId| id.is_fs_tree() && id != only;
    let mut found = salvage.scan().each().any(|node| is_other(node.owner));
    each_root_item(salvage, &mut |kind, key, _| match kind {
        Kind::ROOT_ITEM => found |= is_other(TreeId(key.objectid)),
        Kind::ROOT_REF | Kind::ROOT_BACKREF => {
            found |= is_other(TreeId(key.objectid)) || is_other(TreeId(key.offset));
        }
        _ => {}
    });
    found
}

/// Names from the top of the volume down.
#[derive(Clone, Debug, Default)]
struct NamePath(Vec<Vec<u8>>);

impl NamePath {
    fn concat_with_slashes(&self) -> Vec<u8> {
        self.0.iter().fold(Vec::new(), |path, name| joined(&path, name))
    }

    /// The path of a version that a transaction wrote.
    fn of_version(&self, generation: Generation) -> Self {
        let mut path = self.clone();
        if let Some(name) = path.0.last_mut() {
            let end = format!(".~{generation}~");
            name.truncate(NAME_MAX - end.len());
            name.extend_from_slice(end.as_bytes());
        }
        path
    }
}

/// Finds the paths of deleted files.
struct Names<'n> {
    salvage: &'n Salvage,
    deleted: &'n DeletedInodes,
    logs: &'n OldLogs,
    /// The folder and name of each live inode and subvolume.
    above: HashMap<(TreeId, Child), (Ino, Vec<u8>)>,
    places: BTreeMap<TreeId, (TreeId, Ino, Vec<u8>)>,
    living: HashSet<TreeId>,
}

impl<'n> Names<'n> {
    fn new(
        salvage: &'n Salvage,
        state: &State,
        living: &BTreeMap<TreeId, LiveSubvolume>,
        (deleted, logs): (&'n DeletedInodes, &'n OldLogs),
    ) -> Self {
        let mut above = HashMap::new();
        for (id, one) in living {
            for (dir, names) in &one.index.names {
                for (name, child) in names {
                    above.insert((*id, *child), (*dir, name.clone()));
                }
            }
        }
        let mut places: BTreeMap<_, _> = BTreeMap::new();
        for (id, place) in &state.places {
            places.insert(*id, (place.parent, place.dir, place.name.clone()));
        }
        each_root_item(salvage, &mut |kind, key, bytes| {
            if kind == Kind::ROOT_BACKREF
                && let Ok(found) = RootRef::parse(bytes)
            {
                let place = (TreeId(key.offset), found.dirid, found.name);
                places.entry(TreeId(key.objectid)).or_insert(place);
            }
        });
        Self { salvage, deleted, logs, above, places, living: living.keys().copied().collect() }
    }

    /// All paths of a deleted file.
    fn paths(&self, at: (TreeId, Ino), body: &DeletedItems) -> Vec<NamePath> {
        let mut names = body.names.clone();
        names.sort();
        names.dedup();
        if names.is_empty() && at.1 == Ino::ROOT_DIR {
            return vec![NamePath(self.subvolume(at.0))];
        }
        if names.is_empty() {
            let number = at.1.0.to_string().into_bytes();
            let lost = [b"lost+found".to_vec(), at.0.to_string().into_bytes(), number];
            return vec![NamePath(lost.to_vec())];
        }
        let path = |(dir, name): (Ino, Vec<u8>)| {
            let mut path = self.folder(at.0, dir);
            path.push(host_name(&name, Child::Inode(at.1)));
            NamePath(path)
        };
        names.into_iter().map(path).collect()
    }

    /// The folder above a folder, and the name in it.
    fn name_of(&self, tree: TreeId, dir: Ino) -> Option<(Ino, Vec<u8>)> {
        let live = self.above.get(&(tree, Child::Inode(dir))).cloned();
        let old = || self.deleted.name_of(self.salvage, (tree, dir));
        live.or_else(old).or_else(|| self.logs.name_of((tree, dir)))
    }

    /// The path of a live file, by one of its names.
    fn present(&self, at: (TreeId, Ino)) -> Option<NamePath> {
        let (dir, name) = self.above.get(&(at.0, Child::Inode(at.1)))?;
        let mut path = self.folder(at.0, *dir);
        path.push(host_name(name, Child::Inode(at.1)));
        Some(NamePath(path))
    }

    /// The path of a folder.
    fn folder(&self, tree: TreeId, dir: Ino) -> Vec<Vec<u8>> {
        let mut seen = HashSet::new();
        let mut names = Vec::new();
        let mut at = dir;
        while at != Ino::ROOT_DIR {
            let found = if seen.insert(at) { self.name_of(tree, at) } else { None };
            let Some((above, name)) = found else {
                names.push(format!("folder-{at}").into_bytes());
                names.push(b"lost+found".to_vec());
                break;
            };
            names.push(host_name(&name, Child::Inode(at)));
            at = above;
        }
        let mut path = self.subvolume(tree);
        path.extend(names.into_iter().rev());
        path
    }

    /// The path of a subvolume, even of a deleted one.
    fn subvolume(&self, tree: TreeId) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        let mut seen = HashSet::new();
        let mut at = tree;
        while at != TreeId::FS && seen.insert(at) {
            let Some((parent, dir, name)) = self.places.get(&at) else {
                names.push(format!("subvolume-{at}").into_bytes());
                break;
            };
            let name = host_name(name, Child::Subvolume(at));
            // A subvolume of the same name may exist now.
            let is_gone = !self.living.contains(&at);
            names.push(if is_gone { [name, format!("-{at}").into_bytes()].concat() } else { name });
            let mut folder = *dir;
            let mut passed = HashSet::new();
            while folder != Ino::ROOT_DIR && passed.insert(folder) {
                let Some((above, name)) = self.name_of(*parent, folder) else { break };
                names.push(host_name(&name, Child::Inode(folder)));
                folder = above;
            }
            at = *parent;
        }
        names.reverse();
        names
    }
}

/// The recovered files and folders.
struct Made {
    top: Dir,
    links: HashMap<(TreeId, Ino), (PathBuf, Entry)>,
    /// Folders, and the attributes that they get at the end.
    folders: Vec<(Vec<Vec<u8>>, InodeItem)>,
}

impl Made {
    fn bring_back(
        &mut self,
        copier: &Copier<'_>,
        state: &State,
        at: (TreeId, Ino),
        body: &DeletedItems,
        path: &NamePath,
    ) -> Entry {
        let item = body.parts.item;
        let kind = item.map_or(FileType::Unknown, |item| kind_of(item.mode));
        let mut entry = Entry::new(path.concat_with_slashes(), at.0.0, at.1.0, kind);
        let outcome = self.write(copier, state, at, body, path, &mut entry);
        if let Err(why) = outcome {
            entry.worsen(Condition::Lost, why);
        }
        entry
    }

    fn write(
        &mut self,
        copier: &Copier<'_>,
        state: &State,
        at: (TreeId, Ino),
        body: &DeletedItems,
        path: &NamePath,
        entry: &mut Entry,
    ) -> Result<(), String> {
        let item = body.parts.item.ok_or("its inode is lost")?;
        if let Some((why, _)) = &body.parts.may_lack {
            entry.worsen(Condition::Partly, why.as_str());
        }
        if entry.kind == FileType::Directory {
            self.folders.push((path.0.clone(), item));
            return self.enter(&path.0).map(drop);
        }
        let Some((name, folders)) = path.0.split_last() else { return Ok(()) };
        let dir = self.enter(folders)?;
        if dir.has(name) {
            entry.condition = Condition::Exists;
            return Ok(());
        }
        if let Some((path, first)) = self.links.get(&at) {
            entry.copy_condition_of(first);
            return self.top.link(path, &dir, name).map_err(|error| error.to_string());
        }
        let mut parts = body.parts.clone();
        if item.flags & InodeFlags::NODATASUM != 0 {
            leave_out_reused(copier, state, &mut parts);
        }
        let notes = match entry.kind {
            FileType::Symlink => {
                let mut target = Vec::new();
                let copied = copier.copy(&parts, entry, &mut |_, bytes| {
                    target.extend_from_slice(bytes);
                    Ok(())
                });
                copied.map_err(|error| error.to_string())?;
                if !entry.lost.is_empty() || target.is_empty() {
                    return Err("its target is lost".to_owned());
                }
                dir.symlink(name, &target, Some(&item))
            }
            FileType::Special => dir.special(name, &item),
            _ => {
                let file = dir.begin().map_err(|error| error.to_string())?;
                let copied = copier.copy(&parts, entry, &mut |at, bytes| file.write(at, bytes));
                copied.map_err(|error| error.to_string())?;
                if entry.bytes == 0 && !entry.lost.is_empty() {
                    return Err("its data was overwritten since".to_owned());
                }
                dir.finish(file, name, entry.size, Some(&item), &parts.xattrs)
            }
        };
        entry.notes.extend(notes.map_err(|error| error.to_string())?);
        if item.nlink > 1 {
            self.links.insert(at, (dir.path_of(name), entry.clone()));
        }
        Ok(())
    }

    fn enter(&self, folders: &[Vec<u8>]) -> Result<Dir, String> {
        let mut at: Option<Dir> = None;
        for name in folders {
            let dir = at.as_ref().unwrap_or(&self.top).enter(name);
            at = Some(dir.map_err(|error| format!("its folder cannot be made: {error}"))?);
        }
        match at {
            Some(dir) => Ok(dir),
            None => self.top.again().map_err(|error| error.to_string()),
        }
    }

    /// Sets the attributes of folders, deepest first.
    fn finish(&mut self) {
        self.folders.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        for (path, item) in &self.folders {
            if let Ok(dir) = self.enter(path) {
                dir.leave(Some(item), &[]);
            }
        }
    }
}

/// Leaves out extents without checksums if their space is now used for other data or nodes.
fn leave_out_reused(
    copier: &Copier<'_>,
    state: &State,
    parts: &mut crate::inode_items::InodeItems,
) {
    for piece in &mut parts.pieces {
        let Ok(extent) = &piece.extent else { continue };
        let Some(region) = extent.region().filter(|region| !region.is_hole()) else { continue };
        let usage = state.extents.as_ref().map(|all| all.usage(copier.salvage, region.extent()));
        let is_free = match usage {
            Some(RangeUse::Free) => true,
            Some(RangeUse::Extent(generation)) => generation == extent.generation,
            Some(RangeUse::Other) => false,
            Some(RangeUse::Unknown) | None => copier.unverified,
        };
        if !is_free {
            piece.extent = Err("its space is used for something else now".to_owned());
        }
    }
}

fn kind_of(mode: u32) -> FileType {
    match FileKind::from_mode(mode) {
        FileKind::Regular => FileType::File,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Unknown | FileKind::Xattr => FileType::Unknown,
        _ => FileType::Special,
    }
}
