//! What is done to a volume as a whole, beside those who use its files: balance, devices that come, go and
//! change their size, groups that are emptied.
//!
//! # Invariants
//!
//! - **U1** One such work at a time ([`Turn`]); the others are refused, not queued, as by Linux.
//! - **U2** Whoever closes the volume first stops the work and waits for it. A balance is paused by that, and
//!   what was asked for stays on disk.
//! - **U3** While an extent goes over to its copy, its inodes are locked as by whoever changes their layout, in
//!   the one order there is, and no inode without names is removed.
//!
//! # Locks
//!
//! `removing` before any inode's lock, then the inodes in order, then their extents in the same order. Space is
//! promised before all of them.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_base::sync::{Condvar, Mutex};
use buttress_format::{Extent, Ino, Logical, TreeId};
use buttress_maintenance::{BalanceOptions, BalanceProgress, Users};

use crate::attr::InodeId;
use crate::error::{Error, NameError, Result};
use crate::lock_set::LockSet;
use crate::shared::Shared;

/// How often groups are looked at that came to be mostly empty.
const RECLAIM_PERIOD: Duration = Duration::from_secs(10);

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Balance,
    Devices,
    Reclaim,
}

/// A balance, as somebody who asks about it sees it.
#[derive(Clone, Debug)]
pub struct BalanceStatus {
    /// It is going on in this mount; else it is paused.
    pub is_running: bool,
    /// What was asked for.
    pub options: BalanceOptions,
    /// How far it is; nothing of one that is paused.
    pub progress: BalanceProgress,
}

#[derive(Default)]
struct State {
    work: Option<Work>,
    progress: BalanceProgress,
    is_closing: bool,
}

#[derive(Default)]
pub(crate) struct Upkeep {
    state: Mutex<State>,
    changed: Condvar,
    /// The balance is to stop behind the group that it is at.
    pause: AtomicBool,
    /// Held while an inode without names is removed, or an extent goes over to its copy.
    pub(crate) removing: Mutex<()>,
}

/// The right to work on the volume as a whole (U1).
pub(crate) struct Turn<'s> {
    shared: &'s Shared,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.shared.upkeep.state.lock().work = None;
        self.shared.upkeep.changed.notify_all();
    }
}

