//! What finding the block group costs who writes in place, on processors that this machine does not have.
//!
//! # Place
//!
//! The published measurement took one search of two away from each write, under a lock for readers and writers. Such a
//! lock makes nobody wait for readers, but each of them writes its line when he comes and when he leaves, and that line
//! goes from processor to processor. So it is a lock here that costs what a line costs ([`World`]). Without a lock each stripe of
//! threads counts on lines of its own, which are such locks as well. All else of a write
//! belongs to its own processor. What the steps cost is measured ([`Costs::here`]), with the engine's own searches.
//!
//! Linux had one lock for all before that change, which it came with, held for each of the two searches. That is simulated
//! too ([`Way::AsItWas`]), since it is what was published against.
//!
//! # Invariants
//!
//! - **K1** On one processor a write takes what it was measured to take, whatever part of it is the line's.
//! - **K2** Left out are searches that fail because another changed the line meanwhile, and are made again; that groups are shared;
//!   and that writers wait for a device, and so are at the line less often than here.

use std::{fmt::Write as _, sync::Arc};

use buttress_base::{Rng, apart::STRIPES};
use buttress_format::{Extent, Logical};
use buttress_space::{AllocPolicy, LookupPolicy, Space};

use crate::{
    cores::{GROUP_LEN, LockCost, World, groups_of},
    costs::{self, Measured},
};

/// Filled groups, as published.
const GROUPS: usize = 3500;
/// Bytes of a write, and what it takes of a processor: 0.5 and 1.4 seconds a GiB, as `bench nocow` has them.
const WRITES: [(u64, u64); 2] = [(64 << 10, 30_500), (4 << 10, 5_300)];
/// Processors.
const CORES: [usize; 12] = [1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 128, 256];
/// Writes of one processor.
const ROUNDS: usize = 500;

/// How a group is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// By two searches, one processor at a time.
    AsItWas,
    Now(LookupPolicy),
}

impl Way {
    const ALL: [Self; 4] = [
        Self::AsItWas,
        Self::Now(LookupPolicy::ALL[0]),
        Self::Now(LookupPolicy::ALL[1]),
        Self::Now(LookupPolicy::ALL[2]),
    ];
}

/// What the steps of a lookup cost, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// The right to write to a group, taken and given back, by each policy.
    each: [u64; 3],
    /// The line of the lock.
    line: LockCost,
}

impl Costs {
    /// Measures, of addresses all over the groups.
    fn here(measured: &Measured) -> Self {
        let each = LookupPolicy::ALL.map(|policy| {
            let space = Space::new(4096, 16384).choosing(AllocPolicy::default()).looking_up(policy);
            let space = Arc::new(space);
            space.add_groups(groups_of(GROUPS)).expect("sound groups");
            let rng = std::cell::RefCell::new(Rng::new(1));
            let nanos = costs::over_and_over(&|| {
                let at = rng.borrow_mut().below(GROUPS as u64 * GROUP_LEN / 4096) * 4096;
                let extent = Extent { start: Logical(GROUP_LEN + at), len: 4096 };
                assert!(space.begin_nocow(extent).is_some(), "all groups are there");
            });
            nanos.round() as u64
        });
        Self { each, line: measured.line() }
    }

    /// How often a write by such a lookup changes lines that others change, what it has such a line for each time, and what
    /// the rest of the lookup takes.
    fn of(&self, way: Way) -> (u64, LockCost, u64) {
        let [double, single, free] = self.each;
        let (passes, held, all) = match way {
            // What two searches take and one does not is a search.
            Way::AsItWas => (2, double.saturating_sub(single), double),
            Way::Now(LookupPolicy::RwlockDouble) => (4, 0, double),
            Way::Now(LookupPolicy::RwlockSingle) => (2, 0, single),
            // The stripe's handle and its counter, in and out.
            Way::Now(LookupPolicy::Lockfree) => (4, 0, free),
        };
        let line = LockCost { hold: self.line.hold + held, ..self.line };
        (passes, line, all.saturating_sub(passes * line.hold))
    }

