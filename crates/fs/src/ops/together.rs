//! Changes several names in one step.
//!
//! # Invariants
//!
//! - **G1** All changes are put in one handle, so one commit has all of them. After a crash the
//!   volume has all changes or none. No log of fsync may contain a part of these changes before
//!   that commit.
//! - **G2** Every inode that changes is locked, in one order, before the trees are read. Under the
//!   locks, each name is looked up again.
//! - **G3** Nothing is put before every change is known to be possible and its cost is reserved.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use buttress_format::{DirEntry, Ino, Key, Timespec, TreeId};
use buttress_items::names::{self, Target};
use buttress_items::{Batch, Change, Error, FileKind, InodeId, NameError, Result, mode, orphan};
use buttress_txn::{Handle, ReserveClass, View};

use super::create::{Made, Plan as InodePlan};
use crate::cell::InodeCell;
use crate::inode::Inode;
use crate::lock_set::LockSet;
use buttress_make::clock::now;

/// The most names that an inode can have.
const LINKS_MAX: i64 = 65_535;

/// The directory of a name that changes.
#[derive(Clone, Debug)]
pub enum NameDir {
    /// An existing directory.
    There(Inode),
    /// The directory that an earlier change makes, by the index of that [`NameChange::MakeDir`].
    Made(usize),
}

/// One change of a name, for [`Inode::change_names`].
#[derive(Clone, Debug)]
pub enum NameChange {
    /// Gives a regular file a name. Replaces the file that has this name. The file that gets the
    /// name may have had no name before.
    Put {
        /// The name's directory.
        dir: NameDir,
        /// The name.
        name: Vec<u8>,
        /// The file.
        inode: Inode,
    },
    /// Makes a directory. The new directory inherits flags and default ACLs from `like`.
    MakeDir {
        /// The parent directory.
        dir: NameDir,
        /// The name of the new directory.
        name: Vec<u8>,
        /// An existing directory: `dir`, or its nearest existing ancestor.
        like: Inode,
        /// The permission bits of the new directory.
        mode: u32,
    },
    /// Moves the name of an inode that is no directory. Replaces the file that has the new name.
    Move {
        /// The old name and its directory.
        from: (NameDir, Vec<u8>),
        /// The new name and its directory.
        to: (NameDir, Vec<u8>),
    },
    /// Removes a name of an inode that is no directory.
    Remove {
        /// The name's directory.
        dir: NameDir,
        /// The name.
        name: Vec<u8>,
    },
}

impl NameChange {
    /// The names that this change concerns, with their directories.
    fn places(&self) -> impl Iterator<Item = (&NameDir, &[u8])> {
        let (first, second) = match self {
            Self::Put { dir, name, .. }
            | Self::MakeDir { dir, name, .. }
            | Self::Remove { dir, name } => ((dir, name), None),
            Self::Move { from, to } => ((&from.0, &from.1), Some((&to.0, &to.1))),
        };
        std::iter::once(first).chain(second).map(|(dir, name)| (dir, name.as_slice()))
    }
}

impl Inode {
    /// Makes changes of names in this inode's subvolume, all of them or none, even after a crash.
    /// The changes take effect in their order. Other threads see all changes or none. The next
    /// commit makes the changes durable.
    ///
    /// # Errors
    ///
    /// `NotFound`. `Exists` for a new directory. `IsDir` if a directory or a subvolume would be
    /// replaced, moved or removed. `CrossDevice` between subvolumes; `NoSpace`, `ReadOnly`. On
    /// error nothing has changed.
    pub fn change_names(&self, changes: &[NameChange]) -> Result<()> {
        for (_, name) in changes.iter().flat_map(NameChange::places) {
            names::check_name(name)?;
        }
        loop {
            let Some(known) = Known::gather(self, changes)? else { continue };
            let cells: Vec<_> =
                known.inodes.values().map(|inode| Arc::clone(&inode.cell)).collect();
            let _locks = LockSet::of_all(&cells);
            let view = self.mount().engine.view();
            if !known.is_current(&view)? {
                continue;
            }
            let mut plan = Plan::new(self.cell.tree(), &view, &known);
            for (index, change) in changes.iter().enumerate() {
                plan.add(index, change)?;
            }
            let planned = plan.finish()?;
            drop(view);
            return planned.carry_out(self, &known);
        }
    }
}

