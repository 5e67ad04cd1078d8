//! Sets of subvolumes, each kept once and named by a number.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use buttress_format::TreeId;

/// The number of a set of subvolumes.
pub type Set = usize;

/// Sets of subvolumes, each kept once.
#[derive(Debug, Default)]
pub struct Sets {
    all: Vec<Arc<BTreeSet<TreeId>>>,
    numbers: HashMap<Arc<BTreeSet<TreeId>>, Set>,
    joined: HashMap<(Set, Set), Set>,
}

impl Sets {
    /// The number of a set.
    pub fn number(&mut self, set: BTreeSet<TreeId>) -> Set {
        let set = Arc::new(set);
        if let Some(number) = self.numbers.get(&set) {
            return *number;
        }
        self.all.push(Arc::clone(&set));
        self.numbers.insert(set, self.all.len() - 1);
        self.all.len() - 1
    }

    /// The set of one subvolume.
    pub fn one(&mut self, tree: TreeId) -> Set {
        self.number(BTreeSet::from([tree]))
    }

    /// The members of a set.
    pub fn members(&self, set: Set) -> &Arc<BTreeSet<TreeId>> {
        &self.all[set]
    }

    /// The union of two sets.
    pub fn join(&mut self, one: Set, other: Set) -> Set {
        if one == other {
            return one;
        }
        let pair = (one.min(other), one.max(other));
        if let Some(number) = self.joined.get(&pair) {
            return *number;
        }
        let set = self.all[one].union(&self.all[other]).copied().collect();
        let number = self.number(set);
        self.joined.insert(pair, number);
        number
    }
}
