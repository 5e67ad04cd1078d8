//! The rule of preemptive flushing: it decides when to make room before any caller waits, and from
//! which pool.
//!
//! # Place
//!
//! The background flush thread gathers [`MetadataUse`], asks the rule, and makes the round that the
//! rule returns. The rule is `clamp`, as in Linux 5.12 to 6.16.
//!
//! # Invariants
//!
//! - **C1** No round is due while a caller waits. The flush steps make room for that caller, and
//!   two threads that make room at once hinder each other.
//! - **C2** Without load there is no round, however full the volume is.
//! - **C3** Space that is reserved again as soon as it is freed counts as used, not as room. Such
//!   space is the reservation for tree paths. Every transaction under load holds this reservation,
//!   however short the transaction is.

/// The rule to follow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preempt {
    /// No rule: room is made when a caller waits.
    #[cfg(feature = "baselines")]
    Off,
    /// A threshold that every wait lowers.
    #[default]
    Clamp,
}

impl Preempt {
    /// Whether the rule makes room before callers wait.
    #[must_use]
    pub fn is_on(self) -> bool {
        self == Self::Clamp
    }

    /// Returns the rule with this name among the mount options.
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
pub struct MetadataUse {
    /// Bytes of all groups.
    pub total: u64,
    /// Used by recorded nodes.
    pub used: u64,
    /// Used by nodes that a commit is about to record.
    pub reserved: u64,
    /// Free bytes of read-only groups.
    pub read_only: u64,
    /// Freed, but not usable before a commit.
    pub pinned: u64,
    /// The global reserve.
    pub global: u64,
    /// Bytes that future chunks would add, for callers that can wait for every flush state.
    pub to_come: u64,
    /// Reserved by the running transaction's changes; a commit writes them.
    pub overlay: u64,
    /// Reserved by the frozen transaction.
    pub frozen: u64,
    /// Reserved by dirty data, and by operations without changes yet. Writeback turns these bytes
    /// into `overlay`.
    pub reservations: u64,
    /// The part of `overlay` and `reservations` for tree paths. The height of the existing trees
    /// limits this part, whatever the number of changes (C3).
    pub paths: u64,
    /// Dirty data in memory.
    pub dirty: u64,
    /// Data of ordered extents.
    pub ordered: u64,
    /// Whether a request waits for metadata.
    pub waiting: bool,
}

impl MetadataUse {
    /// Bytes that can be reserved before a request must wait.
    #[must_use]
    pub fn headroom(&self) -> u64 {
        let taken = self.used + self.reserved + self.read_only + self.pinned + self.global;
        let held = self.overlay + self.frozen + self.reservations;
        (self.total + self.to_come).saturating_sub(taken + held)
    }

    /// Bytes that are free or held for paths. A round increases them.
    #[must_use]
    pub fn room(&self) -> u64 {
        self.headroom() + self.paths
    }

    /// Bytes that grow with the changes, and that a round reduces (C3).
    #[must_use]
    pub fn filled(&self) -> u64 {
        (self.overlay + self.reservations).saturating_sub(self.paths)
    }

    /// The part of [`filled`](Self::filled) that a commit frees.
    #[must_use]
    pub fn to_commit(&self) -> u64 {
        self.overlay.saturating_sub(self.paths)
    }
}

/// The pool from which a round makes room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// Write `bytes` of dirty data back, without waiting for ordered extents.
    Dirty {
        /// The number of bytes of data.
        bytes: u64,
    },
    /// Commit.
    Commit,
}

const CLAMP_MIN: u32 = 1;
const CLAMP_MAX: u32 = 8;
/// A round must be able to free more than this, so volumes with little metadata have no rounds. In
/// a trial, the limit on such volumes was an eighth of the metadata. The rounds then caused commits
/// that cost more than they saved.
const CLAMP_WORTH: u64 = 128 << 20;

