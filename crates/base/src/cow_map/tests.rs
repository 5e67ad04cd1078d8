use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::Rng;

impl<V> Node<V> {
    /// Checks a node and all nodes below it (C1, C2). Returns the number of levels.
    fn verify(&self, entries: &mut usize) -> usize {
        assert!(!self.keys.is_empty() && self.keys.len() <= FAN, "C2");
        assert!(self.keys.is_sorted_by(|one, next| one < next), "C1");
        match &self.below {
            Below::Values(values) => {
                assert_eq!(values.len(), self.keys.len());
                *entries += values.len();
                1
            }
            Below::Nodes(nodes) => {
                assert_eq!(nodes.len(), self.keys.len());
                let firsts = nodes.iter().map(|node| node.first());
                assert!(firsts.eq(self.keys.iter().copied()), "C1");
                let mut depths: Vec<_> = nodes.iter().map(|node| node.verify(entries)).collect();
                depths.dedup();
                assert_eq!(depths.len(), 1, "C2");
                depths[0] + 1
            }
        }
    }

    fn collect(self: &Arc<Self>, into: &mut HashSet<*const Self>) {
        into.insert(Arc::as_ptr(self));
        if let Below::Nodes(nodes) = &self.below {
            nodes.iter().for_each(|node| node.collect(into));
        }
    }
}

impl<V> CowMap<V> {
    fn verify(&self) {
        let mut entries = 0;
        if let Some(root) = &self.root {
            let height = root.verify(&mut entries);
            assert_eq!(height, self.height());
            assert!(height == 1 || root.keys.len() > 1, "C2");
        }
        assert_eq!(entries, self.len());
    }

    fn nodes(&self) -> HashSet<*const Node<V>> {
        let mut all = HashSet::new();
        self.root.iter().for_each(|root| root.collect(&mut all));
        all
    }
}

fn agree(map: &CowMap<u64>, model: &BTreeMap<u64, u64>) {
    map.verify();
    assert_eq!(map.len(), model.len());
    assert_eq!(map.is_empty(), model.is_empty());
    assert!(map.iter().map(|(key, value)| (key, *value)).eq(model.iter().map(|(k, v)| (*k, *v))));
    assert_eq!(map.last().map(|(key, _)| key), model.last_key_value().map(|(key, _)| *key));
}

/// C1 and C2: any sequence of changes agrees with a `BTreeMap`, in any order of added and removed
/// keys. Older maps do not change.
#[test]
fn agrees_with_a_model() {
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let keys = [50, 1000, 20_000][seed as usize % 3];
        let (mut map, mut model) = (CowMap::default(), BTreeMap::new());
        if seed % 2 == 0 {
            model = (0..keys / 2).map(|key| (key * 2, key)).collect();
            map = CowMap::from_sorted(model.iter().map(|(key, value)| (*key, *value)));
        }
        let mut kept: Vec<(CowMap<u64>, BTreeMap<u64, u64>)> = Vec::new();
        for step in 0..4000 {
            // Phases of growth alternate with phases of shrinking. Runs of keys alternate with
            // single keys.
            let grows = (step / 700) % 2 == 0;
            let first = rng.below(keys);
            let run = if rng.chance(1, 8) { 1 + rng.below(40) } else { 1 };
            for key in first..first + run {
                if grows == rng.chance(4, 5) {
                    map = map.with(key, step);
                    model.insert(key, step);
                } else {
                    let removed = map.without(key);
                    assert_eq!(removed.as_ref().map(|(_, value)| *value), model.remove(&key));
                    map = removed.map_or(map, |(map, _)| map);
                }
            }
            let at = rng.below(keys + 10);
            let floor = model.range(..=at).next_back().map(|(key, value)| (*key, *value));
            assert_eq!(map.floor(at).map(|(key, value)| (key, *value)), floor);
            assert_eq!(map.find(at), model.get(&at));
            if step % 500 == 0 {
                agree(&map, &model);
                kept.push((map.clone(), model.clone()));
            }
        }
        while let Some((key, _)) = map.last() {
            map = map.without(key).expect("it is the last").0;
            model.remove(&key);
            if map.len() % 97 == 0 {
                agree(&map, &model);
            }
        }
        kept.iter().for_each(|(map, model)| agree(map, model));
    }
}

/// A change makes one node on each level, and a few more where it splits nodes. All other nodes are
/// shared. The height grows with the logarithm of the number of entries. This bound also holds for
/// a map that grew at its end, entry by entry, as maps of addresses do.
#[test]
fn a_change_copies_one_path() {
    for (len, height_max) in [(10, 1), (1000, 2), (10_000, 3), (100_000, 3)] {
        let mut map = CowMap::default();
        for key in 0..len {
            map = map.with(key * 2, key);
        }
        assert!(map.height() <= height_max, "{} levels of {len}", map.height());
        let mut rng = Rng::new(len);
        for _ in 0..20 {
            let before = map.nodes();
            let grown = map.with(rng.below(len) * 2 + 1, 0);
            let made = grown.nodes().difference(&before).count();
            assert!(made <= 2 * map.height() + 1, "{made} new nodes of {}", before.len());
            let (shrunk, _) = map.without(rng.below(len) * 2).expect("it is there");
            let made = shrunk.nodes().difference(&before).count();
            assert!(made <= map.height(), "{made} new nodes of {}", before.len());
        }
        let appended = map.with(u64::MAX, 0);
        let made = appended.nodes().difference(&map.nodes()).count();
        assert!(made <= map.height() + 1);
    }
}
