//! Compares the layout with a model that deals units out one after the other.

use buttress_base::Rng;
use buttress_format::limits::STRIPE_LEN;
use buttress_format::{BlockGroupFlags, DeviceId, Logical, Stripe};

use super::*;

const SECTOR: u64 = 4096;

fn chunk(profile: BlockGroupFlags, stripes: usize, sub_stripes: u16, len: u64) -> Chunk {
    Chunk {
        logical: Logical(1 << 30),
        len,
        owner: 2,
        stripe_len: STRIPE_LEN,
        flags: BlockGroupFlags::DATA.with(profile),
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes,
        stripes: (0..stripes)
            .map(|index| Stripe {
                device: DeviceId(index as u64 + 1),
                offset: 1 << 20,
                dev_uuid: [index as u8; 16],
            })
            .collect(),
    }
}

/// For each sector of a chunk the places of its copies, as (stripe, offset).
fn dealt(profile: BlockGroupFlags, stripes: usize, len: u64) -> Vec<Vec<(usize, u64)>> {
    let mut next = vec![0_u64; stripes];
    let mut sectors = Vec::new();
    let mut units = 0;
    let mut row = Vec::new();
    for unit in 0..len.div_ceil(STRIPE_LEN) {
        let targets: Vec<usize> = match profile {
            BlockGroupFlags::RAID0 => vec![unit as usize % stripes],
            BlockGroupFlags::RAID10 => {
                let group = unit as usize % (stripes / 2);
                vec![2 * group, 2 * group + 1]
            }
            BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6 => {
                let parity = if profile == BlockGroupFlags::RAID5 { 1 } else { 2 };
                if row.is_empty() {
                    // A new row begins one stripe further on. The stripes without data of this row
                    // hold its parity.
                    let mut order: Vec<usize> = (0..stripes).collect();
                    order.rotate_left(units % stripes);
                    units += 1;
                    for &stripe in &order[stripes - parity..] {
                        next[stripe] += STRIPE_LEN;
                    }
                    row = order[..stripes - parity].to_vec();
                }
                vec![row.remove(0)]
            }
            _ => (0..stripes).collect(),
        };
        for sector in 0..(len - unit * STRIPE_LEN).min(STRIPE_LEN) / SECTOR {
            let place = |&stripe: &usize| (stripe, next[stripe] + sector * SECTOR);
            sectors.push(targets.iter().map(place).collect());
        }
        for stripe in targets {
            next[stripe] += STRIPE_LEN;
        }
    }
    sectors
}

const SHAPES: &[(BlockGroupFlags, usize, u16)] = &[
    (BlockGroupFlags(0), 1, 1),
    (BlockGroupFlags::DUP, 2, 1),
    (BlockGroupFlags::RAID1, 2, 1),
    (BlockGroupFlags::RAID1C3, 3, 1),
    (BlockGroupFlags::RAID1C4, 4, 1),
    (BlockGroupFlags::RAID0, 1, 1),
    (BlockGroupFlags::RAID0, 2, 1),
    (BlockGroupFlags::RAID0, 5, 1),
    (BlockGroupFlags::RAID10, 2, 2),
    (BlockGroupFlags::RAID10, 4, 2),
    (BlockGroupFlags::RAID10, 6, 2),
    (BlockGroupFlags::RAID5, 2, 1),
    (BlockGroupFlags::RAID5, 3, 1),
    (BlockGroupFlags::RAID5, 5, 1),
    (BlockGroupFlags::RAID6, 3, 1),
    (BlockGroupFlags::RAID6, 4, 1),
    (BlockGroupFlags::RAID6, 7, 1),
];

/// G1 and G2: every sector has the place that the model gives it, and each piece ends at the end of
/// its unit or of the chunk.
#[test]
fn agrees_with_dealing_by_hand() {
    let mut rng = Rng::new(42);
    for &(profile, stripes, sub_stripes) in SHAPES {
        let len = 23 * STRIPE_LEN + 3 * SECTOR;
        let layout = Layout::of(&chunk(profile, stripes, sub_stripes, len)).expect("a good shape");
        let model = dealt(profile, stripes, len);
        for _ in 0..200 {
            let start = rng.below(len / SECTOR) * SECTOR;
            let mut at = start;
            let end = start + rng.range(1..(len - start) / SECTOR + 1) * SECTOR;
            while at < end {
                let piece = layout.piece(at, end - at);
                assert!(piece.len > 0 && piece.len <= end - at, "G2");
                for sector in 0..piece.len / SECTOR {
                    let found: Vec<_> = (0..layout.copies())
                        .map(|copy| (piece.first_stripe + copy, piece.offset + sector * SECTOR))
                        .collect();
                    let index = (at / SECTOR + sector) as usize;
                    assert_eq!(found, model[index], "{profile} of {stripes}, sector {index}");
                }
                at += piece.len;
            }
        }
        let used = model.iter().flatten().map(|&(_, offset)| offset + SECTOR).max();
        assert!(used.expect("not empty") <= layout.stripe_len(), "{profile} of {stripes}");
        assert!(layout.stripe_len() < used.expect("not empty") + STRIPE_LEN);
    }
}

/// G1: no two bytes share a place, and no byte shares a place with parity.
#[test]
fn places_are_distinct() {
    for &(profile, stripes, sub_stripes) in SHAPES {
        let len = 24 * STRIPE_LEN;
        let layout = Layout::of(&chunk(profile, stripes, sub_stripes, len)).expect("a good shape");
        let mut places = Vec::new();
        for sector in 0..len / SECTOR {
            let piece = layout.piece(sector * SECTOR, SECTOR);
            places
                .extend((0..layout.copies()).map(|copy| (piece.first_stripe + copy, piece.offset)));
        }
        let count = places.len();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), count, "G1: {profile} of {stripes}");
    }
}

/// G3: no layout is made for a chunk that contradicts itself or would overflow the arithmetic.
#[test]
fn refuses_what_cannot_be() {
    let good = chunk(BlockGroupFlags::RAID10, 4, 2, 1 << 20);
    Layout::of(&good).expect("a good shape");
    let bad = |change: &dyn Fn(&mut Chunk)| {
        let mut chunk = good.clone();
        change(&mut chunk);
        Layout::of(&chunk).expect_err("a bad shape");
    };
    bad(&|chunk| chunk.len = 0);
    bad(&|chunk| chunk.logical = Logical(u64::MAX - 4096));
    bad(&|chunk| chunk.sub_stripes = 0);
    bad(&|chunk| chunk.sub_stripes = 3);
    bad(&|chunk| chunk.stripe_len = 0);
    bad(&|chunk| chunk.stripe_len = 65537);
    bad(&|chunk| chunk.stripe_len = 1 << 63);
    bad(&|chunk| chunk.stripes.clear());
    bad(&|chunk| chunk.flags = BlockGroupFlags::DATA);
    bad(&|chunk| chunk.flags = BlockGroupFlags::RAID1.with(BlockGroupFlags::RAID0));
    bad(&|chunk| chunk.flags = BlockGroupFlags::RAID1C3);
    bad(&|chunk| chunk.stripes[2].offset = u64::MAX - 4096);
    bad(&|chunk| {
        chunk.flags = BlockGroupFlags::RAID6;
        chunk.stripes.truncate(2);
    });
    // All bytes of the chunk have addresses, but the end of its last row does not.
    bad(&|chunk| {
        (chunk.logical, chunk.len) = (Logical(0), u64::MAX - 1);
        chunk.flags = BlockGroupFlags::DATA.with(BlockGroupFlags::RAID0);
        chunk.stripes.truncate(1);
    });
}
