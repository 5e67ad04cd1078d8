//! Nodes of a transaction by what makes them, and what comes on top beside another that is not
//! durable yet (`count::N6`).

/// Bytes that a node may add to the extent tree, or take.
const NODE_BYTES: u64 = 84;

/// Nodes that a commit makes, at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Of the trees that operations change.
    pub(crate) items: u64,
    /// Leaves of the extent tree, and of the others that commits alone change.
    pub(crate) extents: u64,
    pub(crate) others: u64,
    /// Nodes above those leaves.
    pub(crate) inner: u64,
    /// Leaves that bytes fill which no leaf was held against.
    pub(crate) fills: u64,
}

impl Parts {
    fn sum(self) -> u64 {
        self.items + self.extents + self.others + self.inner + self.fills
    }

    /// All of them, and those that their own records take.
    pub(crate) fn nodes(self, room: u64) -> u64 {
        let sum = self.sum();
        sum + 2 * NODE_BYTES * sum / room + 2
    }

    /// What a transaction makes beside `below`, if it makes these on the trees before that one;
    /// `items` and `extents` are what it makes of the trees that `below` leaves (`count::N6`).
    pub(crate) fn beside(self, below: Self, items: u64, extents: u64) -> Self {
        let fills = self.fills + 2 * below.fills;
        Self {
            items,
            extents,
            others: self.others + below.others,
            inner: self.inner + below.inner,
            fills,
        }
    }
}
