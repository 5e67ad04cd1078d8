//! A leaf that is changed in its buffer and goes to disk from there. Such a leaf is for trees that
//! are written often and read only after a crash.
//!
//! # Invariants
//!
//! - **E1** The payload of item n ends where the payload of item n - 1 begins. The payload of the
//!   first item ends at the end of the buffer. The bytes between the table and the payloads are
//!   free and zero.
//! - **E2** Keys ascend strictly.

use buttress_base::AlignedBuf;
use buttress_format::{
    Key, Kind,
    header::{HEADER_LEN, ITEM_LEN},
};

use crate::{
    Mismatch,
    geometry::{Geometry, NodeStamp},
    node::{Expect, Node, NodePtr},
};

/// Bytes of a key in the table of items. The payload's offset and length follow the key.
const KEY_LEN: usize = 17;

/// A leaf that is edited in its own buffer (E1, E2).
#[derive(Clone)]
pub struct LeafEdit {
    buf: AlignedBuf,
    count: usize,
    data_start: usize,
}

impl std::fmt::Debug for LeafEdit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeafEdit").field("count", &self.count).finish_non_exhaustive()
    }
}

impl LeafEdit {
    /// An empty leaf. Costs O(1), and a node of zeros.
    #[must_use]
    pub fn new(geometry: &Geometry) -> Self {
        let len = geometry.nodesize as usize;
        Self { buf: AlignedBuf::zeroed(len), count: 0, data_start: len }
    }

