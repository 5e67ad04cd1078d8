//! The interface of a store of objects: requests and answers.
//!
//! # Place
//!
//! [`Objects`] are real stores: a folder of this machine, or buckets and containers of a cloud.
//! With the feature `simulated`, `simulated` and `timed` are stores in memory with faults from a
//! seed, for tests. The crate knows nothing of volumes.
//!
//! # Invariants
//!
//! - **O1** [`Store::create`] makes an object only if the name is free, and sends one request: no
//!   layer below repeats the request. `Exists` and `Failed` may hide a success, so the caller reads
//!   the object back.
//! - **O2** Every other request may be repeated without harm.

#![forbid(unsafe_code)]

pub mod buckets;
#[cfg(feature = "clouds")]
mod clouds;
mod objects;
#[cfg(any(test, feature = "simulated"))]
pub mod simulated;
#[cfg(any(test, feature = "simulated"))]
pub mod timed;
pub mod watched;

use std::fmt;
use std::ops::Range;

/// The bytes of an object.
pub use bytes::Bytes;

pub use self::objects::{Objects, host_name};

/// Why a request to a store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such object.
    #[error("there is no such object")]
    NotFound,
    /// There is an object of that name already.
    #[error("there is such an object already")]
    Exists,
    /// The store refuses, and would refuse again: wrong credentials, no such bucket.
    #[error("the store refuses: {0}")]
    Refused(String),
    /// The key of an encrypted volume is wrong or missing.
    #[error("{0}")]
    Key(String),
    /// The store answered with other bytes than were written.
    #[error("what the store answered is damaged: {0}")]
    Damaged(String),
    /// There is no answer, or the answer leaves open whether the request had its effect.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl StoreError {
    /// Whether the request wrote nothing, and a repetition would have the same answer.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Key(_))
    }
}

/// The properties of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Its full name.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// When it was written, by the store's clock: milliseconds since 1970.
    pub modified_ms: u64,
}

/// Named objects that are written whole. All calls block, from any number of threads.
pub trait Store: Send + Sync + fmt::Debug {
    /// Names the store for a user.
    fn title(&self) -> String;

    /// Creates an object if the name is free (O1).
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] if there is an object of that name.
    fn create(&self, name: &str, body: Bytes) -> Result<(), StoreError>;

    /// Writes an object, and replaces an object of the same name.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn put(&self, name: &str, body: Bytes) -> Result<(), StoreError>;

    /// Reads a whole object.
    ///
    /// # Errors
    ///
    /// [`StoreError::NotFound`] if there is none.
    fn get(&self, name: &str) -> Result<Bytes, StoreError>;

    /// Reads a part of an object.
    ///
    /// # Errors
    ///
    /// Those of [`Store::get`].
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Reads several parts at once. The answers have the order of `wants`.
    fn get_many(&self, wants: &[(String, Range<u64>)]) -> Vec<Result<Bytes, StoreError>> {
        wants.iter().map(|(name, range)| self.get_range(name, range.clone())).collect()
    }

    /// Describes an object.
    ///
    /// # Errors
    ///
    /// Those of [`Store::get`].
    fn head(&self, name: &str) -> Result<Meta, StoreError>;

    /// Lists the objects in a folder of names, sorted by name.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn list(&self, folder: &str) -> Result<Vec<Meta>, StoreError>;

    /// Deletes an object. A missing object counts as deleted.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn delete(&self, name: &str) -> Result<(), StoreError>;
}
