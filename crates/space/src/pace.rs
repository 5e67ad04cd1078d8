//! Our rule of when room is made ahead: by the rates at which metadata is taken, and the time that a round takes.
//!
//! # Invariants
//!
//! - **C1** to **C4** of `preempt`.
//! - **C5** A commit is asked for only where what comes meanwhile fits beside it: where it does not, writers wait for it
//!   whenever it begins, and the fewer there are the better.
//!
//! What a transaction holds has two parts. Its *paths* come at once and no commit gives them back for long: the next
//! transaction has them as soon as it has begun. What *fills* grows with every operation. So a commit must begin while
//! there is room for the paths of the next one, and for what fills until it is done; and what it gives back is what
//! filled.

use std::time::{Duration, Instant};

use crate::{Pools, Round};

/// A mean over time that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Rate(Option<f64>);

/// How long a rate remembers, in seconds. Writeback comes in bursts, and gives back what the bursts took.
const MEMORY: f64 = 0.1;

impl Rate {
    /// What changed in so many seconds, either way.
    fn note(&mut self, change: f64, seconds: f64) {
        let value = change / seconds;
        let weight = 1.0 - (-seconds / MEMORY).exp();
        self.0 = Some(self.0.map_or(value, |mean| mean + (value - mean) * weight));
    }

    fn get(&self) -> f64 {
        self.0.unwrap_or(0.0).max(0.0)
    }
}

/// A mean that forgets: each new value counts a quarter.
#[derive(Clone, Copy, Debug, Default)]
struct Mean(Option<f64>);

impl Mean {
    fn note(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |mean| mean + (value - mean) / 4.0));
    }

    fn or(&self, unknown: f64) -> f64 {
        self.0.unwrap_or(unknown)
    }
}

/// Rounds begin when there is room for less than so many times what comes in one,
const START: f64 = 2.0;
/// and end when there is for so many.
const STOP: f64 = 4.0;
/// A round that yields less than this part of its forecast was not worth it (C3).
const WORTH: f64 = 0.25;
/// A commit that has to come before what fills is this part of what it may become is not worth what it saves: writers
/// wait for fewer of them, and no longer (C5).
const FILLED_MIN: f64 = 0.5;
/// The first and the longest pause after such a round.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// A round takes at least so long, to a forecast: what was measured may have been a small one.
const LATENCY_MIN: f64 = 0.005;
/// What is thought of a commit before the first: that takes so long in any case, and each item so much more.
const COMMIT_UNKNOWN: f64 = 0.02;
const ITEM_UNKNOWN: f64 = 1e-6;
/// Commits of fewer items show what one takes in any case, those of more what an item does.
const FEW: u64 = 4096;
/// A round is thought to take, and what is left to be shared out over, this many times what was forecast.
const MARGIN: f64 = 1.25;
/// The part of a round that is always thought to be left of it.
const LEFT_MIN: f64 = 0.125;
/// Operations a second that are let in however little is left.
const RATE_MIN: f64 = 100.0;

/// Bytes that fill while a round is made: with less there is no load.
const FILLS_MIN: f64 = 1024.0;

/// What was seen at a look.
#[derive(Clone, Copy, Debug)]
struct Look {
    at: Instant,
    filled: u64,
    paths: u64,
    operations: u64,
    generation: u64,
}