/// The inodes and names of the changes, as they were before the locks were taken.
struct Known {
    /// Separate users of the inodes. These values are dropped after the locks, because they may be
    /// the last users.
    inodes: BTreeMap<InodeId, Inode>,
    /// Each name with its target before the locks were taken.
    led: Vec<(InodeId, Vec<u8>, Option<Key>)>,
}

impl Known {
    /// Collects the inodes and names. `None` if a name's inode was removed meanwhile: the caller
    /// must try again.
    fn gather(top: &Inode, changes: &[NameChange]) -> Result<Option<Self>> {
        let mount = top.mount();
        let view = mount.engine.view();
        let mut known = Self { inodes: BTreeMap::new(), led: Vec::new() };
        for change in changes {
            if let NameChange::Put { inode, .. } = change {
                inode.cell.expect_regular()?;
                known.add(top, inode)?;
            }
            for (dir, name) in change.places() {
                let NameDir::There(dir) = dir else { continue };
                dir.cell.expect_dir()?;
                dir.cell.expect_writable(&mount.status)?;
                known.add(top, dir)?;
                let found = names::find(&view, dir.id(), name)?;
                if let Some(entry) = &found {
                    let Target::Inode(id) = names::target(&view, dir.id(), entry)? else {
                        return Err(NameError::IsDir.into());
                    };
                    match Inode::of(mount, id) {
                        Ok(inode) => known.add(top, &inode)?,
                        Err(Error::Name(NameError::NotFound)) => return Ok(None),
                        Err(error) => return Err(error),
                    }
                }
                known.led.push((dir.id(), name.to_vec(), found.map(|entry| entry.location)));
            }
        }
        Ok(Some(known))
    }

    fn add(&mut self, top: &Inode, inode: &Inode) -> Result<()> {
        if inode.cell.tree() != top.cell.tree() {
            return Err(NameError::CrossDevice.into());
        }
        self.inodes.entry(inode.id()).or_insert_with(|| inode.clone());
        Ok(())
    }

