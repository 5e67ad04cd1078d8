//! Extents that are allocated and not referenced yet: their first reference makes their item.

use buttress_base::CachePadded;
use buttress_base::sync::Mutex;
use buttress_format::Logical;
use rustc_hash::FxHashSet;

const SHARDS: usize = 16;

/// Starts of extents without references. One short lock a shard.
///
/// Unranked: nothing is taken inside.
#[derive(Debug, Default)]
pub(crate) struct Unreferenced([CachePadded<Mutex<Starts>>; SHARDS]);

type Starts = FxHashSet<Logical>;

impl Unreferenced {
    fn shard(&self, at: Logical) -> &Mutex<Starts> {
        &self.0[(spread(at.0) >> 60) as usize % SHARDS]
    }

    pub(crate) fn insert(&self, at: Logical) {
        self.shard(at).lock().insert(at);
    }

    /// Removes an extent, and returns whether it was there.
    pub(crate) fn remove(&self, at: Logical) -> bool {
        self.shard(at).lock().remove(&at)
    }
}

/// Addresses are multiples of a sector, and neighbours more often than not.
fn spread(at: u64) -> u64 {
    (at >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