/// The rule of the kernel. The kernel reserves eight levels for each item, and a round frees these
/// levels. In this program the height of the existing trees limits the levels, and no round frees
/// them (C3). So the levels count as used.
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

    /// Notes that a request began to wait while no other request waited. Later rounds begin
    /// earlier, by one step, even if many requests begin to wait at once. If ordered extents have
    /// at least as many bytes as are dirty, nothing changes, because no round would speed up
    /// ordered extents.
    pub fn note_wait(&mut self, pools: &MetadataUse) {
        if pools.ordered < pools.dirty {
            self.clamp = (self.clamp + 1).min(CLAMP_MAX);
        }
    }

    /// Notes the end of a series of rounds. If one round was enough and no request waits, the next
    /// series begins later.
    pub fn note_end(&mut self, rounds: u32, pools: &MetadataUse) {
        if rounds == 1 && !pools.waiting {
            self.clamp = (self.clamp - 1).max(CLAMP_MIN);
        }
    }

    /// Whether a round is due.
    #[must_use]
    pub fn is_due(&self, pools: &MetadataUse) -> bool {
        let in_reach = in_reach(pools);
        if pools.waiting || is_full(pools) || in_reach <= CLAMP_WORTH {
            return false;
        }
        let held = if is_on_its_way(pools) { pools.to_commit() } else { pools.filled() };
        pools.pinned + held >= self.threshold(pools)
    }

    /// How many more bytes must be reserved before a round may be due. `None` if no amount of
    /// reservations makes a round due. The flush thread wakes up as soon as that many bytes are
    /// reserved. If reservations are large, a few hundred of them make a round due, so a periodic
    /// check would come too late.
    #[must_use]
    pub fn lacks(&self, pools: &MetadataUse) -> Option<u64> {
        let wanted = self.threshold(pools).max(CLAMP_WORTH + 1).saturating_sub(in_reach(pools));
        // Ordered extents may finish before `wanted` bytes are reserved, and a round may then be
        // due. So a smaller number of reserved bytes also causes a check.
        let least = if is_on_its_way(pools) { CLAMP_WORTH / 8 } else { 0 };
        (!is_full(pools)).then_some(wanted.max(least))
    }

    fn threshold(&self, pools: &MetadataUse) -> u64 {
        let room = pools.total.saturating_sub(fixed(pools) + pools.read_only);
        (pools.to_come + room) >> self.clamp
    }

    /// The next round: a commit, or writeback of a quarter of the dirty data. Writeback is chosen
    /// only if dirty data reserves more than the global reserve and a commit's bytes together. Data
    /// that is written back early becomes more fragmented.
    #[must_use]
    pub fn round(&self, pools: &MetadataUse) -> Round {
        let reservations = pools.filled() - pools.to_commit();
        if reservations > pools.global + pools.to_commit() {
            return Round::Dirty { bytes: (pools.dirty / 4).max(1) };
        }
        // Only a commit writes the overlay and the references, and frees pinned space.
        Round::Commit
    }
}

/// Bytes that no round gives back.
fn fixed(pools: &MetadataUse) -> u64 {
    pools.used + pools.reserved + pools.global + pools.paths
}

fn is_full(pools: &MetadataUse) -> bool {
    fixed(pools) >= pools.total / 10 * 9
}

/// Bytes that rounds may free. A commit under way frees its bytes without a round.
fn in_reach(pools: &MetadataUse) -> u64 {
    pools.filled() + pools.pinned
}

