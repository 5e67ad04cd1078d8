//! The thread that makes room before anybody waits.
//!
//! # Place
//!
//! Looks at what holds metadata, asks the rule that was chosen at the mount (`buttress_space::preempt`), does
//! what it says. It writes data back and commits as everybody may; nobody waits for it.
//!
//! # Invariants
//!
//! - **P1** It never waits for a file's writeback claim, nor for data on its way.
//! - **P2** While nobody takes metadata it does nothing but look, and seldom.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use buttress_base::clock;
use buttress_format::Generation;
use buttress_txn::{Clamp, Pace, Pools, Preempt, Round};

use crate::shared::Shared;

/// How often it looks while metadata is taken, and while not.
const TICK: Duration = Duration::from_millis(4);
const IDLE_TICK: Duration = Duration::from_millis(40);

/// Most rounds of the clamp in a row: its loop must not hold up the end of the mount.
const ROUNDS_MAX: u32 = 64;

/// A commit that the pacer asked for.
struct Asked {
    round: Round,
    since: Instant,
    before: Pools,
    until: Generation,
}

impl Shared {
    pub(crate) fn preempter(self: &Arc<Self>) {
        match self.options.preempt {
            Preempt::Off => {}
            Preempt::Clamp => self.clamp(),
            Preempt::Pace => self.pacer(),
        }
        self.background.turnstile.set_rate(None);
    }

    fn pools(&self) -> Pools {
        self.engine.pools(self.files.dirty_bytes(), self.files.ordered_bytes())
    }

    fn clamp(&self) {
        let mut clamp = Clamp::default();
        let mut climbed = self.background.climbed_for_metadata.load(Ordering::Relaxed);
        let mut last = Pools::default();
        while !self.background.is_stopping() {
            let pools = self.pools();
            let limit = if pools == last { IDLE_TICK } else { TICK };
            last = pools;
            self.engine.wait_for_promises(clamp.lacks(&pools), limit);
            let now = self.background.climbed_for_metadata.load(Ordering::Relaxed);
            if now != climbed {
                climbed = now;
                clamp.note_wait(&self.pools());
            }
            let mut rounds = 0;
            let mut pools = self.pools();
            while rounds < ROUNDS_MAX && clamp.is_due(&pools) && !self.background.is_stopping() {
                rounds += 1;
                let round = clamp.round(&pools);
                let helped =
                    matches!(round, Round::Dirty { .. }) && self.background.flush.ask_idle(round);
                let goes_on = helped || self.clamp_round(&round);
                pools = self.pools();
                if !goes_on {
                    break;
                }
            }
            if rounds > 0 {
                clamp.note_end(rounds, &pools);
            }
            self.background.clamp_bits.store(clamp.bits(), Ordering::Relaxed);
        }
    }

    /// Does what was asked for, and waits for a commit. Failures are latched by the engine, or stay with the
    /// inodes. Says how many bytes of data were written back.
    fn make_round(&self, round: &Round) -> u64 {
        self.background.rounds.fetch_add(1, Ordering::Relaxed);
        match round {
            Round::Dirty { bytes, .. } => self.write_some(*bytes),
            Round::Commit { .. } => {
                if let Err(error) = self.engine.commit() {
                    tracing::debug!(%error, "a commit to make room failed");
                }
                0
            }
        }
    }

    /// Makes a round of the clamp, here or in an idle thread; says whether another may give back more. What others took
    /// meanwhile was given back; nothing was where everything dirty is on its way already.
    pub(crate) fn clamp_round(&self, round: &Round) -> bool {
        let before = self.pools();
        let written = self.make_round(round);
        let yielded = self.pools().room().saturating_sub(before.room());
        self.tell_round("clamp", round, yielded);
        written > 0 || yielded > 0
    }

    fn pacer(&self) {
        self.background.turnstile.watch();
        let mut pace = Pace::default();
        let mut asked: Option<Asked> = None;
        let mut last = Pools::default();
        while !self.background.is_stopping() {
            let pools = self.pools();
            let idle = pools == last && asked.is_none();
            last = pools;
            if idle {
                self.background.turnstile.set_rate(None);
                self.engine.wait_for_promises(None, IDLE_TICK);
                continue;
            }
            let now = clock::now();
            let under_way = asked.as_ref().map(|asked| now.duration_since(asked.since));
            pace.look(now, &pools, self.background.turnstile.came(), under_way);
            self.background.turnstile.set_rate(pace.rate());
            if let Some(commit) = asked.take_if(|asked| self.engine.published() >= asked.until) {
                let took = now.duration_since(commit.since);
                let gained = pools.room().saturating_sub(commit.before.room());
                let yielded = gained.saturating_add(pace.filled_in(took));
                self.tell_round("pace", &commit.round, yielded);
                pace.note(now, &commit.round, took, commit.before.items, yielded);
            }
            if asked.is_none()
                && self.engine.aborted().is_none()
                && let Some(round) = pace.round(now, &pools)
            {
                match round {
                    Round::Commit { .. } => {
                        self.background.rounds.fetch_add(1, Ordering::Relaxed);
                        let until = self.engine.want_commit();
                        self.background.wake_committer();
                        asked = Some(Asked { round, since: now, before: pools, until });
                    }
                    Round::Dirty { .. } => {
                        self.make_round(&round);
                        let after = self.pools();
                        let took = clock::since(now);
                        let gained = after.room().saturating_sub(pools.room());
                        let yielded = gained.saturating_add(pace.filled_in(took));
                        self.tell_round("pace", &round, yielded);
                        pace.note(clock::now(), &round, took, 0, yielded);
                    }
                }
            }
            buttress_base::thread::sleep(TICK);
        }
    }

    /// Says what a round was thought to give back, and what it did; both are added up.
    fn tell_round(&self, source: &str, round: &Round, yielded: u64) {
        let (pool, made) = match round {
            Round::Dirty { .. } => ("dirty", &self.background.wrote_ahead),
            Round::Commit { .. } => ("overlay", &self.background.committed_ahead),
        };
        let forecast = round.forecast();
        made.rounds.fetch_add(1, Ordering::Relaxed);
        made.forecast.fetch_add(forecast, Ordering::Relaxed);
        made.yielded.fetch_add(yielded, Ordering::Relaxed);
        tracing::debug!(target: "buttress::flush", source, pool, forecast, yielded, "made room ahead");
    }
}