    /// Number of items. Costs O(1).
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether the leaf has no items. Costs O(1).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The whole buffer, which is a node after [`seal`](Self::seal). Costs O(1).
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buf
    }

    fn at(slot: usize) -> usize {
        HEADER_LEN + slot * ITEM_LEN
    }

    fn le32(&self, at: usize) -> usize {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&self.buf[at..at + 4]);
        u32::from_le_bytes(bytes) as usize
    }

    fn put32(&mut self, at: usize, value: usize) {
        self.buf[at..at + 4].copy_from_slice(&(value as u32).to_le_bytes());
    }

    /// Key of a slot. Costs O(1).
    ///
    /// # Panics
    ///
    /// When the slot is past the end: the caller's bug.
    #[must_use]
    pub fn key(&self, slot: usize) -> Key {
        assert!(slot < self.count, "slot {slot} of {}", self.count);
        let bytes = &self.buf[Self::at(slot)..Self::at(slot) + KEY_LEN];
        let number = |from: usize| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[from..from + 8]);
            u64::from_le_bytes(eight)
        };
        Key { objectid: number(0), kind: Kind(bytes[8]), offset: number(9) }
    }

    fn start(&self, slot: usize) -> usize {
        HEADER_LEN + self.le32(Self::at(slot) + KEY_LEN)
    }

    /// The end of a slot's payload, which is the start of the payload of the slot before (E1).
    fn end(&self, slot: usize) -> usize {
        if slot == 0 { self.buf.len() } else { self.start(slot - 1) }
    }

    /// Payload of a slot. Costs O(1).
    ///
    /// # Panics
    ///
    /// When the slot is past the end: the caller's bug.
    #[must_use]
    pub fn item(&self, slot: usize) -> &[u8] {
        assert!(slot < self.count, "slot {slot} of {}", self.count);
        &self.buf[self.start(slot)..self.end(slot)]
    }

    /// Finds a key: its slot, or the slot where it would stand. Costs O(log n) in the items.
    ///
    /// # Errors
    ///
    /// The slot of the first greater key.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let mid = usize::midpoint(low, high);
            match self.key(mid).cmp(key) {
                std::cmp::Ordering::Less => low = mid + 1,
                std::cmp::Ordering::Greater => high = mid,
                std::cmp::Ordering::Equal => return Ok(mid),
            }
        }
        Err(low)
    }

    /// Bytes that are free. Costs O(1).
    #[must_use]
    pub fn room(&self) -> usize {
        self.data_start - Self::at(self.count)
    }

    /// Changes the length of the payload of `slot`. Moves the payloads of this slot and of all
    /// later slots, so that no gap is left between them (E1).
    fn resize(&mut self, slot: usize, old: usize, new: usize) {
        let end = self.end(slot);
        let (from, to) = (self.data_start, end - old);
        let start = self.data_start + old - new;
        self.buf.copy_within(from..to, start);
        if new < old {
            self.buf[from..start].fill(0);
        }
        self.data_start = start;
        for behind in slot + 1..self.count {
            let at = Self::at(behind) + KEY_LEN;
            let offset = self.le32(at) + old - new;
            self.put32(at, offset);
        }
    }

    /// Sets an item. Returns false, and changes nothing, if there is no room for it. Costs O(log n)
    /// if the key comes last or the length stays. Otherwise the items after it move: O(n).
    pub fn set(&mut self, key: &Key, payload: &[u8]) -> bool {
        let (slot, old) = match self.search(key) {
            Ok(slot) => {
                let old = self.item(slot).len();
                if payload.len() > old + self.room() {
                    return false;
                }
                (slot, old)
            }
            Err(slot) => {
                if payload.len() + ITEM_LEN > self.room() {
                    return false;
                }
                self.buf.copy_within(Self::at(slot)..Self::at(self.count), Self::at(slot + 1));
                self.count += 1;
                key.write_to(&mut self.buf[Self::at(slot)..Self::at(slot) + KEY_LEN]);
                (slot, 0)
            }
        };
        let end = self.end(slot);
        if payload.len() != old {
            self.resize(slot, old, payload.len());
        }
        let start = end - payload.len();
        self.buf[start..end].copy_from_slice(payload);
        self.put32(Self::at(slot) + KEY_LEN, start - HEADER_LEN);
        self.put32(Self::at(slot) + KEY_LEN + 4, payload.len());
        true
    }

    /// Removes an item. Returns whether the leaf had the item. The items after it move: O(n).
    pub fn remove(&mut self, key: &Key) -> bool {
        let Ok(slot) = self.search(key) else { return false };
        self.resize(slot, self.item(slot).len(), 0);
        self.buf.copy_within(Self::at(slot + 1)..Self::at(self.count), Self::at(slot));
        self.count -= 1;
        let free = Self::at(self.count);
        self.buf[free..free + ITEM_LEN].fill(0);
        true
    }

    /// Moves the items in the second half of the bytes into a new leaf. Both leaves have items
    /// afterwards. Costs O(n), and two nodes of zeros.
    ///
    /// # Panics
    ///
    /// When there are fewer than two items: the caller's bug.
    #[must_use]
    pub fn split(&mut self, geometry: &Geometry) -> Self {
        assert!(self.count > 1, "a leaf of {} items is split", self.count);
        let used = self.buf.len() - HEADER_LEN - self.room();
        let held = |slot: usize| (slot + 1) * ITEM_LEN + self.buf.len() - self.start(slot);
        let first = (1..self.count - 1).find(|slot| held(*slot) > used / 2);
        let first = first.unwrap_or(self.count - 1);
        let (mut left, mut right) = (Self::new(geometry), Self::new(geometry));
        for slot in 0..self.count {
            let half = if slot < first { &mut left } else { &mut right };
            let fits = half.set(&self.key(slot), self.item(slot));
            assert!(fits, "E1: a half is no more than the whole");
        }
        *self = left;
        right
    }

    /// Fills in header and checksum, then verifies the whole node. Costs two passes over the bytes.
    ///
    /// # Errors
    ///
    /// The fault of the node. Such a fault is a bug, found before the node reaches the disk.
    pub fn seal(&mut self, geometry: &Geometry, stamp: &NodeStamp) -> Result<NodePtr, Mismatch> {
        stamp.header(geometry, self.count as u32, 0).write_to(&mut self.buf);
        let digest = geometry.csum.digest(&self.buf[32..]);
        self.buf[..32].copy_from_slice(&digest);
        let ptr = NodePtr { logical: stamp.logical, generation: stamp.generation, level: 0 };
        Node::inspect(&self.buf, geometry, &Expect::root(ptr), false)?;
        Ok(ptr)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use buttress_base::Rng;
    use buttress_format::{Generation, Logical, TreeId};

    use super::*;
    use crate::LeafBuilder;

    /// Whatever the order of the changes, the leaf equals, byte for byte, the leaf that a builder
    /// makes of the same items.
    #[test]
    fn is_what_a_builder_makes() {
        let geometry = Geometry::OF_TESTS;
        let stamp = NodeStamp {
            logical: Logical(1 << 20),
            generation: Generation(7),
            owner: TreeId::TREE_LOG,
        };
        for seed in 0..20 {
            let mut rng = Rng::new(seed);
            let mut model: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
            let mut leaves = vec![LeafEdit::new(&geometry)];
            for _ in 0..2000 {
                let key = Key::new(rng.below(4), Kind::EXTENT_DATA, rng.below(60));
                let index = leaves.iter().rposition(|leaf| !leaf.is_empty() && leaf.key(0) <= key);
                let index = index.unwrap_or(0);
                if rng.below(4) == 0 {
                    assert_eq!(leaves[index].remove(&key), model.remove(&key).is_some());
                    if leaves[index].is_empty() && leaves.len() > 1 {
                        leaves.remove(index);
                    }
                    continue;
                }
                let payload = vec![rng.below(256) as u8; rng.below(300) as usize];
                if !leaves[index].set(&key, &payload) {
                    let right = leaves[index].split(&geometry);
                    let into = if right.key(0) <= key { index + 1 } else { index };
                    leaves.insert(index + 1, right);
                    assert!(leaves[into].set(&key, &payload));
                }
                model.insert(key, payload);
            }
            let mut items = model.iter();
            for leaf in &mut leaves {
                let mut builder = LeafBuilder::new(&geometry);
                for (key, payload) in items.by_ref().take(leaf.len()) {
                    builder.push(key, payload);
                }
                let built = builder.finish(&geometry, &stamp).seal(&geometry);
                leaf.seal(&geometry, &stamp).expect("a sound leaf");
                assert_eq!(leaf.bytes(), built.expect("a sound leaf").bytes(), "seed {seed}");
            }
            assert!(items.next().is_none());
        }
    }
}
