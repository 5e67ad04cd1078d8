//! Renames from the old tree to the new one, for inodes that are in both trees or were deleted.
//!
//! # Invariants
//!
//! - **N1** A step takes a name only while no inode has it, and never moves a directory below
//!   itself.
//! - **N2** An inode in both trees always has a name: only extra names are removed, and a move is a
//!   rename.
//! - **N3** The steps end. A step that waits for a name waits for the inode that will give up this
//!   name. If all steps wait for each other, one inode moves to a temporary name, which frees a
//!   wanted name. Each inode moves to a temporary name at most once. A directory with no moving
//!   directory above it in the new tree can always move. All directories above its target are at
//!   their final places, so the target does not lie below the directory itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use buttress_format::{Generation, Ino, InodeItem};

use super::diff::Diff;
use super::paths::{DEPTH_MAX, join, path};
use super::tree::{Inode, Tree, has_inheritable_xattrs, is_dir};
use crate::error::Result;
use crate::stream::Command;

/// A directory. The other tree may use the number again, but only with another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Dir {
    ino: Ino,
    generation: Generation,
}

/// The top is the same in any two subvolumes.
const TOP: Dir = Dir { ino: Ino::ROOT_DIR, generation: Generation(0) };

impl Dir {
    fn new(ino: Ino, item: &InodeItem) -> Self {
        if ino == Ino::ROOT_DIR { TOP } else { Self { ino, generation: item.generation } }
    }
}

/// A name in a directory, as the receiver has it now.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Slot {
    dir: Dir,
    name: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// A directory moves.
    Dir(Dir),
    /// One name of a file moves.
    File(Ino),
    /// A file gets one more name.
    Link(Existing),
}

/// A name that a file has.
#[derive(Clone, Copy, Debug)]
enum Existing {
    /// A name that another step moves.
    Moved(usize),
    /// A name that stays.
    Stays(usize),
}

#[derive(Debug)]
struct Step {
    what: What,
    /// Its current place; `None` for a link.
    at: Option<Slot>,
    to: Slot,
}

/// The step or directory that will free a name.
#[derive(Clone, Copy, Debug)]
enum FreedBy {
    Step(usize),
    Gone(Dir),
}

enum Outcome {
    Done,
    /// The name is taken.
    Taken(Slot),
    /// The target lies below the moving directory.
    Below,
}

pub(super) struct Names<'t, 'v> {
    old: &'t Tree<'v>,
    new: &'t Tree<'v>,
    old_dirs: HashMap<Ino, Dir>,
    new_dirs: HashMap<Ino, Dir>,
    /// Current places of directories that have moved since the old tree.
    now: HashMap<Dir, Slot>,
    paths: HashMap<Dir, Vec<u8>>,
    gone: BTreeSet<Dir>,
    steps: Vec<Step>,
    staying: Vec<Slot>,
    leaving: HashMap<Slot, FreedBy>,
    queue: VecDeque<usize>,
    waiting: BTreeMap<Slot, Vec<usize>>,
    below: Vec<usize>,
    /// Temporary names at the top.
    temporary: HashSet<Vec<u8>>,
    made: HashSet<Ino>,
    touched: BTreeSet<Ino>,
}

