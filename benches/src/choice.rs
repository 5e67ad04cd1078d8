//! The cost of an allocation, a lookup, and a change of the directory of block groups in `space`.
//! The number of groups goes from ten to very many, and every policy is measured. The groups are
//! 90% full and fragmented.
//!
//! The experiment runs in memory, on the crate `space` alone; [`crate::scale`] has real volumes.
//! Groups are of 1 GiB, and their free tenth lies in runs of 4 to 256 KiB.

use std::{fmt::Write as _, sync::Arc, time::Instant};

use buttress_base::Rng;
use buttress_format::{BlockGroupFlags, Extent, Generation, Logical};
use buttress_space::{AllocOutcome, AllocPolicy, AllocRequest, GroupInit, Space, SpaceKind};

const GIB: u64 = 1 << 30;
const SECTOR: u64 = 4096;

/// The number of groups with loaded free space. All other groups are as after a mount.
const LOADED: usize = 64;

const ROUNDS: usize = 20_000;

/// One row: a number of groups, and times in nanoseconds.
struct Row {
    groups: usize,
    policy: AllocPolicy,
    add: f64,
    small: f64,
    large: f64,
    hopeless: f64,
    lookup: f64,
    begin: f64,
    grow: f64,
    bytes: f64,
    /// Memory for the loaded free space of one group.
    known: f64,
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0) * 4096
}

fn group(index: usize, used: u64) -> GroupInit {
    GroupInit {
        range: Extent { start: Logical((1 + index as u64) * GIB), len: GIB },
        flags: BlockGroupFlags::DATA,
        used,
        birth: Generation(0),
        read_only: false,
        superblock_stripes: Vec::new(),
        row: None,
    }
}

/// A tenth of a group in runs of 4 to 256 KiB, most of them short.
fn pieces(rng: &mut Rng, start: u64) -> Vec<Extent> {
    let mut found = Vec::new();
    let (mut at, mut left) = (start, GIB / 10 / SECTOR * SECTOR);
    while left > 0 {
        let len = (SECTOR << rng.below(7).min(rng.below(7))).min(left);
        at += SECTOR * rng.range(1..16);
        found.push(Extent { start: Logical(at), len });
        at += len;
        left -= len;
    }
    found
}

fn time(rounds: usize, mut act: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..rounds).for_each(|_| act());
    start.elapsed().as_nanos() as f64 / rounds as f64
}

fn measure(groups: usize, policy: AllocPolicy) -> Row {
    let before = resident();
    let mut rng = Rng::new(groups as u64);
    let space = Arc::new(Space::new(4096, 16384).choosing(policy).for_processors(8));
    let used = GIB - GIB / 10 / SECTOR * SECTOR;
    let start = Instant::now();
    space.add_groups((0..groups).map(|index| group(index, used)).collect()).expect("sound");
    let add = start.elapsed().as_nanos() as f64 / groups as f64;
    let bytes = (resident().saturating_sub(before)) as f64 / groups as f64;
    let loaded = groups.min(LOADED);
    for index in (0..loaded).map(|i| i * (groups / loaded)) {
        let at = Logical((1 + index as u64) * GIB);
        let target = space.group_at(at).expect("added");
        target.load(pieces(&mut rng, at.0).into_iter()).expect("a tenth");
    }
    let known: usize = space.groups().iter().map(|group| group.memory()).sum();
    let known = known as f64 / loaded as f64;
    let request = |want: u64, min: u64, stream: u64| AllocRequest {
        kind: SpaceKind::Data,
        want,
        min,
        align: SECTOR,
        goal: None,
        limit: Generation(u64::MAX),
        stream,
        hurry: true,
    };
    let mut held = Vec::new();
    let mut take = |want: u64, min: u64| {
        let mut stream = 0;
        let nanos = time(ROUNDS, || {
            stream += 1;
            match space.allocate(request(want, min, stream)) {
                AllocOutcome::Got(extent) => held.push(extent),
                AllocOutcome::NeedsLoading(_) | AllocOutcome::Full { .. } => {}
            }
            if held.len() >= 512 {
                held.drain(..).for_each(|extent| space.free(extent));
            }
        });
        held.drain(..).for_each(|extent| space.free(extent));
        nanos
    };
    // Each figure is the time of an allocation plus the time of its freeing, which is about as
    // long.
    let (small, large) = (take(SECTOR, SECTOR), take(64 << 10, 64 << 10));
    // A request for more bytes in one piece than any group has: the search gives up and takes the
    // longest run.
    let hopeless = take(64 << 20, SECTOR);
    let addresses: Vec<_> =
        (0..4096).map(|_| Logical(GIB + rng.below(groups as u64 * GIB))).collect();
    let mut turn = 0;
    let mut next = || {
        turn = (turn + 1) % addresses.len();
        addresses[turn]
    };
    let mut found = 0_u64;
    let lookup = time(ROUNDS * 10, || {
        found += u64::from(space.group_at(next()).is_some());
    });
    let begin = time(ROUNDS * 10, || {
        let start = Logical(next().0 & !(SECTOR - 1));
        found += u64::from(space.begin_nocow(Extent { start, len: SECTOR }).is_some());
    });
    assert!(found > 0, "addresses of groups are found");
    let mut index = groups;
    let grow = time(20, || {
        space.add_group(group(index, 0)).expect("behind the others");
        index += 1;
    });
    Row { groups, policy, add, small, large, hopeless, lookup, begin, grow, bytes, known }
}

/// Measures, and returns a table.
#[must_use]
pub(crate) fn table(most: usize) -> String {
    let mut out = String::from(
        "  groups policy             mount/group  4 KiB  64 KiB  in vain  lookup  guard  one more  bytes/group  in pieces\n",
    );
    for groups in [10, 1000, 10_000, 100_000, 1_000_000].into_iter().filter(|n| *n <= most) {
        for policy in AllocPolicy::ALL {
            let row = measure(groups, policy);
            // Writing into a string cannot fail.
            let _ = writeln!(
                out,
                "{:>8} {:<18} {:>8.0} ns {:>6.0} {:>7.0} {:>8.0} {:>7.0} {:>6.0} {:>6.1} us {:>12.0} {:>10.0}",
                row.groups,
                row.policy.to_string(),
                row.add,
                row.small,
                row.large,
                row.hopeless,
                row.lookup,
                row.begin,
                row.grow / 1000.0,
                row.bytes,
                row.known,
            );
        }
    }
    out
}
