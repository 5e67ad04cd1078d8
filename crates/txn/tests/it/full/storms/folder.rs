//! The folder of one thread of a storm, in the live tree or in a snapshot, and the model of its
//! content.

use std::{collections::BTreeSet, ops::ControlFlow};

use buttress_base::Rng;
use buttress_fs::{Error, Inode, NameError, NewInode, SetAttr, XattrFlags};

use super::super::{Kept, content, full, verify};

const SECTOR: usize = 4096;
/// Seed and length of a file that all threads of a storm clone and no thread changes. The file ends
/// within a sector.
pub(super) const SHARED: (u64, usize) = (0x5a4ed, (300 << 10) + 100);
/// A thread with this many files makes no more clones, because clones take no data, and the storm
/// must fill the data space, too.
const FILES_MAX: usize = 300;
/// The attribute of a file that has a leaf for itself.
pub(super) const LEAF: (&[u8], &[u8]) = (b"user.leaf", &[1; 12_000]);

/// The content of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// Most files have extents.
    Data,
    /// The files have no data, and every second file has a leaf for itself.
    Metadata,
}

impl Filled {
    fn len(self, rng: &mut Rng) -> usize {
        match self {
            Self::Data => rng.below(96 << 10) as usize,
            Self::Metadata => rng.below(2000) as usize,
        }
    }
}

/// The expected content of a folder.
#[derive(Clone, Default)]
pub(super) struct Model {
    kept: Kept,
    /// The files that have a leaf for themselves.
    leaves: BTreeSet<String>,
}

impl Model {
    /// Panics if a folder lacks a file of the model, or has any other file.
    pub(super) fn verify(&self, dir: &Inode) {
        let mut names = BTreeSet::new();
        let list = dir.read_dir(0, |entry| {
            names.insert(String::from_utf8_lossy(entry.name).into_owned());
            ControlFlow::Continue(())
        });
        list.expect("it lists");
        let kept = self.kept.keys();
        assert!(names.iter().eq(kept.clone()), "{names:?} are there, and not {kept:?}");
        verify(dir, &self.kept);
        for name in &names {
            let found = dir.lookup(name.as_bytes()).expect("it is listed").xattr(LEAF.0);
            let is_right = match found {
                Ok(value) => self.leaves.contains(name) && value == LEAF.1,
                Err(error) => {
                    matches!(error, Error::Name(NameError::NoAttribute))
                        && !self.leaves.contains(name)
                }
            };
            assert!(is_right, "{name} has the attribute that it was given");
        }
    }

    pub(super) fn remove_all(&self, dir: &Inode) {
        for name in self.kept.keys() {
            dir.unlink(name.as_bytes()).expect("removing always works");
        }
    }
}

/// A folder that no other thread changes.
pub(super) struct Folder {
    dir: Inode,
    /// Files that hold [`SHARED`].
    shared: Vec<Inode>,
    filled: Filled,
    seed: u64,
    count: usize,
    pub(super) model: Model,
}

impl Folder {
    /// An empty folder. Its files are named after the seed.
    pub(super) fn new(dir: Inode, shared: Inode, filled: Filled, seed: u64) -> Self {
        Self { dir, shared: vec![shared], filled, seed, count: 0, model: Model::default() }
    }

    /// The same folder in a snapshot that was just cut.
    pub(super) fn in_snapshot(&self, dir: Inode, shared: Inode) -> Self {
        let shared = self.shared.iter().cloned().chain([shared]).collect();
        let (filled, seed, count) = (self.filled, self.seed, self.count);
        Self { dir, shared, filled, seed, count, model: self.model.clone() }
    }

    /// Makes one random change. Removes a file if its content is uncertain after a refusal.
    pub(super) fn change(&mut self, rng: &mut Rng) {
        let victim =
            self.model.kept.keys().nth(rng.below(self.model.kept.len().max(1) as u64) as usize);
        match (rng.below(19), victim.cloned()) {
            (0..=8, _) => self.create(rng),
            (9..=10, Some(name)) => self.overwrite(&name, self.model.kept[&name].1, rng),
            (11, Some(name)) => self.cut(&name, rng),
            (12..=13, Some(name)) => self.remove(&name),
            (14, Some(name)) => drop(full(self.file(&name).sync())),
            (15..=17, Some(name)) if self.model.kept.len() < FILES_MAX => self.clone_of(&name, rng),
            (15.., Some(name)) => self.remove(&name),
            _ => {}
        }
    }