impl<'t, 'v> Names<'t, 'v> {
    pub(super) fn new(old: &'t Tree<'v>, new: &'t Tree<'v>) -> Self {
        Self {
            old,
            new,
            old_dirs: HashMap::new(),
            new_dirs: HashMap::new(),
            now: HashMap::new(),
            paths: HashMap::new(),
            gone: BTreeSet::new(),
            steps: Vec::new(),
            staying: Vec::new(),
            leaving: HashMap::new(),
            queue: VecDeque::new(),
            waiting: BTreeMap::new(),
            below: Vec::new(),
            temporary: HashSet::new(),
            made: HashSet::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Emits all commands. Returns the new directories that were made, and the directories with
    /// changed times.
    pub(super) fn run(
        mut self,
        mut emit: impl FnMut(Command<'_>) -> Result<()>,
    ) -> Result<(HashSet<Ino>, BTreeSet<Ino>)> {
        self.collect(&mut emit)?;
        self.remove_gone(&mut emit, true)?;
        self.queue = (0..self.steps.len()).collect();
        self.settle(&mut emit)?;
        self.remove_gone(&mut emit, false)?;
        Ok((self.made, self.touched))
    }

    /// Walks the differences. Names of deleted files, and extra names, are removed at once.
    fn collect(&mut self, emit: &mut impl FnMut(Command<'_>) -> Result<()>) -> Result<()> {
        let mut diff = Diff::new(Some(self.old), self.new)?;
        while let Some(change) = diff.next()? {
            if !change.inode || change.ino == Ino::ROOT_DIR {
                continue;
            }
            let Some(old) = self.old.inode(change.ino)? else { continue };
            let new = self.new.inode(change.ino)?;
            let new = new.filter(|new| new.item.generation == old.item.generation);
            match new {
                Some(new) => self.stays(change.ino, &old, &new, emit)?,
                None if is_dir(&old.item) => {
                    let dir = Dir::new(change.ino, &old.item);
                    let slot = self.old_slots(&old)?.swap_remove(0);
                    self.gone.insert(dir);
                    self.leaving.insert(slot, FreedBy::Gone(dir));
                }
                None => {
                    for slot in self.old_slots(&old)? {
                        self.unlink(&slot, emit)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn stays(
        &mut self,
        ino: Ino,
        old: &Inode,
        new: &Inode,
        emit: &mut impl FnMut(Command<'_>) -> Result<()>,
    ) -> Result<()> {
        let before = self.old_slots(old)?;
        let after = self.new_slots(new)?;
        let mut removed: Vec<&Slot> = before.iter().filter(|slot| !after.contains(slot)).collect();
        let added: Vec<&Slot> = after.iter().filter(|slot| !before.contains(slot)).collect();
        while removed.len() > added.len() {
            if let Some(extra) = removed.pop() {
                self.unlink(extra, emit)?;
            }
        }
        let moved = removed.len();
        let first = self.steps.len();
        for (at, to) in removed.into_iter().zip(&added) {
            let what = match is_dir(&old.item) {
                true => What::Dir(Dir::new(ino, &old.item)),
                false => What::File(ino),
            };
            self.leaving.insert(at.clone(), FreedBy::Step(self.steps.len()));
            self.steps.push(Step { what, at: Some(at.clone()), to: (*to).clone() });
        }
        if added.len() == moved {
            return Ok(());
        }
        let existing = match before.iter().find(|slot| after.contains(slot)) {
            Some(stays) => {
                self.staying.push(stays.clone());
                Existing::Stays(self.staying.len() - 1)
            }
            None => Existing::Moved(first),
        };
        for to in &added[moved..] {
            self.steps.push(Step { what: What::Link(existing), at: None, to: (*to).clone() });
        }
        Ok(())
    }

    fn old_slots(&mut self, inode: &Inode) -> Result<Vec<Slot>> {
        let slot = |link: &super::tree::Link| -> Result<Slot> {
            let dir = dir_of(self.old, &mut self.old_dirs, link.parent)?;
            Ok(Slot { dir, name: link.name.clone() })
        };
        inode.links.iter().map(slot).collect()
    }

    fn new_slots(&mut self, inode: &Inode) -> Result<Vec<Slot>> {
        let slot = |link: &super::tree::Link| -> Result<Slot> {
            let dir = dir_of(self.new, &mut self.new_dirs, link.parent)?;
            Ok(Slot { dir, name: link.name.clone() })
        };
        inode.links.iter().map(slot).collect()
    }

    fn unlink(
        &mut self,
        slot: &Slot,
        emit: &mut impl FnMut(Command<'_>) -> Result<()>,
    ) -> Result<()> {
        let at = self.path(slot)?;
        self.touched.insert(slot.dir.ino);
        emit(Command::Unlink { path: path(&at)? })
    }

    /// Removes deleted directories, deepest first. With `only_idle`, a directory stays if an entry
    /// must still move out of it.
    fn remove_gone(
        &mut self,
        emit: &mut impl FnMut(Command<'_>) -> Result<()>,
        only_idle: bool,
    ) -> Result<()> {
        let busy = if only_idle { self.busy()? } else { HashSet::new() };
        let mut going = Vec::new();
        for dir in self.gone.iter().copied().collect::<Vec<_>>() {
            if !busy.contains(&dir) {
                let at = self.dir_path(dir)?;
                going.push((at.iter().filter(|byte| **byte == b'/').count(), at, dir));
            }
        }
        going.sort_by(|a, b| b.cmp(a));
        for (_, at, dir) in going {
            let slot = self.place(dir)?;
            emit(Command::Rmdir { path: path(&at)? })?;
            self.touched.insert(slot.dir.ino);
            self.leaving.remove(&slot);
            self.gone.remove(&dir);
        }
        Ok(())
    }

    /// Deleted directories from which an entry must first move.
    fn busy(&mut self) -> Result<HashSet<Dir>> {
        let mut busy = HashSet::new();
        let dirs: Vec<Dir> =
            self.steps.iter().filter_map(|step| step.at.as_ref()).map(|slot| slot.dir).collect();
        for mut dir in dirs {
            while self.gone.contains(&dir) && busy.insert(dir) {
                dir = self.place(dir)?.dir;
            }
        }
        Ok(busy)
    }

    /// Takes all steps, until none is left (N3).
    fn settle(&mut self, emit: &mut impl FnMut(Command<'_>) -> Result<()>) -> Result<()> {
        loop {
            while let Some(step) = self.queue.pop_front() {
                match self.attempt(step, emit)? {
                    Outcome::Done => {}
                    Outcome::Taken(slot) => self.waiting.entry(slot).or_default().push(step),
                    Outcome::Below => self.below.push(step),
                }
            }
            let Some(slot) = self.waiting.keys().next().cloned() else { break };
            self.move_to_temporary(&slot, emit)?;
        }
        match self.below.first() {
            None => Ok(()),
            Some(step) => {
                let ino = self.steps[*step].to.dir.ino;
                Err(self.new.damaged(ino, "directories that lie in each other"))
            }
        }
    }

    fn attempt(
        &mut self,
        index: usize,
        emit: &mut impl FnMut(Command<'_>) -> Result<()>,
    ) -> Result<Outcome> {
        let to = self.steps[index].to.clone();
        self.make_dir(to.dir, emit)?;
        if self.leaving.contains_key(&to) {
            return Ok(Outcome::Taken(to));
        }
        let what = self.steps[index].what;
        if let What::Dir(dir) = what
            && self.is_below(to.dir, dir)?
        {
            return Ok(Outcome::Below);
        }
        let target = self.path(&to)?;
        match (what, self.steps[index].at.clone()) {
            (What::Link(existing), _) => {
                let slot = match existing {
                    Existing::Stays(slot) => self.staying[slot].clone(),
                    Existing::Moved(step) => {
                        let slot = self.steps[step].at.clone();
                        slot.expect("what moves is somewhere, before and after")
                    }
                };
                let existing = self.path(&slot)?;
                emit(Command::Link { path: path(&target)?, existing: path(&existing)? })?;
            }
            (What::Dir(_) | What::File(_), Some(at)) => {
                let from = self.path(&at)?;
                emit(Command::Rename { path: path(&from)?, to: path(&target)? })?;
                self.moved(index, &at, to.clone());
            }
            (What::Dir(_) | What::File(_), None) => unreachable!("what moves is somewhere"),
        }
        self.touched.insert(to.dir.ino);
        Ok(Outcome::Done)
    }

    /// Records the new place of a step's inode, and wakes the steps that waited for the old place.
    fn moved(&mut self, index: usize, from: &Slot, to: Slot) {
        let step = &mut self.steps[index];
        step.at = Some(to.clone());
        self.touched.insert(from.dir.ino);
        if let What::Dir(dir) = step.what {
            self.dir_moved(dir, to);
        }
        self.free(from);
    }

    fn dir_moved(&mut self, dir: Dir, to: Slot) {
        self.now.insert(dir, to);
        self.paths.clear();
        self.queue.extend(self.below.drain(..));
    }

    fn free(&mut self, slot: &Slot) {
        self.leaving.remove(slot);
        self.queue.extend(self.waiting.remove(slot).unwrap_or_default());
    }

    /// Moves the inode with a wanted name to a temporary name at the top.
    fn move_to_temporary(
        &mut self,
        slot: &Slot,
        emit: &mut impl FnMut(Command<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(holder) = self.leaving.get(slot).copied() else {
            self.free(slot);
            return Ok(());
        };
        let (ino, generation) = match holder {
            FreedBy::Gone(dir) => (dir.ino, dir.generation),
            FreedBy::Step(step) => match self.steps[step].what {
                What::Dir(dir) => (dir.ino, dir.generation),
                What::File(ino) => (ino, Generation(0)),
                What::Link(_) => unreachable!("a link holds no name before it is made"),
            },
        };
        let aside = self.spare_name(ino, generation)?;
        let from = self.path(slot)?;
        emit(Command::Rename { path: path(&from)?, to: path(&aside.name)? })?;
        self.touched.insert(TOP.ino);
        match holder {
            FreedBy::Gone(dir) => {
                self.touched.insert(slot.dir.ino);
                self.dir_moved(dir, aside);
                self.free(slot);
            }
            FreedBy::Step(step) => self.moved(step, slot, aside),
        }
        Ok(())
    }

    /// A name at the top that neither tree has.
    fn spare_name(&mut self, ino: Ino, generation: Generation) -> Result<Slot> {
        let mut count = 0_u64;
        loop {
            let name = format!("o{ino}-{generation}-{count}").into_bytes();
            let taken = self.old.lookup(TOP.ino, &name)?.is_some()
                || self.new.lookup(TOP.ino, &name)?.is_some();
            if !taken && self.temporary.insert(name.clone()) {
                return Ok(Slot { dir: TOP, name });
            }
            count += 1;
        }
    }

    /// Makes a directory of the new tree at its final place, or under a temporary name if its name
    /// is still taken.
    fn make_dir(
        &mut self,
        dir: Dir,
        emit: &mut impl FnMut(Command<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut missing = Vec::new();
        let mut at = dir;
        while at != TOP && !self.now.contains_key(&at) && !self.is_old(at)? {
            missing.push(at);
            let link = self.new.first_link(at.ino)?;
            let link =
                link.ok_or_else(|| self.new.damaged(at.ino, "a directory without a name"))?;
            at = dir_of(self.new, &mut self.new_dirs, link.parent)?;
            if missing.len() > DEPTH_MAX {
                return Err(self.new.damaged(dir.ino, "the way up from it does not end"));
            }
        }
        while let Some(dir) = missing.pop() {
            let link = self.new.first_link(dir.ino)?;
            let link =
                link.ok_or_else(|| self.new.damaged(dir.ino, "a directory without a name"))?;
            let parent = dir_of(self.new, &mut self.new_dirs, link.parent)?;
            let to = Slot { dir: parent, name: link.name };
            let taken = self.leaving.contains_key(&to);
            let aside = taken || self.inherits(parent)?;
            let at = if aside { self.spare_name(dir.ino, dir.generation)? } else { to.clone() };
            let place = self.path(&at)?;
            emit(Command::MkDir { path: path(&place)?, ino: dir.ino.0 })?;
            let at = if aside && !taken {
                let target = self.path(&to)?;
                emit(Command::Rename { path: path(&place)?, to: path(&target)? })?;
                self.touched.insert(TOP.ino);
                to.clone()
            } else {
                at
            };
            self.touched.insert(at.dir.ino);
            self.made.insert(dir.ino);
            self.now.insert(dir, at.clone());
            if taken {
                self.queue.push_back(self.steps.len());
                self.leaving.insert(at.clone(), FreedBy::Step(self.steps.len()));
                self.steps.push(Step { what: What::Dir(dir), at: Some(at), to });
            }
        }
        Ok(())
    }

    /// Whether new entries of a directory inherit attributes from it.
    fn inherits(&self, dir: Dir) -> Result<bool> {
        if dir == TOP || self.made.contains(&dir.ino) {
            return Ok(false);
        }
        let (old, new) = (self.old.inode(dir.ino)?, self.new.inode(dir.ino)?);
        Ok(old.iter().chain(&new).any(has_inheritable_xattrs))
    }

    fn is_old(&mut self, dir: Dir) -> Result<bool> {
        if self.old_dirs.get(&dir.ino) == Some(&dir) {
            return Ok(true);
        }
        let item = self.old.inode_item(dir.ino)?;
        Ok(item.is_some_and(|item| Dir::new(dir.ino, &item) == dir))
    }

    /// The current place of a directory.
    fn place(&mut self, dir: Dir) -> Result<Slot> {
        if let Some(slot) = self.now.get(&dir) {
            return Ok(slot.clone());
        }
        let link = self.old.first_link(dir.ino)?;
        let link = link.ok_or_else(|| self.old.damaged(dir.ino, "a directory without a name"))?;
        let parent = dir_of(self.old, &mut self.old_dirs, link.parent)?;
        Ok(Slot { dir: parent, name: link.name })
    }

    fn is_below(&mut self, mut dir: Dir, above: Dir) -> Result<bool> {
        for _ in 0..DEPTH_MAX {
            if dir == above {
                return Ok(true);
            }
            if dir == TOP {
                return Ok(false);
            }
            dir = self.place(dir)?.dir;
        }
        Err(self.old.damaged(dir.ino, "the way up from it does not end"))
    }

    fn path(&mut self, slot: &Slot) -> Result<Vec<u8>> {
        Ok(join(&self.dir_path(slot.dir)?, &slot.name))
    }

    fn dir_path(&mut self, dir: Dir) -> Result<Vec<u8>> {
        let mut chain = Vec::new();
        let mut at = dir;
        let mut whole = loop {
            if at == TOP {
                break Vec::new();
            }
            if let Some(known) = self.paths.get(&at) {
                break known.clone();
            }
            let slot = self.place(at)?;
            chain.push((at, slot.name));
            at = slot.dir;
            if chain.len() > DEPTH_MAX {
                return Err(self.old.damaged(dir.ino, "the way up from it does not end"));
            }
        };
        while let Some((dir, name)) = chain.pop() {
            whole = join(&whole, &name);
            self.paths.insert(dir, whole.clone());
        }
        Ok(whole)
    }
}

/// The directory with a given number in a tree.
fn dir_of(tree: &Tree<'_>, known: &mut HashMap<Ino, Dir>, ino: Ino) -> Result<Dir> {
    if let Some(dir) = known.get(&ino) {
        return Ok(*dir);
    }
    let item = tree.inode_item(ino)?;
    let item = item.ok_or_else(|| tree.damaged(ino, "a name in a directory that is not there"))?;
    let dir = Dir::new(ino, &item);
    known.insert(ino, dir);
    Ok(dir)
}
