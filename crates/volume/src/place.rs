//! Where a new chunk goes: its devices, the holes on them, and its length.
//!
//! # Invariants
//!
//! - **P1** A place lies within one hole. It begins and ends at whole mebibytes. No two places
//!   share a byte.
//! - **P2** The copies of one byte are on different devices, except with DUP.
//!
//! The order of devices is that of Linux: the longest holes first, then the most free space. So
//! devices of different sizes fill evenly.

use buttress_base::RangeSet;
use buttress_format::{BlockGroupFlags, DeviceId, Profile, Spread};

const MIB: u64 = 1 << 20;

/// One writable device, and its space that no chunk takes.
#[derive(Clone, Copy, Debug)]
pub struct Room<'a> {
    /// The number of the device.
    pub device: DeviceId,
    /// The free ranges, in bytes of the device.
    pub free: &'a RangeSet,
}

/// A place for every stripe of a chunk, in the order of its stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// Device and first byte of each stripe.
    pub stripes: Vec<(DeviceId, u64)>,
    /// Bytes of each stripe.
    pub stripe_bytes: u64,
    /// Bytes of the chunk: one copy, without parity.
    pub len: u64,
}

/// The largest size of a new chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a stripe.
    pub stripe: u64,
    /// Bytes of the chunk.
    pub chunk: u64,
}

impl Limits {
    /// The limits that Linux sets on a volume with devices of `total` bytes together: a tenth of
    /// `total`, within bounds for each kind of chunk.
    #[must_use]
    pub fn of(flags: BlockGroupFlags, total: u64) -> Self {
        const GIB: u64 = 1 << 30;
        let (stripe, chunk) = if flags.has(BlockGroupFlags::DATA) {
            (GIB, 10 * GIB)
        } else if flags.has(BlockGroupFlags::METADATA) {
            let most = if total > 50 * GIB { GIB } else { 256 * MIB };
            (most, most)
        } else {
            (32 * MIB, 32 * MIB)
        };
        Self { stripe, chunk: chunk.min(total / 10).max(MIB) }
    }
}

/// The number of stripes of a row that hold different bytes, on `devices` devices.
fn columns(spread: &Spread, devices: usize) -> u64 {
    ((devices * spread.per_device - spread.parity) / spread.copies) as u64
}

/// The number of devices that a chunk takes when `there` devices have room.
fn devices_of(spread: &Spread, there: usize) -> Option<usize> {
    let count = spread.most.map_or(there, |most| there.min(most));
    let count = count / spread.step * spread.step;
    (count >= spread.least).then_some(count)
}