    /// Whether each name still has the same target (G2).
    fn is_current(&self, view: &View) -> Result<bool> {
        for (dir, name, led) in &self.led {
            if names::find(view, *dir, name)?.map(|entry| entry.location) != *led {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// The change of one inode.
#[derive(Clone, Copy, Debug, Default)]
struct Delta {
    links: i64,
    /// For a directory: the change of its length by its names.
    size: i64,
    /// For a directory: whether a name was added or removed.
    names: bool,
}

/// A directory that a change makes.
struct NewDir<'p> {
    made: Made,
    like: &'p Inode,
    next_index: u64,
    size: u64,
}

/// A directory in which a change is being planned.
#[derive(Clone, Copy)]
enum Place<'p> {
    There(&'p Arc<InodeCell>),
    Made(usize),
}

struct Plan<'v, 'p> {
    view: &'v View,
    known: &'p Known,
    batch: Batch,
    new_dirs: Vec<NewDir<'p>>,
    /// For each `MakeDir` change, the index of its new directory.
    made_by: HashMap<usize, usize>,
    deltas: BTreeMap<InodeId, Delta>,
}

impl<'v, 'p> Plan<'v, 'p> {
    fn new(tree: TreeId, view: &'v View, known: &'p Known) -> Self {
        let batch = Batch::new(tree);
        let (new_dirs, made_by) = (Vec::new(), HashMap::new());
        Self { view, known, batch, new_dirs, made_by, deltas: BTreeMap::new() }
    }

    fn add(&mut self, index: usize, change: &'p NameChange) -> Result<()> {
        match change {
            NameChange::Put { dir, name, inode } => {
                let place = self.place(dir)?;
                if self.find(place, name)?.is_some() {
                    self.take(place, name)?;
                }
                self.give(place, name, inode.id().ino, FileKind::Regular)
            }
            NameChange::MakeDir { dir, name, like, mode: bits } => {
                let place = self.place(dir)?;
                if self.find(place, name)?.is_some() {
                    return Err(NameError::Exists.into());
                }
                self.make_dir(index, place, name, like, *bits)
            }
            NameChange::Move { from, to } => {
                let (source, target) = (self.place(&from.0)?, self.place(&to.0)?);
                let moved = self.find(source, &from.1)?.ok_or(NameError::NotFound)?;
                if let Some(replaced) = self.find(target, &to.1)? {
                    if replaced.location == moved.location {
                        // Both names belong to one file, so both stay, as with rename(2).
                        return Ok(());
                    }
                    self.take(target, &to.1)?;
                }
                let (ino, kind) = self.take(source, &from.1)?;
                self.give(target, &to.1, ino, kind)
            }
            NameChange::Remove { dir, name } => {
                let place = self.place(dir)?;
                self.take(place, name).map(drop)
            }
        }
    }

    fn place(&self, dir: &NameDir) -> Result<Place<'p>> {
        match dir {
            NameDir::There(dir) => {
                let known = self.known.inodes.get(&dir.id());
                let cell = &known.ok_or(Error::invalid("a directory that is not known"))?.cell;
                cell.expect_linked()?;
                cell.expect_mutable()?;
                Ok(Place::There(cell))
            }
            NameDir::Made(by) => {
                let made = self.made_by.get(by).copied();
                made.map(Place::Made).ok_or(Error::invalid("no earlier change makes the directory"))
            }
        }
    }

    fn ino(&self, place: Place<'_>) -> Ino {
        match place {
            Place::There(cell) => cell.ino(),
            Place::Made(at) => self.new_dirs[at].made.id.ino,
        }
    }

    fn find(&self, place: Place<'_>, name: &[u8]) -> Result<Option<DirEntry>> {
        self.batch.find_name(self.view, self.ino(place), name)
    }

    fn next_index(&mut self, place: Place<'_>) -> Result<u64> {
        match place {
            Place::There(cell) => cell.next_index(self.view),
            Place::Made(at) => {
                let dir = &mut self.new_dirs[at];
                dir.next_index += 1;
                Ok(dir.next_index - 1)
            }
        }
    }

    /// Records that a name was added to a directory or removed.
    fn resize(&mut self, place: Place<'_>, size: i64) {
        match place {
            Place::There(cell) => {
                let delta = self.deltas.entry(cell.id).or_default();
                delta.size += size;
                delta.names = true;
            }
            Place::Made(at) => {
                let dir = &mut self.new_dirs[at];
                dir.size = dir.size.saturating_add_signed(size);
            }
        }
    }

    /// Plans the removal of a name. Returns the name's inode.
    fn take(&mut self, place: Place<'_>, name: &[u8]) -> Result<(Ino, FileKind)> {
        let entry = self.find(place, name)?.ok_or(NameError::NotFound)?;
        let kind = names::kind(&entry).filter(|kind| *kind != FileKind::Directory);
        let kind = kind.ok_or(NameError::IsDir)?;
        let ino = Ino(entry.location.objectid);
        let id = InodeId { tree: self.batch.tree(), ino };
        if let Place::There(dir) = place {
            dir.expect_removable()?;
        }
        let inode =
            self.known.inodes.get(&id).ok_or(Error::invalid("an inode that is not known"))?;
        inode.cell.expect_removable()?;
        let dir = self.ino(place);
        let index = self.batch.remove_ref(self.view, ino, dir, name)?;
        self.batch.remove_name(self.view, dir, index, name)?;
        self.deltas.entry(id).or_default().links -= 1;
        self.resize(place, -size_of(name));
        Ok((ino, kind))
    }

    /// Plans the addition of a name.
    fn give(&mut self, place: Place<'_>, name: &[u8], ino: Ino, kind: FileKind) -> Result<()> {
        let id = InodeId { tree: self.batch.tree(), ino };
        let inode =
            self.known.inodes.get(&id).ok_or(Error::invalid("an inode that is not known"))?;
        inode.cell.expect_removable()?;
        let limits = inode.mount().ref_limits();
        let (dir, index) = (self.ino(place), self.next_index(place)?);
        let entry = names::entry(name, ino, kind);
        self.batch.add_name(self.view, dir, index, entry, limits.item_len_max)?;
        self.batch.add_ref(self.view, ino, dir, index, name, limits)?;
        self.deltas.entry(id).or_default().links += 1;
        self.resize(place, size_of(name));
        Ok(())
    }

    fn make_dir(
        &mut self,
        by: usize,
        place: Place<'_>,
        name: &[u8],
        like: &'p Inode,
        bits: u32,
    ) -> Result<()> {
        let item = like.attr();
        let plan = InodePlan {
            mode: bits & mode::PERMISSIONS | mode::DIRECTORY,
            uid: item.uid,
            gid: item.gid,
            rdev: 0,
            target: None,
        };
        let made = like.prepare(self.view, &plan, &mut self.batch, 1)?;
        let (dir, index) = (self.ino(place), self.next_index(place)?);
        let entry = names::entry(name, made.id.ino, FileKind::Directory);
        let limits = like.mount().ref_limits();
        self.batch.add_name(self.view, dir, index, entry, limits.item_len_max)?;
        self.batch.add_first_ref(made.id.ino, dir, index, name);
        self.resize(place, size_of(name));
        self.made_by.insert(by, self.new_dirs.len());
        let next_index = crate::cell::FIRST_INDEX;
        self.new_dirs.push(NewDir { made, like, next_index, size: 0 });
        Ok(())
    }

    /// Plans the effects of changed link counts: some inodes become orphans, and some are orphans
    /// no longer.
    fn finish(mut self) -> Result<Planned<'p>> {
        for (id, delta) in &self.deltas {
            let before = i64::from(self.known.inodes[id].cell.nlink());
            let after = before + delta.links;
            if after > LINKS_MAX {
                return Err(NameError::TooManyLinks.into());
            }
            if before == 0 && after > 0 {
                self.batch.set(orphan::key(id.ino), Change::Delete);
            } else if before > 0 && after <= 0 {
                self.batch.set(orphan::key(id.ino), Change::Bytes(Vec::new()));
            }
        }
        Ok(Planned { batch: self.batch, new_dirs: self.new_dirs, deltas: self.deltas })
    }
}

/// The length that a name adds to its directory.
fn size_of(name: &[u8]) -> i64 {
    // A name has at most 255 bytes.
    names::size_of(name) as i64
}

/// Changes that were checked and can be made.
struct Planned<'p> {
    batch: Batch,
    new_dirs: Vec<NewDir<'p>>,
    deltas: BTreeMap<InodeId, Delta>,
}

