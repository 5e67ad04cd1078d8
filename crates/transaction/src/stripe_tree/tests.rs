//! Compares changes of the stripe tree with a map of sectors.

use buttress_base::Rng;
use buttress_format::{DeviceId, limits::STRIPE_LEN};

use super::*;
use crate::test_tree::{BASE, SECTOR, SECTORS, Tree, address};

fn range(low: u64, high: u64) -> Extent {
    Extent::new(address(low), (high - low) * SECTOR)
}

/// Two copies: the place of a sector follows from its address.
fn item_at(at: Logical) -> StripeItem {
    let stride = |device| Stride { device: DeviceId(device), offset: device * (1 << 30) + at.0 };
    StripeItem(vec![stride(1), stride(2)])
}

/// The items of a written range, cut at multiples of 64 KiB.
fn items(range: Extent) -> Vec<(Extent, StripeItem)> {
    let mut found = Vec::new();
    let mut at = range.start;
    while at < range.end() {
        let len = (STRIPE_LEN - at.0 % STRIPE_LEN).min(range.end().distance(at));
        found.push((Extent::new(at, len), item_at(at)));
        at = at.end(len);
    }
    found
}

/// The items of a tree after changes to it.
fn apply(tree: &mut BTreeMap<Key, Vec<u8>>, freed: &[Extent], written: &[Extent]) {
    let items_before: Vec<_> = tree.iter().map(|(key, bytes)| (*key, bytes.clone())).collect();
    let (source, root) = Tree::new(TreeId::RAID_STRIPE, &items_before, 3);
    for (key, change) in changes(&source, root, freed, written, items).expect("memory") {
        match change {
            Some(bytes) => drop(tree.insert(key, bytes.to_vec())),
            None => assert!(tree.remove(&key).is_some(), "{key} is not in the tree"),
        }
    }
}

/// The sectors that items cover. Each item has the right places, and no two overlap (P2).
fn covered(tree: &BTreeMap<Key, Vec<u8>>) -> Vec<u64> {
    let mut sectors = Vec::new();
    for (key, bytes) in tree {
        let range = StripeItem::range(key).expect("a range");
        assert_eq!(StripeItem::parse(bytes), Ok(item_at(range.start)), "{key}");
        sectors.extend((0..range.len / SECTOR).map(|n| (range.start.0 - BASE) / SECTOR + n));
    }
    assert!(sectors.is_sorted_by(|a, b| a < b), "{sectors:?}");
    sectors
}

/// Random disjoint ranges. The flag says whether a range is freed.
fn cuts(rng: &mut Rng) -> Vec<(bool, u64, u64)> {
    let mut cuts = Vec::new();
    let mut at = 0;
    loop {
        let low = at + rng.below(20);
        let len_max = if rng.below(4) == 0 { 40 } else { 6 };
        let high = low + 1 + rng.below(len_max);
        if high > SECTORS {
            return cuts;
        }
        cuts.push((rng.below(2) == 0, low, high));
        at = high;
    }
}

#[test]
fn any_changes_are_those_of_a_map() {
    let mut rng = Rng::new(5);
    for _ in 0..200 {
        let mut tree = BTreeMap::new();
        let mut model = vec![false; SECTORS as usize];
        for _ in 0..6 {
            let cuts = cuts(&mut rng);
            let of = |freed: bool| -> Vec<Extent> {
                let these = cuts.iter().filter(|(is_freed, ..)| *is_freed == freed);
                these.map(|(_, low, high)| range(*low, *high)).collect()
            };
            apply(&mut tree, &of(true), &of(false));
            for (is_freed, low, high) in cuts {
                model[low as usize..high as usize].fill(!is_freed);
            }
            let expected: Vec<_> = (0..SECTORS).filter(|at| model[*at as usize]).collect();
            assert_eq!(covered(&tree), expected);
        }
    }
}

/// Linux makes one long item for data in whole copies, and overlapping items where data is
/// overwritten in place. Both are cut, and the parts keep their places.
#[test]
fn items_of_linux_are_cut() {
    let put = |tree: &mut BTreeMap<Key, Vec<u8>>, low, high| {
        tree.insert(StripeItem::key(range(low, high)), item_at(address(low)).to_bytes());
    };
    let mut tree = BTreeMap::new();
    put(&mut tree, 0, 90);
    apply(&mut tree, &[range(10, 20), range(50, 51)], &[range(30, 40)]);
    let expected: Vec<_> = (0..90).filter(|at| !(10..20).contains(at) && *at != 50).collect();
    assert_eq!(covered(&tree), expected);

    let mut tree = BTreeMap::new();
    for (low, high) in [(0, 1), (0, 32), (8, 10), (40, 44)] {
        put(&mut tree, low, high);
    }
    apply(&mut tree, &[range(0, 32)], &[]);
    assert_eq!(covered(&tree), [40, 41, 42, 43]);
}

/// An item that does not parse goes with its range, and one of another range stays.
#[test]
fn odd_items_are_removed() {
    let (odd, stays) = (StripeItem::key(range(4, 8)), StripeItem::key(range(9, 12)));
    let far = Key::new(BASE, Kind::RAID_STRIPE, u64::MAX);
    let mut tree = BTreeMap::from([(odd, vec![1; 24]), (stays, vec![1; 7]), (far, vec![0; 16])]);
    apply(&mut tree, &[range(0, 8)], &[]);
    assert_eq!(tree, BTreeMap::from([(stays, vec![1; 7])]));
}