    /// Writes a second of all processors, each of which takes so long without a lookup.
    fn simulate(&self, cores: usize, way: Way, write: u64) -> f64 {
        let (passes, cost, rest) = self.of(way);
        let times = World::run(cores, [cost; 1 + 2 * STRIPES], |core, world| {
            let mut rng = Rng::new(core as u64);
            let line = |pass| match way {
                Way::Now(LookupPolicy::Lockfree) => 1 + core % STRIPES * 2 + pass % 2,
                _ => 0,
            };
            for _ in 0..ROUNDS {
                // Not all in step: writes take no two times the same.
                world.spend(core, write / 2 + rng.below(write));
                for pass in 0..passes as usize {
                    world.pass(core, line(pass));
                }
                world.spend(core, rest);
            }
        });
        times.iter().map(|(time, ())| ROUNDS as f64 / *time as f64 * 1e9).sum()
    }

    fn table(&self) -> String {
        let [double, single, free] = self.each;
        let mut out = format!(
            "writing in place among {GROUPS} groups: the right to, by two searches {double} ns, by one {single}, without a lock {free};\n\
             a line that another processor had last takes {} ns more\n\n",
            self.line.cold
        );
        out.push_str(
            "                                         before the change           over two searches\n   cores   KiB  two searches, writes/s    writes/s    more with one        one search  without a lock\n",
        );
        for (bytes, write) in WRITES {
            for cores in CORES {
                let [was, double, single, free] =
                    Way::ALL.map(|way| self.simulate(cores, way, write));
                let gain = |rate: f64, of: f64| (rate / of - 1.0) * 100.0;
                // Into a string: nothing can fail.
                let _ = writeln!(
                    out,
                    "{cores:>8} {:>5} {double:>23.0} {was:>11.0} {:>+15.1}% {:>+16.1}% {:>+14.1}%",
                    bytes >> 10,
                    gain(single, was),
                    gain(single, double),
                    gain(free, double),
                );
            }
        }
        out
    }
}

/// Simulates, and says it in a table; in another with what a line costs between two cores elsewhere, if here it is something else.
pub(crate) fn table(measured: &Measured) -> String {
    let here = Costs::here(measured);
    if here.line.cold == costs::LINE_APART {
        return here.table();
    }
    let apart = Costs { line: LockCost { cold: costs::LINE_APART, ..here.line }, ..here };
    format!("{}\n{}", here.table(), apart.table())
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs { each: [200, 120, 50], line: LockCost { hold: 6, cold: 120 } };

    /// K1: one processor takes the measured time, and no line is anybody else's.
    #[test]
    fn one_processor_takes_what_was_measured() {
        let [double, single, free] = COSTS.each;
        for (way, each) in Way::ALL.into_iter().zip([double, double, single, free]) {
            let rate = COSTS.simulate(1, way, 30_000);
            let expected = 1e9 / (30_000 + each) as f64;
            assert!((rate / expected - 1.0).abs() < 0.03, "{way:?}: {rate} for {expected}");
        }
    }

    /// One at a time, what many wait for is the two searches, and the line that each brings from somebody else.
    #[test]
    fn searches_are_the_limit_of_one_at_a_time() {
        let LockCost { hold, cold } = COSTS.line;
        let [double, single, _] = COSTS.each;
        let expected = 1e9 / (2 * (double - single + hold + cold)) as f64;
        let rate = COSTS.simulate(128, Way::AsItWas, 5_000);
        assert!((rate / expected - 1.0).abs() < 0.03, "{rate} for {expected}");
    }

    /// Where processors are so many that the line is all they wait for, who changes it half as often does twice as much. Who
    /// changes lines of his own does as much as there are processors, as long as these are no more than stripes.
    #[test]
    fn the_line_is_the_limit_of_many() {
        let rate = |cores, policy| COSTS.simulate(cores, Way::Now(policy), 5_000);
        let double = rate(128, LookupPolicy::RwlockDouble);
        let single = rate(128, LookupPolicy::RwlockSingle);
        assert!((single / double - 2.0).abs() < 0.1, "{single} and {double}");
        let each = |cores| rate(cores, LookupPolicy::Lockfree) / cores as f64;
        let (one, all) = (each(1), each(STRIPES));
        assert!((all / one - 1.0).abs() < 0.05, "{one} and {all} each");
    }
}
