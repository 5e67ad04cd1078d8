//! Sets with numbers: each set is kept once, and joining two sets is remembered.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

/// The number of a set.
pub type Number = usize;

/// Approximate bytes of memory for one set, and for one pair of sets that were joined.
const ENTRY_BYTES: u64 = 128;

/// Approximate bytes of memory for one member of a set, with its share of the tree of members.
const MEMBER_BYTES: u64 = 48;

/// Sets of members of one kind.
#[derive(Debug)]
pub struct Sets<M> {
    all: Vec<Arc<BTreeSet<M>>>,
    numbers: HashMap<Arc<BTreeSet<M>>, Number>,
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
    /// The number of a set.
    pub fn number(&mut self, set: BTreeSet<M>) -> Number {
        *self.numbers.entry(Arc::new(set)).or_insert_with_key(|set| {
            self.members += set.len() as u64;
            self.all.push(Arc::clone(set));
            self.all.len() - 1
        })
    }

    /// The set of one member.
    pub fn one(&mut self, member: M) -> Number {
        self.number(BTreeSet::from([member]))
    }

    /// The members of a set.
    #[must_use]
    pub fn members(&self, set: Number) -> &Arc<BTreeSet<M>> {
        &self.all[set]
    }

    /// The union of two sets.
    pub fn join(&mut self, one: Number, other: Number) -> Number {
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

    /// The approximate memory of these sets and of `entries` of the caller.
    #[must_use]
    pub fn bytes(&self, entries: usize) -> u64 {
        let entries = entries + self.all.len() + self.joined.len();
        entries as u64 * ENTRY_BYTES + self.members * MEMBER_BYTES
    }
}
