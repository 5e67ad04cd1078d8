//! A snapshot of everything, and the expected content of one thread's folder in it.

use buttress_base::Rng;
use buttress_fs::{Filesystem, Inode};

use super::{
    super::{full, verify},
    dir_name,
    folder::Folder,
    shared_alone,
};

/// A snapshot of everything. The thread that took the snapshot knows the expected content of its
/// folder there.
pub(super) struct Snapshot {
    pub(super) name: String,
    pub(super) top: Inode,
    pub(super) folder: Folder,
    pub(super) is_written: bool,
}

impl Snapshot {
    /// Takes a snapshot, writable or not. Returns `None` if there is no space for it.
    pub(super) fn cut(
        fs: &Filesystem,
        of: &Folder,
        thread: usize,
        is_written: bool,
    ) -> Option<Self> {
        let name = format!("snapshot{thread}");
        let top = fs.root().snapshot(name.as_bytes(), fs.root().id().tree, !is_written);
        let top = full(top)?;
        let dir = top.lookup(dir_name(thread).as_bytes()).expect("it was there");
        let shared = top.lookup(b"shared").expect("it was there");
        Some(Self { name, folder: of.in_snapshot(dir, shared), top, is_written })
    }

    /// Panics if the snapshot does not have its first content plus the later writes to it.
    pub(super) fn verify(&self) {
        self.folder.verify();
        verify(&self.top, &shared_alone());
    }

    /// Deletes the snapshot, at times while its files are still in use.
    pub(super) fn delete(self, fs: &Filesystem, rng: &mut Rng) {
        self.verify();
        let Self { name, top, folder, .. } = self;
        let used = rng.chance(1, 2).then_some((top, folder));
        fs.root().delete_subvolume(name.as_bytes()).expect("removing always works");
        drop(used);
    }
}
