//! State that one commit hands to the next, and notes of other code for the next commit.
//!
//! # Locks
//!
//! The commit lock is the outermost lock of the engine, and is held for the whole of a commit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use buttress_base::activity::{self, Cause};
use buttress_base::sync::{Mutex, MutexGuard};
use buttress_format::{
    BlockGroupFlags, CompatRo, Generation, Incompat, Key, Logical, Superblock, TreeId,
};
use buttress_tree::Roots;

/// A block group's item as the last commit left it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupRecord {
    pub(crate) len: u64,
    pub(crate) flags: BlockGroupFlags,
    pub(crate) used: u64,
}

/// The state that one commit hands to the next. It is under the commit lock.
#[derive(Clone, Debug)]
pub(crate) struct CommitState {
    pub(crate) superblock: Superblock,
    /// Roots of the last commit.
    pub(crate) roots: Roots,
    pub(crate) groups: BTreeMap<Logical, GroupRecord>,
}

/// The commit lock, and the state of commits that is read without it.
#[derive(Debug)]
pub(crate) struct Commits {
    /// Unranked: held across I/O.
    state: Mutex<CommitState>,
    published: AtomicU64,
    /// A copy of the superblock in `state`, for readers that must not wait for a commit. Unranked:
    /// nothing is taken under it.
    superblock: Mutex<Arc<Superblock>>,
    /// The last committed transaction when the volume was opened.
    opened: Generation,
    /// Whether a commit should run soon: the overlay is full, or device space of a removed chunk
    /// waits for the commit.
    is_wanted: AtomicBool,
    /// Incompat flags that written data or items need. The next superblock gets them.
    features: AtomicU64,
    /// As `features`, for compat_ro flags.
    features_ro: AtomicU64,
    /// For each dead subvolume, the key before which its shared nodes have FULL_BACKREF already
    /// (`commit::drops::D2`). Unranked: nothing is taken under it.
    drop_marks: Mutex<HashMap<TreeId, Key>>,
}

impl Commits {
    pub(crate) fn new(state: CommitState) -> Self {
        let opened = state.roots.generation;
        let superblock = Mutex::new(Arc::new(state.superblock.clone()));
        Self {
            state: Mutex::new(state),
            superblock,
            published: AtomicU64::new(opened.0),
            opened,
            is_wanted: AtomicBool::new(false),
            features: AtomicU64::new(0),
            features_ro: AtomicU64::new(0),
            drop_marks: Mutex::default(),
        }
    }

    /// The commit lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, CommitState> {
        activity::lock(&self.state, Cause::Commit)
    }

    /// The last durable transaction.
    pub(crate) fn published(&self) -> Generation {
        Generation(self.published.load(Ordering::Acquire))
    }

    /// Notes that a transaction is durable and that readers see its trees.
    pub(crate) fn publish(&self, state: &CommitState) {
        self.note_superblock(&state.superblock);
        self.published.store(state.roots.generation.0, Ordering::Release);
    }

    /// Notes that a superblock is durable. The caller holds the commit lock.
    pub(crate) fn note_superblock(&self, superblock: &Superblock) {
        *self.superblock.lock() = Arc::new(superblock.clone());
    }

    /// The last superblock, without a wait for a commit that is being written.
    pub(crate) fn superblock(&self) -> Arc<Superblock> {
        Arc::clone(&self.superblock.lock())
    }

    /// Whether this session's first commit is durable.
    pub(crate) fn has_committed(&self) -> bool {
        self.published() > self.opened
    }

    /// Whether a commit should be made soon.
    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Asks for a commit soon, or clears the request because a commit begins.
    pub(crate) fn set_wanted(&self, wanted: bool) {
        self.is_wanted.store(wanted, Ordering::Relaxed);
    }

    /// Sets an incompat flag in the next superblock.
    pub(crate) fn need_feature(&self, feature: Incompat) {
        if self.needed_features() & feature.0 != feature.0 {
            self.features.fetch_or(feature.0, Ordering::Relaxed);
        }
    }

    /// Sets a compat_ro flag in the next superblock.
    pub(crate) fn need_feature_ro(&self, feature: CompatRo) {
        self.features_ro.fetch_or(feature.0, Ordering::Relaxed);
    }

    /// All compat_ro flags that were requested.
    pub(crate) fn needed_features_ro(&self) -> u64 {
        self.features_ro.load(Ordering::Relaxed)
    }

    /// All incompat flags that were requested.
    pub(crate) fn needed_features(&self) -> u64 {
        self.features.load(Ordering::Relaxed)
    }

    /// The key before which the shared nodes of a dead subvolume have FULL_BACKREF already.
    pub(crate) fn drop_mark(&self, tree: TreeId) -> Key {
        self.drop_marks.lock().get(&tree).copied().unwrap_or(Key::MIN)
    }

    /// Notes the key before which the shared nodes of a dead subvolume have FULL_BACKREF. `None`
    /// when nothing is left of the subvolume.
    pub(crate) fn set_drop_mark(&self, tree: TreeId, mark: Option<Key>) {
        let mut marks = self.drop_marks.lock();
        match mark {
            Some(mark) => marks.insert(tree, mark),
            None => marks.remove(&tree),
        };
    }
}
