//! When room is made before anybody waits, and out of what: rules over figures, which do nothing themselves.
//!
//! # Place
//!
//! Whoever flushes in the background gathers [`Pools`], asks, does what is answered, and says what came of it.
//!
//! # Invariants
//!
//! - **C1** Nothing is asked for while somebody waits: then the ladder is climbed for him, and two that make
//!   room at once get in each other's way.
//! - **C2** Without load there is no round, however full the volume is.
//! - **C3** Rounds that yield little come ever less often.
//!
//! Three modes, so that each can be measured against the others: none; `clamp`, the rule of Linux 5.12 to
//! 6.16; and `pace`, by rates.

use std::time::{Duration, Instant};

/// Which rule is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preempt {
    /// None: room is made when somebody waits.
    Off,
    /// A threshold that every wait lowers.
    #[default]
    Clamp,
    /// A forecast: by the rates at which space is taken, and the time that a round takes.
    Pace,
}

impl Preempt {
    /// By its name among mount options.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Self::Off),
            "clamp" => Some(Self::Clamp),
            "pace" => Some(Self::Pace),
            _ => None,
        }
    }
}

/// What holds metadata, in bytes, at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    /// Of all groups.
    pub total: u64,
    /// By recorded nodes.
    pub used: u64,
    /// By nodes that a commit is about to record.
    pub reserved: u64,
    /// In groups that are read-only.
    pub read_only: u64,
    /// Freed, and not to be handed out before a commit.
    pub pinned: u64,
    /// Kept back.
    pub global: u64,
    /// What chunks to come would add, for who can wait for everything.
    pub to_come: u64,
    /// What the running transaction may become: written by a commit.
    pub overlay: u64,
    /// What the frozen one may still take.
    pub frozen: u64,
    /// Promised to dirty data and operations beyond that: written back, it becomes overlay.
    pub promised: u64,
    /// Bytes of data that wait in memory.
    pub dirty: u64,
    /// Bytes of data on their way to the devices.
    pub ordered: u64,
    /// Somebody waits for metadata.
    pub waiting: bool,
}

impl Pools {
    /// What can be promised before somebody must wait.
    #[must_use]
    pub fn headroom(&self) -> u64 {
        let taken = self.used + self.reserved + self.read_only + self.pinned + self.global;
        let held = self.overlay + self.frozen + self.promised;
        (self.total + self.to_come).saturating_sub(taken + held)
    }

    fn may_use(&self) -> u64 {
        self.overlay + self.frozen + self.promised + self.global
    }
}

/// Out of which pool room is to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Write so many bytes of dirty data back, waiting for nobody.
    Dirty {
        /// How many, of data.
        bytes: u64,
        /// How much metadata that is thought to give back.
        forecast: u64,
    },
    /// Commit.
    Commit {
        /// How much metadata that is thought to give back.
        forecast: u64,
    },
}

impl Round {
    /// How much metadata the round is thought to give back.
    #[must_use]
    pub fn forecast(&self) -> u64 {
        match self {
            Self::Dirty { forecast, .. } | Self::Commit { forecast } => *forecast,
        }
    }
}

const CLAMP_MIN: u32 = 1;
const CLAMP_MAX: u32 = 8;
/// Less than this in reach of a round is not worth one.
const CLAMP_WORTH: u64 = 128 << 20;

/// The kernel's rule.
#[derive(Clone, Copy, Debug)]
pub struct Clamp {
    clamp: u32,
}

impl Default for Clamp {
    fn default() -> Self {
        Self { clamp: CLAMP_MIN }
    }
}

impl Clamp {
    /// By how many bits the threshold is lowered.
    #[must_use]
    pub fn bits(&self) -> u32 {
        self.clamp
    }

    /// Somebody began to wait while nobody did: earlier next time, unless it is data on its way that holds
    /// everything, which no round would hasten. Many at once are one step.
    pub fn note_wait(&mut self, pools: &Pools) {
        if pools.ordered < pools.dirty {
            self.clamp = (self.clamp + 1).min(CLAMP_MAX);
        }
    }

    /// Rounds have ended: a single one was enough, and nobody waits.
    pub fn note_end(&mut self, rounds: u32, pools: &Pools) {
        if rounds == 1 && !pools.waiting {
            self.clamp = (self.clamp - 1).max(CLAMP_MIN);
        }
    }

