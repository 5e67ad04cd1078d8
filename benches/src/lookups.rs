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
/// Writes of one processor.
const ROUNDS: usize = 500;

/// What the steps of a lookup cost, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// The right to write to a group, taken and given back, by each way.
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

    /// How often a write by such a lookup changes lines that others change, and what the rest of the lookup takes.
    fn of(&self, policy: LookupPolicy) -> (u64, u64) {
        let (way, passes) = match policy {
            LookupPolicy::RwlockDouble => (0, 4),
            LookupPolicy::RwlockSingle => (1, 2),
            // The stripe's handle and its counter, in and out.
            LookupPolicy::Lockfree => (2, 4),
        };
        (passes, self.each[way].saturating_sub(passes * self.line.hold))
    }

    /// Writes a second of all processors, each of which takes so long without a lookup.
    fn simulate(&self, cores: usize, policy: LookupPolicy, write: u64) -> f64 {
        let (passes, rest) = self.of(policy);
        let times = World::run(cores, [self.line; 1 + 2 * STRIPES], |core, world| {
            let mut rng = Rng::new(core as u64);
            let line = |pass| match policy {
                LookupPolicy::RwlockDouble | LookupPolicy::RwlockSingle => 0,
                LookupPolicy::Lockfree => 1 + core % STRIPES * 2 + pass % 2,
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
            "   cores   KiB  two searches, writes/s of all      one search  without a lock\n",
        );
        for (bytes, write) in WRITES {
            for cores in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
                let [double, single, free] =
                    LookupPolicy::ALL.map(|policy| self.simulate(cores, policy, write));
                let gain = |rate: f64| (rate / double - 1.0) * 100.0;
                // Into a string: nothing can fail.
                let _ = writeln!(
                    out,
                    "{cores:>8} {:>5} {double:>30.0} {:>+14.1}% {:>+14.1}%",
                    bytes >> 10,
                    gain(single),
                    gain(free),
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
        for (policy, each) in LookupPolicy::ALL.into_iter().zip(COSTS.each) {
            let rate = COSTS.simulate(1, policy, 30_000);
            let expected = 1e9 / (30_000 + each) as f64;
            assert!((rate / expected - 1.0).abs() < 0.03, "{policy}: {rate} for {expected}");
        }
    }

    /// Where processors are so many that the line is all they wait for, who changes it half as often does twice as much. Who
    /// changes lines of his own does as much as there are processors, as long as these are no more than stripes.
    #[test]
    fn the_line_is_the_limit_of_many() {
        let rate = |cores, policy| COSTS.simulate(cores, policy, 5_000);
        let double = rate(128, LookupPolicy::RwlockDouble);
        let single = rate(128, LookupPolicy::RwlockSingle);
        assert!((single / double - 2.0).abs() < 0.1, "{single} and {double}");
        let each = |cores| rate(cores, LookupPolicy::Lockfree) / cores as f64;
        let (one, all) = (each(1), each(STRIPES));
        assert!((all / one - 1.0).abs() < 0.05, "{one} and {all} each");
    }
}
