//! What a volume asks of a store of objects, and what a store answers.
//!
//! # Invariants
//!
//! - **O1** [`Store::create`] makes an object only where there is none, and sends one request: no
//!   layer below repeats it. `Exists` and `Failed` may hide a success, so the caller reads back.
//! - **O2** Every other request may be repeated without harm.

#[cfg(feature = "clouds")]
mod clouds;
mod objects;
pub mod simulated;
pub mod timed;

use std::fmt;
use std::ops::Range;

use bytes::Bytes;

pub use self::objects::{Objects, host_name};

/// Why a store did not do what was asked.
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
    /// The key of an encrypted volume is wrong, or one is missing.
    #[error("{0}")]
    Key(String),
    /// What the store answered is not what was written.
    #[error("what the store answered is damaged: {0}")]
    Damaged(String),
    /// No answer, or one that says nothing: the request may or may not have had its effect.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl StoreError {
    /// Whether asking again would bring the same answer, and nothing was written.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(_) | Self::Key(_))
    }
}

/// What a store tells of an object without its content.
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

    /// Creates an object if there is none of that name (O1).
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] if there is one.
    fn create(&self, name: &str, body: Bytes) -> Result<(), StoreError>;

    /// Writes an object, over one of the same name.
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
    /// As [`Store::get`].
    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError>;

    /// Reads several parts at once, and answers in the same order.
    fn get_many(&self, wants: &[(String, Range<u64>)]) -> Vec<Result<Bytes, StoreError>> {
        wants.iter().map(|(name, range)| self.get_range(name, range.clone())).collect()
    }

    /// Describes an object.
    ///
    /// # Errors
    ///
    /// As [`Store::get`].
    fn head(&self, name: &str) -> Result<Meta, StoreError>;

    /// Lists the objects in a folder of names, sorted by name.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn list(&self, folder: &str) -> Result<Vec<Meta>, StoreError>;

    /// Deletes an object; one that is not there counts as deleted.
    ///
    /// # Errors
    ///
    /// Those of the store.
    fn delete(&self, name: &str) -> Result<(), StoreError>;
}
