//! Scrubs of a mounted volume, and how they are cancelled.

use buttress_base::sync::{Condvar, Mutex};
use buttress_items::Result;
use buttress_maintenance::{ScrubOptions, ScrubProgress};

use crate::filesystem::Filesystem;

#[derive(Debug, Default)]
struct State {
    /// The number of running scrubs that were not cancelled.
    running: usize,
    /// The number of cancelled scrubs that have not ended yet.
    ending: usize,
    /// How often the running scrubs were cancelled. A scrub ends when this number differs from the
    /// number at the scrub's beginning.
    cancelled: u64,
}

/// The scrubs that run in a mount.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    /// Unranked: threads wait on it with a condition variable, and take no other lock under it.
    state: Mutex<State>,
    ended: Condvar,
}

/// One running scrub, until this value is dropped.
struct Running<'s> {
    scrubs: &'s Scrubs,
    /// The number of cancellations at the scrub's beginning.
    cancelled: u64,
}

impl<'s> Running<'s> {
    fn begin(scrubs: &'s Scrubs) -> Self {
        let mut state = scrubs.state.lock();
        state.running += 1;
        Self { scrubs, cancelled: state.cancelled }
    }

    fn is_cancelled(&self) -> bool {
        self.scrubs.state.lock().cancelled != self.cancelled
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.scrubs.state.lock();
        let is_cancelled = state.cancelled != self.cancelled;
        *(if is_cancelled { &mut state.ending } else { &mut state.running }) -= 1;
        self.scrubs.ended.notify_all();
    }
}

impl Filesystem {
    /// Reads every copy of all used space and repairs bad copies, while other work goes on. The
    /// scrub begins with a commit, so that it covers everything that was written before the call.
    /// On a volume with a failed commit, the scrub covers the last successful commit. The scrub
    /// reports its progress to `watch`, which ends the scrub by returning `false`. Returns the
    /// findings, and whether the scrub reached the end.
    ///
    /// # Errors
    ///
    /// A failed commit, or an error from reading the extent tree. Damage of extents is part of the
    /// result.
    pub fn scrub(
        &self,
        options: ScrubOptions,
        watch: &mut dyn FnMut(&ScrubProgress) -> bool,
    ) -> Result<(ScrubProgress, bool)> {
        let mount = self.mount();
        let running = Running::begin(&mount.scrubs);
        if mount.engine.commits().aborted().is_none() {
            self.commit()?;
        }
        let mut watch = |progress: &ScrubProgress| !running.is_cancelled() && watch(progress);
        Ok(mount.maintenance.scrub(options, &mut watch)?)
    }

    /// Stops all running scrubs, and waits until they have ended. A scrub that begins meanwhile
    /// goes on. Returns whether any was running.
    #[must_use]
    pub fn cancel_scrubs(&self) -> bool {
        let mount = self.mount();
        let mut state = mount.scrubs.state.lock();
        if state.running == 0 {
            return false;
        }
        state.cancelled += 1;
        state.ending += std::mem::take(&mut state.running);
        while state.ending > 0 {
            mount.scrubs.ended.wait(&mut state);
        }
        true
    }
}
