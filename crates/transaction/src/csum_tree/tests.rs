//! Compares changes of the checksum tree with a map of sectors.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::test_tree::{BASE, SECTOR, SECTORS, Tree, address, geometry};

/// The largest number of sums in an item.
const ITEM_MAX: usize = 8;

/// A tree with items for runs of sectors.
fn tree_of(items: &BTreeMap<u64, Vec<u8>>, per_leaf: usize) -> (Tree, NodePtr) {
    let keyed = items.iter().map(|(at, sums)| (key_of(address(*at)), sums.clone()));
    Tree::new(TreeId::CSUM, &keyed.collect::<Vec<_>>(), per_leaf)
}

type Model = BTreeMap<u64, u8>;

fn sums_of(model: &Model, from: u64, to: u64) -> Vec<u8> {
    (from..to).flat_map(|sector| [model[&sector]; 4]).collect()
}

/// Runs of adjacent sectors of the model. A run ends where `cuts` is true, or when it is as long as
/// the longest item.
fn items_of(model: &Model, cuts: &[bool]) -> Vec<(u64, Vec<u8>)> {
    let mut items: Vec<(u64, Vec<u8>)> = Vec::new();
    for (&sector, &sum) in model {
        match items.last_mut() {
            Some((at, sums))
                if *at + sums.len() as u64 / 4 == sector
                    && sums.len() < 4 * ITEM_MAX
                    && !cuts[sector as usize] =>
            {
                sums.extend([sum; 4]);
            }
            _ => items.push((sector, vec![sum; 4])),
        }
    }
    items
}

/// Ascending runs of chosen sectors. Some runs are adjacent.
fn runs_of(chosen: &[bool], cuts: &[bool]) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for sector in (0..SECTORS).filter(|sector| chosen[*sector as usize]) {
        match runs.last_mut() {
            Some((_, end)) if *end == sector && !cuts[sector as usize] => *end += 1,
            _ => runs.push((sector, sector + 1)),
        }
    }
    runs
}

proptest! {
    /// C1, C2, C4: the items have the old sums, without the freed sums and with the new sums. No
    /// two items overlap, and no item is too long.
    #[test]
    fn csums_agree_with_a_map_of_sectors(
        there in proptest::collection::vec(any::<bool>(), SECTORS as usize),
        frees in proptest::collection::vec(0u8..4, SECTORS as usize),
        adds in proptest::collection::vec(0u8..4, SECTORS as usize),
        cuts in proptest::collection::vec(any::<bool>(), 3 * SECTORS as usize),
        sparse in 0u8..4,
        per_leaf in 1usize..5,
        multiple in 1u64..5,
    ) {
        let chosen = |dice: &[u8]| dice.iter().map(|d| *d >= sparse).collect::<Vec<_>>();
        let (frees, adds) = (chosen(&frees), chosen(&adds));
        let mut model: Model =
            (0..SECTORS).filter(|s| there[*s as usize]).map(|s| (s, s as u8)).collect();
        let mut items: BTreeMap<u64, Vec<u8>> =
            items_of(&model, &cuts).into_iter().collect();
        let (tree, root) = tree_of(&items, per_leaf);

        let extent = |(low, high): (u64, u64)| {
            Extent { start: address(low), len: (high - low) * SECTOR }
        };
        let freed = runs_of(&frees, &cuts[SECTORS as usize..]);
        model.retain(|sector, _| !frees[*sector as usize]);
        let adds: Vec<_> = (0..SECTORS as usize)
            .map(|s| adds[s] && !model.contains_key(&(s as u64)))
            .collect();
        let added = runs_of(&adds, &cuts[2 * SECTORS as usize..]);
        for (low, high) in &added {
            model.extend((*low..*high).map(|sector| (sector, 200 - sector as u8)));
        }
        let sums: Vec<(Extent, Arc<[u8]>)> = added
            .iter()
            .map(|run| (extent(*run), sums_of(&model, run.0, run.1).into()))
            .collect();
        let freed: Vec<_> = freed.into_iter().map(extent).collect();

        let mut editor = Editor {
            source: &tree,
            root,
            sector: SECTOR,
            size: 4,
            max: 4 * ITEM_MAX,
            multiple: multiple * SECTOR,
            edited: BTreeMap::new(),
            last: None,
        };
        editor.remove(&freed).expect("the tree is sound");
        for (extent, sums) in &sums {
            editor.insert(*extent, sums).expect("nothing is there");
        }
        for (at, sums) in editor.edited {
            let sector = (at.0 - BASE) / SECTOR;
            match sums {
                Some(sums) => {
                    let goes_on = added.iter().any(|run| run.0 < sector && sector < run.1);
                    prop_assert!(!goes_on || at.0.is_multiple_of(multiple * SECTOR), "C4");
                    items.insert(sector, sums);
                }
                None => prop_assert!(items.remove(&sector).is_some(), "it was there"),
            }
        }
        let mut found = Model::new();
        for (at, sums) in &items {
            prop_assert!(!sums.is_empty() && sums.len() <= 4 * ITEM_MAX, "C2");
            for (index, sum) in sums.chunks(4).enumerate() {
                let before = found.insert(at + index as u64, sum[0]);
                prop_assert!(before.is_none(), "C1: two items say it");
            }
        }
        prop_assert_eq!(found, model);
    }
}

/// If the tree already has sums for a new run, the volume was inconsistent.
#[test]
fn csums_are_stored_once() {
    let (tree, root) = tree_of(&BTreeMap::from([(3, vec![1; 16])]), 4);
    let extent = Extent { start: address(6), len: SECTOR };
    let added = [(extent, Arc::from([9u8; 4]))];
    let refused = changes(&tree, root, (&geometry(), SECTOR), &[], &added);
    assert!(matches!(refused, Err(Error::Extents { .. })), "{refused:?}");
}
