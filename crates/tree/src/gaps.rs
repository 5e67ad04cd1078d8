//! Gaps: ranges of keys that hold no item. Walks note gaps, so that no later walk steps over the
//! same deletions again.
//!
//! A walk that steps over many deletions notes their first and last key as a gap. A later walk that
//! meets a deletion in the gap goes on after the end of the gap.
//!
//! # Invariants
//!
//! - **G1** A gap holds no item of the view in which a walk found the gap. A put takes its key out
//!   of the gap under the same lock under which readers begin to see the item.
//! - **G2** A walk notes a gap only if no put made an item in the shard since the walk began to
//!   count deletions. So a put during the walk cannot leave an item in a gap.
//! - **G3** All gaps belong to one committed state. A commit that publishes another state makes all
//!   gaps void, because the commit may also make changes that the overlay does not have.
//! - **G4** Gaps of one tree never overlap or touch, and each lies within one object.

use std::collections::BTreeMap;

use buttress_format::{Generation, Key, TreeId};

/// Deletions that a walk steps over before it notes them as a gap. A walk over fewer deletions
/// costs less than the note.
pub(crate) const NOTED_AFTER: u32 = 32;

/// The gaps of one shard of an overlay, by tree and first key, with the last key.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// The committed state to which the gaps belong (G3).
    generation: Generation,
    map: BTreeMap<(TreeId, Key), Key>,
}

impl Gaps {
    /// The gap around a key: its first and its last key.
    pub(crate) fn around(
        &self,
        tree: TreeId,
        key: &Key,
        generation: Generation,
    ) -> Option<(Key, Key)> {
        if self.generation != generation {
            return None;
        }
        self.find(tree, key)
    }

    fn find(&self, tree: TreeId, key: &Key) -> Option<(Key, Key)> {
        let ((of, first), last) = self.map.range(..=(tree, *key)).next_back()?;
        (*of == tree && last >= key).then_some((*first, *last))
    }

    /// Notes that `first..=last` holds no item. Joins this range with the gaps that it touches.
    pub(crate) fn note(&mut self, tree: TreeId, first: Key, last: Key, generation: Generation) {
        debug_assert!(first <= last && first.objectid == last.objectid, "G4: {first} to {last}");
        if self.generation > generation {
            return;
        }
        if self.generation < generation {
            self.map.clear();
            self.generation = generation;
        }
        let (mut low, mut high) = (first, last);
        let same = |key: &Key| key.objectid == first.objectid;
        let below = previous_key(&low).filter(same).unwrap_or(low);
        if let Some((before, end)) = self.find(tree, &below) {
            (low, high) = (before, high.max(end));
        }
        let above = high.next().filter(same).unwrap_or(high);
        let inside: Vec<(Key, Key)> =
            self.map.range((tree, low)..=(tree, above)).map(|((_, k), end)| (*k, *end)).collect();
        for (start, end) in inside {
            self.map.remove(&(tree, start));
            high = high.max(end);
        }
        self.map.insert((tree, low), high);
    }

    /// Removes a key from its gap, because an item with this key was put (G1).
    pub(crate) fn pierce(&mut self, tree: TreeId, key: &Key) {
        if self.map.is_empty() {
            return;
        }
        let Some((first, last)) = self.find(tree, key) else { return };
        self.map.remove(&(tree, first));
        if first < *key
            && let Some(end) = previous_key(key)
        {
            self.map.insert((tree, first), end);
        }
        if *key < last
            && let Some(start) = key.next()
        {
            self.map.insert((tree, start), last);
        }
    }
}

/// The greatest key below another key.
pub(crate) fn previous_key(key: &Key) -> Option<Key> {
    use buttress_format::Kind;
    if key.offset > 0 {
        return Some(Key { offset: key.offset - 1, ..*key });
    }
    if key.kind.0 > 0 {
        return Some(Key { kind: Kind(key.kind.0 - 1), offset: u64::MAX, ..*key });
    }
    let objectid = key.objectid.checked_sub(1)?;
    Some(Key { objectid, kind: Kind(u8::MAX), offset: u64::MAX })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use buttress_base::Rng;
    use buttress_format::Kind;

    use super::*;

    const NOW: Generation = Generation(7);

    fn key(at: u64) -> Key {
        Key::new(300, Kind::EXTENT_DATA, at)
    }

    /// Compares gaps with a plain set of keys, over random notes and puts.
    #[test]
    fn gaps_follow_notes_and_puts_at_random() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut gaps = Gaps::default();
            let mut model: BTreeSet<u64> = BTreeSet::new();
            for _ in 0..300 {
                let at = rng.below(200);
                if rng.chance(1, 3) {
                    let end = (at + rng.below(30)).min(199);
                    gaps.note(TreeId::FS, key(at), key(end), NOW);
                    model.extend(at..=end);
                } else {
                    gaps.pierce(TreeId::FS, &key(at));
                    model.remove(&at);
                }
                for at in 0..200 {
                    let found = gaps.around(TreeId::FS, &key(at), NOW);
                    assert_eq!(found.is_some(), model.contains(&at), "seed {seed}, {at}");
                    if let Some((first, last)) = found {
                        let outside = |at: u64| !model.contains(&at);
                        assert!((first.offset..=last.offset).all(|at| !outside(at)), "G1");
                        assert!(first.offset == 0 || outside(first.offset - 1), "G4");
                        assert!(outside(last.offset + 1), "G4");
                    }
                }
            }
        }
    }

    #[test]
    fn gaps_are_void_when_another_state_is_published() {
        let mut gaps = Gaps::default();
        gaps.note(TreeId::FS, key(1), key(9), NOW);
        assert_eq!(gaps.around(TreeId::FS, &key(5), NOW), Some((key(1), key(9))));
        assert_eq!(gaps.around(TreeId::FS, &key(5), NOW.next()), None);
        // A gap that a reader of an old state notes is void in the new state.
        gaps.note(TreeId::FS, key(20), key(29), NOW.next());
        gaps.note(TreeId::FS, key(1), key(9), NOW);
        assert_eq!(gaps.around(TreeId::FS, &key(5), NOW.next()), None);
    }

    #[test]
    fn gaps_stay_within_their_object() {
        let mut gaps = Gaps::default();
        let (low, high) = (Kind(0), Kind(u8::MAX));
        for objectid in [300, 301] {
            gaps.note(
                TreeId::FS,
                Key { objectid, kind: low, offset: 0 },
                Key { objectid, kind: high, offset: u64::MAX },
                NOW,
            );
        }
        let last = Key { objectid: 300, kind: high, offset: u64::MAX };
        assert_eq!(gaps.around(TreeId::FS, &key(5), NOW).map(|gap| gap.1), Some(last));
    }
}
