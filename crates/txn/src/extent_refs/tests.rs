//! Compares the references of one extent with a map of users, and measures the cost of a few
//! changes among many.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use buttress_base::Rng;
use buttress_format::{CsumType, ExtentFlags, Ino};
use buttress_tree::{Expect, Geometry, LeafBuilder, Node, NodeStamp, PtrBuilder};

use super::*;
use crate::DataRef;
use buttress_transaction::delayed_ref::inline_max;

const NODESIZE: u32 = 4096;
const AT: Logical = Logical(1 << 30);

fn key() -> Key {
    Key::new(AT.0, Kind::EXTENT_ITEM, 65536)
}

type Items = BTreeMap<Key, Vec<u8>>;

/// A tree that counts the keys and nodes that are looked at.
struct Tree {
    nodes: Vec<Arc<Node>>,
    root: NodePtr,
    steps: Cell<u64>,
}

impl NodeSource for Tree {
    fn node(&self, _: TreeId, expect: &Expect) -> buttress_tree::Result<Arc<Node>> {
        self.count_keys(1);
        Ok(Arc::clone(&self.nodes[expect.ptr.logical.0 as usize / NODESIZE as usize]))
    }

    fn count_keys(&self, count: u64) {
        self.steps.set(self.steps.get() + count);
    }
}

impl Tree {
    fn new(items: &Items) -> Self {
        let geometry = Geometry {
            nodesize: NODESIZE,
            sectorsize: 4096,
            csum: CsumType::Crc32c,
            fsid: [1; 16],
            seeds: Default::default(),
            chunk_tree_uuid: [2; 16],
        };
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let stamp = |at: usize| NodeStamp {
            logical: Logical(at as u64 * u64::from(NODESIZE)),
            generation: Generation(7),
            owner: TreeId::EXTENT,
        };
        let all: Vec<_> = items.iter().collect();
        let mut level: Vec<(Key, NodePtr)> = Vec::new();
        for group in all.chunks(40) {
            let mut leaf = LeafBuilder::new(&geometry);
            group.iter().for_each(|(key, item)| leaf.push(key, item));
            let node = leaf.finish(&geometry, &stamp(nodes.len()));
            level.push((*group[0].0, node.ptr()));
            nodes.push(Arc::new(node));
        }
        let mut height = 0;
        while level.len() > 1 {
            height += 1;
            let mut above = Vec::new();
            for group in level.chunks(100) {
                let mut inner = PtrBuilder::new(&geometry);
                group.iter().for_each(|(key, ptr)| inner.push(key, ptr));
                let node = inner.finish(&geometry, &stamp(nodes.len()), height);
                above.push((group[0].0, node.ptr()));
                nodes.push(Arc::new(node));
            }
            level = above;
        }
        Self { nodes, root: level[0].1, steps: Cell::new(0) }
    }
}

fn user(ino: u64, offset: u64) -> User {
    User::File(DataRef { root: TreeId::FS, ino: Ino(ino), offset })
}

/// Groups of four users with the same hash. Two differences of offsets leave the hash unchanged, so
/// each base offset gives four users.
fn colliding() -> Vec<User> {
    let hash = |offset| user(300, offset).with_count(1).hash();
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let mut differences = Vec::new();
    let mut rng = Rng::new(1);
    for _ in 0..1 << 18 {
        let at = rng.next_u64();
        if let Some(other) = seen.insert(hash(at), at) {
            differences.push(other ^ at);
        }
    }
    let (a, b) = (differences[0], differences[1]);
    let bases = [0, 7 << 12, 9 << 12, 11 << 30];
    let users: Vec<User> =
        bases.iter().flat_map(|x| [*x, x ^ a, x ^ b, x ^ a ^ b]).map(|at| user(300, at)).collect();
    for four in users.chunks(4) {
        let hashes = four.iter().map(|user| user.with_count(1).hash());
        assert_eq!(hashes.collect::<std::collections::HashSet<_>>().len(), 1, "they collide");
    }
    users
}

/// Number of references of each user, from the items.
fn counts(items: &Items) -> BTreeMap<User, i64> {
    let mut counts = BTreeMap::new();
    let mut add = |entry: &BackRef| {
        let user = User::of(entry).expect("a user");
        assert_eq!(counts.insert(user, i64::from(entry.count())), None, "R3: {user:?}");
    };
    for (key, bytes) in items {
        match key.kind {
            Kind::EXTENT_ITEM => {
                parse(key, bytes).expect("an item").inline.iter().for_each(&mut add);
            }
            _ => add(&BackRef::keyed_parse(key, bytes).expect("a reference")),
        }
    }
    counts
}

fn change(items: &mut Items, deltas: &Deltas) -> (ExtentEffect, u64, usize) {
    let tree = Tree::new(items);
    let mut refs = ExtentItems::read(&tree, tree.root, &key()).expect("an item");
    refs.apply(deltas, inline_max(NODESIZE)).expect("the deltas fit");
    let mut out = BTreeMap::new();
    let fate = refs.write(false, &mut out).expect("items");
    let written = out.len();
    for (key, change) in out {
        match change {
            Some(bytes) => drop(items.insert(key, bytes.to_vec())),
            None => assert!(items.remove(&key).is_some(), "{key} was deleted, and was not there"),
        }
    }
    (fate, tree.steps.get(), written)
}

