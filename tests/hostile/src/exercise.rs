//! All kinds of requests to a volume. Each kind has a limit that a good volume never comes near.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::{Arc, LazyLock};

use buttress_block::{Device, MemoryDevice};
use buttress_fs::{
    FallocateMode, FileKind, Filesystem, GroupsRead, Inode, InodeId, MountOptions, NewInode,
    RenameFlags, ScrubOptions, SetAttr, XattrFlags,
};

use crate::steps::Steps;

/// More requests to the device than any of these volumes takes.
const REQUESTS_MAX: u64 = 200_000;
/// Names that are listed, of all directories.
const NAMES_MAX: usize = 5_000;
/// Runs of data that are read, of all files.
const RUNS_MAX: usize = 5_000;
/// The most bytes of a run that are read.
const READ_MAX: u64 = 128 << 10;

/// The data that is written: a thousand bytes of each value, one value after the other.
static DATA: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..40_000_u32).map(|at| (at / 1000) as u8).collect());

/// The outcome of an exercise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExerciseOutcome {
    /// Whether the volume could be opened.
    pub opened: bool,
    /// Names that were listed.
    pub names: usize,
    /// Operations that failed.
    pub errors: usize,
    /// Operations that succeeded.
    pub done: usize,
}

impl ExerciseOutcome {
    fn note<T, E>(&mut self, result: Result<T, E>) -> Option<T> {
        match result {
            Ok(value) => {
                self.done += 1;
                Some(value)
            }
            Err(_) => {
                self.errors += 1;
                None
            }
        }
    }
}

/// Opens a volume, lists and reads all of it, and changes it in places if `writes`.
///
/// # Panics
///
/// If the volume makes a thread ask the device without end.
pub fn exercise(device: MemoryDevice, writes: bool) -> ExerciseOutcome {
    exercise_as(device, writes, false)
}

/// Exercises a volume as [`exercise`] does. If `behind`, block groups are read when they are first
/// needed, and chunks one by one.
///
/// # Panics
///
/// If the volume makes a thread ask the device without end.
pub fn exercise_as(device: MemoryDevice, writes: bool, behind: bool) -> ExerciseOutcome {
    let device: Arc<dyn Device> =
        if writes { Arc::new(device) } else { Arc::new(device.read_only()) };
    let steps = Arc::new(Steps::new(device, REQUESTS_MAX));
    let mut outcome = ExerciseOutcome::default();
    let options = if writes { "rw,noatime,compress=zlib" } else { "ro,noatime,nologreplay" };
    let mut options = MountOptions::parse(options).expect("known options");
    // Without background threads, the same bytes have the same outcome.
    options.background = false;
    options.baselines.bg_read = if behind { GroupsRead::Behind } else { GroupsRead::First };
    if let Ok(filesystem) = Filesystem::open(vec![steps.clone()], options) {
        outcome.opened = true;
        let figures = |outcome: &mut ExerciseOutcome| {
            let _ = outcome.note(filesystem.statfs());
            let _ = outcome.note(filesystem.info());
        };
        if !behind {
            figures(&mut outcome);
        }
        let all = read(&filesystem, &mut outcome);
        if behind {
            figures(&mut outcome);
        }
        if writes {
            change(&filesystem, &all, &mut outcome);
        } else {
            let only = ScrubOptions { read_only: true, ..ScrubOptions::default() };
            let mut looks = 0;
            let _ = outcome.note(filesystem.scrub(only, &mut |_| {
                looks += 1;
                looks < 1000
            }));
        }
        drop(all);
        let _ = outcome.note(filesystem.close());
    }
    assert!(!steps.is_worn_out(), "more than {REQUESTS_MAX} requests");
    outcome
}