    /// Whether a round is due.
    #[must_use]
    pub fn is_due(&self, pools: &Pools) -> bool {
        let fixed = pools.used + pools.reserved + pools.global;
        let in_reach = (pools.may_use() + pools.pinned).saturating_sub(pools.global);
        if pools.waiting || fixed >= pools.total / 10 * 9 || in_reach <= CLAMP_WORTH {
            return false;
        }
        let room = pools.total.saturating_sub(fixed + pools.read_only);
        let threshold = (pools.to_come + room) >> self.clamp;
        let held = if pools.ordered / 2 >= pools.dirty {
            // Promises of data on its way come back by themselves.
            pools.overlay
        } else {
            pools.may_use() - pools.global
        };
        pools.pinned + held >= threshold
    }

    /// A quarter of the fullest pool. Dirty data only if it holds more than all others: written early it lies
    /// worse.
    #[must_use]
    pub fn round(&self, pools: &Pools) -> Round {
        if pools.promised > pools.global + pools.overlay + pools.frozen {
            return Round::Dirty { bytes: (pools.dirty / 4).max(1), forecast: pools.promised / 4 };
        }
        // Our overlay and references are written by a commit alone, as what is pinned is freed by one.
        Round::Commit { forecast: pools.overlay + pools.pinned }
    }
}

/// A mean that forgets: each new value counts a quarter.
#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn note(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |mean| mean + (value - mean) / 4.0));
    }

    fn get(&self) -> f64 {
        self.0.unwrap_or(0.0)
    }

    fn or(&self, unknown: f64) -> f64 {
        self.0.unwrap_or(unknown)
    }
}

/// Rounds begin when what is left lasts for less than so many times what a round takes,
const START: f64 = 1.5;
/// and end when it lasts for so many.
const STOP: f64 = 3.0;
/// A round that yields less than this part of its forecast was not worth it (C3).
const WORTH: f64 = 0.25;
/// The first and the longest pause after such a round.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A round takes at least so long, to a forecast: what was measured may have been a small one.
const LATENCY_MIN: f64 = 0.005;
/// What is thought of a commit before the first.
const COMMIT_UNKNOWN: f64 = 0.1;
/// What is left is shared out over this many times what is left of a round: what was forecast may be short.
const MARGIN: f64 = 1.25;
/// The part of a round that is always thought to be left of it.
const LEFT_MIN: f64 = 0.125;
/// Operations a second that are let in however little is left.
const RATE_MIN: f64 = 100.0;

/// Our rule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Bytes of metadata that are taken, a second, and by an operation.
    arrival: Mean,
    each: Mean,
    /// Seconds that a commit takes, and a round of writing back.
    commit: Mean,
    write: Mean,
    last: Option<(Instant, u64, u64)>,
    active: bool,
    pause: Duration,
    paused_until: Option<Instant>,
    rate: Option<f64>,
}

impl Pace {
    /// Looks at the pools; to be called every few milliseconds. `operations` counts those that took metadata, ever;
    /// `under_way` says for how long a round has been.
    pub fn look(
        &mut self,
        now: Instant,
        pools: &Pools,
        operations: u64,
        under_way: Option<Duration>,
    ) {
        let held = pools.overlay + pools.promised + pools.pinned;
        if let Some((then, before, count)) = self.last {
            let seconds = now.duration_since(then).as_secs_f64();
            // What was given back meanwhile hides some of what came; a round's end is no negative arrival.
            let came = held.saturating_sub(before) as f64;
            if seconds > 0.0 {
                self.arrival.note(came / seconds);
            }
            if came > 0.0 && operations > count {
                self.each.note(came / (operations - count) as f64);
            }
        }
        self.last = Some((now, held, operations));
        let lasts = self.lasts(pools);
        let takes = self.takes();
        self.active = lasts < takes * if self.active { STOP } else { START };
        let left = takes - under_way.map_or(0.0, |time| time.as_secs_f64());
        let left = left.max(takes * LEFT_MIN) * MARGIN;
        let each = self.each.get();
        // Let in at a rate that leaves something until the round is done, so that nobody stands still.
        self.rate = (self.active && lasts < left * MARGIN && each >= 1.0)
            .then(|| (pools.headroom() as f64 / left / each).max(RATE_MIN));
    }

    /// Seconds for which what is left lasts.
    fn lasts(&self, pools: &Pools) -> f64 {
        let rate = self.arrival.get();
        if rate < 1.0 { f64::INFINITY } else { pools.headroom() as f64 / rate }
    }

