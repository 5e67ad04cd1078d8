//! Promises: space that will be there when the work needs it, given back if the work does not.
//!
//! # Place
//!
//! `data` reserves bytes for dirty pages, `txn` reserves metadata for handles; both hold the token
//! until the work is done. Tokens are linear: they split and merge, and cannot be copied.
//!
//! # Invariants
//!
//! - **R1** Every promised byte belongs to exactly one live token.
//! - **R2** A token that is dropped gives back what it still holds.
//!
//! # Failure
//!
//! A refusal says how many bytes are missing and changes nothing. The caller climbs its ladder
//! (write back, allocate a chunk, commit) and asks again; nothing here calls up to do it.

use std::fmt;
use std::mem;
use std::sync::Arc;

use crate::account::Dip;
use crate::{Space, SpaceKind};

/// A refusal, and how far away a yes is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{missing} bytes short")]
pub struct Short {
    /// Bytes that must come free before the same request can succeed.
    pub missing: u64,
}

impl Space {
    /// Promises `bytes` for contents of files: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`Short`] when they are not there; make room and ask again.
    pub fn reserve_data(self: &Arc<Self>, bytes: u64) -> Result<DataReservation, Short> {
        Promise::new(self, SpaceKind::Data, bytes, Dip::Never).map(DataReservation)
    }

    /// Promises `bytes` for nodes: all of them, or none.
    ///
    /// # Errors
    ///
    /// [`Short`] when they are not there beside the global reserve; make room and ask again.
    pub fn reserve_meta(self: &Arc<Self>, bytes: u64) -> Result<MetaHold, Short> {
        Promise::new(self, SpaceKind::Metadata, bytes, Dip::Never).map(MetaHold)
    }

    /// As [`Space::reserve_meta`], for work that frees space in the end: it may take from the
    /// global reserve, all but the tenth that is a commit's own.
    ///
    /// # Errors
    ///
    /// [`Short`] when even that is not enough.
    pub fn try_reserve_meta_ignoring_global(
        self: &Arc<Self>,
        bytes: u64,
    ) -> Result<MetaHold, Short> {
        Promise::new(self, SpaceKind::Metadata, bytes, Dip::IntoGlobal).map(MetaHold)
    }
}

/// What both kinds of token are made of.
struct Promise {
    space: Arc<Space>,
    kind: SpaceKind,
    bytes: u64,
}

impl Promise {
    fn new(space: &Arc<Space>, kind: SpaceKind, bytes: u64, dip: Dip) -> Result<Self, Short> {
        space.ledger(kind).promise(bytes, dip)?;
        space.ledger(kind).tally(bytes, 0);
        Ok(Self { space: Arc::clone(space), kind, bytes })
    }

    fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "R1: {bytes} bytes of a promise of {}", self.bytes);
        self.bytes -= bytes;
        Self { space: Arc::clone(&self.space), kind: self.kind, bytes }
    }

    fn merge(&mut self, mut other: Self) {
        assert!(Arc::ptr_eq(&self.space, &other.space), "R1: promises of two volumes");
        self.bytes += mem::take(&mut other.bytes);
    }

    fn shrink_to(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "R1: {bytes} bytes of a promise of {}", self.bytes);
        let excess = self.bytes - bytes;
        self.bytes = bytes;
        self.give_back(excess);
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            self.space.ledger(self.kind).tally(0, bytes);
            self.space.ledger(self.kind).release(bytes);
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// A promise of space for contents of files. Dropping it gives back whatever was not allocated.
#[must_use = "a reservation nobody holds is given back at once"]
pub struct DataReservation(Promise);

impl DataReservation {
    /// Returns the bytes still promised.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Cuts `bytes` off into a token of their own.
    ///
    /// # Panics
    ///
    /// When there are not that many: a bug of the caller (R1).
    pub fn split(&mut self, bytes: u64) -> Self {
        Self(self.0.split(bytes))
    }

    /// Adds the bytes of another token of the same volume.
    ///
    /// # Panics
    ///
    /// When it is another volume's: a bug of the caller.
    pub fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
    }

    /// Gives back all but `bytes`.
    ///
    /// # Panics
    ///
    /// When there are fewer: a bug of the caller (R1).
    pub fn shrink_to(&mut self, bytes: u64) {
        self.0.shrink_to(bytes);
    }

    /// Whether the promise was made by `space`.
    pub(crate) fn is_of(&self, space: &Space) -> bool {
        std::ptr::eq(Arc::as_ptr(&self.0.space), space)
    }

    /// Forgets `bytes` that an allocation turned into reserved space; the account knows already.
    pub(crate) fn take(&mut self, bytes: u64) {
        assert!(bytes <= self.0.bytes, "R1: {bytes} bytes of a promise of {}", self.0.bytes);
        self.0.space.ledger(self.0.kind).tally(0, bytes);
        self.0.bytes -= bytes;
    }
}

impl fmt::Debug for DataReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataReservation").field("bytes", &self.0.bytes).finish()
    }
}

/// A promise of space for nodes. Dropping it gives it back.
#[must_use = "a hold nobody holds is given back at once"]
pub struct MetaHold(Promise);

impl MetaHold {
    /// Returns the bytes still promised.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Cuts `bytes` off into a hold of their own.
    ///
    /// # Panics
    ///
    /// When there are not that many: a bug of the caller (R1).
    pub fn split(&mut self, bytes: u64) -> Self {
        Self(self.0.split(bytes))
    }

    /// Adds the bytes of another hold of the same volume.
    ///
    /// # Panics
    ///
    /// When it is another volume's: a bug of the caller.
    pub fn merge(&mut self, other: Self) {
        self.0.merge(other.0);
    }

    /// Gives back all but `bytes`.
    ///
    /// # Panics
    ///
    /// When there are fewer: a bug of the caller (R1).
    pub fn shrink_to(&mut self, bytes: u64) {
        self.0.shrink_to(bytes);
    }
}

impl fmt::Debug for MetaHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetaHold").field("bytes", &self.0.bytes).finish()
    }
}