    fn create(&mut self, rng: &mut Rng) {
        let name = self.next_name();
        let Some(file) = full(self.dir.create(name.as_bytes(), NewInode::file(0o644))) else {
            return;
        };
        let has_leaf = self.filled == Filled::Metadata && rng.chance(1, 2);
        if has_leaf && full(file.set_xattr(LEAF.0, LEAF.1, XattrFlags::default())).is_some() {
            self.model.leaves.insert(name.clone());
        }
        self.overwrite(&name, self.filled.len(rng), rng);
    }

    fn next_name(&mut self) -> String {
        self.count += 1;
        format!("{}-{}", self.seed, self.count)
    }

    fn file(&self, name: &str) -> Inode {
        self.dir.lookup(name.as_bytes()).expect("it is there")
    }

    fn remove(&mut self, name: &str) {
        self.dir.unlink(name.as_bytes()).expect("removing always works");
        self.model.kept.remove(name);
        self.model.leaves.remove(name);
    }

    /// Overwrites a whole file with `len` bytes. The old file has at most `len` bytes.
    fn overwrite(&mut self, name: &str, len: usize, rng: &mut Rng) {
        let put_now = (rng.next_u64(), len);
        // A write is done as a whole, or not at all, or the result is unknown. In the last case the
        // file is removed.
        if put(&self.file(name), put_now, rng.chance(1, 3)) {
            self.model.kept.insert(name.to_owned(), put_now);
        } else {
            self.remove(name);
        }
    }

    /// Truncates a file to a random length. Unlike Linux, Buttress does not zero the end of the
    /// last sector, so a truncation to any length reserves no data.
    fn cut(&mut self, name: &str, rng: &mut Rng) {
        let (seed, len) = self.model.kept[name];
        let any = rng.below(len as u64 + 1) as usize;
        let left = *rng.choose(&[0, any / SECTOR * SECTOR, any, any]).expect("one of them");
        let shorter = SetAttr { size: Some(left as u64), ..SetAttr::default() };
        let cut = self.file(name).set_attr(&shorter);
        assert!(cut.is_ok(), "shrinking always works, from {len} to {left}: {cut:?}");
        self.model.kept.insert(name.to_owned(), (seed, left));
    }

    /// Clones the file `name`, or a shared file that all threads clone.
    fn clone_of(&mut self, name: &str, rng: &mut Rng) {
        let (source, shown) = match rng.chance(2, 3) {
            true => (self.file(name), self.model.kept[name]),
            false => (rng.choose(&self.shared).expect("one is live").clone(), SHARED),
        };
        let name = self.next_name();
        let Some(clone) = full(self.dir.create(name.as_bytes(), NewInode::file(0o644))) else {
            return;
        };
        if full(source.clone_range(0, &clone, 0, 0)).is_none() {
            return self.remove(&name);
        }
        if rng.chance(1, 2) {
            part_and_share(&source, &clone, shown, rng);
        }
        self.model.kept.insert(name, shown);
    }

    /// Panics if the folder differs from its model.
    pub(super) fn verify(&self) {
        self.model.verify(&self.dir);
    }
}

/// Writes all of a file: through the page cache, or by direct I/O except for a last sector that is
/// not whole. Returns whether the write succeeded.
pub(super) fn put(file: &Inode, (seed, len): (u64, usize), direct: bool) -> bool {
    let data = content(seed, len);
    let whole = if direct { len / SECTOR * SECTOR } else { 0 };
    (whole == 0 || full(file.write_direct(0, &data[..whole])).is_some())
        && full(file.write_at(whole as u64, &data[whole..])).is_some()
        && full(file.flush_data()).is_some()
}

/// Writes a range of a clone anew, and then clones the range from the source again. The content is
/// the same at any time.
fn part_and_share(source: &Inode, clone: &Inode, (seed, len): (u64, usize), rng: &mut Rng) {
    let sectors = (len / SECTOR) as u64;
    if sectors == 0 {
        return;
    }
    let first = rng.below(sectors);
    let count = 1 + rng.below(sectors - first);
    let (start, bytes) = (first as usize * SECTOR, count as usize * SECTOR);
    let data = &content(seed, len)[start..start + bytes];
    if rng.chance(1, 2) {
        full(clone.write_direct(start as u64, data));
    } else {
        full(clone.write_at(start as u64, data));
    }
    if rng.chance(2, 3) {
        full(source.clone_range(start as u64, clone, start as u64, bytes as u64));
    }
}