    /// Seconds from the beginning of a round to the end of a commit.
    fn takes(&self) -> f64 {
        (self.commit.or(COMMIT_UNKNOWN) + self.write.get()).max(LATENCY_MIN)
    }

    /// What has come in so much time, by the rate that was seen.
    #[must_use]
    pub fn arrived_in(&self, time: Duration) -> u64 {
        (self.arrival.get() * time.as_secs_f64()) as u64
    }

    /// How many operations that take metadata may begin, a second; any number where there is none.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// The round that is due, if one is.
    #[must_use]
    pub fn round(&self, now: Instant, pools: &Pools) -> Option<Round> {
        if !self.active || pools.waiting || self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        // Bytes for each second that it costs. What dirty data gives back must be committed, too: it becomes
        // overlay, if less than was promised.
        let commit = pools.overlay + pools.pinned;
        let by_commit = commit as f64 / self.commit.or(COMMIT_UNKNOWN).max(LATENCY_MIN);
        let by_dirty = pools.promised as f64 / 2.0 / self.write.get().max(LATENCY_MIN);
        if pools.dirty > 0 && pools.promised > commit / 2 && by_dirty >= by_commit {
            return Some(Round::Dirty { bytes: pools.dirty / 2 + 1, forecast: pools.promised / 4 });
        }
        (commit > 0).then_some(Round::Commit { forecast: commit })
    }

