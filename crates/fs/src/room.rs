//! The thread that makes room for those who wait for space.
//!
//! # Place
//!
//! Takes the steps of the ladder one after the other: the engine's own, and those that are about dirty data
//! and deleted inodes, which the engine knows nothing of.
//!
//! # Invariants
//!
//! - **M1** It never waits for a file's writeback claim: who holds one may stand in the line that it serves.
//! - **M2** Nobody whom it makes room for is refused for what others were promised a moment ago: it is waited until that is dirty
//!   data, or done, and then there is another ladder, a few times. A ladder that finds nothing to do is faster than a thread
//!   that was woken.
//! - **M3** Who waits for one kind of space has a step taken for each that is taken for the other: as long as somebody is served,
//!   a ladder has no end.
//!
//! # Failure
//!
//! Without it everything goes on; those who wait make room themselves, as far as commits and chunks go.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use buttress_base::clock;
use buttress_txn::{Arrivals, Flusher, Gain, Ladder, Reach, SpaceKind, Step};

use crate::error::Result;
use crate::flush::BATCH_BYTES;
use crate::shared::Shared;

/// How often it looks when nobody calls it.
const PERIOD: Duration = Duration::from_millis(200);

/// The part of the dirty data that a first attempt writes back, at least.
const DIRTY_PART: u64 = 8;

/// How long it waits without anything landing: for nothing on its way, and for what is. That always ends, for
/// who writes back makes room for himself.
const STILL: Duration = Duration::from_millis(20);
const ORDERED: Duration = Duration::from_secs(30);

/// The longest that it waits for promises to become something, while they do.
const SETTLING: Duration = Duration::from_millis(200);
/// So many ladders more there are for that where nobody is served.
const MORE_LADDERS: u32 = 3;

/// A ladder that is climbed for those who wait for one kind of space.
struct Climb {
    kind: SpaceKind,
    /// Who came later is not refused at its end.
    begun: Arrivals,
    ladder: Ladder,
    /// Among the ladders that were climbed.
    is_counted: bool,
    /// So many more there may be.
    more: u32,
}

impl Shared {
    pub(crate) fn room_maker(self: &Arc<Self>, _attached: Flusher) {
        const KINDS: [SpaceKind; 2] = [SpaceKind::Metadata, SpaceKind::Data];
        let mut climbs: [Option<Climb>; 2] = [None, None];
        while !self.background.is_stopping() {
            if climbs.iter().all(Option::is_none) && !self.engine.wait_for_waiters(PERIOD) {
                continue;
            }
            for (kind, climb) in KINDS.into_iter().zip(&mut climbs) {
                // One that goes on was looked at behind its last step.
                if climb.is_none() && !self.engine.waits(kind) {
                    continue;
                }
                let mut going = climb.take().unwrap_or_else(|| self.begin_climb(kind));
                match self.climb_on(&mut going) {
                    // For who comes when nobody waits any more it begins anew.
                    Ok(true) if self.engine.waits(kind) => *climb = Some(going),
                    Ok(_) => {}
                    Err(_) if self.engine.aborted().is_some() => return,
                    Err(error) => {
                        tracing::error!(%kind, %error, "making room failed");
                        self.engine.refuse(kind, self.engine.arrivals(kind));
                    }
                }
            }
        }
    }

    fn begin_climb(&self, kind: SpaceKind) -> Climb {
        let begun = self.engine.arrivals(kind);
        let ladder = self.engine.ladder(kind, Reach::All);
        Climb { kind, begun, ladder, is_counted: false, more: MORE_LADDERS }
    }

