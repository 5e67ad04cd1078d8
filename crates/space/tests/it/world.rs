//! Helpers for all tests.

use buttress_format::{BlockGroupFlags, Extent, Generation, Logical};
use buttress_space::{AllocOutcome, AllocRequest, GroupInit, Space, SpaceKind};

/// Bytes of a sector.
pub(crate) const SECTOR: u64 = 4096;
/// Bytes of a node.
pub(crate) const NODE: u64 = 16384;
/// A mebibyte.
pub(crate) const MIB: u64 = 1 << 20;

/// An extent of `len` bytes at `start`.
pub(crate) fn extent(start: u64, len: u64) -> Extent {
    Extent { start: Logical(start), len }
}

/// A space of sectors and nodes as above, without groups.
pub(crate) fn empty_space() -> Space {
    Space::new(SECTOR as u32, NODE as u32)
}

/// The flags of a kind.
pub(crate) fn flags(kind: SpaceKind) -> BlockGroupFlags {
    match kind {
        SpaceKind::Data => BlockGroupFlags::DATA,
        SpaceKind::Metadata => BlockGroupFlags::METADATA,
        SpaceKind::System => BlockGroupFlags::SYSTEM,
    }
}

/// A group that was read from the volume.
pub(crate) fn old_group(kind: SpaceKind, start: u64, len: u64, used: u64) -> GroupInit {
    GroupInit {
        range: extent(start, len),
        flags: flags(kind),
        used,
        birth: Generation(0),
        read_only: false,
        superblock_stripes: Vec::new(),
        row: None,
    }
}

/// A group that transaction `birth` made.
pub(crate) fn new_group(kind: SpaceKind, start: u64, len: u64, birth: u64) -> GroupInit {
    GroupInit { birth: Generation(birth), ..old_group(kind, start, len, 0) }
}

/// A request for exactly `bytes`, from stream zero of transaction 10.
pub(crate) fn exactly(kind: SpaceKind, bytes: u64) -> AllocRequest {
    AllocRequest {
        kind,
        want: bytes,
        min: bytes,
        align: if kind == SpaceKind::Data { SECTOR } else { NODE },
        goal: None,
        limit: Generation(10),
        stream: 0,
        hurry: false,
    }
}

/// The extent of a successful allocation.
pub(crate) fn got(outcome: AllocOutcome) -> Extent {
    match outcome {
        AllocOutcome::Got(extent) => extent,
        AllocOutcome::NeedsLoading(group) => panic!("group {} wants loading", group.start()),
        AllocOutcome::Full { largest } => panic!("full, with {largest} at most"),
    }
}
