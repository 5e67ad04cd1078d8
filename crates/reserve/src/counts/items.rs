//! Leaves of the trees that operations change: what each may become, and all of a tree together
//! (`count::N1`, `count::N2`).

use std::collections::HashMap;

use buttress_format::{Generation, Logical};

/// A leaf with changed items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leaf {
    pub(crate) weight: u64,
    /// The heaviest item.
    pub(crate) heaviest: u64,
    pub(crate) added: u64,
    pub(crate) removed: u64,
}

impl Leaf {
    /// Whether it may take in its neighbour (`count::N2`).
    fn is_hungry(&self, room: u64) -> bool {
        self.weight.saturating_sub(self.removed) < room / 4
    }

    /// The same of one of the leaves that a commit made of it: it was halved at most.
    fn is_thin(&self, room: u64) -> bool {
        (self.weight / 2).saturating_sub(self.removed) < room / 4
    }

    /// Leaves that it may become (`count::N1`, `count::N2`).
    fn becomes(&self, room: u64) -> u64 {
        let most = self.weight + self.added;
        let hungry = u64::from(self.is_hungry(room));
        if most <= room {
            return 1 + hungry;
        }
        let by_pairs = 2 * (most / room) + 1;
        let by_fill = most / room.saturating_sub(self.heaviest).max(1) + 1;
        by_pairs.min(by_fill) + hungry
    }
}

/// Where a leaf lies: the node above it, and its slot there.
pub(crate) type Spot = (Logical, usize);

/// A tree with changed items: sums over its dirty leaves.
#[derive(Debug)]
pub(crate) struct ItemTree {
    /// Nodes up to this generation may be shared.
    pub(crate) shared: Generation,
    /// Its dirty leaves, with their weights.
    spots: HashMap<Spot, u64>,
    /// How many runs they are, where each node above them has its own.
    runs: u64,
    weight: u64,
    added: u64,
    hungry: u64,
    thin: u64,
    heaviest: u64,
    /// What its leaves become, each by itself.
    becomes: u64,
}

impl ItemTree {
    pub(crate) fn new(shared: Generation) -> Self {
        let (runs, weight, added, hungry, thin, heaviest, becomes) = (0, 0, 0, 0, 0, 0, 0);
        let spots = HashMap::new();
        Self { shared, spots, runs, weight, added, hungry, thin, heaviest, becomes }
    }

    /// Whether the leaf there is dirty.
    pub(crate) fn knows(&self, spot: Spot) -> bool {
        self.spots.contains_key(&spot)
    }

    /// A leaf is dirty that was not, or changes from what it was counted with.
    pub(crate) fn note(&mut self, spot: Spot, before: Option<&Leaf>, leaf: &Leaf, room: u64) {
        let flags = |leaf: &Leaf| (u64::from(leaf.is_hungry(room)), u64::from(leaf.is_thin(room)));
        match before {
            Some(before) => {
                let (hungry, thin) = flags(before);
                self.added -= before.added;
                (self.hungry, self.thin) = (self.hungry - hungry, self.thin - thin);
                self.becomes -= before.becomes(room);
            }
            None => {
                let next = self.spots.contains_key(&(spot.0, spot.1 + 1));
                self.runs = self.runs + 1 - u64::from(follows(&self.spots, spot)) - u64::from(next);
                self.spots.insert(spot, leaf.weight);
                self.weight += leaf.weight;
            }
        }
        let (hungry, thin) = flags(leaf);
        self.added += leaf.added;
        (self.hungry, self.thin) = (self.hungry + hungry, self.thin + thin);
        self.becomes += leaf.becomes(room);
        self.heaviest = self.heaviest.max(leaf.heaviest);
    }

    /// Bytes that come to its leaves.
    pub(crate) fn added(&self) -> u64 {
        self.added
    }

    /// Leaves that are made: each by itself, or packed in runs.
    pub(crate) fn makes(&self, room: u64) -> u64 {
        let packed = (self.weight + self.added) / room.saturating_sub(self.heaviest).max(1);
        // What is in a neighbour that is taken in is not known.
        self.becomes.min(packed + self.runs + 2 * self.hungry)
    }

    /// The same of the tree that `below` leaves, which was compared with the same (`count::N6`).
    pub(crate) fn makes_beside(&self, below: &Self, room: u64) -> u64 {
        let made = below.makes(room);
        let mine = self.spots.iter().filter(|(spot, _)| !below.spots.contains_key(spot));
        let (mut runs, mut weight) = (0, 0);
        for (spot, own) in mine {
            weight += own;
            runs += u64::from(!follows(&self.spots, *spot) && !follows(&below.spots, *spot));
        }
        for spot in below.spots.keys() {
            runs += u64::from(!follows(&self.spots, *spot) && !follows(&below.spots, *spot));
        }
        let heaviest = self.heaviest.max(below.heaviest);
        let bytes = made * room + weight + self.added;
        let packed = bytes / room.saturating_sub(heaviest).max(1);
        let by_leaf = self.becomes + 2 * made;
        by_leaf.min(packed + runs + 2 * (self.thin + below.thin))
    }
}

/// Whether the leaf before one is dirty.
fn follows(spots: &HashMap<Spot, u64>, (above, slot): Spot) -> bool {
    slot.checked_sub(1).is_some_and(|before| spots.contains_key(&(above, before)))
}