/// Whether ordered extents have at least twice as many bytes as are dirty. Ordered extents free
/// their reservations without a round.
fn is_on_its_way(pools: &MetadataUse) -> bool {
    pools.ordered / 2 >= pools.dirty
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn loaded() -> MetadataUse {
        MetadataUse {
            total: GIB,
            used: 300 * MIB,
            global: 64 * MIB,
            overlay: 100 * MIB,
            reservations: 500 * MIB,
            dirty: 64 * MIB,
            ..MetadataUse::default()
        }
    }

    /// E1, C2: an idle volume has no rounds, however full it is.
    #[test]
    fn idle_volume_is_left_alone() {
        for percent in [10, 80, 90, 94, 98, 100] {
            let used = GIB / 100 * percent;
            let pools =
                MetadataUse { total: GIB, used, global: 64 * MIB, ..MetadataUse::default() };
            assert!(!Clamp { clamp: CLAMP_MAX }.is_due(&pools), "{percent}%");
        }
    }

    /// E2: a wait raises the clamp by one step, up to eight. A series of one round lowers the clamp
    /// by one step, down to one.
    #[test]
    fn clamp_goes_step_by_step() {
        let mut clamp = Clamp::default();
        for step in 1..20 {
            clamp.note_wait(&loaded());
            assert_eq!(clamp.bits(), (1 + step).min(8));
        }
        let ordered = MetadataUse { ordered: 2 * GIB, ..loaded() };
        clamp.note_end(1, &loaded());
        assert_eq!(clamp.bits(), 7);
        clamp.note_wait(&ordered);
        assert_eq!(clamp.bits(), 7, "data on its way is no reason");
        for _ in 0..20 {
            clamp.note_end(1, &loaded());
        }
        assert_eq!(clamp.bits(), 1);
    }

    /// E3: the rule computes without overflow for every size of volume.
    #[test]
    fn thresholds_hold_at_every_size() {
        // From 8 MiB to a pebibyte.
        for shift in 0..28 {
            let total = (8 * MIB) << shift;
            for used in [0, total / 3, total, total + MIB] {
                let pools = MetadataUse {
                    total,
                    used,
                    global: total / 4,
                    pinned: total / 2,
                    overlay: total,
                    reservations: total,
                    dirty: MIB,
                    ..MetadataUse::default()
                };
                for bits in CLAMP_MIN..=CLAMP_MAX {
                    let clamp = Clamp { clamp: bits };
                    let _ = (clamp.is_due(&pools), clamp.round(&pools));
                }
                assert!(pools.headroom() <= total);
            }
        }
    }

    /// The rule of the kernel: a round is due at the threshold and not below. The round writes back
    /// a quarter of the dirty data if dirty data reserves the most.
    #[test]
    fn clamp_is_the_rule_to_the_letter() {
        let clamp = Clamp::default();
        let pools = loaded();
        // The room is 660 MiB. Half of it is less than the 600 MiB that are held.
        assert!(clamp.is_due(&pools));
        assert_eq!(
            clamp.round(&pools),
            Round::Dirty { bytes: 16 * MIB },
            "500 is more than 64 and 100"
        );
        let less = MetadataUse { reservations: 229 * MIB, ..pools };
        assert!(!clamp.is_due(&less), "329 is less than 330");
        assert!(clamp.is_due(&MetadataUse { reservations: 230 * MIB, ..pools }));
        assert!(!clamp.is_due(&MetadataUse { waiting: true, ..pools }));
        let full = MetadataUse { used: 900 * MIB, ..pools };
        assert!(!clamp.is_due(&full), "nine tenths are taken for good");
        let overlay = MetadataUse { overlay: 500 * MIB, reservations: 100 * MIB, ..pools };
        assert_eq!(clamp.round(&overlay), Round::Commit);
        for more in [0, 1, MIB] {
            let pools = MetadataUse { reservations: 200 * MIB + more, ..pools };
            let lacks = clamp.lacks(&pools).expect("reservations alone make it due");
            let almost = MetadataUse { reservations: pools.reservations + lacks - 1, ..pools };
            assert!(!clamp.is_due(&almost), "said to be {lacks} too early");
            assert!(
                clamp.is_due(&MetadataUse { reservations: pools.reservations + lacks, ..pools })
            );
        }
        assert_eq!(clamp.lacks(&full), None);
    }

    /// E16: reservations of ordered extents begin no round, however low the threshold is. A round
    /// is due as soon as the dirty data is more than half of the data in ordered extents.
    #[test]
    fn data_under_writeback_begins_no_round() {
        let pools = MetadataUse { overlay: 0, ..loaded() };
        let ordered = MetadataUse { ordered: 2 * pools.dirty, ..pools };
        for bits in CLAMP_MIN..=CLAMP_MAX {
            assert!(!Clamp { clamp: bits }.is_due(&ordered), "{bits}");
        }
        let clamp = Clamp::default();
        assert_eq!(clamp.lacks(&ordered), Some(16 * MIB), "soon enough to look again");
        assert!(clamp.is_due(&MetadataUse { ordered: 2 * pools.dirty - 2, ..pools }));
    }

    /// C3: no round gives paths back, so with paths alone no round is due, however low the
    /// threshold is.
    #[test]
    fn paths_are_no_reason_for_a_round() {
        let paths = 400 * MIB;
        let pools =
            MetadataUse { overlay: paths + MIB, paths, reservations: 0, dirty: 0, ..loaded() };
        assert!(!Clamp { clamp: CLAMP_MAX }.is_due(&pools));
        let filled = MetadataUse { overlay: paths + 200 * MIB, ..pools };
        assert!(Clamp::default().is_due(&filled));
        assert_eq!(Clamp::default().round(&filled), Round::Commit);
    }
}
