//! Collects the items of a log. After replay, the logged inodes have their present state again.
//!
//! # Place
//!
//! Collecting runs between operations, so that nothing changes meanwhile. It reads the committed
//! trees, from which replay starts. It also reads the present view, which is the state of the
//! logged inodes after replay.
//!
//! # Invariants
//!
//! - **C1** After replay, every inode in the log has exactly its present names. An inode that was
//!   in the log and no longer exists has no name. An inode that was never in the log has its
//!   committed names, except names that now belong to another inode.
//! - **C2** Replay leaves a name to every inode that exists now, if the inode had a committed name
//!   or is in the log. An inode that would lose its last name is logged with its present names.
//! - **C3** Some changes cannot be expressed safely in a log, and are committed instead
//!   ([`NoLog::Commit`]). They are changes of subvolumes, of directories that moved or lost a
//!   name, and of too many inodes at once.
//! - **C4** In the trees or the log, a logged inode may have a name that now belongs to another
//!   inode. After replay the name belongs to that other inode. If a file replaced another file and
//!   only one of the two was synced, replay leaves the synced file.
//!
//! # How names are logged
//!
//! Names that an inode gained are its INODE_REF and INODE_EXTREF items. Replay creates the
//! directory entries from these items, and takes the name from the inode that had it. Names that an
//! inode lost are a DIR_LOG_INDEX range of one index in their former directory.

use std::collections::{BTreeMap, BTreeSet};

use buttress_format::{
    DirEntry, Generation, Ino, InodeExtrefs, InodeFlags, InodeItem, InodeRefs, Key, Kind, TreeId,
    name_hash,
};
use buttress_tree::{NodeSource, Payload};
use buttress_txn::{CommitReason, Engine, Error, LoggedId};

use crate::draft::Draft;
use crate::extents;
use crate::logs::{Level, Logs};
use crate::no_log::{LogResult, NoLog};

/// With more inodes than this in one log, a commit is cheaper.
const INODES_MAX: usize = 1024;

/// A name: directory, name, index.
type Name = (Ino, Vec<u8>, u64);

struct Collect<'c> {
    draft: Draft<'c>,
    queue: Vec<(LoggedId, Level)>,
    done: BTreeMap<LoggedId, Level>,
    /// The last subvolume that was found in the committed trees. Most inodes belong to one
    /// subvolume.
    committed: Option<TreeId>,
}

fn key(ino: u64, kind: Kind, offset: u64) -> Key {
    Key::new(ino, kind, offset)
}

fn item_key(ino: u64) -> Key {
    key(ino, Kind::INODE_ITEM, 0)
}

fn is_dir(item: &InodeItem) -> bool {
    item.mode & 0o170_000 == 0o040_000
}

fn has_extents(item: &InodeItem) -> bool {
    matches!(item.mode & 0o170_000, 0o100_000 | 0o120_000)
}

fn malformed(tree: TreeId, key: Key) -> impl Fn(buttress_format::Error) -> Error {
    move |source| Error::Item { tree, key, source }
}

/// Logs inodes. Returns whether there was anything to log.
pub(crate) fn collect(
    engine: &Engine,
    logs: &mut Logs,
    wanted: &BTreeSet<LoggedId>,
    no_holes: bool,
) -> LogResult<bool> {
    let mut collect = Collect {
        draft: Draft::new(engine, logs, no_holes),
        queue: Vec::new(),
        done: BTreeMap::new(),
        committed: None,
    };
    for id in wanted {
        if collect.is_changed(*id) {
            collect.want(*id, Level::Full);
        }
    }
    if collect.queue.is_empty() {
        return Ok(false);
    }
    for id in collect.draft.view.tracked().take_renamed() {
        collect.want(id, Level::Exists);
    }
    while let Some((id, level)) = collect.queue.pop() {
        if collect.done.len() > INODES_MAX {
            return Err(NoLog::Commit(CommitReason::ManyInodes));
        }
        if collect.done.get(&id).is_some_and(|done| *done >= level) {
            continue;
        }
        collect.done.insert(id, level);
        collect.inode(id, level)?;
    }
    Ok(collect.draft.is_changed())
}

