//! The running, the frozen and the last durable transaction: what readers see, the state that one
//! commit hands to the next, and notes of other code for the next commit.
//!
//! # Locks
//!
//! The commit lock is the outermost lock of the engine, and is held for the whole of a commit.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use buttress_base::activity::{self, Cause};
use buttress_base::sync::{Mutex, MutexGuard};
use buttress_format::{
    BlockGroupFlags, CompatRo, Generation, Incompat, Ino, Key, Kind, Logical, Superblock, TreeId,
};
use buttress_tree::Roots;

use crate::found_log::FoundLog;
use crate::gate::{Gate, Inside};
use crate::health::Health;
use crate::numbers::Numbers;
use crate::transaction::Transaction;
use crate::{Error, Result, Storage, View};

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

/// The running, the frozen and the last durable transaction: what readers see, and the lock and the
/// state of commits.
pub struct Commits {
    view: Arc<ArcSwap<View>>,
    gate: Gate,
    health: Health,
    /// An fsync log that was found and has to be replayed.
    found_log: FoundLog,
    numbers: Numbers,
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
    pub(crate) fn new(
        state: CommitState,
        view: Arc<ArcSwap<View>>,
        read_only: Option<String>,
    ) -> Self {
        let opened = state.roots.generation;
        let superblock = Mutex::new(Arc::new(state.superblock.clone()));
        Self {
            view,
            gate: Gate::default(),
            health: Health::new(read_only),
            found_log: FoundLog::default(),
            numbers: Numbers::default(),
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

    /// A consistent state to read. Take a new view for every operation, because an old view keeps
    /// freed space from being used again.
    #[must_use]
    pub fn view(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// As [`view`](Self::view), for a short look.
    pub(crate) fn peek(&self) -> Guard<Arc<View>> {
        self.view.load()
    }

    /// Makes readers see another state (`engine::E1`).
    pub(crate) fn show(&self, view: View) {
        self.view.store(Arc::new(view));
    }

    /// The running transaction. It cannot freeze while the returned guard lives.
    pub(crate) fn enter(&self) -> (Inside<'_>, Arc<Transaction>) {
        self.gate.enter(|| Arc::clone(self.view.load().running()))
    }

    /// As [`enter`](Self::enter), with the view that has the running transaction.
    pub(crate) fn enter_view(&self) -> (Inside<'_>, Guard<Arc<View>>) {
        self.gate.enter(|| self.view.load())
    }

    /// Runs `change` while no handle is open.
    pub(crate) fn alone<R>(&self, change: impl FnOnce() -> R) -> R {
        self.gate.alone(change)
    }

    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// The first failure of a commit, if there was one.
    #[must_use]
    pub fn aborted(&self) -> Option<Arc<Error>> {
        self.health().aborted()
    }

    /// Whether the volume has a stripe tree.
    #[must_use]
    pub fn has_stripe_tree(&self) -> bool {
        self.peek().roots().find(TreeId::RAID_STRIPE).is_some()
    }

    /// Whether anything was changed since the last commit.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.peek().running().is_empty()
    }

    /// As `check_writable`, but without reading the block groups. A commit without changes needs
    /// only this check.
    pub(crate) fn check_unlatched(&self) -> Result<()> {
        self.health().expect_no_failure()?;
        if self.found_log().is_pending() {
            return Err(Error::ReadOnly("its fsync log is not replayed yet".into()));
        }
        self.health().expect_opened_for_writing()
    }

    /// The reason why the volume cannot be written, if there is one.
    pub(crate) fn read_only(&self, storage: &Storage) -> Option<String> {
        match self.health().aborted() {
            Some(cause) => {
                let first: &dyn std::error::Error = &*cause;
                let chain = std::iter::successors(Some(first), |error| error.source());
                let words: Vec<String> = chain.map(ToString::to_string).collect();
                Some(format!("a commit failed: {}", words.join(": ")))
            }
            None => self.health().read_only().or(storage.learning().unfit()).cloned(),
        }
    }

    pub(crate) fn found_log(&self) -> &FoundLog {
        &self.found_log
    }

    /// Waits for the running commit and returns whether there was one. The space that it gives back
    /// may be enough. Another commit right after the running one would settle only the few
    /// operations made meanwhile.
    pub(crate) fn wait(&self) -> bool {
        let is_under_way = self.peek().frozen().is_some();
        if is_under_way {
            drop(self.lock());
        }
        is_under_way
    }

    /// The commit lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, CommitState> {
        activity::lock(&self.state, Cause::Commit)
    }

    /// The last durable transaction.
    #[must_use]
    pub fn published(&self) -> Generation {
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
    #[must_use]
    pub fn superblock(&self) -> Arc<Superblock> {
        Arc::clone(&self.superblock.lock())
    }

    /// Whether this session's first commit is durable.
    #[must_use]
    pub fn has_committed(&self) -> bool {
        self.published() > self.opened
    }

    /// Whether a commit should be made soon.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Asks for a commit soon, or clears the request because a commit begins.
    pub(crate) fn set_wanted(&self, wanted: bool) {
        self.is_wanted.store(wanted, Ordering::Relaxed);
    }

    /// Records an incompat feature that the volume needs from the next commit on. Call this method
    /// before you begin the handle that puts items of that feature.
    pub fn need_feature(&self, feature: Incompat) {
        if self.needed_features() & feature.0 != feature.0 {
            self.features.fetch_or(feature.0, Ordering::Relaxed);
        }
    }

    /// As [`need_feature`](Self::need_feature), for a feature that other programs must know only to
    /// write the volume.
    pub fn need_feature_ro(&self, feature: CompatRo) {
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

    /// A number for a new inode of a subvolume.
    ///
    /// # Errors
    ///
    /// When the tree cannot be read, or all numbers were used.
    pub fn next_ino(&self, tree: TreeId) -> Result<Ino> {
        let ino = self.inos_of(tree)?.fetch_add(1, Ordering::Relaxed);
        if ino > Ino::LAST_FREE.0 {
            return Err(Error::NoSpace("inode numbers"));
        }
        Ok(Ino(ino))
    }

    /// The counter of a tree's inode numbers. It begins after the highest number in use at the
    /// first request.
    pub(crate) fn inos_of(&self, tree: TreeId) -> Result<Arc<AtomicU64>> {
        if let Some(counter) = self.numbers.find(tree) {
            return Ok(counter);
        }
        let low = Key::new(Ino::FIRST_FREE.0, Kind(0), 0);
        let high = Key::new(Ino::LAST_FREE.0, Kind(u8::MAX), u64::MAX);
        let highest = self.view().at_or_before(tree, &low, &high)?;
        // In a subvolume, the lowest number belongs to the top directory. In the root tree, which
        // numbers subvolumes, the lowest number is free.
        let none = Ino::FIRST_FREE.0 - u64::from(tree == TreeId::ROOT);
        let last = highest.map_or(none, |(key, _)| key.objectid);
        Ok(self.numbers.begin(tree, last + 1))
    }
}
