//! How an engine is opened.

use buttress_format::DeviceItem;
use buttress_space::{AllocPolicy, LookupPolicy};

use crate::learning::GroupsRead;
use crate::reserve::ReservePolicy;

/// How an engine is opened.
///
/// Plain data: no option changes after the opening.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Open for reading only.
    pub read_only: bool,
    /// Open for reading only, until [`Engine::begin_writing`](crate::Engine::begin_writing) is
    /// called. The [`Volume`](buttress_volume::Volume) must have been opened in the same way.
    pub may_begin_writing: bool,
    /// Tell the devices about freed space.
    pub discard: bool,
    /// Memory for tree nodes, in bytes.
    pub cache_bytes: u64,
    /// Memory that a running transaction may hold before a commit starts on its own, in bytes.
    pub overlay_max: u64,
    /// Rebuild the record of all free space as a free-space tree, even if the volume had no such
    /// tree.
    pub rebuild_free_space: bool,
    /// Open read-only although there is a log of fsync that was not replayed.
    pub ignore_log: bool,
    /// The caller will replay a log of fsync; see [`Commits::take_log`](crate::Commits::take_log).
    pub replay_log: bool,
    /// How block groups are chosen for allocations.
    pub alloc: AllocPolicy,
    /// How the block group of an address is found.
    pub lookup: LookupPolicy,
    /// How much metadata a reservation takes.
    pub policy: ReservePolicy,
    /// Whether room is kept for copies of nodes that trees share.
    pub delete_room: bool,
    /// The item of the new device, if the volume is a sprout that is not on disk yet
    /// ([`Volume::open_sprout`](buttress_volume::Volume::open_sprout)). The opening makes its first
    /// commit.
    pub sprout: Option<DeviceItem>,
    /// When block groups are read.
    pub groups: GroupsRead,
    /// Open read-only even if trees cannot be read, and leave these trees out. The root tree, the
    /// chunk tree and the requested subvolume must be readable (`rescue=ignorebadroots`).
    pub ignore_bad_roots: bool,
    /// Open read-only and take nodes with wrong checksums (`rescue=ignoremetacsums`).
    pub ignore_meta_csums: bool,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            may_begin_writing: false,
            discard: false,
            cache_bytes: 256 << 20,
            overlay_max: 192 << 20,
            rebuild_free_space: false,
            ignore_log: false,
            replay_log: false,
            alloc: AllocPolicy::default(),
            lookup: LookupPolicy::default(),
            policy: ReservePolicy::default(),
            delete_room: true,
            sprout: None,
            groups: GroupsRead::default(),
            ignore_bad_roots: false,
            ignore_meta_csums: false,
        }
    }
}
