//! Crashes of a writer with a local log. An fsync returns when the log has it, and the store may be
//! far behind.
//!
//! A crash leaves the log up to some byte between the end of the last acknowledged operation and
//! the end of the next one. The store has its own selection of requests. The next writer has a copy
//! of the folder, and finds everything that was acknowledged.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_base::Rng;
use buttress_remote::store::simulated::Weather;
use buttress_remote::store::timed::TimedStore;
use buttress_sim::campaign;
use tempfile::TempDir;

use super::{REQUEST, crash_anywhere, live};

/// The folder of a writer's log.
pub(super) struct Kept {
    identity: Vec<u8>,
    /// The name of the log's file, and its content.
    name: PathBuf,
    log: Vec<u8>,
    /// The length of the log before the first operation, and after each operation.
    ends: Vec<usize>,
}

/// The only file of the log.
fn file(folder: &Path) -> PathBuf {
    let mut files =
        fs::read_dir(folder.join("log")).expect("a log").map(|file| file.expect("read"));
    let first = files.next().expect("a log").path();
    assert!(files.next().is_none(), "the log is longer than one file");
    first
}

/// The length of the log, in bytes.
pub(super) fn len(folder: &Path) -> usize {
    fs::metadata(file(folder)).expect("a log").len() as usize
}

impl Kept {
    /// Copies the folder. `ends` has the lengths of the log after the operations.
    pub(super) fn of(folder: &Path, ends: Vec<usize>) -> Self {
        let name = file(folder);
        let read = |path: &Path| fs::read(path).expect("a file");
        let (identity, log) = (read(&folder.join("identity")), read(&name));
        let name = name.strip_prefix(folder).expect("below the folder").to_owned();
        Self { identity, name, log, ends }
    }

    /// The folder after a crash when `done` operations were acknowledged.
    pub(super) fn after_crash(&self, done: usize, rng: &mut Rng) -> TempDir {
        let least = self.ends[done];
        let most = self.ends.get(done + 1).map_or(self.log.len(), |end| *end);
        let cut = least + rng.below((most - least) as u64 + 1) as usize;
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir(dir.path().join("log")).expect("a folder");
        fs::write(dir.path().join("identity"), &self.identity).expect("a file");
        fs::write(dir.path().join(&self.name), &self.log[..cut]).expect("a file");
        dir
    }
}

#[test]
fn synced_files_survive_in_the_local_log_of_a_writer() {
    for seed in campaign::seeds(1..2) {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Arc::new(TimedStore::new(seed, Weather::default(), REQUEST));
        let tale = live(&store, seed, Some(folder.path()));
        crash_anywhere(&store, &tale, seed);
    }
}
