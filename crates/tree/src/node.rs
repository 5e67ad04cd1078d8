//! A tree node: one buffer, verified once, searched in place.
//!
//! # Invariants
//!
//! - **N1** A [`Node`] exists only after [`Node::verify`] checked every key, offset and pointer in
//!   it. So searches need no further checks.
//! - **N2** A `Node` never changes (`tree::T1`).
//!
//! # On disk
//!
//! ```text
//! leaf   header 101 | item 0 .. item n-1, 25 bytes each | free | data n-1 .. data 0
//! inner  header 101 | pointer 0 .. pointer n-1, 33 bytes each | free
//! ```
//!
//! An item's data offset counts from the end of the header; data grows down from the node's end.

use buttress_base::AlignedBuf;
use buttress_format::{
    Generation, Header, Key, Kind, Logical, TreeId,
    header::{HEADER_LEN, ITEM_LEN, PTR_LEN},
    limits::MAX_LEVEL,
};

use crate::{
    Mismatch,
    geometry::{Geometry, NodeStamp},
};

/// The address of a node, with the generation and level that it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodePtr {
    /// The address of the node.
    pub logical: Logical,
    /// The transaction that wrote the node.
    pub generation: Generation,
    /// The level of the node: 0 is a leaf.
    pub level: u8,
}

/// The requirements of a reader on a node.
#[derive(Clone, Copy, Debug)]
pub struct Expect {
    /// The pointer followed.
    pub ptr: NodePtr,
    /// The key that the parent has for the node, if there is a parent.
    pub first_key: Option<Key>,
    /// The first key of the next node, if there is one. All keys of this node must be smaller.
    /// Without this check, each node could be in order while the tree is not.
    pub below: Option<Key>,
}

impl Expect {
    /// The requirements on a tree's root. Costs O(1).
    #[must_use]
    pub fn root(ptr: NodePtr) -> Self {
        Self { ptr, first_key: None, below: None }
    }
}

/// A verified, immutable node.
pub struct Node {
    buf: AlignedBuf,
    header: Header,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("logical", &self.header.bytenr)
            .field("owner", &self.header.owner)
            .field("generation", &self.header.generation)
            .field("level", &self.header.level)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[inline]
fn le32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
fn le64(b: &[u8], at: usize) -> u64 {
    let mut x = [0; 8];
    x.copy_from_slice(&b[at..at + 8]);
    u64::from_le_bytes(x)
}

#[inline]
fn key_at(b: &[u8], at: usize) -> Key {
    Key { objectid: le64(b, at), kind: Kind(b[at + 8]), offset: le64(b, at + 9) }
}

fn verify_leaf(buf: &[u8], count: u32) -> Result<(), Mismatch> {
    let room = buf.len() - HEADER_LEN;
    if count as usize > room / ITEM_LEN {
        return Err(Mismatch::Count(count));
    }
    let table_end = count as usize * ITEM_LEN;
    let mut limit = room as u64;
    let mut previous: Option<Key> = None;
    // Every node that is read or written passes through here, so speed matters. Arrays of fixed
    // length need no bounds checks.
    let (table, _) = buf[HEADER_LEN..HEADER_LEN + table_end].as_chunks::<ITEM_LEN>();
    for (slot, entry) in (0..count).zip(table) {
        let key = key_at(entry, 0);
        if previous.is_some_and(|p| p >= key) {
            return Err(Mismatch::Order(slot));
        }
        previous = Some(key);
        let offset = u64::from(le32(entry, 17));
        let size = u64::from(le32(entry, 21));
        if offset + size != limit || offset < table_end as u64 {
            return Err(Mismatch::ItemBounds(slot));
        }
        limit = offset;
    }
    Ok(())
}

fn verify_inner(buf: &[u8], count: u32, geometry: &Geometry) -> Result<(), Mismatch> {
    if count == 0 {
        return Err(Mismatch::NoChildren);
    }
    if count as usize > (buf.len() - HEADER_LEN) / PTR_LEN {
        return Err(Mismatch::Count(count));
    }
    let mut previous: Option<Key> = None;
    for slot in 0..count {
        let at = HEADER_LEN + slot as usize * PTR_LEN;
        let key = key_at(buf, at);
        if previous.is_some_and(|p| p >= key) {
            return Err(Mismatch::Order(slot));
        }
        previous = Some(key);
        let child = le64(buf, at + 17);
        if child == 0 || !child.is_multiple_of(u64::from(geometry.sectorsize)) {
            return Err(Mismatch::Child(slot));
        }
    }
    Ok(())
}

impl Node {
    /// Checks every byte that a search relies on. Costs one pass over the entries. With
    /// `check_csum`, it also costs one pass over the bytes.
    ///
    /// # Errors
    ///
    /// The first problem. Checks run in an order that reports the most informative problem first.
    pub fn verify(
        buf: AlignedBuf,
        geometry: &Geometry,
        expect: &Expect,
        check_csum: bool,
    ) -> Result<Self, Mismatch> {
        let header = Self::inspect(&buf, geometry, expect, check_csum)?;
        Ok(Self { buf, header })
    }