impl Shared {
    /// Begins a work, unless there is one.
    pub(crate) fn begin_work(&self, work: Work) -> Result<Turn<'_>> {
        self.expect_writable()?;
        let mut state = self.upkeep.state.lock();
        // What goes on by itself gives way.
        if state.work == Some(Work::Reclaim) && !state.is_closing {
            self.maintenance.stop_moving(true);
            while state.work == Some(Work::Reclaim) {
                self.upkeep.changed.wait(&mut state);
            }
        }
        let busy = match state.work {
            _ if state.is_closing => Some("the volume is being closed"),
            None => None,
            Some(Work::Balance) => Some("a balance is running"),
            Some(_) => Some("a device is being added, removed, replaced or resized"),
        };
        if let Some(why) = busy {
            return Err(buttress_txn::Error::Busy(why).into());
        }
        state.work = Some(work);
        state.progress = BalanceProgress::default();
        self.upkeep.pause.store(false, Ordering::Relaxed);
        self.maintenance.stop_moving(false);
        Ok(Turn { shared: self })
    }

    /// What watches a work: told of progress, it says whether to go on.
    pub(crate) fn watched<'w>(
        &'w self,
        watch: &'w mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> impl FnMut(&BalanceProgress) -> bool + 'w {
        move |progress| {
            self.upkeep.state.lock().progress = *progress;
            watch(progress) && !self.upkeep.pause.load(Ordering::Relaxed)
        }
    }

    /// Stops a balance: behind its group, or as soon as may be. Says whether there was one.
    pub(crate) fn stop_balance(&self, at_once: bool) -> bool {
        let mut state = self.upkeep.state.lock();
        if state.work != Some(Work::Balance) {
            return false;
        }
        self.upkeep.pause.store(true, Ordering::Relaxed);
        if at_once {
            self.maintenance.stop_moving(true);
        }
        while state.work == Some(Work::Balance) {
            self.upkeep.changed.wait(&mut state);
        }
        true
    }

    /// Stops whatever is being done, and lets nothing begin any more (U2).
    pub(crate) fn stop_work(&self) {
        let mut state = self.upkeep.state.lock();
        state.is_closing = true;
        self.upkeep.pause.store(true, Ordering::Relaxed);
        self.maintenance.stop_moving(true);
        while state.work.is_some() {
            self.upkeep.changed.wait(&mut state);
        }
        self.maintenance.stop_moving(false);
    }

    pub(crate) fn balance_status(&self) -> Result<Option<BalanceStatus>> {
        let (work, progress) = {
            let state = self.upkeep.state.lock();
            (state.work, state.progress)
        };
        let is_running = work == Some(Work::Balance);
        let kept = self.maintenance.paused_balance()?;
        Ok(kept.map(|options| BalanceStatus { is_running, options, progress }))
    }

    /// Empties groups that came to be mostly empty, as long as the mount lives. A group that is being filled for
    /// the first time is none of these: it must have been fuller once, or been there from the beginning.
    pub(crate) fn reclaimer(self: &Arc<Self>) {
        let below = self.options.reclaim_below;
        let mut was_full: HashMap<Logical, bool> = HashMap::new();
        let is_full =
            |used: u64, len: u64| u128::from(used) * 100 >= u128::from(len) * u128::from(below);
        for (start, _, _) in self.engine.group_fill() {
            was_full.insert(start, true);
        }
        while !self.background.wait_to_stop(RECLAIM_PERIOD) {
            let groups = self.engine.group_fill();
            let there: BTreeSet<Logical> = groups.iter().map(|(start, _, _)| *start).collect();
            was_full.retain(|start, _| there.contains(start));
            let mut any = false;
            for (start, used, len) in groups {
                let was = was_full.entry(start).or_default();
                *was |= is_full(used, len);
                any |= *was && used > 0 && !is_full(used, len);
            }
            if !any {
                continue;
            }
            let Ok(_turn) = self.begin_work(Work::Reclaim) else { continue };
            let may = |start: Logical| was_full.get(&start).copied().unwrap_or(false);
            match self.maintenance.reclaim_groups(below, &Holders(self), &may) {
                Ok(0) => {}
                Ok(groups) => tracing::info!(groups, "mostly empty block groups were emptied"),
                Err(error) => {
                    tracing::warn!(%error, "block groups cannot be emptied; not tried again");
                    return;
                }
            }
        }
    }
}

/// Those who have files open, as whoever moves extents sees them (U3).
pub(crate) struct Holders<'s>(pub(crate) &'s Arc<Shared>);

impl Users for Holders<'_> {
    fn hold(
        &self,
        inodes: &BTreeSet<(TreeId, Ino)>,
        work: &mut dyn FnMut() -> buttress_txn::Result<()>,
    ) -> buttress_txn::Result<()> {
        let shared = self.0;
        let _removing = shared.upkeep.removing.lock();
        let mut cells = Vec::with_capacity(inodes.len());
        for &(tree, ino) in inodes {
            let id = InodeId { tree, ino };
            if !tree.is_fs_tree() {
                continue;
            }
            // One that is going is in the cache, or nobody's but the cleaner's, who waits; a subvolume that was
            // deleted is changed by nobody whom the cache does not know.
            match shared.cache.find(id).or_else(|_| shared.cell(id)) {
                Ok(cell) => cells.push(cell),
                Err(Error::Name(NameError::NotFound)) => {}
                Err(Error::Txn(error)) => return Err(error),
                Err(Error::Tree(error)) => return Err(error.into()),
                Err(error) => return Err(buttress_txn::Error::Malformed(error.to_string())),
            }
        }
        let _locks = LockSet::of_all(&cells);
        let _extents: Vec<_> = cells.iter().map(|cell| cell.file.hold_extents()).collect();
        work()
    }

    fn wrote(&self, extent: Extent) {
        self.0.files.forget_clean(extent);
    }
}