fn born(first: User) -> Items {
    let mut refs = ExtentItems::<Tree>::born(key(), Generation(7), ExtentFlags::DATA);
    let mut deltas = Deltas::default();
    deltas.add(first, 1);
    refs.apply(&deltas, inline_max(NODESIZE)).expect("a first user");
    let mut out = BTreeMap::new();
    refs.write(true, &mut out).expect("items");
    let mut items: Items =
        out.into_iter().map(|(key, item)| (key, item.expect("an item").to_vec())).collect();
    // Add items of other extents before and after this extent.
    let other = items[&key()].clone();
    items.insert(Key::new(AT.0 - 4096, Kind::EXTENT_ITEM, 4096), other.clone());
    items.insert(Key::new(AT.0 + 65536, Kind::EXTENT_ITEM, 4096), other);
    items
}

fn only_ours(items: &Items) -> Items {
    items.iter().filter(|(k, _)| k.objectid == AT.0).map(|(k, v)| (*k, v.clone())).collect()
}

/// Adds and removes users with and without equal hashes. Items and counts follow a map, and no user
/// has two references.
#[test]
fn references_follow_a_map_of_users_when_hashes_collide() {
    let mut users = colliding();
    users.extend((0..20).map(|ino| user(400 + ino, 0)));
    users.extend((0..20).map(|at| User::Leaf(Logical(at << 14))));
    for seed in 0..30 {
        let mut rng = Rng::new(seed);
        let mut items = born(users[0]);
        let mut model = BTreeMap::from([(users[0], 1)]);
        for round in 0..40 {
            let mut deltas = Deltas::default();
            let mut after = model.clone();
            for _ in 0..1 + rng.below(12) {
                let user = *rng.choose(&users).expect("some");
                let there = after.get(&user).copied().unwrap_or(0);
                let delta = rng.below(5) as i64 - there.min(2 + rng.below(2) as i64);
                let delta = delta.max(-there);
                deltas.add(user, delta);
                *after.entry(user).or_default() += delta;
            }
            after.retain(|_, count| *count > 0);
            if deltas.is_empty() {
                continue;
            }
            let (fate, ..) = change(&mut items, &deltas);
            let ours = only_ours(&items);
            assert_eq!(items.len() - ours.len(), 2, "nothing else is touched");
            if after.is_empty() {
                assert_eq!(
                    (fate, ours.len()),
                    (ExtentEffect::Freed, 0),
                    "seed {seed}, round {round}"
                );
                break;
            }
            assert_eq!(counts(&ours), after, "seed {seed}, round {round}");
            let item = parse(&key(), &ours[&key()]).expect("an item");
            assert_eq!(item.refs, after.values().sum::<i64>() as u64, "R1");
            model = after;
        }
    }
}

/// Dropping a reference that no user holds fails, even if the extent has many other references.
#[test]
fn dropping_a_reference_fails_when_no_file_holds_it() {
    let mut items = born(user(1, 0));
    let mut deltas = Deltas::default();
    (0..200).for_each(|ino| deltas.add(user(500 + ino, 0), 1));
    change(&mut items, &deltas);
    let tree = Tree::new(&items);
    for stranger in [user(2, 0), User::Leaf(Logical(4096))] {
        let mut refs = ExtentItems::read(&tree, tree.root, &key()).expect("an item");
        let mut deltas = Deltas::default();
        deltas.add(stranger, -1);
        refs.apply(&deltas, inline_max(NODESIZE)).expect_err("R2");
    }
}

/// The cost of changing ten references, and of looking for other users, does not depend on the
/// number of references.
#[test]
fn changing_few_references_costs_the_same_however_many_there_are() {
    for count in [500, 2_000, 8_000] {
        let mut items = born(user(1, 0));
        let mut deltas = Deltas::default();
        (0..count).for_each(|ino| deltas.add(user(500 + ino, 0), 1));
        let (_, steps, _) = change(&mut items, &deltas);
        assert!(steps < 20 * count, "{count} came: {steps} steps");
        let mut deltas = Deltas::default();
        (0..5).for_each(|ino| deltas.add(user(500 + ino * count / 5, 0), -1));
        (0..5).for_each(|ino| deltas.add(user(50 + ino, 0), 1));
        let (_, steps, written) = change(&mut items, &deltas);
        assert!(steps < 200 && written <= 11, "ten of {count}: {steps} steps, {written} items");
        let tree = Tree::new(&items);
        let refs = ExtentItems::read(&tree, tree.root, &key()).expect("an item");
        assert!(!refs.are_only_of(user(1, 0)).expect("it reads"));
        assert!(tree.steps.get() < 30, "{count}: {} steps", tree.steps.get());
        // Drop all references.
        let mut deltas = Deltas::default();
        counts(&only_ours(&items)).into_iter().for_each(|(user, n)| deltas.add(user, -n));
        let (fate, steps, _) = change(&mut items, &deltas);
        assert_eq!(fate, ExtentEffect::Freed);
        assert!(steps < 20 * count, "{count} went: {steps} steps");
    }
}
