//! Stores in front of another store that look at each request: to count, to wait, to refuse.

use std::fmt;
use std::ops::Range;

use crate::{Bytes, Meta, Store, StoreError};

/// A request that is about to be made, with the names of its objects.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Create an object.
    Create(&'a str),
    /// Write an object.
    Put(&'a str),
    /// Read a whole object.
    Get(&'a str),
    /// Read parts of objects at once.
    Parts(&'a [(String, Range<u64>)]),
    /// Describe an object.
    Head(&'a str),
    /// List a folder of names.
    List(&'a str),
    /// Delete an object.
    Delete(&'a str),
}

/// A store that passes each request on after a look at it.
pub trait Watched: Send + Sync + fmt::Debug {
    /// The store behind this one.
    fn inner(&self) -> &dyn Store;

    /// Looks at a request before it is passed on.
    ///
    /// # Errors
    ///
    /// Any error is the answer, and the request is not passed on.
    fn look(&self, request: Request<'_>) -> Result<(), StoreError>;
}

impl<W: Watched> Store for W {
    fn title(&self) -> String {
        self.inner().title()
    }

    fn create(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.look(Request::Create(name))?;
        self.inner().create(name, body)
    }

    fn put(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        self.look(Request::Put(name))?;
        self.inner().put(name, body)
    }

    fn get(&self, name: &str) -> Result<Bytes, StoreError> {
        self.look(Request::Get(name))?;
        self.inner().get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.look(Request::Parts(&[(name.to_owned(), range.clone())]))?;
        self.inner().get_range(name, range)
    }

    fn get_many(&self, wants: &[(String, Range<u64>)]) -> Vec<Result<Bytes, StoreError>> {
        match self.look(Request::Parts(wants)) {
            Ok(()) => self.inner().get_many(wants),
            Err(error) => wants.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn head(&self, name: &str) -> Result<Meta, StoreError> {
        self.look(Request::Head(name))?;
        self.inner().head(name)
    }

    fn list(&self, folder: &str) -> Result<Vec<Meta>, StoreError> {
        self.look(Request::List(folder))?;
        self.inner().list(folder)
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        self.look(Request::Delete(name))?;
        self.inner().delete(name)
    }
}
