//! Work on the whole volume while it is in use: balance, adding, removing and resizing devices, and
//! emptying block groups.
//!
//! # Invariants
//!
//! - **U1** Only one such task runs at a time ([`Turn`]). As on Linux, a second task is refused,
//!   not queued.
//! - **U2** Closing the volume first stops the work and waits for it. A running balance is paused,
//!   and its options stay on disk.
//! - **U3** While an extent moves to its new copy, the inodes that refer to the extent are locked
//!   as for a layout change (`lock_set::L1`). No inode without names is removed meanwhile.
//!
//! # Locks
//!
//! A thread first takes `Cleaner::removing`, then the locks of the inodes in order, then the locks
//! of their extents in the same order. Space is reserved before all of these locks are taken.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use buttress_base::sync::{Condvar, Mutex, MutexGuard};
use buttress_data::Files;
use buttress_format::{Extent, Ino, Logical, TreeId};
use buttress_items::{InodeId, Result};
use buttress_maintenance::{BalanceOptions, BalanceProgress, Maintenance, Users};
use buttress_txn::Engine;

use crate::cleaner::Cleaner;
use crate::inodes::Inodes;
use crate::lock_set::LockSet;
use crate::status::Status;
use crate::stop::StopSignal;

/// The interval at which the mount looks for block groups that have become mostly empty.
const RECLAIM_PERIOD: Duration = Duration::from_secs(10);

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpkeepTask {
    Balance,
    /// A change of the volume as a whole that cannot be stopped, such as adding a device.
    Devices,
    Remove,
    Resize,
    Replace,
    Reclaim,
}

/// How far the replacement of a device has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReplaceState {
    /// The replacement goes on.
    #[default]
    Running,
    /// The new device has the place of the old one.
    Finished,
    /// The replacement was cancelled or failed. The old device stays.
    Canceled,
    /// The replacement has begun and does not run. It can be ended or cancelled.
    Suspended,
}

/// The last replacement of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ReplaceStatus {
    /// How far the replacement has come.
    pub state: ReplaceState,
    /// When the replacement began, in seconds since 1970.
    pub started: i64,
    /// When the replacement ended or was suspended; zero while it goes on.
    pub ended: i64,
    /// Copied bytes.
    pub copied: u64,
    /// Bytes to copy.
    pub total: u64,
    /// Errors that no copy could repair.
    pub lost: u64,
    /// Failed writes to the new device.
    pub write_errors: u64,
}

/// What a request to stop one kind of work on the whole volume found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The work ran, and has stopped.
    Work,
    /// Other work was running, and goes on.
    OtherWork,
    /// No work was running that was asked for.
    Nothing,
}

/// A balance, as an operator sees it.
#[derive(Clone, Debug)]
pub struct BalanceStatus {
    /// Whether the balance is running in this mount; otherwise it is paused.
    pub is_running: bool,
    /// The requested options.
    pub options: BalanceOptions,
    /// The progress; zero for a paused balance.
    pub progress: BalanceProgress,
}

#[derive(Default)]
struct State {
    work: Option<UpkeepTask>,
    /// The number of works that have begun.
    turn: u64,
    progress: BalanceProgress,
    replaced: Option<ReplaceStatus>,
    /// The turn of the last replacement that ended, and whether it was cancelled.
    ended: (u64, bool),
    is_closing: bool,
}

/// The owner of work on the whole volume.
pub(crate) struct Upkeep {
    engine: Arc<Engine>,
    maintenance: Arc<Maintenance>,
    status: Arc<Status>,
    /// Unranked: threads wait on it with a condition variable, and take no other lock under it.
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the balance must stop after its current block group.
    pause: AtomicBool,
}

/// The right to work on the volume as a whole (U1).
pub(crate) struct Turn<'s> {
    upkeep: &'s Upkeep,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.upkeep.state.lock().work = None;
        self.upkeep.changed.notify_all();
    }
}

