//! An immutable sorted map. A change copies the nodes on one path; both maps share all other nodes.
//!
//! # Place
//!
//! This is for maps with many readers and few changes. A change makes a new map, which the caller
//! swaps in at one pointer. The change copies one node on each level, whatever the number of
//! entries.
//!
//! # Invariants
//!
//! - **C1** Keys ascend. The key of each child in a branch is the first key below that child. No
//!   node is empty.
//! - **C2** All leaves have the same depth. No node has more than `FAN` entries. A root that is a
//!   branch has at least two children.
//!
//! There are two reasons for not using a library. The licence of `imbl` (MPL) is not allowed in
//! this project. `rpds` has a node for each entry, so a lookup among a million entries visits
//! twenty nodes instead of four.

use std::sync::Arc;

/// The largest number of entries in a node. A change copies one node on each level.
pub const FAN: usize = 64;

/// Two neighbours are joined when one has fewer than `JOINED_BELOW` entries, and both together have
/// at most `JOINED_MAX`, so that the result can grow.
const JOINED_BELOW: usize = FAN / 4;
const JOINED_MAX: usize = FAN / 4 * 3;

/// A map from `u64`, cheap to copy.
#[derive(Debug)]
pub struct CowMap<V> {
    root: Option<Arc<Node<V>>>,
    len: usize,
}

#[derive(Debug)]
struct Node<V> {
    keys: Vec<u64>,
    below: Below<V>,
}

#[derive(Clone, Debug)]
enum Below<V> {
    Values(Vec<V>),
    Nodes(Vec<Arc<Node<V>>>),
}

impl<V> Default for CowMap<V> {
    fn default() -> Self {
        Self { root: None, len: 0 }
    }
}

impl<V> Clone for CowMap<V> {
    fn clone(&self) -> Self {
        Self { root: self.root.clone(), len: self.len }
    }
}

impl<V> CowMap<V> {
    /// Returns how many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Says whether the map has no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of levels. A lookup visits one node on each level, and a change copies
    /// these nodes.
    #[must_use]
    pub fn height(&self) -> usize {
        let mut height = 0;
        let mut next = self.root.as_deref();
        while let Some(node) = next {
            height += 1;
            next = match &node.below {
                Below::Values(_) => None,
                Below::Nodes(nodes) => Some(&nodes[0]),
            };
        }
        height
    }

    /// Finds the last entry at or before a key.
    #[must_use]
    pub fn floor(&self, at: u64) -> Option<(u64, &V)> {
        let mut node = self.root.as_deref()?;
        loop {
            let index = node.keys.partition_point(|key| *key <= at).checked_sub(1)?;
            match &node.below {
                Below::Values(values) => return Some((node.keys[index], &values[index])),
                Below::Nodes(nodes) => node = &nodes[index],
            }
        }
    }

    /// Finds the entry of a key.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<&V> {
        self.floor(key).filter(|(found, _)| *found == key).map(|(_, value)| value)
    }

    /// Returns the entry with the highest key.
    #[must_use]
    pub fn last(&self) -> Option<(u64, &V)> {
        self.floor(u64::MAX)
    }

    /// Lists all entries, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        let mut path: Vec<(&Node<V>, usize)> = self.root.iter().map(|root| (&**root, 0)).collect();
        std::iter::from_fn(move || {
            loop {
                let (node, index) = path.last_mut()?;
                let Some(&key) = node.keys.get(*index) else {
                    path.pop();
                    continue;
                };
                let at = std::mem::replace(index, *index + 1);
                match &node.below {
                    Below::Values(values) => return Some((key, &values[at])),
                    Below::Nodes(nodes) => path.push((&nodes[at], 0)),
                }
            }
        })
    }
}

impl<V: Clone> CowMap<V> {
    /// Builds a map from ascending entries, with one step for each entry.
    ///
    /// # Panics
    ///
    /// If the entries do not ascend, which is a bug of the caller (C1).
    #[must_use]
    pub fn from_sorted(entries: impl IntoIterator<Item = (u64, V)>) -> Self {
        let (keys, values): (Vec<_>, Vec<_>) = entries.into_iter().unzip();
        assert!(keys.is_sorted_by(|one, next| one < next), "C1: keys that do not ascend");
        let len = keys.len();
        if len == 0 {
            return Self::default();
        }
        let mut level = Node::cut(keys, Below::Values(values), |_| FAN);
        while level.len() > 1 {
            let keys = level.iter().map(|node| node.first()).collect();
            level = Node::cut(keys, Below::Nodes(level), |_| FAN);
        }
        Self { root: level.pop(), len }
    }

    /// Returns a map with one more entry, or with another value for an existing key.
    #[must_use = "the map itself stays as it is"]
    pub fn with(&self, key: u64, value: V) -> Self {
        let Some(root) = &self.root else { return Self::from_sorted([(key, value)]) };
        let (mut level, added) = root.with(key, value);
        while level.len() > 1 {
            let keys = level.iter().map(|node| node.first()).collect();
            level = Node::cut(keys, Below::Nodes(level), |_| FAN);
        }
        Self { root: level.pop(), len: self.len + usize::from(added) }
    }

    /// Returns a map without the entry of a key, and the value of that entry. Returns `None` if
    /// there is no such entry.
    #[must_use = "the map itself stays as it is"]
    pub fn without(&self, key: u64) -> Option<(Self, V)> {
        let (mut root, removed) = self.root.as_ref()?.without(key)?;
        while let Some(Below::Nodes(nodes)) = root.as_ref().map(|node| &node.below)
            && nodes.len() == 1
        {
            root = Some(Arc::clone(&nodes[0]));
        }
        Some((Self { root, len: self.len - 1 }, removed))
    }
}

