//! Places the first chunks of a volume around content that stays on the device.
//!
//! # Invariants
//!
//! - **R1** No chunk of the trees touches a kept range. Data chunks cover each kept range behind
//!   the first mebibyte. The logical address of such a chunk equals its offset on the device.

use std::ops::Range;

use buttress_base::RangeSet;
use buttress_format::limits::{DEVICE_RESERVED, STRIPE_LEN};
use buttress_format::{BlockGroupFlags, DeviceId, Logical, Profile, Stripe};

use super::error::MakeError;
use super::layout::{Layout, Placed, chunk};
use super::options::MakeOptions;

const MIB: u64 = 1 << 20;

/// A shorter free range becomes a part of the data chunk around it. It would be of little use for
/// other chunks, and each chunk costs items.
const GAP_MIN: u64 = MIB;

/// The most ranges of data chunks. If the ranges would exceed this number, longer free ranges
/// become parts of the data chunks around them as well. A range longer than [`DATA_MAX`] takes
/// several chunks in any case.
const RANGES_MAX: usize = 8000;

/// A number of data chunks for which a system chunk of [`SYSTEM_LEN`] certainly has room.
const CHUNKS_IN_SYSTEM: u64 = 8000;

/// The length of a system chunk for a usual number of data chunks.
const SYSTEM_LEN: u64 = 4 * MIB;
/// The longest system chunk. Linux makes no longer system chunk.
const SYSTEM_MAX: u64 = 32 * MIB;
/// Bytes of a chunk's item, with its header. The system chunk needs twice these bytes, because a
/// commit may write all nodes with such items anew.
const ITEM_BYTES: u64 = 105;

/// An upper estimate of the bytes of trees that a chunk needs at first.
const CHUNK_BYTES: u64 = 512;

/// The longest data chunk. Linux makes no longer data chunk.
const DATA_MAX: u64 = 1 << 30;

/// The first chunk of trees takes a twentieth of the volume, within these limits. In a shorter gap,
/// it takes the rest of the gap. Further chunks are allocated when they are needed.
const METADATA_MIN: u64 = 8 * MIB;
const METADATA_MAX: u64 = 256 * MIB;

/// Places chunks around [`MakeOptions::kept`].
pub(super) fn plan(
    sizes: &[u64],
    uuids: &[[u8; 16]],
    options: &MakeOptions,
) -> Result<Layout, MakeError> {
    let (&[size], &[uuid]) = (sizes, uuids) else { return Err(MakeError::KeptOptions) };
    let is_single = |profile: Option<Profile>| profile.is_none_or(|one| one == Profile::Single);
    if options.mixed || !is_single(options.metadata) || !is_single(options.data) {
        return Err(MakeError::KeptOptions);
    }
    let mut gap_min = GAP_MIN;
    let (mut covered, mut gaps) = divide(&options.kept, size, gap_min);
    while covered.len() > RANGES_MAX && !gaps.is_empty() {
        gap_min *= 2;
        (covered, gaps) = divide(&options.kept, size, gap_min);
    }
    let chunks = covered.iter().map(|range| (range.end - range.start).div_ceil(DATA_MAX)).sum();
    let largest = gaps.iter().max_by_key(|gap| gap.end - gap.start).cloned();
    let room = largest.as_ref().map_or(0, |gap| gap.end - gap.start);
    let Some(system_len) = system_len(room, chunks) else {
        return Err(MakeError::NoGap { needed: chunks * CHUNK_BYTES });
    };
    let needed = system_len + MIB + chunks * CHUNK_BYTES;
    let Some(gap) = largest.filter(|_| room >= needed) else {
        return Err(MakeError::NoGap { needed });
    };
    let place = |kind: BlockGroupFlags, range: Range<u64>| {
        let stripe = Stripe { device: DeviceId(1), offset: range.start, dev_uuid: uuid };
        let mut chunk =
            chunk(kind, Profile::Single, range.end - range.start, vec![stripe], options.sectorsize);
        chunk.logical = Logical(range.start);
        Placed { stripe_bytes: chunk.len, chunk }
    };
    let trees = gap.start + system_len;
    let system = place(BlockGroupFlags::SYSTEM, gap.start..trees);
    let len = size / 20 / MIB * MIB;
    let end = gap.end.min(trees + len.clamp(METADATA_MIN, METADATA_MAX));
    let metadata = place(BlockGroupFlags::METADATA, trees..end);
    let mut data = Vec::new();
    for range in covered {
        let starts = range.clone().step_by(DATA_MAX as usize);
        let parts = starts.map(|start| start..range.end.min(start + DATA_MAX));
        data.extend(parts.map(|part| place(BlockGroupFlags::DATA, part)));
    }
    Ok(Layout { sizes: sizes.to_vec(), sectorsize: options.sectorsize, system, metadata, data })
}