impl Collect<'_> {
    /// Whether an inode has changes that neither the committed trees nor the log on disk have.
    fn is_changed(&self, id: LoggedId) -> bool {
        let view = &self.draft.view;
        match (view.tracked().has_changes(id), self.draft.logs.levels.get(&id)) {
            (Some(changes), Some(Level::Full)) => changes,
            _ => {
                let (low, high) = (key(id.1, Kind(0), 0), key(id.1, Kind(u8::MAX), u64::MAX));
                view.running_overlay().first_in(id.0, &low, &high).is_some()
            }
        }
    }

    /// Takes the noted changes that a log of this level looks at. The other changes stay noted
    /// until the inode itself is synced. Each log of a new file calls this function for the
    /// directory. Taking all changes of a large new directory each time would be slow.
    fn take_notes(&self, id: LoggedId, level: Level) -> Option<BTreeSet<Key>> {
        let (view, tracked) = (&self.draft.view, self.draft.view.tracked());
        let noted = match level {
            Level::Exists => tracked.take_names(id),
            Level::Full => tracked.take(id),
        };
        view.store().count_keys(noted.as_ref().map_or(0, |noted| noted.len() as u64));
        noted
    }

    fn want(&mut self, id: LoggedId, level: Level) {
        self.queue.push((id, level));
    }

    fn item(view: &buttress_tree::View, (tree, ino): LoggedId) -> LogResult<Option<InodeItem>> {
        let key = item_key(ino);
        let Some(item) = view.get(tree, &key)? else { return Ok(None) };
        Ok(Some(InodeItem::parse(&item).map_err(malformed(tree, key))?))
    }

    fn now(&self, id: LoggedId) -> LogResult<Option<InodeItem>> {
        Ok(Self::item(&self.draft.view, id)?.filter(|item| item.nlink > 0))
    }

    fn before(&self, id: LoggedId) -> LogResult<Option<InodeItem>> {
        Self::item(&self.draft.base, id)
    }

    /// Reads the names of an inode from its INODE_REF and INODE_EXTREF items.
    fn names(view: &buttress_tree::View, (tree, ino): LoggedId) -> LogResult<Names> {
        let mut names = Names::default();
        let (low, high) = (key(ino, Kind::INODE_REF, 0), key(ino, Kind::INODE_EXTREF, u64::MAX));
        for found in view.range(tree, low, high) {
            let (key, item) = found?;
            names.add(tree, key, &item)?;
            names.items.push((key, item.to_vec().into()));
        }
        Ok(names)
    }

    fn entries(view: &buttress_tree::View, tree: TreeId, key: Key) -> LogResult<Vec<DirEntry>> {
        match view.get(tree, &key)? {
            None => Ok(Vec::new()),
            Some(item) => Ok(DirEntry::parse_all(&item).map_err(malformed(tree, key))?),
        }
    }

    fn inode(&mut self, id: LoggedId, level: Level) -> LogResult<()> {
        let (tree, ino) = id;
        if self.committed != Some(tree) {
            if self.draft.base.committed_root(tree)?.is_none() || !tree.is_fs_tree() {
                return Err(NoLog::Commit(CommitReason::NewSubvolume));
            }
            self.committed = Some(tree);
        }
        let Some(bytes) = self.draft.view.get(tree, &item_key(ino))? else {
            return self.forget(id);
        };
        let item = InodeItem::parse(&bytes).map_err(malformed(tree, item_key(ino)))?;
        if item.nlink == 0 {
            return self.forget(id);
        }
        // A log has no items of a Merkle tree, and replay would set the flag without them.
        let verity = InodeFlags::RO_VERITY;
        if item.flags & verity != 0 && self.before(id)?.is_none_or(|it| it.flags & verity == 0) {
            return Err(NoLog::Commit(CommitReason::Verity));
        }
        let known = self.draft.logs.levels.get(&id).copied();
        let level = if item.mode & 0o170_000 == 0o120_000 { Level::Full } else { level };
        let noted = self.take_notes(id, level).filter(|_| known.is_some());
        self.draft.logs.levels.insert(id, known.map_or(level, |known| known.max(level)));
        let has = |low: Kind, high: Kind| {
            let of_kind = |key: &Key| low <= key.kind && key.kind <= high;
            noted.as_ref().is_none_or(|noted| noted.iter().any(of_kind))
        };
        if has(Kind::INODE_REF, Kind::INODE_EXTREF) {
            let there_before = self.before(id)?.is_some();
            self.log_names(id, &item, there_before)?;
        }
        if level == Level::Full {
            let logged = self.draft.logs.trees.get(&tree).and_then(|log| log.get(&item_key(ino)));
            let logged = logged.and_then(|logged| InodeItem::parse(logged).ok());
            let same_size = logged.is_some_and(|logged| logged.size == item.size);
            // Replay recomputes `nbytes` from the extents. Logging the item for `nbytes` alone
            // would dirty one more leaf whenever holes are filled.
            if logged.is_none_or(|logged| InodeItem { nbytes: item.nbytes, ..logged } != item) {
                self.draft.set(tree, item_key(ino), Some(&bytes));
            }
            if has(Kind::XATTR_ITEM, Kind::XATTR_ITEM) {
                self.log_attributes(id)?;
            }
            let noted = noted.filter(|_| known == Some(Level::Full));
            if has_extents(&item) {
                extents::log(
                    &mut self.draft,
                    id,
                    &item,
                    noted.as_ref().map(|noted| (noted, same_size)),
                )?;
            } else if is_dir(&item) {
                self.log_entries(id, noted.as_ref())?;
            }
        } else {
            self.log_existence(id, item)?;
        }
        Ok(())
    }

    /// Removes from the log an inode that is gone or has no name. The log keeps only the loss of
    /// the inode's names (C1).
    fn forget(&mut self, id: LoggedId) -> LogResult<()> {
        if self.draft.logs.levels.remove(&id).is_none() {
            return Ok(());
        }
        let (low, high) = (key(id.1, Kind(0), 0), key(id.1, Kind(u8::MAX), u64::MAX));
        let mut names = Names::default();
        for (key, item) in self.draft.logged_range(id.0, low, high) {
            // Replay would restore the directory, and with it all entries that were moved out of
            // the directory.
            if key.kind == Kind::DIR_LOG_INDEX {
                return Err(NoLog::Commit(CommitReason::RemovedDirectory));
            }
            names.add(id.0, key, &item)?;
            self.draft.set(id.0, key, None);
        }
        self.draft.view.tracked().untrack(id);
        if let Some(before) = self.before(id)? {
            let committed = Self::names(&self.draft.base, id)?;
            // If the log did not have these names as lost, replay would restore the file with
            // content older than its last sync. The names of a directory are not logged as lost,
            // because replay would then remove its committed entries.
            if !is_dir(&before) {
                for (dir, _, index) in &committed.all {
                    self.log_loss((id.0, dir.0), *index)?;
                }
            }
            names.all.extend(committed.all);
        }
        for (dir, name, _) in names.all {
            self.want_successor(id, dir, &name)?;
        }
        Ok(())
    }

    /// Logs the inode that now has a name which the logged inode `id` lost. Without that inode,
    /// replay would lose the name (C4). The inode with the name is logged in full. Otherwise replay
    /// could put an empty file in the place of `id`, which may have been synced.
    fn want_successor(&mut self, id: LoggedId, dir: Ino, name: &[u8]) -> LogResult<()> {
        let tree = id.0;
        let by_name = key(dir.0, Kind::DIR_ITEM, name_hash(name));
        for entry in Self::entries(&self.draft.view, tree, by_name)? {
            if entry.name != name || entry.location.objectid == id.1 {
                continue;
            }
            if entry.location.kind != Kind::INODE_ITEM {
                return Err(NoLog::Commit(CommitReason::SubvolumeName));
            }
            let other = (tree, entry.location.objectid);
            let holds_names = self.now(other)?.is_none_or(|item| is_dir(&item));
            self.want(other, if holds_names { Level::Exists } else { Level::Full });
        }
        Ok(())
    }

    /// Logs the minimum that makes replay find an inode. If the committed trees have the inode,
    /// replay ignores the logged item and sets only the attributes.
    fn log_existence(&mut self, id: LoggedId, mut item: InodeItem) -> LogResult<()> {
        if self.draft.logged(id.0, &item_key(id.1)).is_some() {
            return Ok(());
        }
        item.generation = Generation(0);
        if !is_dir(&item) || self.before(id)?.is_some() {
            item.size = 0;
        }
        item.nbytes = 0;
        self.draft.set(id.0, item_key(id.1), Some(&item.to_bytes()));
        self.log_attributes(id)
    }

    /// Logs all attributes, because replay removes attributes that the log does not have.
    fn log_attributes(&mut self, (tree, ino): LoggedId) -> LogResult<()> {
        let (low, high) = (key(ino, Kind::XATTR_ITEM, 0), key(ino, Kind::XATTR_ITEM, u64::MAX));
        let mut items: BTreeMap<Key, Payload> = BTreeMap::new();
        for found in self.draft.view.range(tree, low, high) {
            let (key, item) = found?;
            items.insert(key, item.to_vec().into());
        }
        for (key, _) in self.draft.logged_range(tree, low, high) {
            if !items.contains_key(&key) {
                self.draft.set(tree, key, None);
            }
        }
        for (key, item) in items {
            self.draft.set(tree, key, Some(&item));
        }
        Ok(())
    }

    fn log_names(&mut self, id: LoggedId, item: &InodeItem, there_before: bool) -> LogResult<()> {
        let (tree, ino) = id;
        let now = Self::names(&self.draft.view, id)?;
        let before =
            if there_before { Self::names(&self.draft.base, id)? } else { Names::default() };
        let (low, high) = (key(ino, Kind::INODE_REF, 0), key(ino, Kind::INODE_EXTREF, u64::MAX));
        let logged = self.draft.logged_range(tree, low, high);
        if now.all == before.all && logged.is_empty() {
            return Ok(());
        }
        if is_dir(item) && there_before && now.all != before.all {
            return Err(NoLog::Commit(CommitReason::MovedDirectory));
        }
        let mut known = before.clone();
        for (key, item) in logged {
            known.add(tree, key, &item)?;
            if now.items.binary_search_by_key(&key, |(there, _)| *there).is_err() {
                self.draft.set(tree, key, None);
            }
        }
        for (key, item) in now.items {
            self.draft.set(tree, key, Some(&item));
        }
        for (dir, _, index) in before.all.difference(&now.all) {
            self.log_loss((tree, dir.0), *index)?;
        }
        for (dir, name, _) in known.all.difference(&now.all) {
            self.want_successor(id, *dir, name)?;
        }
        for (dir, name, index) in now.all.difference(&before.all) {
            self.log_gain(id, *dir, name, *index)?;
        }
        Ok(())
    }

    /// Logs the other inodes that replay needs for a name that an inode gained. So replay finds the
    /// directory, and the inode that had the name keeps a name.
    fn log_gain(&mut self, id: LoggedId, dir: Ino, name: &[u8], index: u64) -> LogResult<()> {
        let tree = id.0;
        if self.before((tree, dir.0))?.is_none() {
            self.want((tree, dir.0), Level::Exists);
            return Ok(());
        }
        let by_name = key(dir.0, Kind::DIR_ITEM, name_hash(name));
        for entry in Self::entries(&self.draft.base, tree, by_name)? {
            if entry.name == name && entry.location.objectid != id.1 {
                self.log_loser(tree, &entry)?;
            }
        }
        let by_index = key(dir.0, Kind::DIR_INDEX, index);
        for entry in Self::entries(&self.draft.base, tree, by_index)? {
            if entry.name != name || entry.location.objectid != id.1 {
                self.log_loss((tree, dir.0), index)?;
                self.log_loser(tree, &entry)?;
            }
        }
        Ok(())
    }

    /// Logs the removal of a committed directory entry.
    fn log_loss(&mut self, dir: LoggedId, index: u64) -> LogResult<()> {
        let Some(item) = self.now(dir)?.filter(is_dir) else {
            return Err(NoLog::Commit(CommitReason::RemovedParent));
        };
        if self.before(dir)?.is_none() {
            return Ok(());
        }
        let range = key(dir.1, Kind::DIR_LOG_INDEX, index);
        self.draft.set(dir.0, range, Some(&index.to_le_bytes()));
        self.log_existence(dir, item)
    }

    /// If an inode loses a committed name through the log and has gained a name since the commit,
    /// the inode is logged, too (C2).
    fn log_loser(&mut self, tree: TreeId, entry: &DirEntry) -> LogResult<()> {
        if entry.location.kind != Kind::INODE_ITEM {
            return Err(NoLog::Commit(CommitReason::SubvolumeName));
        }
        let id = (tree, entry.location.objectid);
        let now = self.now(id)?;
        if self.before(id)?.is_some_and(|item| is_dir(&item)) {
            let (low, high) = (key(id.1, Kind::DIR_INDEX, 0), key(id.1, Kind::DIR_INDEX, u64::MAX));
            if now.is_some() || self.draft.base.at_or_after(tree, &low, &high)?.is_some() {
                return Err(NoLog::Commit(CommitReason::ReplacedDirectory));
            }
        }
        if now.is_none() {
            return Ok(());
        }
        let (now, before) =
            (Self::names(&self.draft.view, id)?, Self::names(&self.draft.base, id)?);
        if !now.all.is_subset(&before.all) {
            self.want(id, Level::Exists);
        }
        Ok(())
    }

    /// Logs the changes of a directory since the last commit, or since its last log.
    fn log_entries(&mut self, id: LoggedId, noted: Option<&BTreeSet<Key>>) -> LogResult<()> {
        let (tree, ino) = id;
        let keys: Vec<Key> = match noted {
            Some(noted) => noted.iter().copied().collect(),
            None => {
                let changes = self.draft.view.running_overlay().of_object(tree, ino);
                changes.into_iter().map(|(key, _)| key).collect()
            }
        };
        for key in keys.into_iter().filter(|key| key.kind == Kind::DIR_INDEX) {
            let now = Self::entries(&self.draft.view, tree, key)?;
            let before = Self::entries(&self.draft.base, tree, key)?;
            for entry in &now {
                if entry.location.kind != Kind::INODE_ITEM {
                    return Err(NoLog::Commit(CommitReason::SubvolumeName));
                }
                if self.queue.len() > INODES_MAX {
                    return Err(NoLog::Commit(CommitReason::ManyInodes));
                }
                self.want((tree, entry.location.objectid), Level::Exists);
            }
            if now.is_empty() && !before.is_empty() {
                self.log_loss(id, key.offset)?;
                for entry in &before {
                    self.log_loser(tree, entry)?;
                    let was = (tree, entry.location.objectid);
                    self.want_successor(was, Ino(ino), &entry.name)?;
                }
            }
        }
        Ok(())
    }
}

/// The names of an inode.
#[derive(Clone, Default)]
struct Names {
    all: BTreeSet<Name>,
    /// The items that the names come from, by key.
    items: Vec<(Key, Payload)>,
}

impl Names {
    /// Adds the names that an item holds; items of other kinds hold none.
    fn add(&mut self, tree: TreeId, key: Key, item: &[u8]) -> LogResult<()> {
        if key.kind == Kind::INODE_REF {
            for found in InodeRefs::parse(item).map_err(malformed(tree, key))? {
                self.all.insert((Ino(key.offset), found.name, found.index));
            }
        } else if key.kind == Kind::INODE_EXTREF {
            for found in InodeExtrefs::parse(item).map_err(malformed(tree, key))? {
                self.all.insert((found.parent, found.name, found.index));
            }
        }
        Ok(())
    }
}