impl<V> Below<V> {
    fn split_off(&mut self, at: usize) -> Self {
        match self {
            Self::Values(values) => Self::Values(values.split_off(at)),
            Self::Nodes(nodes) => Self::Nodes(nodes.split_off(at)),
        }
    }

    fn shrink_to_fit(&mut self) {
        match self {
            Self::Values(values) => values.shrink_to_fit(),
            Self::Nodes(nodes) => nodes.shrink_to_fit(),
        }
    }
}

impl<V: Clone> Below<V> {
    /// Concatenates the content of two neighbouring nodes, which have the same depth.
    fn joined(&self, next: &Self) -> Self {
        match (self, next) {
            (Self::Values(one), Self::Values(next)) => Self::Values([&one[..], next].concat()),
            (Self::Nodes(one), Self::Nodes(next)) => Self::Nodes([&one[..], next].concat()),
            _ => unreachable!("C2: neighbours are equally deep"),
        }
    }
}

impl<V> Node<V> {
    fn first(&self) -> u64 {
        self.keys[0]
    }

    /// Splits entries into nodes. `share` gets the number of remaining entries and returns how many
    /// of them the next node takes.
    fn cut(
        mut keys: Vec<u64>,
        mut below: Below<V>,
        share: impl Fn(usize) -> usize,
    ) -> Vec<Arc<Self>> {
        let mut nodes = Vec::with_capacity(keys.len().div_ceil(FAN));
        // Splits from the end, so that each entry is moved only once.
        let mut starts = vec![0];
        let mut at = 0;
        while keys.len() - at > share(keys.len() - at) {
            at += share(keys.len() - at);
            starts.push(at);
        }
        for start in starts.into_iter().rev() {
            let (mut keys, mut below) = (keys.split_off(start), below.split_off(start));
            keys.shrink_to_fit();
            below.shrink_to_fit();
            nodes.push(Arc::new(Self { keys, below }));
        }
        nodes.reverse();
        nodes
    }

    /// Returns one node, or two if the entries exceed `FAN`. A node that grew at its end is left
    /// full; any other node is halved.
    fn cut_grown(keys: Vec<u64>, below: Below<V>, at_end: bool) -> Vec<Arc<Self>> {
        let half = if at_end { FAN } else { FAN.div_ceil(2) };
        Self::cut(keys, below, |left| if left > FAN { half } else { left })
    }
}

impl<V: Clone> Node<V> {
    fn with(&self, key: u64, value: V) -> (Vec<Arc<Self>>, bool) {
        let mut keys = self.keys.clone();
        match &self.below {
            Below::Values(values) => {
                let mut values = values.clone();
                match keys.binary_search(&key) {
                    Ok(at) => {
                        values[at] = value;
                        (vec![Arc::new(Self { keys, below: Below::Values(values) })], false)
                    }
                    Err(at) => {
                        let at_end = at == keys.len();
                        keys.insert(at, key);
                        values.insert(at, value);
                        (Self::cut_grown(keys, Below::Values(values), at_end), true)
                    }
                }
            }
            Below::Nodes(nodes) => {
                let at = keys.partition_point(|first| *first <= key).saturating_sub(1);
                let at_end = at + 1 == keys.len();
                let (fresh, added) = nodes[at].with(key, value);
                let mut nodes = nodes.clone();
                keys.splice(at..=at, fresh.iter().map(|node| node.first()));
                nodes.splice(at..=at, fresh);
                (Self::cut_grown(keys, Below::Nodes(nodes), at_end), added)
            }
        }
    }

    /// Returns the node without the key, or `None` for a node without other entries, and the
    /// removed value.
    fn without(&self, key: u64) -> Option<(Option<Arc<Self>>, V)> {
        let mut keys = self.keys.clone();
        let (below, removed) = match &self.below {
            Below::Values(values) => {
                let at = keys.binary_search(&key).ok()?;
                keys.remove(at);
                let mut values = values.clone();
                let removed = values.remove(at);
                (Below::Values(values), removed)
            }
            Below::Nodes(nodes) => {
                let at = keys.partition_point(|first| *first <= key).checked_sub(1)?;
                let (left, removed) = nodes[at].without(key)?;
                let mut nodes = nodes.clone();
                keys.splice(at..=at, left.iter().map(|node| node.first()));
                let is_short = left.as_ref().is_some_and(|node| node.keys.len() < JOINED_BELOW);
                nodes.splice(at..=at, left);
                if is_short {
                    Self::join_at(&mut keys, &mut nodes, at);
                }
                (Below::Nodes(nodes), removed)
            }
        };
        let left = (!keys.is_empty()).then(|| Arc::new(Self { keys, below }));
        Some((left, removed))
    }

    /// Joins the child at `at` with a neighbour, if both together have at most `JOINED_MAX`
    /// entries.
    fn join_at(keys: &mut Vec<u64>, nodes: &mut Vec<Arc<Self>>, at: usize) {
        let fits = |first: &usize| {
            let two = nodes.get(*first).zip(nodes.get(first + 1));
            two.is_some_and(|(one, next)| one.keys.len() + next.keys.len() <= JOINED_MAX)
        };
        let Some(first) = at.checked_sub(1).into_iter().chain([at]).find(fits) else { return };
        let (one, next) = (&nodes[first], &nodes[first + 1]);
        let joined = Self {
            keys: [&one.keys[..], &next.keys].concat(),
            below: one.below.joined(&next.below),
        };
        nodes.splice(first..=first + 1, [Arc::new(joined)]);
        keys.remove(first + 1);
    }
}

#[cfg(test)]
mod tests;
