//! The allowed content of a volume after a crash, and its found content.

use std::collections::BTreeSet;
use std::ops::{ControlFlow, RangeInclusive};
use std::sync::Arc;

use buttress_fs::{FileKind, Filesystem, Ino, Inode};

use super::content;
use super::model::{Object, State, Synced};

/// The inode number of each empty directory that a snapshot has in place of a nested subvolume.
const STUB: Ino = Ino(2);

/// The content of a mounted volume.
pub(crate) fn survey(fs: &Filesystem) -> State {
    survey_below(fs, fs.root())
}

/// The content of the subvolume with the top directory `top`.
pub(crate) fn survey_below(fs: &Filesystem, top: Inode) -> State {
    let mut state = State::new();
    let tree = top.id().tree;
    let mut queue = vec![top];
    while let Some(dir) = queue.pop() {
        let mut entries = Vec::new();
        dir.read_dir(0, |entry| {
            let name = String::from_utf8_lossy(entry.name).into_owned();
            entries.push((entry.id, name, entry.kind));
            ControlFlow::Continue(())
        })
        .expect("a listing");
        for (id, name, kind) in entries {
            // Inode numbers are unique in one subvolume only. So the survey leaves out other
            // subvolumes, and the empty directories that a snapshot has in their place.
            if id.tree != tree || id.ino == STUB {
                continue;
            }
            let inode = fs.inode(id).expect("what has a name is there");
            assert_eq!(dir.lookup(name.as_bytes()).expect("found by name").id(), id);
            let object = state.entry(id.ino.0).or_insert_with(|| Object {
                dir: kind == FileKind::Directory,
                content: Arc::new(match kind {
                    FileKind::Directory => Vec::new(),
                    _ => content(&inode),
                }),
                attribute: inode.xattr(b"user.x").ok().map(|value| value[0]),
                names: BTreeSet::new(),
            });
            object.names.insert((dir.id().ino.0, name));
            if kind == FileKind::Directory {
                queue.push(inode);
            }
        }
    }
    state
}

/// The state before the first operation and after each operation, and the inodes that each
/// operation synced.
pub(crate) struct Story {
    pub(crate) states: Vec<State>,
    pub(crate) synced: Vec<Synced>,
    pub(crate) root: u64,
}

impl Story {
    /// The states that an inode may be in after a crash when `done` operations were acknowledged.
    /// Everything was durable before the first operation.
    fn range(&self, ino: u64, done: usize) -> RangeInclusive<usize> {
        let last = (0..done).rev().find(|op| match self.synced[*op] {
            Synced::One(synced) => synced == ino,
            Synced::All => true,
            Synced::Nothing => false,
        });
        last.map_or(0, |last| last + 1)..=(done + 1).min(self.states.len() - 1)
    }

    pub(crate) fn check(&self, found: &State, done: usize) -> Result<(), String> {
        let inos: BTreeSet<u64> = self.states.iter().flat_map(|s| s.keys().copied()).collect();
        for ino in inos {
            let range = self.range(ino, done);
            let states = || self.states[range.clone()].iter().map(|state| state.get(&ino));
            if ino != self.root {
                let were: Vec<&Object> = states().flatten().collect();
                let always = states().all(|object| object.is_some());
                match found.get(&ino) {
                    Some(is) => check_object(is, &were, always),
                    None if always => Err("is lost".to_owned()),
                    None => Ok(()),
                }
                .map_err(|what| format!("{ino}: {what}"))?;
                if !always {
                    continue;
                }
            }
            if ino == self.root || self.states[*range.start()][&ino].dir {
                self.check_entries(found, ino, range.clone())?;
            }
        }
        Ok(())
    }

    /// A synced directory has the names that it had at its sync, or its names at some later time.
    fn check_entries(
        &self,
        found: &State,
        dir: u64,
        range: RangeInclusive<usize>,
    ) -> Result<(), String> {
        let of = |state: &State| -> BTreeSet<(String, u64)> {
            let all = state.iter().flat_map(|(ino, object)| {
                object.names.iter().map(move |(dir, name)| (*dir, name.clone(), *ino))
            });
            all.filter(|(of, _, _)| *of == dir).map(|(_, name, ino)| (name, ino)).collect()
        };
        let were: Vec<_> = self.states[range].iter().map(of).collect();
        let are = of(found);
        for entry in &are {
            if !were.iter().any(|entries| entries.contains(entry)) {
                return Err(format!("directory {dir} has {entry:?}"));
            }
        }
        // If a name existed in all allowed states, for whichever files, it must exist now.
        for (name, ino) in &were[0] {
            let has = |entries: &BTreeSet<(String, u64)>| entries.iter().any(|(of, _)| of == name);
            if were.iter().all(has) && !has(&are) {
                return Err(format!("directory {dir} lost {name}, which was {ino}"));
            }
        }
        for entry in &were[0] {
            if were.iter().all(|entries| entries.contains(entry)) && !are.contains(entry) {
                return Err(format!("directory {dir} lost {entry:?}"));
            }
        }
        Ok(())
    }
}

/// Checks that each found property existed in an allowed state. `always` means that the inode
/// existed in all allowed states.
fn check_object(is: &Object, were: &[&Object], always: bool) -> Result<(), String> {
    for name in &is.names {
        if !were.iter().any(|object| object.names.contains(name)) {
            return Err(format!("has the name {name:?}"));
        }
    }
    let kept = |name: &&(u64, String)| were.iter().all(|object| object.names.contains(name));
    let names = were.first().into_iter().flat_map(|first| &first.names);
    if let Some(name) = names.filter(kept).find(|name| always && !is.names.contains(name)) {
        return Err(format!("lost the name {name:?}"));
    }
    let is_new = !always && is.attribute.is_none();
    if !is_new && !were.iter().any(|object| object.attribute == is.attribute) {
        return Err(format!("has the attribute {:?}", is.attribute));
    }
    let sizes = || were.iter().map(|object| object.content.len());
    let (low, high) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    // A new file may exist without its data.
    let low = if always { low } else { 0 };
    let changed = were.windows(2).any(|pair| pair[0].content != pair[1].content);
    if !changed && always {
        return if *is.content == *were[0].content {
            Ok(())
        } else {
            let at = is.content.iter().zip(were[0].content.iter()).position(|(a, b)| a != b);
            Err(format!(
                "{} bytes of {}, other from {at:?}",
                is.content.len(),
                were[0].content.len()
            ))
        };
    }
    if is.content.len() < low || is.content.len() > high {
        return Err(format!("{} bytes, not {low} to {high}", is.content.len()));
    }
    for (at, byte) in is.content.iter().enumerate() {
        let was = |object: &&Object| object.content.get(at).copied().unwrap_or(0) == *byte;
        if !were.iter().any(was) {
            return Err(format!("byte {at} was never {byte}"));
        }
    }
    Ok(())
}