impl Planned<'_> {
    /// Reserves space, and puts all changes in one handle (G1, G3).
    fn carry_out(self, top: &Inode, known: &Known) -> Result<()> {
        let mount = top.mount();
        let inodes = u32::try_from(self.deltas.len() + self.new_dirs.len()).unwrap_or(u32::MAX);
        let reservation = mount.space.reserve(self.batch.cost(inodes), ReserveClass::Normal)?;
        let stamp = now();
        let handle = mount.engine.begin(reservation);
        handle.keep_whole();
        let mut dirs = Vec::with_capacity(self.new_dirs.len());
        for mut dir in self.new_dirs {
            dir.made.item.size = dir.size;
            let cell = dir.made.enter(dir.like, handle.generation())?;
            cell.set_next_index(dir.next_index);
            dirs.push(cell);
        }
        self.batch.apply(&handle);
        for cell in &dirs {
            cell.file.update(&handle, |_| ());
        }
        for (id, delta) in &self.deltas {
            update(&known.inodes[id].cell, *delta, stamp, &handle);
        }
        Ok(())
    }
}

fn update(cell: &InodeCell, delta: Delta, stamp: Timespec, handle: &Handle<'_>) {
    cell.file.update(handle, |item| {
        let links = i64::from(item.nlink) + delta.links;
        item.nlink = u32::try_from(links).unwrap_or(0);
        item.size = item.size.saturating_add_signed(delta.size);
        if delta.names {
            item.mtime = stamp;
        }
        item.ctime = stamp;
    });
}
