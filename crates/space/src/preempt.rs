//! The rule of preemptive flushing: when room is made before any caller waits, and from which pool.
//!
//! # Place
//!
//! The thread that flushes in the background gathers [`Pools`], asks, and makes the round that the
//! rule answers. The rule is `clamp`, that of Linux 5.12 to 6.16.
//!
//! # Invariants
//!
//! - **C1** No round is asked for while a caller waits: the flush steps make room then, and two
//!   that make room at once get in each other's way.
//! - **C2** Without load there is no round, however full the volume is.
//! - **C3** Space that is taken again as soon as it is given back counts as used, not as room. That
//!   is the paths that any transaction under load holds, however long it is.

/// Which rule is followed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preempt {
    /// None: room is made when a caller waits.
    #[cfg(feature = "baselines")]
    Off,
    /// A threshold that every wait lowers.
    #[default]
    Clamp,
}

impl Preempt {
    /// Whether room is made ahead at all.
    #[must_use]
    pub fn is_on(self) -> bool {
        self == Self::Clamp
    }

    /// By its name among mount options.
    #[cfg(feature = "baselines")]
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Self::Off),
            "clamp" => Some(Self::Clamp),
            _ => None,
        }
    }
}

/// The uses of metadata space at one moment, in bytes.
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
    /// That future chunks would add, for callers that can wait for everything.
    pub to_come: u64,
    /// Reserved by the running transaction's changes; a commit writes them.
    pub overlay: u64,
    /// Reserved by the frozen transaction.
    pub frozen: u64,
    /// Reserved by dirty data and operations beyond that. Writeback turns it into overlay.
    pub reservations: u64,
    /// The part of the two fields above that is for paths. The existing trees bound it, whatever
    /// the number of changes (C3).
    pub paths: u64,
    /// Dirty data in memory.
    pub dirty: u64,
    /// Data of ordered extents.
    pub ordered: u64,
    /// Whether a request waits for metadata.
    pub waiting: bool,
}

impl Pools {
    /// Bytes that can be reserved before a request must wait.
    #[must_use]
    pub fn headroom(&self) -> u64 {
        let taken = self.used + self.reserved + self.read_only + self.pinned + self.global;
        let held = self.overlay + self.frozen + self.reservations;
        (self.total + self.to_come).saturating_sub(taken + held)
    }

    /// Bytes that are free or held by paths. A round makes it more.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.headroom() + self.paths
    }

    /// Bytes that grow with the changes, and that a round makes less (C3).
    #[must_use]
    pub fn filled(&self) -> u64 {
        (self.overlay + self.reservations).saturating_sub(self.paths)
    }

    /// The part of it that a commit gives back.
    #[must_use]
    pub fn to_commit(&self) -> u64 {
        self.overlay.saturating_sub(self.paths)
    }
}

/// The pool from which a round makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Write so many bytes of dirty data back, without a wait for ordered extents.
    Dirty {
        /// How many, of data.
        bytes: u64,
    },
    /// Commit.
    Commit,
}

const CLAMP_MIN: u32 = 1;
const CLAMP_MAX: u32 = 8;
/// A round must be able to give back more than this. So volumes of little metadata have no rounds.
/// With an eighth of their metadata as the limit, they made commits that cost more than they saved
/// (`docs/internals/space.md`).
const CLAMP_WORTH: u64 = 128 << 20;

/// The kernel's rule. The kernel reserves eight levels for each item, which a round gives back.
/// Here the existing trees bound the levels and no round gives them back (C3), so they count as
/// used.
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
    /// Number of bits by which the threshold is lowered.
    #[must_use]
    pub fn bits(&self) -> u32 {
        self.clamp
    }

    /// Notes that a request began to wait while none did: rounds begin earlier next time. They do
    /// not where ordered extents hold most of the space, because no round would hasten those. Many
    /// requests at once are one step.
    pub fn note_wait(&mut self, pools: &Pools) {
        if pools.ordered < pools.dirty {
            self.clamp = (self.clamp + 1).min(CLAMP_MAX);
        }
    }

    /// Notes the end of rounds. Where a single one was enough and no request waits, the next ones
    /// begin later.
    pub fn note_end(&mut self, rounds: u32, pools: &Pools) {
        if rounds == 1 && !pools.waiting {
            self.clamp = (self.clamp - 1).max(CLAMP_MIN);
        }
    }

    /// Whether a round is due.
    #[must_use]
    pub fn is_due(&self, pools: &Pools) -> bool {
        let in_reach = in_reach(pools);
        if pools.waiting || is_full(pools) || in_reach <= CLAMP_WORTH {
            return false;
        }
        let held = if is_on_its_way(pools) { pools.to_commit() } else { pools.filled() };
        pools.pinned + held >= self.threshold(pools)
    }

    /// How many more bytes must be reserved before a round may be due; nothing where reservations
    /// alone make none due. A periodic look comes too late where reservations are large: a few
    /// hundred of them are a round.
    #[must_use]
    pub fn lacks(&self, pools: &Pools) -> Option<u64> {
        let wanted = self.threshold(pools).max(CLAMP_WORTH + 1).saturating_sub(in_reach(pools));
        // Ordered extents finish before that, so the next look comes earlier.
        let least = if is_on_its_way(pools) { CLAMP_WORTH / 8 } else { 0 };
        (!is_full(pools)).then_some(wanted.max(least))
    }

    fn threshold(&self, pools: &Pools) -> u64 {
        let room = pools.total.saturating_sub(fixed(pools) + pools.read_only);
        (pools.to_come + room) >> self.clamp
    }

    /// The next round: a quarter of the dirty data, or a commit. Dirty data only if it holds more
    /// than all others, because data written early is more fragmented.
    #[must_use]
    pub fn round(&self, pools: &Pools) -> Round {
        let reservations = pools.filled() - pools.to_commit();
        if reservations > pools.global + pools.to_commit() {
            return Round::Dirty { bytes: (pools.dirty / 4).max(1) };
        }
        // Only a commit writes the overlay and the references, and frees pinned space.
        Round::Commit
    }
}