/// Our rule.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    /// Bytes that fill, a second, and by an operation.
    fills: Rate,
    each: Mean,
    /// Bytes of paths, a second, while more of them come.
    paths: Rate,
    /// Seconds that a commit takes in any case, for an item, and that a round of writing back takes.
    commit: Mean,
    item: Mean,
    write: Mean,
    last: Option<Look>,
    /// Room is to be made by a commit, or by writing back.
    commits: bool,
    writes: bool,
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
        let seen = Look {
            at: now,
            filled: pools.filled(),
            paths: pools.paths,
            operations,
            generation: pools.generation,
        };
        // Who waits does not come, and would: that is no rate.
        if let Some(last) = self.last.replace(seen)
            && !pools.waiting
        {
            self.learn(&last, &seen, pools.paths_max);
        }
        let takes = self.takes(pools.items);
        let headroom = pools.headroom() as f64;
        // What dirty data was promised no commit gives back, and paths that are not held yet will be.
        let to_come = pools.paths_max.saturating_sub(pools.paths) as f64;
        let to_fill = headroom - to_come;
        let room = to_fill + pools.to_commit() as f64;
        // As many items as there are when it has filled that part.
        let part = room * FILLED_MIN;
        let items = pools.items as f64 * part / pools.to_commit().max(1) as f64;
        let next = self.comes_in(self.takes(items as u64) * MARGIN, pools);
        let times = |active| if active { STOP } else { START };
        self.commits =
            next <= room - part && headroom < self.comes_in(takes * times(self.commits), pools);
        let write = self.write.or(COMMIT_UNKNOWN).max(LATENCY_MIN);
        self.writes = headroom < self.fills.get() * write * times(self.writes);
        let left = takes - under_way.map_or(0.0, |time| time.as_secs_f64());
        let left = left.max(takes * LEFT_MIN) * MARGIN;
        // Let in at a rate that leaves something until the round is done, so that nobody stands still.
        let each = self.each.or(0.0);
        let is_short = to_fill < self.fills.get() * left * MARGIN;
        self.rate = (self.commits && is_short && each >= 1.0)
            .then(|| (to_fill / left / each).max(RATE_MIN));
    }

    fn learn(&mut self, last: &Look, seen: &Look, paths_max: u64) {
        let seconds = seen.at.duration_since(last.at).as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        if last.generation != seen.generation {
            // What fills two transactions has no difference that says anything; paths have come since the freeze.
            self.paths.note(seen.paths as f64, seconds);
            return;
        }
        let filled = seen.filled as f64 - last.filled as f64;
        self.fills.note(filled, seconds);
        // Once all are held it says nothing that no more come.
        if seen.paths < paths_max || seen.paths > last.paths {
            self.paths.note(seen.paths as f64 - last.paths as f64, seconds);
        }
        let operations = seen.operations.saturating_sub(last.operations);
        if filled > 0.0 && operations > 0 {
            self.each.note(filled / operations as f64);
        }
    }

    /// What a transaction that begins now holds after so many seconds.
    fn comes_in(&self, seconds: f64, pools: &Pools) -> f64 {
        let fills = self.fills.get() * seconds;
        // Nobody comes whom the next one would need paths for.
        if fills < FILLS_MIN {
            return 0.0;
        }
        let paths_max = pools.paths_max as f64;
        let paths = self.paths.0.map_or(paths_max, |rate| rate.max(0.0) * seconds);
        paths.min(paths_max) + fills
    }

    /// Seconds that a commit of so many items takes.
    fn takes(&self, items: u64) -> f64 {
        let each = self.item.or(ITEM_UNKNOWN) * items as f64;
        (self.commit.or(COMMIT_UNKNOWN) + each).max(LATENCY_MIN)
    }

    /// What has filled in so much time, by the rate that was seen.
    #[must_use]
    pub fn filled_in(&self, time: Duration) -> u64 {
        (self.fills.get() * time.as_secs_f64()) as u64
    }

    /// How many operations that take metadata may begin, a second; any number where there is none.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.rate
    }

    /// The round that is due, if one is.
    #[must_use]
    pub fn round(&self, now: Instant, pools: &Pools) -> Option<Round> {
        let is_active = self.commits || self.writes;
        if !is_active || pools.waiting || self.paused_until.is_some_and(|until| now < until) {
            return None;
        }
        // Bytes for each second that it costs. What dirty data gives back must be committed, too: it becomes
        // overlay, if less than was promised.
        let commit = pools.to_commit() + pools.pinned;
        let promised = pools.filled() - pools.to_commit();
        let by_commit = commit as f64 / self.takes(pools.items);
        let by_dirty = promised as f64 / 2.0 / self.write.or(0.0).max(LATENCY_MIN);
        let writes = !self.commits || by_dirty >= by_commit;
        if pools.dirty > 0 && promised > commit / 2 && writes {
            return Some(Round::Dirty { bytes: pools.dirty / 2 + 1, forecast: promised / 4 });
        }
        (self.commits && commit > 0).then_some(Round::Commit { forecast: commit })
    }

    /// Says what a round came to; `items` are those that a commit settled.
    pub fn note(&mut self, now: Instant, round: &Round, took: Duration, items: u64, yielded: u64) {
        let took = took.as_secs_f64();
        match round {
            Round::Dirty { .. } => self.write.note(took),
            Round::Commit { .. } if items < FEW => self.commit.note(took),
            Round::Commit { .. } => {
                let each = (took - self.commit.or(COMMIT_UNKNOWN)) / items as f64;
                self.item.note(each.max(0.0));
            }
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
    const TICK: Duration = Duration::from_millis(4);

    /// C3: rounds that yield nothing are made ever less often; one that does ends that.
    #[test]
    fn pace_backs_off() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        let mut pools = Pools {
            total: 700 * MIB,
            used: 300 * MIB,
            global: 64 * MIB,
            overlay: 100 * MIB,
            promised: 200 * MIB,
            dirty: 64 * MIB,
            ..Pools::default()
        };
        let mut rounds = Vec::new();
        for tick in 0..3000_u32 {
            now += Duration::from_millis(2);
            pools.promised += 10 * MIB;
            pace.look(now, &pools, u64::from(tick) * 100, None);
            if let Some(round) = pace.round(now, &pools) {
                rounds.push(tick);
                pace.note(now, &round, Duration::from_millis(1), 0, 0);
            }
        }
        assert!(rounds.len() >= 5 && rounds.len() < 20, "{rounds:?}");
        let gaps: Vec<_> = rounds.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.is_sorted(), "{gaps:?}");
    }

    /// A volume under a load of equal operations. Each takes paths until all are taken, and fills a little; a commit
    /// takes its time, and then the old paths and what filled them are free again.
    struct Model {
        /// Bytes of all metadata, and in use.
        total: u64,
        used: u64,
        /// Operations a second.
        load: u64,
    }

    /// What came of it.
    #[derive(Debug, Default)]
    struct Came {
        commits: u32,
        /// Ticks in which somebody could not go on.
        stalls: u32,
        operations: u64,
    }

    const PATHS: u64 = 448 << 10;
    const FILLS: u64 = 512;

    impl Model {
        /// Seconds of load, then one without.
        fn run(&self, seconds: u64) -> Came {
            let mut pace = Pace::default();
            let mut now = Instant::now();
            let mut came = Came::default();
            let mut pools = Pools {
                total: self.total,
                used: self.used,
                global: self.used / 8,
                paths_max: self.used,
                ..Pools::default()
            };
            let mut asked: Option<(Instant, Round, u64)> = None;
            let mut end: Option<Instant> = None;
            let ticks = seconds * 250;
            for tick in 0..ticks + 250 {
                now += TICK;
                let wanted = if tick < ticks { self.load / 250 } else { 0 };
                pools.waiting = false;
                let let_in = pace.rate().map_or(wanted, |rate| wanted.min((rate * 0.004) as u64));
                for _ in 0..let_in {
                    let paths = (pools.paths + PATHS).min(pools.paths_max);
                    if pools.headroom() < paths - pools.paths + FILLS {
                        came.stalls += 1;
                        pools.waiting = true;
                        // Who waits has the ladder climbed, which commits.
                        end = end.or_else(|| self.freeze(&mut pools, now));
                        break;
                    }
                    pools.overlay += paths - pools.paths + FILLS;
                    pools.paths = paths;
                    pools.items += 7;
                    came.operations += 1;
                }
                if end.is_some_and(|end| now >= end) {
                    pools.frozen = 0;
                    end = None;
                    if let Some((since, round, items)) = asked.take() {
                        pace.note(now, &round, now - since, items, round.forecast());
                    }
                }
                let under_way = asked.as_ref().map(|(since, ..)| now - *since);
                pace.look(now, &pools, came.operations, under_way);
                if end.is_none()
                    && let Some(round) = pace.round(now, &pools)
                {
                    asked = Some((now, round, pools.items));
                    end = self.freeze(&mut pools, now);
                    came.commits += 1;
                }
            }
            assert_eq!(pace.round(now, &pools), None, "the load is over");
            assert_eq!(pace.rate(), None);
            came
        }

        /// Begins a commit, and says when it will be done: 50 ms, and a microsecond for each item.
        fn freeze(&self, pools: &mut Pools, now: Instant) -> Option<Instant> {
            let takes = Duration::from_millis(50) + Duration::from_micros(pools.items);
            pools.frozen = pools.overlay;
            (pools.overlay, pools.paths, pools.items) = (0, 0, 0);
            pools.generation += 1;
            Some(now + takes)
        }
    }

    /// Where the next transaction fits beside the one that is committed, nobody ever stands still, at any load, and
    /// there are no more commits than it takes to fill half of the room.
    #[test]
    fn pace_starts_in_time_and_stops() {
        for load in [500, 5_000, 20_000, 50_000] {
            let model = Model { total: 200 * MIB, used: 30 * MIB, load };
            let came = model.run(20);
            assert_eq!(came.stalls, 0, "{load} a second: {came:?}");
            let all = load / 250 * 250 * 20;
            assert!(came.operations >= all / 20 * 19, "{load} a second: {came:?} of {all}");
            let room = model.total - 2 * model.used - model.used / 8;
            let filled = came.operations * FILLS;
            let most = filled / (room / 2) + 1;
            assert!(u64::from(came.commits) <= most, "{load} a second: {came:?}, {most}");
            assert_eq!(came.commits > 0, filled > room / 2, "{load} a second: {came:?}");
        }
    }

    /// C5: where it does not fit, nothing is asked for that could not help: the paths come again with every commit.
    #[test]
    fn pace_asks_for_nothing_that_cannot_help() {
        for used in [40, 44] {
            let model = Model { total: 100 * MIB, used: used * MIB, load: 20_000 };
            let came = model.run(10);
            // One when the load has ended, perhaps.
            assert!(came.commits <= 1 && came.stalls > 100, "{used} MiB: {came:?}");
        }
    }
}