    /// Says what a round came to.
    pub fn note(&mut self, now: Instant, round: &Round, took: Duration, yielded: u64) {
        match round {
            Round::Dirty { .. } => self.write.note(took.as_secs_f64()),
            Round::Commit { .. } => self.commit.note(took.as_secs_f64()),
        }
        self.last = None;
        if yielded as f64 >= round.forecast() as f64 * WORTH {
            self.pause = Duration::ZERO;
            self.paused_until = None;
            return;
        }
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.paused_until = now.checked_add(self.pause);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn loaded() -> Pools {
        Pools {
            total: GIB,
            used: 300 * MIB,
            global: 64 * MIB,
            overlay: 100 * MIB,
            promised: 500 * MIB,
            dirty: 64 * MIB,
            ..Pools::default()
        }
    }

    /// E1, C2: an idle volume is left alone by both rules, at every degree of fullness.
    #[test]
    fn e1_an_idle_volume_is_left_alone() {
        let mut now = Instant::now();
        for percent in [10, 80, 90, 94, 98, 100] {
            let used = GIB / 100 * percent;
            let pools = Pools { total: GIB, used, global: 64 * MIB, ..Pools::default() };
            let (mut clamp, mut pace) = (Clamp { clamp: CLAMP_MAX }, Pace::default());
            for _ in 0..100 {
                now += Duration::from_millis(10);
                pace.look(now, &pools, 0, None);
                assert!(!clamp.is_due(&pools), "{percent}%");
                assert_eq!(pace.round(now, &pools), None, "{percent}%");
                assert_eq!(pace.rate(), None);
            }
            clamp.note_end(0, &pools);
        }
    }

    /// E2: a wait is one step of the clamp, to eight; a single round takes one back, to one.
    #[test]
    fn e2_the_clamp_goes_step_by_step() {
        let mut clamp = Clamp::default();
        for step in 1..20 {
            clamp.note_wait(&loaded());
            assert_eq!(clamp.bits(), (1 + step).min(8));
        }
        let ordered = Pools { ordered: 2 * GIB, ..loaded() };
        clamp.note_end(1, &loaded());
        assert_eq!(clamp.bits(), 7);
        clamp.note_wait(&ordered);
        assert_eq!(clamp.bits(), 7, "data on its way is no reason");
        for _ in 0..20 {
            clamp.note_end(1, &loaded());
        }
        assert_eq!(clamp.bits(), 1);
    }

    /// E3: no volume is too small or too large for the arithmetic.
    #[test]
    fn e3_every_size() {
        let mut now = Instant::now();
        for shift in 0..27 {
            let total = (8 * MIB) << shift;
            for used in [0, total / 3, total, total + MIB] {
                let pools = Pools {
                    total,
                    used,
                    global: total / 4,
                    pinned: total / 2,
                    overlay: total,
                    promised: total,
                    dirty: MIB,
                    ..Pools::default()
                };
                for bits in CLAMP_MIN..=CLAMP_MAX {
                    let clamp = Clamp { clamp: bits };
                    let _ = (clamp.is_due(&pools), clamp.round(&pools));
                }
                let mut pace = Pace::default();
                for operations in 0..3 {
                    now += Duration::from_millis(1);
                    pace.look(now, &pools, operations, None);
                    let _ = pace.round(now, &pools);
                }
                assert!(pools.headroom() <= total);
            }
        }
    }

    /// The kernel's figures: due at the threshold, not below; a quarter of dirty data where it holds most.
    #[test]
    fn clamp_is_the_rule_to_the_letter() {
        let clamp = Clamp::default();
        let pools = loaded();
        // Room is 660 MiB; half of it is less than the 600 that are held.
        assert!(clamp.is_due(&pools));
        assert_eq!(
            clamp.round(&pools),
            Round::Dirty { bytes: 16 * MIB, forecast: 125 * MIB },
            "500 is more than 64 and 100"
        );
        let less = Pools { promised: 229 * MIB, ..pools };
        assert!(!clamp.is_due(&less), "329 is less than 330");
        assert!(clamp.is_due(&Pools { promised: 230 * MIB, ..pools }));
        assert!(!clamp.is_due(&Pools { waiting: true, ..pools }));
        let full = Pools { used: 900 * MIB, ..pools };
        assert!(!clamp.is_due(&full), "nine tenths are taken for good");
        let overlay = Pools { overlay: 500 * MIB, promised: 100 * MIB, ..pools };
        assert!(matches!(clamp.round(&overlay), Round::Commit { .. }));
        // E16: promises of data on its way do not count.
        assert!(!clamp.is_due(&Pools { ordered: 128 * MIB, dirty: 64 * MIB, ..pools }));
    }

    /// C3: rounds that yield nothing are made ever less often; one that does ends that.
    #[test]
    fn pace_backs_off() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let mut pools = Pools { total: 700 * MIB, ..loaded() };
        let mut rounds = Vec::new();
        for tick in 0..3000_u32 {
            now += Duration::from_millis(2);
            pools.promised += 10 * MIB;
            pace.look(now, &pools, u64::from(tick) * 100, None);
            if let Some(round) = pace.round(now, &pools) {
                rounds.push(tick);
                pace.note(now, &round, Duration::from_millis(1), 0);
            }
        }
        assert!(rounds.len() >= 5 && rounds.len() < 20, "{rounds:?}");
        let gaps: Vec<_> = rounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.is_sorted(), "{gaps:?}");
    }

    /// A load that steps up is met before it is out of room, and the rounds end with it.
    #[test]
    fn pace_starts_in_time_and_stops() {
        const TICK: Duration = Duration::from_millis(5);
        for rate in [1, 5, 20, 50_u64] {
            let mut pace = Pace::default();
            let mut now = Instant::now();
            let mut pools =
                Pools { total: 2 * GIB, used: 300 * MIB, global: 64 * MIB, ..Pools::default() };
            let mut commits = 0;
            let mut busy: Option<(u32, Round)> = None;
            let mut operations = 0;
            for tick in 0..4000_u32 {
                now += Duration::from_millis(5);
                if tick < 3000 {
                    // Each takes 64 KiB.
                    let came = (rate * 16).min((pace.rate().unwrap_or(1e9) * 0.005) as u64);
                    operations += came;
                    pools.overlay += came * (64 << 10);
                }
                let under_way =
                    busy.as_ref().map(|(end, _)| TICK * (10 - end.saturating_sub(tick)));
                pace.look(now, &pools, operations, under_way);
                // A commit takes 50 ms.
                match busy {
                    Some((end, round)) if tick >= end => {
                        let yielded = pools.overlay / 2;
                        pools.overlay -= yielded;
                        pace.note(now, &round, Duration::from_millis(50), yielded);
                        busy = None;
                        commits += 1;
                    }
                    None => busy = pace.round(now, &pools).map(|round| (tick + 10, round)),
                    Some(_) => {}
                }
                assert!(pools.headroom() > 0, "rate {rate}, tick {tick}: somebody would wait");
            }
            assert!(commits >= u32::from(rate >= 5) && commits < 800, "rate {rate}: {commits}");
            assert_eq!(pace.round(now, &pools), None, "rate {rate}: the load is over");
        }
    }
}