/// Bytes that no round gives back.
fn fixed(pools: &Pools) -> u64 {
    pools.used + pools.reserved + pools.global + pools.paths
}

fn is_full(pools: &Pools) -> bool {
    fixed(pools) >= pools.total / 10 * 9
}

/// Bytes that rounds may give back. Those of a commit under way come back by themselves.
fn in_reach(pools: &Pools) -> u64 {
    pools.filled() + pools.pinned
}

/// Whether most of the data is in ordered extents: its reservations come back by themselves.
fn is_on_its_way(pools: &Pools) -> bool {
    pools.ordered / 2 >= pools.dirty
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
            reservations: 500 * MIB,
            dirty: 64 * MIB,
            ..Pools::default()
        }
    }

    /// E1, C2: an idle volume is left alone, at every degree of fullness.
    #[test]
    fn e1_an_idle_volume_is_left_alone() {
        for percent in [10, 80, 90, 94, 98, 100] {
            let used = GIB / 100 * percent;
            let pools = Pools { total: GIB, used, global: 64 * MIB, ..Pools::default() };
            assert!(!Clamp { clamp: CLAMP_MAX }.is_due(&pools), "{percent}%");
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
        // From 8 MiB to a pebibyte.
        for shift in 0..28 {
            let total = (8 * MIB) << shift;
            for used in [0, total / 3, total, total + MIB] {
                let pools = Pools {
                    total,
                    used,
                    global: total / 4,
                    pinned: total / 2,
                    overlay: total,
                    reservations: total,
                    dirty: MIB,
                    ..Pools::default()
                };
                for bits in CLAMP_MIN..=CLAMP_MAX {
                    let clamp = Clamp { clamp: bits };
                    let _ = (clamp.is_due(&pools), clamp.round(&pools));
                }
                assert!(pools.headroom() <= total);
            }
        }
    }

    /// The kernel's figures: due at the threshold and not below, and a quarter of the dirty data
    /// where that holds most.
    #[test]
    fn clamp_is_the_rule_to_the_letter() {
        let clamp = Clamp::default();
        let pools = loaded();
        // Room is 660 MiB; half of it is less than the 600 that are held.
        assert!(clamp.is_due(&pools));
        assert_eq!(
            clamp.round(&pools),
            Round::Dirty { bytes: 16 * MIB },
            "500 is more than 64 and 100"
        );
        let less = Pools { reservations: 229 * MIB, ..pools };
        assert!(!clamp.is_due(&less), "329 is less than 330");
        assert!(clamp.is_due(&Pools { reservations: 230 * MIB, ..pools }));
        assert!(!clamp.is_due(&Pools { waiting: true, ..pools }));
        let full = Pools { used: 900 * MIB, ..pools };
        assert!(!clamp.is_due(&full), "nine tenths are taken for good");
        let overlay = Pools { overlay: 500 * MIB, reservations: 100 * MIB, ..pools };
        assert_eq!(clamp.round(&overlay), Round::Commit);
        for more in [0, 1, MIB] {
            let pools = Pools { reservations: 200 * MIB + more, ..pools };
            let lacks = clamp.lacks(&pools).expect("reservations alone make it due");
            let almost = Pools { reservations: pools.reservations + lacks - 1, ..pools };
            assert!(!clamp.is_due(&almost), "said to be {lacks} too early");
            assert!(clamp.is_due(&Pools { reservations: pools.reservations + lacks, ..pools }));
        }
        assert_eq!(clamp.lacks(&full), None);
    }

    /// E16: reservations of ordered extents begin no round, however early the clamp begins others.
    /// As soon as half of the data is dirty, they do.
    #[test]
    fn e16_data_on_its_way_begins_no_round() {
        let pools = Pools { overlay: 0, ..loaded() };
        let ordered = Pools { ordered: 2 * pools.dirty, ..pools };
        for bits in CLAMP_MIN..=CLAMP_MAX {
            assert!(!Clamp { clamp: bits }.is_due(&ordered), "{bits}");
        }
        let clamp = Clamp::default();
        assert_eq!(clamp.lacks(&ordered), Some(16 * MIB), "soon enough to look again");
        assert!(clamp.is_due(&Pools { ordered: 2 * pools.dirty - 2, ..pools }));
    }

    /// C3: no round gives paths back, so with paths alone none is due, however low the threshold.
    #[test]
    fn paths_are_no_reason_for_a_round() {
        let paths = 400 * MIB;
        let pools = Pools { overlay: paths + MIB, paths, reservations: 0, dirty: 0, ..loaded() };
        assert!(!Clamp { clamp: CLAMP_MAX }.is_due(&pools));
        let filled = Pools { overlay: paths + 200 * MIB, ..pools };
        assert!(Clamp::default().is_due(&filled));
        assert_eq!(Clamp::default().round(&filled), Round::Commit);
    }
}