    /// As [`verify`](Self::verify), on borrowed bytes. Returns the header if the whole node is
    /// sound. The cost is that of `verify`.
    ///
    /// # Errors
    ///
    /// As [`verify`](Self::verify).
    pub fn inspect(
        buf: &[u8],
        geometry: &Geometry,
        expect: &Expect,
        check_csum: bool,
    ) -> Result<Header, Mismatch> {
        if buf.len() != geometry.nodesize as usize {
            return Err(Mismatch::Checksum);
        }
        if check_csum {
            let size = geometry.csum.size();
            if geometry.csum.digest(&buf[32..])[..size] != buf[..size] {
                return Err(Mismatch::Checksum);
            }
        }
        let header = Header::parse(buf).map_err(|_| Mismatch::Checksum)?;
        if header.bytenr != expect.ptr.logical {
            return Err(Mismatch::Bytenr(header.bytenr));
        }
        if !geometry.is_own(header.fsid) {
            return Err(Mismatch::Fsid);
        }
        if header.generation != expect.ptr.generation {
            return Err(Mismatch::Generation {
                found: header.generation,
                expected: expect.ptr.generation,
            });
        }
        if header.level != expect.ptr.level || header.level >= MAX_LEVEL {
            return Err(Mismatch::Level { found: header.level, expected: expect.ptr.level });
        }
        if header.level == 0 {
            verify_leaf(buf, header.nritems)?;
        } else {
            verify_inner(buf, header.nritems, geometry)?;
        }
        if let Some(first) = expect.first_key
            && (header.nritems == 0 || key_at(buf, HEADER_LEN) != first)
        {
            return Err(Mismatch::FirstKey);
        }
        if let Some(below) = expect.below
            && let Some(last) = (header.nritems as usize).checked_sub(1)
        {
            let stride = if header.level == 0 { ITEM_LEN } else { PTR_LEN };
            if key_at(buf, HEADER_LEN + last * stride) >= below {
                return Err(Mismatch::LastKey);
            }
        }
        Ok(header)
    }

    /// The header, as it was verified. Costs O(1).
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The address of the node. Costs O(1).
    #[must_use]
    pub fn logical(&self) -> Logical {
        self.header.bytenr
    }

    /// The level of the node: 0 is a leaf. Costs O(1).
    #[must_use]
    pub fn level(&self) -> u8 {
        self.header.level
    }

    /// The tree that the node was written for. Costs O(1).
    #[must_use]
    pub fn owner(&self) -> TreeId {
        self.header.owner
    }

    /// The pointer to this node. Costs O(1).
    #[must_use]
    pub fn ptr(&self) -> NodePtr {
        NodePtr {
            logical: self.header.bytenr,
            generation: self.header.generation,
            level: self.header.level,
        }
    }

    /// Number of items, or of children. Costs O(1).
    #[must_use]
    pub fn len(&self) -> usize {
        self.header.nritems as usize
    }

    /// Whether the node has no entries. Only the root of an empty tree has none. Costs O(1).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.header.nritems == 0
    }

