//! Writes the files of one moment to a folder.
//!
//! # Invariants
//!
//! - **RT1** Each subvolume, and each folder of a subvolume, is entered once. So the walk ends.
//! - **RT2** The report records each file that cannot be restored, and the walk continues.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use buttress_format::{FileKind, Ino, RootFlags, TreeId};

use crate::content::Copier;
use crate::error::{Error, Result};
use crate::files::{Child, Index};
use crate::glob::Glob;
use crate::inode_items::InodeItems;
use crate::pattern::Pattern;
use crate::progress::Step;
use crate::report::{Condition, Entry, Kind, Summary};
use crate::salvage::Salvage;
use crate::state::State;
use crate::sums::TreeSums;
use crate::target::Dir;
use crate::tree::Leaves;

/// The folder for inodes without a path.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// What to restore, and how.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct RestoreOptions {
    /// Restore only paths that match one of these patterns; all paths if the list is empty.
    pub paths: Vec<Glob>,
    /// Only paths that match this pattern. Each folder above a path must match, too.
    pub pattern: Option<Pattern>,
    /// Only this subvolume, by number or by path.
    pub subvolume: Option<String>,
    /// Restore read-only snapshots, too.
    pub snapshots: bool,
    /// Restore also data that should have a checksum, but has none. Data that fails its checksum is
    /// never restored.
    pub unverified: bool,
    /// Whether files that the folder already has are replaced.
    pub overwrite: bool,
}

/// Restores files to a folder. With `None`, everything is read and verified, and nothing is
/// written. `each` is called with every entry of the report.
///
/// # Errors
///
/// When the folder cannot be used, or the requested subvolume does not exist.
pub fn restore(
    salvage: &Salvage,
    state: &State,
    options: &RestoreOptions,
    target: Option<&Path>,
    each: &mut dyn FnMut(&Entry),
) -> Result<Summary> {
    let top = Dir::top(target).map_err(|source| Error::Target {
        path: target.map(|path| path.display().to_string()).unwrap_or_default(),
        source,
    })?;
    let sums = TreeSums::new(salvage, state);
    let copier = Copier { salvage, sums: &sums, unverified: options.unverified };
    let mut work = Work {
        salvage,
        state,
        options,
        copier,
        each,
        summary: Summary::default(),
        links: HashMap::new(),
        entered: BTreeSet::new(),
        stack: Vec::new(),
        top: Rc::new(top),
    };
    let first = match &options.subvolume {
        Some(wanted) => work.find_subvolume(wanted)?,
        None => TreeId::FS,
    };
    let top = Rc::clone(&work.top);
    work.enter_subvolume(first, Vec::new(), None, Some(top));
    work.run();
    if options.subvolume.is_none() {
        work.nameless_subvolumes();
    }
    work.summary.stopped = !salvage.progress().goes_on();
    Ok(work.summary)
}

/// One subvolume during the walk.
struct Subvolume {
    id: TreeId,
    tree: Leaves,
    index: Index,
    reached: std::cell::RefCell<BTreeSet<Ino>>,
}

/// A folder on the current path of the walk.
struct Level {
    subvolume: Rc<Subvolume>,
    /// Its inode number; `None` for a folder that the volume does not have.
    ino: Option<Ino>,
    /// Its name on the host, in the folder above.
    name: Vec<u8>,
    path: Vec<u8>,
    dir: Option<Rc<Dir>>,
    /// Why the folder cannot be created.
    failed: Option<String>,
    left: std::vec::IntoIter<(Vec<u8>, Child)>,
    is_top: bool,
}

struct Work<'w> {
    salvage: &'w Salvage,
    state: &'w State,
    options: &'w RestoreOptions,
    copier: Copier<'w>,
    each: &'w mut dyn FnMut(&Entry),
    summary: Summary,
    /// The first place of each file with several names.
    links: HashMap<(TreeId, Ino), (PathBuf, Entry)>,
    entered: BTreeSet<TreeId>,
    stack: Vec<Level>,
    top: Rc<Dir>,
}