    /// A ladder counts once a step of it made room, or found somebody served, or it has to refuse. Whoever had only come a moment
    /// before others gave back what they were promised needed none, and is no reason to make room earlier.
    fn count_climb(&self, climb: &mut Climb) {
        if !mem::replace(&mut climb.is_counted, true) {
            self.background.climbed.fetch_add(1, Ordering::Relaxed);
            if climb.kind == SpaceKind::Metadata {
                self.background.climbed_for_metadata.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes the next step for those who wait, or refuses them at the end. Says whether to go on.
    fn climb_on(&self, climb: &mut Climb) -> Result<bool> {
        let kind = climb.kind;
        let Some(step) = climb.ladder.next_step() else {
            if climb.more > 0 && self.promises_settle(kind) {
                climb.ladder = self.engine.ladder(kind, Reach::All);
                climb.more -= 1;
                return Ok(true);
            }
            self.count_climb(climb);
            self.engine.refuse(kind, climb.begun);
            return Ok(false);
        };
        let before = self.engine.before_step(kind, step);
        let gain = match step {
            Step::Dirty | Step::AllDirty | Step::Ordered | Step::Clean => {
                let before = self.engine.served(kind);
                let gained = self.take_step(kind, step);
                self.engine.serve_counted(kind);
                Gain { gained, served: self.engine.served(kind) - before }
            }
            step => self.engine.climb(kind, step)?,
        };
        self.engine.tell_step(&before, gain);
        if gain.gained {
            self.count_climb(climb);
        }
        climb.ladder.note(gain.gained, gain.served > 0);
        climb.more = if gain.served > 0 { MORE_LADDERS } else { climb.more };
        Ok(true)
    }

    /// Waits until what is promised has become dirty data, or was done, as long as some does (M2). Says whether anything
    /// changed, so that there may be room, or something to be written.
    fn promises_settle(&self, kind: SpaceKind) -> bool {
        let look = || {
            let accounts = self.engine.accounts();
            let promised = match kind {
                SpaceKind::Data => (accounts.data.may_use, 0),
                _ => (accounts.promised.all_items(), accounts.promised.bytes),
            };
            (promised, self.files.dirty_bytes())
        };
        let first = look();
        let (begun, mut since, mut seen) = (clock::now(), clock::now(), first);
        while seen.0 != (0, 0)
            && clock::since(since) < STILL
            && clock::since(begun) < SETTLING
            && self.engine.waits(kind)
            && !self.background.is_stopping()
        {
            buttress_base::thread::sleep(Duration::from_millis(1));
            let now = look();
            if now != seen {
                (seen, since) = (now, clock::now());
            }
        }
        seen != first
    }

    /// Takes a step that is about dirty data; says whether any landed.
    fn take_step(&self, kind: SpaceKind, step: Step) -> bool {
        let before = self.files.dirty_bytes();
        let landed = self.files.finished_bytes();
        match step {
            Step::Clean => return self.clean_all(),
            Step::Ordered => self.wait_for_landing(kind, self.files.ordered_bytes(), || ()),
            // What others are writing back now is as good as what is written here.
            Step::AllDirty => self.wait_for_landing(kind, before, || self.write_what_is_free()),
            _ => {
                let asked = self.engine.waited_for(kind).saturating_mul(2);
                let part = (before / DIRTY_PART).max(asked).max(BATCH_BYTES).min(before);
                if self.write_some(part) == 0 {
                    // Others have it all in hand: a commit would come for nothing.
                    self.wait_for_landing(kind, self.files.ordered_bytes().min(part), || ());
                }
            }
        }
        self.files.finished_bytes() > landed
    }

    /// Waits until so many bytes have landed, or somebody was served, or nothing lands any more.
    fn wait_for_landing(&self, kind: SpaceKind, bytes: u64, write: impl Fn()) {
        let target = self.files.finished_bytes() + bytes;
        let mut seen = self.files.finished_bytes();
        let mut since = clock::now();
        loop {
            write();
            let landed = self.files.finished_bytes();
            let done = landed >= target || self.files.dirty_bytes() == 0;
            if done || self.engine.serve(kind) > 0 || self.background.is_stopping() {
                return;
            }
            if landed != seen {
                seen = landed;
                since = clock::now();
            }
            let patience = if self.files.ordered_bytes() > 0 { ORDERED } else { STILL };
            if clock::since(since) > patience {
                return;
            }
            buttress_base::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes so many of the oldest dirty bytes back, if nobody else writes their files. Says how many it were.
    pub(crate) fn write_some(&self, bytes: u64) -> u64 {
        let mut left = bytes;
        while left > 0 {
            let taken = self.write_free_batch(left);
            if taken == 0 {
                break;
            }
            left = left.saturating_sub(taken);
        }
        let written = bytes - left;
        self.background.flushed.fetch_add(written, Ordering::Relaxed);
        written
    }
}

#[cfg(test)]
mod tests;
