//! Extents that are allocated and not referenced yet: their first reference makes their item.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hasher};

use buttress_base::Apart;
use buttress_base::sync::Mutex;
use buttress_format::Logical;

const SHARDS: usize = 16;

/// Where extents begin that nobody uses yet. One short lock a shard.
#[derive(Debug, Default)]
pub(crate) struct Unborn([Apart<Mutex<Starts>>; SHARDS]);

type Starts = HashSet<Logical, BuildHasherDefault<Spread>>;

impl Unborn {
    fn shard(&self, at: Logical) -> &Mutex<Starts> {
        &self.0[(spread(at.0) >> 60) as usize % SHARDS]
    }

    pub(crate) fn insert(&self, at: Logical) {
        self.shard(at).lock().insert(at);
    }

    /// Whether it was one of them; it is not any more.
    pub(crate) fn remove(&self, at: Logical) -> bool {
        self.shard(at).lock().remove(&at)
    }
}

/// Addresses are multiples of a sector, and neighbours more often than not.
fn spread(at: u64) -> u64 {
    (at >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Hashes addresses that we chose ourselves, so that nobody can make them collide.
#[derive(Debug, Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, at: u64) {
        // The shard was chosen by the highest bits, the table looks at both ends.
        self.0 = spread(self.0 ^ at).rotate_left(20);
    }
}