impl Work<'_> {
    fn run(&mut self) {
        while let Some(level) = self.stack.last_mut() {
            if !self.salvage.progress().goes_on() {
                return;
            }
            match level.left.next() {
                Some((name, child)) => self.child(&name, child),
                None => self.leave(),
            }
        }
    }

    fn tell(&mut self, entry: &Entry) {
        self.summary.count(entry);
        (self.each)(entry);
    }

    fn is_wanted(&self, path: &[u8]) -> bool {
        let paths = &self.options.paths;
        let is_found = self.options.pattern.as_ref().is_none_or(|pattern| pattern.matches(path));
        is_found && (paths.is_empty() || paths.iter().any(|glob| glob.matches(path)))
    }

    /// Enters a subvolume. `name` is the name of its folder; `dir` is given if the folder exists.
    fn enter_subvolume(
        &mut self,
        id: TreeId,
        path: Vec<u8>,
        name: Option<Vec<u8>>,
        dir: Option<Rc<Dir>>,
    ) {
        let mut entry = Entry::new(path.clone(), id.0, Ino::ROOT_DIR.0, Kind::Subvolume);
        if !self.entered.insert(id) {
            entry.worsen(Condition::Skipped, "the subvolume has another place, too");
            return self.tell(&entry);
        }
        let Some(tree) = self.state.trees.get(&id) else {
            entry.worsen(Condition::Lost, "the root of the subvolume is lost");
            return self.tell(&entry);
        };
        let root = tree.root;
        if name.is_some() && self.is_left_out(id) {
            entry.worsen(Condition::Skipped, "it is a read-only snapshot");
            return self.tell(&entry);
        }
        let subvolume = self.read_subvolume(id, root);
        if subvolume.tree.is_empty() {
            let why = subvolume.tree.gaps.first().map(|gap| gap.why.clone());
            entry.worsen(Condition::Lost, why.unwrap_or_else(|| "it is lost".to_owned()));
            return self.tell(&entry);
        }
        let subvolume = Rc::new(subvolume);
        subvolume.reached.borrow_mut().insert(Ino::ROOT_DIR);
        let name = name.unwrap_or_default();
        self.enter(subvolume, Some(Ino::ROOT_DIR), name, path, dir, true);
    }

    /// Whether the subvolume is a read-only snapshot, and the options leave read-only snapshots
    /// out.
    fn is_left_out(&self, id: TreeId) -> bool {
        let item = self.state.trees.get(&id).and_then(|tree| tree.item);
        !self.options.snapshots
            && item.is_some_and(|item| {
                item.flags & RootFlags::READONLY != 0 && item.parent_uuid != [0; 16]
            })
    }

    fn read_subvolume(&self, id: TreeId, root: buttress_tree::NodePtr) -> Subvolume {
        let progress = self.salvage.progress();
        progress.step(Step::Index, 0);
        let mut tree = Leaves::walk(self.salvage, id, root, self.state.extents.as_ref());
        tree.over = self.state.log.over(id);
        let index = Index::read(self.salvage, &tree);
        progress.step(Step::Files, self.salvage.superblock().bytes_used);
        Subvolume { id, tree, index, reached: std::cell::RefCell::default() }
    }

    fn enter(
        &mut self,
        subvolume: Rc<Subvolume>,
        ino: Option<Ino>,
        name: Vec<u8>,
        path: Vec<u8>,
        dir: Option<Rc<Dir>>,
        is_top: bool,
    ) {
        let names = ino.and_then(|ino| subvolume.index.names.get(&ino));
        let left: Vec<_> =
            names.into_iter().flatten().map(|(name, child)| (name.clone(), *child)).collect();
        let left = left.into_iter();
        let level = Level { subvolume, ino, name, path, dir, failed: None, left, is_top };
        self.stack.push(level);
        let at = self.stack.len() - 1;
        if self.is_wanted(&self.stack[at].path) {
            let _ = self.ensure(at);
        }
    }

    /// Makes the folders down to a level.
    fn ensure(&mut self, at: usize) -> Result<Rc<Dir>, String> {
        // Begin at the lowest open folder: folders above it need not be created.
        let first = self.stack[..=at].iter().rposition(|level| level.dir.is_some()).unwrap_or(0);
        let mut above: Option<Rc<Dir>> = None;
        for level in &mut self.stack[first..=at] {
            if let Some(why) = &level.failed {
                return Err(why.clone());
            }
            if level.dir.is_none() {
                let Some(parent) = &above else { return Err("there is no folder".to_owned()) };
                match parent.enter(&level.name) {
                    Ok(dir) => level.dir = Some(Rc::new(dir)),
                    Err(error) => {
                        let why = format!("its folder cannot be made: {error}");
                        level.failed = Some(why.clone());
                        return Err(why);
                    }
                }
            }
            above = level.dir.clone();
        }
        above.ok_or_else(|| "there is no folder".to_owned())
    }

    fn child(&mut self, name: &[u8], child: Child) {
        let Some(level) = self.stack.last() else { return };
        let subvolume = Rc::clone(&level.subvolume);
        let path = joined(&level.path, name);
        let host_name = host_name(name, child);
        match child {
            Child::Subvolume(id) => {
                // A snapshot also has the names of nested subvolumes, although it does not contain
                // these subvolumes.
                let place = self.state.places.get(&id);
                let is_here = place.is_none_or(|place| {
                    place.parent == subvolume.id && Some(place.dir) == level.ino
                });
                if is_here {
                    self.enter_subvolume(id, path, Some(host_name), None);
                }
            }
            Child::Inode(ino) => match subvolume.index.kind(ino) {
                Some(FileKind::Directory) => {
                    if subvolume.reached.borrow_mut().insert(ino) {
                        self.enter(subvolume, Some(ino), host_name, path, None, false);
                    } else if self.is_wanted(&path) {
                        let mut entry = Entry::new(path, subvolume.id.0, ino.0, Kind::Directory);
                        entry.worsen(Condition::Skipped, "the folder has another place, too");
                        self.tell(&entry);
                    }
                }
                kind => {
                    subvolume.reached.borrow_mut().insert(ino);
                    if self.is_wanted(&path) {
                        let kind = kind.map_or(Kind::Unknown, kind_of);
                        let mut entry = Entry::new(path, subvolume.id.0, ino.0, kind);
                        if let Err(why) = self.file(&subvolume, ino, &host_name, &mut entry) {
                            entry.worsen(Condition::Lost, why);
                        }
                        if self.salvage.progress().goes_on() {
                            self.tell(&entry);
                        }
                    }
                }
            },
        }
    }

    fn file(
        &mut self,
        subvolume: &Subvolume,
        ino: Ino,
        name: &[u8],
        entry: &mut Entry,
    ) -> Result<(), String> {
        let parts = InodeItems::read(self.salvage, &subvolume.tree, ino, self.state.generation);
        note_gaps(&parts, entry);
        if parts.item.is_none() && parts.pieces.is_empty() {
            return Err("its inode is lost".to_owned());
        }
        let dir = self.ensure(self.stack.len() - 1)?;
        if dir.has(name) {
            if !self.options.overwrite {
                entry.condition = Condition::Exists;
                return Ok(());
            }
            dir.clear(name).map_err(|error| format!("what is there stays: {error}"))?;
        }
        let item = parts.item;
        let key = (subvolume.id, ino);
        if let Some((path, first)) = self.links.get(&key) {
            entry.copy_condition_of(first);
            return self.top.link(path, &dir, name).map_err(|error| format!("no link: {error}"));
        }
        let written = match (entry.kind, &item) {
            (Kind::Symlink, _) => {
                let mut target = Vec::new();
                let copied = self.copier.copy(&parts, entry, &mut |_, bytes| {
                    target.extend_from_slice(bytes);
                    Ok(())
                });
                copied.map_err(|error| error.to_string())?;
                if !entry.lost.is_empty() || target.is_empty() {
                    return Err("its target is lost".to_owned());
                }
                dir.symlink(name, &target, item.as_ref())
            }
            (Kind::Special, Some(item)) => dir.special(name, item),
            (Kind::Special, None) => return Err("its inode is lost".to_owned()),
            _ => return self.regular(&parts, key, &dir, name, entry),
        };
        entry.notes.extend(written.map_err(|error| error.to_string())?);
        self.remember(key, &parts, &dir, name, entry);
        Ok(())
    }

    fn regular(
        &mut self,
        parts: &InodeItems,
        key: (TreeId, Ino),
        dir: &Dir,
        name: &[u8],
        entry: &mut Entry,
    ) -> Result<(), String> {
        entry.kind = Kind::File;
        let file = dir.begin().map_err(|error| error.to_string())?;
        let copied = self.copier.copy(parts, entry, &mut |at, bytes| file.write(at, bytes));
        copied.map_err(|error| error.to_string())?;
        if !self.salvage.progress().goes_on() {
            return Ok(());
        }
        if entry.bytes == 0 && !entry.lost.is_empty() {
            return Err("nothing of its content is left".to_owned());
        }
        let notes = dir.finish(file, name, entry.size, parts.item.as_ref(), &parts.xattrs);
        entry.notes.extend(notes.map_err(|error| error.to_string())?);
        self.remember(key, parts, dir, name, entry);
        Ok(())
    }

    fn remember(
        &mut self,
        key: (TreeId, Ino),
        parts: &InodeItems,
        dir: &Dir,
        name: &[u8],
        entry: &Entry,
    ) {
        if parts.item.is_some_and(|item| item.nlink > 1) {
            self.links.insert(key, (dir.path_of(name), entry.clone()));
        }
    }

    fn leave(&mut self) {
        let Some(level) = self.stack.pop() else { return };
        if let Some(ino) = level.ino
            && self.is_wanted(&level.path)
        {
            let kind = if level.is_top { Kind::Subvolume } else { Kind::Directory };
            let id = level.subvolume.id;
            let mut entry = Entry::new(level.path.clone(), id.0, ino.0, kind);
            let moment = self.state.generation;
            let parts = InodeItems::read_head(self.salvage, &level.subvolume.tree, ino, moment);
            note_gaps(&parts, &mut entry);
            let names = |kind| buttress_format::Key::new(ino.0, kind, 0);
            let (from, to) = (names(buttress_format::Kind::DIR_ITEM), names(after_names()));
            let mut gaps = level.subvolume.index.gaps.iter();
            if let Some(gap) = gaps.find(|gap| gap.is_sure && gap.touches(&from, Some(&to))) {
                let why = format!("some of its names may be lost: {}", gap.why);
                entry.worsen(Condition::Partly, why);
            }
            if let Some(why) = level.failed {
                entry.worsen(Condition::Lost, why);
            }
            // The target folder keeps its own attributes.
            if let Some(dir) = level.dir.filter(|_| !self.stack.is_empty()) {
                entry.notes.extend(dir.leave(parts.item.as_ref(), &parts.xattrs));
            }
            self.tell(&entry);
        }
        if level.is_top || level.ino.is_none() {
            self.unreached(&level.subvolume);
        }
    }

    /// Continues with inodes of a subvolume that have no path.
    fn unreached(&mut self, subvolume: &Rc<Subvolume>) {
        let lost = subvolume.index.unreached(&subvolume.reached.borrow());
        if lost.is_empty() {
            return;
        }
        let left: Vec<_> = lost
            .into_iter()
            .map(|ino| (ino.0.to_string().into_bytes(), Child::Inode(ino)))
            .collect();
        self.enter_lost(Rc::clone(subvolume), left);
    }

    fn enter_lost(&mut self, subvolume: Rc<Subvolume>, left: Vec<(Vec<u8>, Child)>) {
        let id = subvolume.id.0.to_string().into_bytes();
        let path = joined(LOST_AND_FOUND, &id);
        // Both folders lie directly below the top, whatever folder the walk is in.
        let made = self.top.enter(LOST_AND_FOUND).and_then(|dir| dir.enter(&id));
        let (dir, failed) = match made {
            Ok(dir) => (Some(Rc::new(dir)), None),
            Err(error) => (None, Some(format!("{}: {error}", String::from_utf8_lossy(&path)))),
        };
        let left = left.into_iter();
        let (ino, name, is_top) = (None, id, false);
        self.stack.push(Level { subvolume, ino, name, path, dir, failed, left, is_top });
    }

    /// Continues with subvolumes that have no name.
    fn nameless_subvolumes(&mut self) {
        let ids: Vec<TreeId> = self.state.trees.keys().copied().collect();
        for id in ids.into_iter().filter(|id| id.is_fs_tree()) {
            let is_dead = self
                .state
                .trees
                .get(&id)
                .and_then(|tree| tree.item)
                .is_some_and(|item| item.refs == 0 || item.flags & RootFlags::DEAD != 0);
            if is_dead || self.entered.contains(&id) || !self.salvage.progress().goes_on() {
                continue;
            }
            let name = format!("subvolume-{id}").into_bytes();
            let path = joined(LOST_AND_FOUND, &name);
            if self.is_left_out(id) {
                self.enter_subvolume(id, path, Some(name), None);
                continue;
            }
            let made = self.top.enter(LOST_AND_FOUND).and_then(|dir| dir.enter(&name));
            match made {
                Ok(dir) => {
                    self.enter_subvolume(id, path, Some(name), Some(Rc::new(dir)));
                    self.run();
                }
                Err(error) => {
                    let mut entry = Entry::new(path, id.0, Ino::ROOT_DIR.0, Kind::Subvolume);
                    entry.worsen(Condition::Lost, error.to_string());
                    self.tell(&entry);
                }
            }
        }
    }

    /// The number of a subvolume that is given by number or by path.
    fn find_subvolume(&self, wanted: &str) -> Result<TreeId> {
        let missing = || Error::NoSubvolume(wanted.to_owned());
        if let Ok(number) = wanted.parse() {
            let id = TreeId(number);
            return self.state.trees.contains_key(&id).then_some(id).ok_or_else(missing);
        }
        let mut id = TreeId::FS;
        let mut at = Ino::ROOT_DIR;
        let mut index = self.index_of(id).ok_or_else(missing)?;
        for name in wanted.split('/').filter(|name| !name.is_empty()) {
            let names = index.names.get(&at).ok_or_else(missing)?;
            match names.get(name.as_bytes()).ok_or_else(missing)? {
                Child::Inode(ino) => at = *ino,
                Child::Subvolume(next) => {
                    id = *next;
                    at = Ino::ROOT_DIR;
                    index = self.index_of(id).ok_or_else(missing)?;
                }
            }
        }
        if at == Ino::ROOT_DIR { Ok(id) } else { Err(missing()) }
    }

    fn index_of(&self, id: TreeId) -> Option<Index> {
        let tree = self.state.trees.get(&id)?;
        Some(self.read_subvolume(id, tree.root).index)
    }
}