    /// The whole buffer, with the header. Costs O(1).
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.buf
    }

    fn stride(&self) -> usize {
        if self.header.level == 0 { ITEM_LEN } else { PTR_LEN }
    }

    /// Key of a slot. Costs O(1).
    ///
    /// # Panics
    ///
    /// When the slot is past the end: the caller's bug.
    #[must_use]
    pub fn key(&self, slot: usize) -> Key {
        assert!(slot < self.len(), "slot {slot} of {}", self.len());
        key_at(&self.buf, HEADER_LEN + slot * self.stride())
    }

    /// Payload of a slot of a leaf. Costs O(1).
    ///
    /// # Panics
    ///
    /// When the slot is past the end or this is an inner node: the caller's bug.
    #[must_use]
    pub fn item(&self, slot: usize) -> &[u8] {
        let (start, end) = self.item_range(slot);
        &self.buf[start..end]
    }

    /// The range of a slot's payload in [`bytes`](Self::bytes).
    pub(crate) fn item_range(&self, slot: usize) -> (usize, usize) {
        assert!(self.header.level == 0, "items are in leaves");
        assert!(slot < self.len(), "slot {slot} of {}", self.len());
        let at = HEADER_LEN + slot * ITEM_LEN;
        let start = HEADER_LEN + le32(&self.buf, at + 17) as usize;
        (start, start + le32(&self.buf, at + 21) as usize)
    }

    /// Child of a slot of an inner node. Costs O(1).
    ///
    /// # Panics
    ///
    /// When the slot is past the end or this is a leaf: the caller's bug.
    #[must_use]
    pub fn child(&self, slot: usize) -> NodePtr {
        assert!(self.header.level > 0, "leaves have no children");
        assert!(slot < self.len(), "slot {slot} of {}", self.len());
        let at = HEADER_LEN + slot * PTR_LEN + 17;
        NodePtr {
            logical: Logical(le64(&self.buf, at)),
            generation: Generation(le64(&self.buf, at + 8)),
            level: self.header.level - 1,
        }
    }

    /// The requirements on a slot's child, without a limit for its last key. Costs O(1).
    #[must_use]
    pub fn expect_child(&self, slot: usize) -> Expect {
        Expect { ptr: self.child(slot), first_key: Some(self.key(slot)), below: None }
    }

    /// The requirements on a slot's child. `below` is the first key after this node, if there is
    /// one. Costs O(1).
    #[must_use]
    pub fn expect_child_below(&self, slot: usize, below: Option<Key>) -> Expect {
        let next = if slot + 1 < self.len() { Some(self.key(slot + 1)) } else { below };
        Expect { ptr: self.child(slot), first_key: Some(self.key(slot)), below: next }
    }

    /// Whether the node's keys meet the requirements.
    pub(crate) fn has_keys_of(&self, expect: &Expect) -> bool {
        let Some(last) = self.len().checked_sub(1) else { return expect.first_key.is_none() };
        expect.first_key.is_none_or(|first| self.key(0) == first)
            && expect.below.is_none_or(|below| self.key(last) < below)
    }

    /// Finds a key: its slot, or the slot where it would stand. Costs O(log n) in the entries.
    ///
    /// # Errors
    ///
    /// The slot of the first greater key.
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let stride = self.stride();
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let mid = usize::midpoint(low, high);
            match key_at(&self.buf, HEADER_LEN + mid * stride).cmp(key) {
                std::cmp::Ordering::Less => low = mid + 1,
                std::cmp::Ordering::Greater => high = mid,
                std::cmp::Ordering::Equal => return Ok(mid),
            }
        }
        Err(low)
    }

    /// The slot of the child that contains a key, or would contain it. Costs O(log n) in the
    /// entries.
    #[must_use]
    pub fn child_slot(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1),
        }
    }

    /// Bytes that the entries take: items and payloads of a leaf, or pointers of an inner node.
    /// Costs O(1).
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        if self.level() > 0 {
            return self.len() * PTR_LEN;
        }
        match self.len() {
            0 => 0,
            n => n * ITEM_LEN + (self.buf.len() - self.item_range(n - 1).0),
        }
    }

    /// Copies the entries to a node of another tree, at another address. Costs one copy of the
    /// node.
    #[must_use]
    pub fn copied(&self, geometry: &Geometry, stamp: &NodeStamp) -> Self {
        let header = stamp.header(geometry, self.header.nritems, self.header.level);
        let mut buf = self.buf.clone();
        header.write_to(&mut buf);
        Self { buf, header }
    }

    /// As [`copied`](Self::copied), but with other children or payloads. For each slot, `child`
    /// returns the new child and `payload` the new payload, of the same length. `None` keeps the
    /// old child or payload. Costs one step for each entry beside the copy.
    ///
    /// # Panics
    ///
    /// When a payload has another length: the caller's bug.
    #[must_use]
    pub fn copied_with<'p>(
        &self,
        geometry: &Geometry,
        stamp: &NodeStamp,
        child: impl Fn(usize) -> Option<NodePtr>,
        payload: impl Fn(usize) -> Option<&'p [u8]>,
    ) -> Self {
        let mut copy = self.copied(geometry, stamp);
        for slot in 0..self.len() {
            if self.level() > 0 {
                let Some(ptr) = child(slot) else { continue };
                let at = HEADER_LEN + slot * PTR_LEN + 17;
                copy.buf[at..at + 8].copy_from_slice(&ptr.logical.0.to_le_bytes());
                copy.buf[at + 8..at + 16].copy_from_slice(&ptr.generation.0.to_le_bytes());
            } else if let Some(bytes) = payload(slot) {
                let (start, end) = self.item_range(slot);
                copy.buf[start..end].copy_from_slice(bytes);
            }
        }
        copy
    }

    pub(crate) fn from_built(buf: AlignedBuf, header: Header) -> Self {
        Self { buf, header }
    }

    /// Returns a copy for the disk, with its checksum, verified once more. Costs one copy of the
    /// node, one pass over its bytes, and one over its entries.
    ///
    /// # Errors
    ///
    /// The fault of the node. Such a fault is a bug of the merge, found before the node reaches the
    /// disk.
    pub fn seal(&self, geometry: &Geometry) -> Result<Self, Mismatch> {
        Self { buf: self.buf.clone(), header: self.header }.into_sealed(geometry)
    }

    /// [`seal`](Self::seal) of a node that the caller owns, without a copy. Costs the two passes of
    /// `seal`.
    ///
    /// # Errors
    ///
    /// As [`seal`](Self::seal).
    pub fn into_sealed(self, geometry: &Geometry) -> Result<Self, Mismatch> {
        let (ptr, mut buf) = (self.ptr(), self.buf);
        let digest = geometry.csum.digest(&buf[32..]);
        buf[..32].copy_from_slice(&digest);
        Self::verify(buf, geometry, &Expect::root(ptr), false)
    }
}