/// The length of the system chunk in a gap of `room` bytes, for `chunks` data chunks. `None` if no
/// system chunk has room for their items.
fn system_len(room: u64, chunks: u64) -> Option<u64> {
    let least = if room >= 4 * SYSTEM_LEN { SYSTEM_LEN } else { MIB };
    let len = least.max(chunks.div_ceil(CHUNKS_IN_SYSTEM / (SYSTEM_LEN / MIB)) * MIB);
    let is_enough = len <= SYSTEM_MAX || chunks.saturating_mul(2 * ITEM_BYTES) <= SYSTEM_MAX;
    is_enough.then_some(len.min(SYSTEM_MAX))
}

/// Divides the device behind its first mebibyte into ranges for data chunks, and the gaps between
/// these ranges. The ranges cover all kept content. Ranges and gaps consist of whole stripes,
/// except at the end of the device.
fn divide(kept: &[Range<u64>], size: u64, gap_min: u64) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let mut covered = RangeSet::new();
    for range in kept {
        let start = (range.start / STRIPE_LEN * STRIPE_LEN).max(DEVICE_RESERVED);
        let end = range.end.next_multiple_of(STRIPE_LEN).min(size);
        if start < end {
            covered.insert(start..end);
        }
    }
    let mut at = DEVICE_RESERVED;
    let mut gaps = Vec::new();
    let ends = covered.iter().chain(std::iter::once(size..size)).collect::<Vec<_>>();
    for range in ends {
        let gap = at..range.start / STRIPE_LEN * STRIPE_LEN;
        if gap.end.saturating_sub(gap.start) >= gap_min {
            gaps.push(gap);
        } else if at < range.start && at > DEVICE_RESERVED && range.start < size {
            covered.insert(at..range.start);
        }
        at = range.end;
    }
    (covered.iter().collect(), gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_gaps_join_the_data_around_them() {
        let kept = [0..3 * MIB, 3 * MIB + 4096..4 * MIB, 40 * MIB..41 * MIB + 4096];
        let (covered, gaps) = divide(&kept, 64 * MIB, GAP_MIN);
        assert_eq!(covered, [MIB..4 * MIB, 40 * MIB..41 * MIB + STRIPE_LEN]);
        assert_eq!(gaps, [4 * MIB..40 * MIB, 41 * MIB + STRIPE_LEN..64 * MIB]);
    }

    #[test]
    fn the_end_of_the_device_may_be_a_part_of_a_stripe() {
        let size = 8 * MIB + 4096;
        let kept = 8 * MIB..size;
        let (covered, gaps) = divide(std::slice::from_ref(&kept), size, GAP_MIN);
        assert_eq!((covered.first(), gaps.first()), (Some(&kept), Some(&(MIB..8 * MIB))));
        assert_eq!((covered.len(), gaps.len()), (1, 1));
    }
    #[test]
    fn a_large_device_has_room_for_all_its_chunks() {
        const TIB: u64 = 1 << 40;
        for (size, kept) in [(10 * TIB, 9 * TIB), (200 * TIB, MIB * 2), (200 * TIB, 150 * TIB)] {
            let kept = 0..kept;
            let options = MakeOptions { kept: vec![kept.clone()], ..MakeOptions::default() };
            let layout = plan(&[size], &[[1; 16]], &options).expect("a gap");
            let chunks = layout.data.len() as u64;
            assert_eq!(chunks, (kept.end - DEVICE_RESERVED).div_ceil(DATA_MAX));
            let system = layout.system.stripe_bytes;
            assert!(system >= SYSTEM_LEN && system >= chunks * 2 * ITEM_BYTES, "{system}");
            assert!(system <= SYSTEM_MAX);
        }
    }

    /// A short gap has room for the items of all chunks, or the device is refused.
    #[test]
    fn a_large_device_with_a_short_gap_is_refused_or_fits() {
        const TIB: u64 = 1 << 40;
        for (tib, gap) in [(11, 7), (11, 12), (11, 15), (400, 15), (400, 4000)] {
            let kept = 0..tib * TIB - gap * MIB;
            let options = MakeOptions { kept: vec![kept], ..MakeOptions::default() };
            match plan(&[tib * TIB], &[[1; 16]], &options) {
                Ok(layout) => {
                    let chunks = layout.data.len() as u64;
                    assert!(layout.system.stripe_bytes >= chunks * 2 * ITEM_BYTES, "{tib} {gap}");
                }
                Err(error) => assert!(matches!(error, MakeError::NoGap { .. }), "{error}"),
            }
        }
    }

    /// If the kept content has very many pieces, their ranges are joined until the chunks are few
    /// enough.
    #[test]
    fn many_pieces_join() {
        let kept: Vec<_> = (1..20_000).map(|at| at * 4 * MIB..at * 4 * MIB + MIB).collect();
        let size = 200_000 * MIB;
        let layout = plan(&[size], &[[1; 16]], &MakeOptions { kept, ..MakeOptions::default() });
        assert!(layout.expect("a gap").data.len() <= RANGES_MAX);
    }
}
