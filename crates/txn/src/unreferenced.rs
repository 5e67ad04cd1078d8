//! Extents that are allocated and not referenced yet. The first reference makes the extent item.
//! Each extent has the charge of its writer.

use buttress_base::CachePadded;
use buttress_base::sync::Mutex;
use buttress_format::Logical;
use rustc_hash::FxHashMap;

use crate::QuotaCharge;

const SHARDS: usize = 16;

/// Starts of extents without references. Each shard has a lock that is held briefly.
///
/// Unranked: nothing is taken inside.
#[derive(Debug, Default)]
pub(crate) struct Unreferenced([CachePadded<Mutex<Starts>>; SHARDS]);

type Starts = FxHashMap<Logical, QuotaCharge>;

impl Unreferenced {
    fn shard(&self, at: Logical) -> &Mutex<Starts> {
        &self.0[(spread(at.0) >> 60) as usize % SHARDS]
    }

    pub(crate) fn insert(&self, at: Logical, charge: QuotaCharge) {
        let before = self.shard(at).lock().insert(at, charge);
        debug_assert!(before.is_none(), "an extent is allocated once");
    }

    /// Removes an extent, and returns its charge; `None` if the extent is not here.
    pub(crate) fn remove(&self, at: Logical) -> Option<QuotaCharge> {
        self.shard(at).lock().remove(&at)
    }
}

/// Spreads addresses over shards. The addresses are multiples of a sector, and often neighbours.
fn spread(at: u64) -> u64 {
    (at >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}