/// Reads everything: names, attributes, data, links.
fn read(filesystem: &Filesystem, outcome: &mut ExerciseOutcome) -> Vec<Inode> {
    let mut seen: HashSet<InodeId> = HashSet::new();
    let mut waiting = vec![filesystem.root()];
    let mut all = Vec::new();
    let mut runs_left = RUNS_MAX;
    let mut buf = vec![0; READ_MAX as usize];
    while let Some(inode) = waiting.pop() {
        if !seen.insert(inode.id()) {
            continue;
        }
        for name in outcome.note(inode.list_xattrs()).unwrap_or_default().iter().take(100) {
            let _ = outcome.note(inode.xattr(name));
        }
        match inode.kind() {
            FileKind::Directory => {
                let mut found = Vec::new();
                let listed = inode.read_dir(0, |entry| {
                    found.push((entry.name.to_vec(), entry.id));
                    outcome.names += 1;
                    match outcome.names < NAMES_MAX {
                        true => ControlFlow::Continue(()),
                        false => ControlFlow::Break(()),
                    }
                });
                let _ = outcome.note(listed);
                let _ = outcome.note(inode.parent());
                for (name, id) in found {
                    if let Some(child) = outcome.note(inode.lookup(&name)) {
                        waiting.push(child);
                    }
                    let _ = outcome.note(filesystem.inode(id));
                }
            }
            FileKind::Symlink => drop(outcome.note(inode.read_link())),
            _ => read_data(&inode, &mut buf, &mut runs_left, outcome),
        }
        all.push(inode);
    }
    all
}

/// Reads the runs of a file that hold data, each up to a limit, and a little beyond the end of the
/// file.
fn read_data(inode: &Inode, buf: &mut [u8], runs_left: &mut usize, outcome: &mut ExerciseOutcome) {
    let size = inode.attr().size;
    let mut at = 0;
    while at < size && *runs_left > 0 {
        *runs_left -= 1;
        let Some(data) = outcome.note(inode.seek_data(at)) else { break };
        let Some(end) = outcome.note(inode.seek_hole(data)) else { break };
        assert!(data >= at && end >= data, "data at {data} to {end}, asked from {at}");
        let len = (end - data).min(READ_MAX) as usize;
        let _ = outcome.note(inode.read_at(data, &mut buf[..len]));
        if end == at {
            break;
        }
        at = end;
    }
    for at in [size.saturating_sub(1), size / 2, u64::MAX] {
        let _ = outcome.note(inode.read_at(at, &mut buf[..64]));
    }
}

/// Makes changes of every kind, in a few places, with a commit after every few changes.
fn change(filesystem: &Filesystem, all: &[Inode], outcome: &mut ExerciseOutcome) {
    let root = filesystem.root();
    let data = &DATA[..];
    if let Some(file) = outcome.note(root.create(b"new file", NewInode::file(0o644))) {
        let _ = outcome.note(file.write_at(0, data));
        let _ = outcome.note(file.set_xattr(b"user.new", b"value", XattrFlags::default()));
        let _ = outcome.note(file.sync());
    }
    for inode in all.iter().step_by(all.len() / 12 + 1) {
        match inode.kind() {
            FileKind::Directory => {
                let _ = outcome.note(inode.mkdir(b"new folder", 0o755, 0, 0));
                let _ = outcome.note(inode.symlink(b"new link", b"new file", 0, 0));
                let moved = root.rename(b"new file", inode, b"moved", RenameFlags::default());
                let _ = outcome.note(moved);
            }
            FileKind::Regular => {
                let size = inode.attr().size;
                let _ = outcome.note(inode.write_at(size / 2, &data[..20_000]));
                let _ = outcome.note(root.link(inode, b"another name"));
                let _ = outcome.note(inode.fallocate(4096, 8192, FallocateMode::PunchHole));
                let cut = SetAttr { size: Some(size / 3), ..SetAttr::default() };
                let _ = outcome.note(inode.set_attr(&cut));
            }
            _ => {}
        }
    }
    let _ = outcome.note(filesystem.sync());
    let mut names = Vec::new();
    let listed = root.read_dir(0, |entry| {
        names.push((entry.name.to_vec(), entry.kind));
        if names.len() < 60 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let _ = outcome.note(listed);
    for (name, kind) in names {
        let _ = match kind {
            FileKind::Directory => outcome.note(root.rmdir(&name)),
            _ => outcome.note(root.unlink(&name)),
        };
    }
    // Closing the volume commits the changes.
}