/// The first item kind after all names of a folder.
fn after_names() -> buttress_format::Kind {
    buttress_format::Kind(buttress_format::Kind::DIR_INDEX.0 + 1)
}

fn note_gaps(parts: &InodeItems, entry: &mut Entry) {
    if parts.item.is_none() {
        let why = "its inode is lost: size, owner, mode and times are not known";
        entry.worsen(Condition::Partly, why);
    }
    if let Some((why, is_sure)) = &parts.may_lack {
        let text = format!("some of its attributes may be lost: {why}");
        let condition = if *is_sure { Condition::Partly } else { Condition::Whole };
        entry.worsen(condition, text);
    }
}

fn kind_of(kind: FileKind) -> Kind {
    match kind {
        FileKind::Regular => Kind::File,
        FileKind::Directory => Kind::Directory,
        FileKind::Symlink => Kind::Symlink,
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
            Kind::Special
        }
        FileKind::Unknown | FileKind::Xattr => Kind::Unknown,
    }
}

/// A path, and one more name.
pub(crate) fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// The name on the host. A name that the host does not allow is replaced.
pub(crate) fn host_name(name: &[u8], child: Child) -> Vec<u8> {
    let is_none = name.is_empty() || name == b"." || name == b"..";
    if is_none || name.contains(&b'/') || name.contains(&0) {
        let number = match child {
            Child::Inode(ino) => ino.0,
            Child::Subvolume(id) => id.0,
        };
        return format!("odd-name-{number}").into_bytes();
    }
    name.to_vec()
}
