//! Stamps: they show whether a remembered result about the users of an extent still holds.
//!
//! # Invariants
//!
//! - **S1** A stamp changes before each event that could change the users of the extent: a
//!   reference gained or lost, or a snapshot. Only handles add references and request snapshots, so
//!   handles change the stamps.
//! - **S2** An unchanged stamp proves only that the users of the extent have not *changed* since
//!   the stamp was taken. So a second check of the extent would give the same result.
//!
//! Extents share counters by a hash of their address. A collision only causes an unneeded check.

use std::sync::atomic::{AtomicU64, Ordering};

use buttress_base::CachePadded;
use buttress_format::Logical;

/// Counters of changes of references; a power of two.
const EXTENTS: usize = 4096;

/// The state of the counters before a thread checked the users of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    references: u64,
    snapshots: u64,
}

/// Counters of changes.
#[derive(Debug)]
pub struct Stamps {
    references: Box<[AtomicU64]>,
    snapshots: AtomicU64,
    /// Number of extents that became free as soon as they lost their last reference.
    freed_at_once: CachePadded<AtomicU64>,
}

impl Default for Stamps {
    fn default() -> Self {
        let references = (0..EXTENTS).map(|_| AtomicU64::new(0)).collect();
        Self { references, snapshots: AtomicU64::new(0), freed_at_once: CachePadded::default() }
    }
}

impl Stamps {
    fn of(&self, at: Logical) -> &AtomicU64 {
        let spread = (at.0 >> 12).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.references[(spread >> 52) as usize % EXTENTS]
    }

    /// Changes the stamp of an extent, before its users change.
    pub fn touch(&self, at: Logical) {
        self.of(at).fetch_add(1, Ordering::SeqCst);
    }

    /// Counts an extent that is about to become free because it lost its last reference.
    pub fn note_freed_at_once(&self) {
        self.freed_at_once.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of extents that became free as soon as they lost their last reference.
    pub fn freed_at_once(&self) -> u64 {
        self.freed_at_once.load(Ordering::SeqCst)
    }

    /// Changes all stamps, before a snapshot is requested.
    pub fn snapshot(&self) {
        self.snapshots.fetch_add(1, Ordering::SeqCst);
    }

    /// The current stamp of the extent at `at`.
    pub fn stamp(&self, at: Logical) -> Stamp {
        Stamp {
            references: self.of(at).load(Ordering::SeqCst),
            snapshots: self.snapshots.load(Ordering::SeqCst),
        }
    }
}
