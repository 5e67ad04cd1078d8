//! Sets with numbers: each set is kept once, and joining two sets is remembered.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

/// The number of a set.
pub(crate) type Number = usize;

/// Approximate bytes of memory for one set, and for one pair of sets that were joined.
const ENTRY_BYTES: u64 = 128;

/// Approximate bytes of memory for one member of a set. Each set is kept twice.
const MEMBER_BYTES: u64 = 48;

/// Sets of members of one kind.
#[derive(Debug)]
pub(crate) struct Sets<M> {
    all: Vec<BTreeSet<M>>,
    numbers: HashMap<BTreeSet<M>, Number>,
    joined: HashMap<(Number, Number), Number>,
    /// The members of all sets together.
    members: u64,
}

impl<M> Default for Sets<M> {
    fn default() -> Self {
        let (all, numbers, joined) = (Vec::new(), HashMap::new(), HashMap::new());
        Self { all, numbers, joined, members: 0 }
    }
}

impl<M: Clone + Ord + Hash> Sets<M> {
    pub(crate) fn number(&mut self, set: BTreeSet<M>) -> Number {
        *self.numbers.entry(set).or_insert_with_key(|set| {
            self.members += set.len() as u64;
            self.all.push(set.clone());
            self.all.len() - 1
        })
    }

    pub(crate) fn join(&mut self, one: Number, other: Number) -> Number {
        if one == other {
            return one;
        }
        let pair = (one.min(other), one.max(other));
        if let Some(known) = self.joined.get(&pair) {
            return *known;
        }
        let both = self.all[one].union(&self.all[other]).cloned().collect();
        let number = self.number(both);
        self.joined.insert(pair, number);
        number
    }

    pub(crate) fn get(&self, number: Number) -> &BTreeSet<M> {
        &self.all[number]
    }

    /// The approximate memory of these sets and of `entries` of the caller.
    pub(crate) fn bytes(&self, entries: usize) -> u64 {
        let entries = entries + self.all.len() + self.joined.len();
        entries as u64 * ENTRY_BYTES + self.members * MEMBER_BYTES
    }
}