/// Finds a place for a new chunk. The chunk is as long as `limits` and the holes allow. `None` when
/// fewer devices have a hole than the profile needs.
#[must_use]
pub fn place(profile: Profile, rooms: &[Room<'_>], limits: Limits) -> Option<Places> {
    let spread = profile.spread();
    let mut fit: Vec<(u64, Room<'_>)> = rooms
        .iter()
        .map(|room| (longest(room.free, spread.per_device), *room))
        .filter(|(longest, _)| *longest >= MIB)
        .collect();
    fit.sort_by_key(|(longest, room)| {
        (std::cmp::Reverse((*longest, room.free.total())), room.device)
    });
    let count = devices_of(&spread, fit.len())?;
    fit.truncate(count);
    let columns = columns(&spread, count);
    let most = fit.last()?.0.min(limits.stripe.max(MIB));
    let share = limits.chunk.div_ceil(columns).next_multiple_of(MIB);
    let stripe_bytes = most.min(share) / MIB * MIB;
    let mut stripes = Vec::with_capacity(count * spread.per_device);
    for (_, room) in &fit {
        let starts = starts(room.free, spread.per_device, stripe_bytes);
        assert!(starts.len() == spread.per_device, "P1: the holes were measured");
        stripes.extend(starts.into_iter().map(|start| (room.device, start)));
    }
    Some(Places { stripes, stripe_bytes, len: stripe_bytes * columns })
}

/// Estimates the bytes that new chunks of a profile could have in total, if they were made one
/// after the other.
#[must_use]
pub fn capacity(profile: Profile, free: impl Iterator<Item = u64>) -> u64 {
    let spread = profile.spread();
    let mut free: Vec<u64> = free.map(|bytes| bytes / MIB * MIB).collect();
    // The steps are small, so that devices of different sizes are filled evenly, as the allocator
    // fills them.
    let step = (free.iter().sum::<u64>() / 256).max(16 * MIB) / MIB * MIB;
    let mut total = 0_u64;
    loop {
        free.retain(|bytes| *bytes >= MIB * spread.per_device as u64);
        free.sort_unstable_by(|a, b| b.cmp(a));
        let Some(count) = devices_of(&spread, free.len()) else { return total };
        let least = free[count - 1] / spread.per_device as u64;
        let alone = free.len() == count && spread.most.is_some();
        let stripe = if alone { least } else { least.min(step) };
        for bytes in &mut free[..count] {
            *bytes -= stripe * spread.per_device as u64;
        }
        total = total.saturating_add(stripe * columns(&spread, count));
        if stripe == 0 {
            return total;
        }
    }
}

/// The greatest length that each of `count` stripes on a device can have.
fn longest(free: &RangeSet, count: usize) -> u64 {
    let mut holes: Vec<u64> = free.iter().map(aligned).map(|(start, end)| end - start).collect();
    holes.sort_unstable_by(|a, b| b.cmp(a));
    let first = holes.first().copied().unwrap_or(0);
    match count {
        0 | 1 => first,
        _ => (first / 2 / MIB * MIB).max(holes.get(1).copied().unwrap_or(0)),
    }
}

/// The lowest places for stripes of `len` bytes.
fn starts(free: &RangeSet, count: usize, len: u64) -> Vec<u64> {
    let mut found = Vec::with_capacity(count);
    for (mut at, end) in free.iter().map(aligned) {
        while found.len() < count && end - at >= len {
            found.push(at);
            at += len;
        }
    }
    found
}

/// The part of a hole that is whole mebibytes.
fn aligned(hole: std::ops::Range<u64>) -> (u64, u64) {
    let start = hole.start.checked_next_multiple_of(MIB).unwrap_or(hole.end);
    (start, (hole.end / MIB * MIB).max(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holes(list: &[(u64, u64)]) -> RangeSet {
        let mut set = RangeSet::new();
        for (start, end) in list {
            set.insert(start * MIB..end * MIB);
        }
        set
    }

    fn rooms(sets: &[RangeSet]) -> Vec<Room<'_>> {
        let ids = (1..).map(DeviceId);
        sets.iter().zip(ids).map(|(free, device)| Room { device, free }).collect()
    }

    const ANY: Limits = Limits { stripe: u64::MAX, chunk: u64::MAX - MIB };

    /// Mirrors go to the devices with the longest holes, and are as long as the shorter of the two
    /// holes.
    #[test]
    fn mirrors_take_the_longest_holes() {
        let sets = [holes(&[(1, 10)]), holes(&[(1, 100)]), holes(&[(1, 50), (60, 90)])];
        let found = place(Profile::Raid1, &rooms(&sets), ANY).expect("room");
        assert_eq!(found.stripes, [(DeviceId(2), MIB), (DeviceId(3), MIB)]);
        assert_eq!((found.stripe_bytes, found.len), (49 * MIB, 49 * MIB));
        assert!(place(Profile::Raid1c4, &rooms(&sets), ANY).is_none());
    }

    /// Stripes go over all devices, in pairs for RAID10.
    #[test]
    fn stripes_take_all_devices() {
        let sets = [holes(&[(1, 9)]), holes(&[(1, 9)]), holes(&[(1, 9)])];
        let raid0 = place(Profile::Raid0, &rooms(&sets), ANY).expect("room");
        assert_eq!((raid0.stripes.len(), raid0.len), (3, 24 * MIB));
        let raid10 = place(Profile::Raid10, &rooms(&sets), ANY).expect("room");
        assert_eq!((raid10.stripes.len(), raid10.len), (2, 8 * MIB));
        let limits = Limits { stripe: 4 * MIB, chunk: 6 * MIB };
        let raid0 = place(Profile::Raid0, &rooms(&sets), limits).expect("room");
        assert_eq!((raid0.stripe_bytes, raid0.len), (2 * MIB, 6 * MIB));
    }

    /// Two copies on one device fit in two holes or in one.
    #[test]
    fn dup_uses_two_holes() {
        let sets = [holes(&[(1, 9), (20, 26)])];
        let found = place(Profile::Dup, &rooms(&sets), ANY).expect("room");
        assert_eq!(found.stripe_bytes, 6 * MIB);
        assert_eq!(found.stripes, [(DeviceId(1), MIB), (DeviceId(1), 20 * MIB)]);
        let limits = Limits { stripe: 4 * MIB, chunk: 4 * MIB };
        let found = place(Profile::Dup, &rooms(&sets), limits).expect("room");
        assert_eq!(found.stripes, [(DeviceId(1), MIB), (DeviceId(1), 5 * MIB)]);
    }

    /// The estimate counts every copy, over devices of different sizes.
    #[test]
    fn capacity_counts_copies() {
        const GIB: u64 = 1 << 30;
        let of = |profile, sizes: &[u64]| capacity(profile, sizes.iter().copied());
        assert_eq!(of(Profile::Single, &[GIB]), GIB);
        assert_eq!(of(Profile::Dup, &[GIB]), GIB / 2);
        assert_eq!(of(Profile::Raid1, &[GIB, 2 * GIB]), GIB);
        let three = of(Profile::Raid1, &[GIB, GIB, GIB]);
        assert!(three > GIB + GIB / 3 && three <= GIB + GIB / 2, "{three}");
        assert_eq!(of(Profile::Raid1, &[GIB]), 0);
        assert_eq!(of(Profile::Raid5, &[GIB, GIB, GIB]), 2 * GIB);
    }

    /// The bytes that chunks take, one after the other, until there is no place for another.
    fn take_all(profile: Profile, sets: &[RangeSet], limits: Limits) -> u64 {
        let mut sets = sets.to_vec();
        let (mut taken, mut chunks) = (0, 0);
        while let Some(found) = place(profile, &rooms(&sets), limits) {
            for (device, start) in &found.stripes {
                sets[device.0 as usize - 1].remove(*start..start + found.stripe_bytes);
            }
            taken += found.len;
            chunks += 1;
            assert!(chunks < 10_000, "{profile:?}");
        }
        taken
    }

    /// E13: on devices of any sizes, the estimate equals the bytes that chunks then take. Dividing
    /// the free space by the copies alone would give 25 GiB of mirrors on devices of 1 and 50 GiB.
    /// Where each device has several holes, mirrors take up to a fifth less, since the longest
    /// holes are taken first. Where holes are shorter than a stripe, the estimate is at most the
    /// taken bytes times the copies.
    #[test]
    fn capacity_is_the_space_of_chunks() {
        use Profile::{Dup, Raid0, Raid1, Raid1c3, Raid1c4, Raid5, Raid6, Raid10, Single};
        const GIB: u64 = 1 << 30;
        const STRIPE_MIB: u64 = 64;
        assert_eq!(capacity(Raid1, [GIB, 50 * GIB].into_iter()), GIB);
        let mut rng = buttress_base::Rng::new(13);
        for round in 0..120 {
            let devices = 1 + rng.below(6);
            let is_short = round % 3 == 2;
            // The most holes of a device, and the most bytes of each.
            let (count, len) = match round % 3 {
                0 => (1, 1..8 << 10),
                1 => (6, STRIPE_MIB..2 << 10),
                _ => (60, 1..STRIPE_MIB),
            };
            let mut set = || {
                let (mut list, mut at) = (Vec::new(), 1);
                let whole = is_short && rng.chance(1, 2);
                for _ in 0..if whole { 1 } else { 1 + rng.below(count) } {
                    let len = if whole { rng.range(1..2 << 10) } else { rng.range(len.clone()) };
                    list.push((at, at + len));
                    at += len + rng.range(1..100);
                }
                holes(&list)
            };
            let sets: Vec<_> = (0..devices).map(|_| set()).collect();
            for profile in [Single, Dup, Raid0, Raid1, Raid1c3, Raid1c4, Raid10, Raid5, Raid6] {
                let said = capacity(profile, sets.iter().map(RangeSet::total));
                let limits = Limits { stripe: STRIPE_MIB * MIB, chunk: STRIPE_MIB * MIB };
                let taken = take_all(profile, &sets, limits);
                let copies = profile.spread().copies as u64;
                let is_right = match profile {
                    Single | Raid0 | Raid5 | Raid6 => said == taken,
                    // Up to half a mebibyte of each device is too short for a chunk.
                    Dup => said.abs_diff(taken) <= devices * MIB,
                    _ if is_short => said <= copies * (taken + devices * MIB),
                    // With several holes per device, chunks take the longest holes first, even on a
                    // device with little free space.
                    _ if round % 3 == 1 => said.abs_diff(taken) <= taken / 5 + 64 * MIB,
                    _ => said.abs_diff(taken) <= taken / 50 + 64 * MIB,
                };
                assert!(
                    is_right,
                    "round {round}, {profile:?}: said {said}, taken {taken} of {sets:?}"
                );
            }
        }
    }

    /// A2: chunk sizes by the size of the volume, in MiB as (stripe, chunk). The cases are data on
    /// one device, metadata as DUP on one device, data striped over four devices, and system chunks
    /// striped over four devices.
    #[test]
    fn chunks_have_the_expected_sizes() {
        type Sizes = [(u64, u64); 4];
        let golden: [(u64, Sizes); 8] = [
            (4, [(1, 1), (1, 1), (1, 4), (1, 4)]),
            (256, [(26, 26), (26, 26), (7, 28), (7, 28)]),
            (2 << 10, [(205, 205), (205, 205), (52, 208), (8, 32)]),
            (8 << 10, [(820, 820), (256, 256), (205, 820), (8, 32)]),
            (20 << 10, [(1024, 1024), (256, 256), (512, 2048), (8, 32)]),
            (50 << 10, [(1024, 1024), (256, 256), (1024, 4096), (8, 32)]),
            (60 << 10, [(1024, 1024), (1024, 1024), (1024, 4096), (8, 32)]),
            (4 << 20, [(1024, 1024), (1024, 1024), (1024, 4096), (8, 32)]),
        ];
        let kinds = [
            (BlockGroupFlags::DATA, Profile::Single, 1),
            (BlockGroupFlags::METADATA, Profile::Dup, 1),
            (BlockGroupFlags::DATA, Profile::Raid0, 4),
            (BlockGroupFlags::SYSTEM, Profile::Raid0, 4),
        ];
        for (mib, expected) in golden {
            let found = kinds.map(|(kind, profile, devices)| {
                let sets = vec![holes(&[(1, 1 + mib)]); devices];
                let found = place(profile, &rooms(&sets), Limits::of(kind, mib * MIB));
                let found = found.expect("room");
                (found.stripe_bytes / MIB, found.len / MIB)
            });
            assert_eq!(found, expected, "{mib} MiB");
        }
    }

    /// A6: a stripe lies within one hole, however the holes are placed. Its length is the greatest
    /// that a search over every length finds.
    #[test]
    fn no_stripe_crosses_holes() {
        let fits = |set: &RangeSet, count: u64, len: u64| {
            set.iter().map(aligned).map(|(start, end)| (end - start) / len).sum::<u64>() >= count
        };
        let mut rng = buttress_base::Rng::new(6);
        for round in 0..300 {
            let mut sets: Vec<RangeSet> = Vec::new();
            for _ in 0..rng.range(1..5) {
                let (mut set, mut at) = (RangeSet::new(), rng.below(2 * MIB));
                for _ in 0..rng.range(1..6) {
                    // The gap between two holes is a few bytes, or is long, as if other stripes lay
                    // in it.
                    at += if rng.chance(1, 2) { 1 + rng.below(3) } else { rng.below(3 * MIB) + 1 };
                    let len = 1 + rng.below(24 * MIB);
                    set.insert(at..at + len);
                    at += len;
                }
                sets.push(set);
            }
            for profile in [Profile::Single, Profile::Dup, Profile::Raid1] {
                let mut sets = sets.clone();
                let per = profile.spread().per_device as u64;
                loop {
                    let lengths = sets.iter().map(|set| {
                        (1..=64).rev().find(|len| fits(set, per, len * MIB)).unwrap_or(0)
                    });
                    let mut lengths: Vec<_> = lengths.collect();
                    lengths.sort_unstable_by(|a, b| b.cmp(a));
                    let wanted = profile.spread().least;
                    let expected = lengths.get(wanted - 1).copied().unwrap_or(0);
                    let Some(found) = place(profile, &rooms(&sets), ANY) else {
                        assert_eq!(expected, 0, "round {round}, {profile:?}");
                        break;
                    };
                    assert_eq!(found.stripe_bytes, expected * MIB, "round {round}, {profile:?}");
                    for (device, start) in &found.stripes {
                        let set = &mut sets[device.0 as usize - 1];
                        let range = *start..start + found.stripe_bytes;
                        assert!(
                            set.iter()
                                .any(|hole| { hole.start <= range.start && range.end <= hole.end })
                        );
                        set.remove(range);
                    }
                }
            }
        }
    }
}