impl Upkeep {
    pub(crate) fn new(
        engine: Arc<Engine>,
        maintenance: Arc<Maintenance>,
        status: Arc<Status>,
    ) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { engine, maintenance, status, state, changed, pause: AtomicBool::new(false) }
    }

    /// Begins a kind of work, unless other work runs.
    pub(crate) fn begin_work(&self, work: UpkeepTask) -> Result<Turn<'_>> {
        self.status.expect_writable()?;
        let mut state = self.state.lock();
        // Work that the mount began on its own stops, so that this work can begin.
        if state.work == Some(UpkeepTask::Reclaim) && !state.is_closing {
            self.maintenance.stop_moving(true);
            while state.work == Some(UpkeepTask::Reclaim) {
                self.changed.wait(&mut state);
            }
        }
        let busy = match state.work {
            _ if state.is_closing => Some("the volume is being closed"),
            None => None,
            Some(UpkeepTask::Balance) => Some("a balance is running"),
            Some(_) => Some("a device is being added, removed, replaced or resized"),
        };
        if let Some(why) = busy {
            return Err(buttress_txn::Error::Busy(why).into());
        }
        state.work = Some(work);
        state.turn += 1;
        state.progress = BalanceProgress::default();
        self.pause.store(false, Ordering::Relaxed);
        self.maintenance.stop_moving(false);
        Ok(Turn { upkeep: self })
    }

    /// Wraps the progress callback of work. The wrapper also keeps the progress, and ends the work
    /// on a pause.
    pub(crate) fn watched<'w>(
        &'w self,
        watch: &'w mut dyn FnMut(&BalanceProgress) -> bool,
    ) -> impl FnMut(&BalanceProgress) -> bool + 'w {
        move |progress| {
            self.state.lock().progress = *progress;
            watch(progress) && !self.pause.load(Ordering::Relaxed)
        }
    }

    /// Stops a balance after its current group. Returns whether a balance was running.
    pub(crate) fn pause_balance(&self) -> bool {
        self.stop_running(UpkeepTask::Balance, false) == Stopped::Work
    }

    /// Stops work of this kind at once.
    pub(crate) fn cancel(&self, work: UpkeepTask) -> Stopped {
        self.stop_running(work, true)
    }

    /// Stops work of this kind, and waits until it has stopped. The answer is of one moment: with a
    /// second look, work of this kind that just begins would be taken for other work.
    fn stop_running(&self, work: UpkeepTask, at_once: bool) -> Stopped {
        let mut state = self.state.lock();
        match state.work {
            None | Some(UpkeepTask::Reclaim) => return Stopped::Nothing,
            Some(running) if running != work => return Stopped::OtherWork,
            Some(_) => {}
        }
        self.pause.store(true, Ordering::Relaxed);
        if at_once {
            self.maintenance.stop_moving(true);
        }
        self.wait_for_end(&mut state);
        Stopped::Work
    }

    /// Waits until the present work has ended. Work that begins right after it is not waited for.
    fn wait_for_end(&self, state: &mut MutexGuard<'_, State>) {
        let turn = state.turn;
        while state.work.is_some() && state.turn == turn {
            self.changed.wait(state);
        }
    }

    /// Stops any work, and refuses all later work (U2).
    pub(crate) fn stop_work(&self) {
        let mut state = self.state.lock();
        state.is_closing = true;
        self.pause.store(true, Ordering::Relaxed);
        self.maintenance.stop_moving(true);
        while state.work.is_some() {
            self.changed.wait(&mut state);
        }
        self.maintenance.stop_moving(false);
    }

    /// Replaces a device, and keeps the status of the replacement while it runs (U1).
    pub(crate) fn replace<T>(
        &self,
        now: impl Fn() -> i64,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let turn = self.begin_work(UpkeepTask::Replace)?;
        let begun = ReplaceStatus { started: now(), ..ReplaceStatus::default() };
        self.state.lock().replaced = Some(begun);
        let done = work();
        let state = if done.is_ok() { ReplaceState::Finished } else { ReplaceState::Canceled };
        let mut shared = self.state.lock();
        shared.replaced = Some(ReplaceStatus { state, ..begun });
        shared.ended = (shared.turn, state == ReplaceState::Canceled);
        drop(shared);
        // The status is set before the [`Turn`] ends, so a thread that waits for the end of the
        // work finds the new status.
        drop(turn);
        done
    }

    /// Whether the volume is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.state.lock().is_closing
    }

    /// Stops the replacement of a device, and waits until it has stopped. Returns whether the
    /// replacement was stopped before its end. Returns `None` if no replacement runs.
    pub(crate) fn cancel_replace(&self) -> Option<bool> {
        let mut state = self.state.lock();
        if state.work != Some(UpkeepTask::Replace) {
            return None;
        }
        self.pause.store(true, Ordering::Relaxed);
        // This also stops a scrub that follows the copy.
        self.maintenance.stop_moving(true);
        let turn = state.turn;
        self.wait_for_end(&mut state);
        // The next replacement may have begun, and its status is another one.
        Some(state.ended == (turn, true))
    }

    /// The status of the running replacement of a device.
    pub(crate) fn running_replacement(&self) -> Option<ReplaceStatus> {
        let state = self.state.lock();
        let BalanceProgress { moved, bytes, .. } = state.progress;
        let status = state.replaced?;
        let is_running = status.state == ReplaceState::Running;
        is_running.then_some(ReplaceStatus { copied: moved, total: bytes, ..status })
    }

    pub(crate) fn balance_status(&self) -> Result<Option<BalanceStatus>> {
        let (work, progress) = {
            let state = self.state.lock();
            (state.work, state.progress)
        };
        let is_running = work == Some(UpkeepTask::Balance);
        let kept = self.maintenance.paused_balance()?;
        Ok(kept.map(|options| BalanceStatus { is_running, options, progress }))
    }

    /// Empties block groups that have become mostly empty, until the mount ends. `below` is the
    /// limit of their use in percent. A group is emptied only if it existed at the start of the
    /// mount, or if its use has been above the limit before.
    pub(crate) fn reclaim(&self, stop: &StopSignal, below: u8, holders: &Holders<'_>) {
        let mut was_full: HashMap<Logical, bool> = HashMap::new();
        let is_full =
            |used: u64, len: u64| u128::from(used) * 100 >= u128::from(len) * u128::from(below);
        for (start, _, _) in self.engine.group_fill() {
            was_full.insert(start, true);
        }
        while !stop.wait(RECLAIM_PERIOD) {
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
            let Ok(_turn) = self.begin_work(UpkeepTask::Reclaim) else { continue };
            let may = |start: Logical| was_full.get(&start).copied().unwrap_or(false);
            match self.maintenance.reclaim_groups(below, holders, &may) {
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

/// Access to the users of files, for work that moves extents (U3).
pub(crate) struct Holders<'s> {
    pub(crate) inodes: &'s Inodes,
    pub(crate) cleaner: &'s Cleaner,
    pub(crate) files: &'s Files,
}

impl Users for Holders<'_> {
    fn hold(
        &self,
        inodes: &BTreeSet<(TreeId, Ino)>,
        work: &mut dyn FnMut() -> buttress_txn::Result<()>,
    ) -> buttress_txn::Result<()> {
        // An inode without names has a cell, or only the cleaner uses the inode. The cleaner waits
        // for `_removing`.
        let _removing = self.cleaner.hold_removals();
        let table = self.inodes.table();
        let ids = || {
            let in_files = inodes.iter().filter(|(tree, _)| tree.is_fs_tree());
            in_files.map(|&(tree, ino)| InodeId { tree, ino })
        };
        loop {
            let cells: Vec<_> = ids().filter_map(|id| table.find(id).ok()).collect();
            let _locks = LockSet::of_all(&cells);
            let _extents: Vec<_> = cells.iter().map(|cell| cell.file.hold_extents()).collect();
            // Most inodes have no cell. Keeping them out costs less than making a cell for each.
            let absent = ids().filter(|id| cells.binary_search_by_key(id, |cell| cell.id).is_err());
            if let Some(_out) = table.keep_out(absent) {
                return work();
            }
        }
    }

    fn wrote(&self, extent: Extent) {
        self.files.forget_clean(extent);
    }
}
