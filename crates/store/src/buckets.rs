//! The buckets of one service, as one store.
//!
//! # Invariants
//!
//! - **U1** A name `//BUCKET/REST` means the object `REST` of that bucket. All other names are
//!   objects of the home bucket, and none of these begins with a slash.
//! - **U2** The client of another bucket is opened when it is first used, with the options of the
//!   home bucket.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use buttress_base::{Rank, Ranked};

use crate::{Bytes, Meta, Store, StoreError};

/// Opens a bucket by its name.
type Open = Box<dyn Fn(&str) -> Result<Arc<dyn Store>, StoreError> + Send + Sync>;

/// Containers and buckets of one service. The home bucket has the plain names.
pub struct Buckets {
    bucket: String,
    home: Arc<dyn Store>,
    open: Open,
    others: Ranked<BTreeMap<String, Arc<dyn Store>>>,
}

impl fmt::Debug for Buckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buckets").field("home", &self.home).finish_non_exhaustive()
    }
}

/// Divides a name into a bucket other than the home bucket, and the name in it (U1).
fn divide(name: &str) -> Option<(&str, &str)> {
    let name = name.strip_prefix("//")?;
    Some(name.split_once('/').unwrap_or((name, "")))
}

/// Returns whether a name means an object of another bucket.
#[must_use]
pub fn is_elsewhere(name: &str) -> bool {
    divide(name).is_some()
}

/// How a place in the bucket `to` names a prefix that places in the bucket `from` call `prefix`.
#[must_use]
pub fn seen(prefix: &str, from: &str, to: &str) -> String {
    let (bucket, rest) = divide(prefix).unwrap_or((from, prefix));
    if bucket == to {
        return rest.to_owned();
    }
    format!("//{bucket}/{rest}").trim_end_matches('/').to_owned()
}

impl Buckets {
    /// Opens the home bucket. `open` opens other buckets of the same service.
    ///
    /// # Errors
    ///
    /// Those of `open`.
    pub fn new(
        bucket: &str,
        open: impl Fn(&str) -> Result<Arc<dyn Store>, StoreError> + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let others = Ranked::new(Rank::Leaf, BTreeMap::new());
        Ok(Self { bucket: bucket.to_owned(), home: open(bucket)?, open: Box::new(open), others })
    }

    /// The name of the home bucket.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    /// Returns whether the home bucket of `other` seems to be a bucket of this service: a client
    /// for it has the same title. No request is sent.
    ///
    /// # Errors
    ///
    /// Those of opening the bucket.
    pub fn names(&self, other: &Self) -> Result<bool, StoreError> {
        Ok(self.client(&other.bucket)?.title() == other.title())
    }

    /// The client of a bucket (U2).
    fn client(&self, bucket: &str) -> Result<Arc<dyn Store>, StoreError> {
        if bucket == self.bucket {
            return Ok(Arc::clone(&self.home));
        }
        if let Some(client) = self.others.lock().get(bucket) {
            return Ok(Arc::clone(client));
        }
        // Two threads may open the same bucket: the first client is kept.
        let client = (self.open)(bucket)?;
        Ok(Arc::clone(self.others.lock().entry(bucket.to_owned()).or_insert(client)))
    }

    /// The client for a name, and the name in its bucket.
    fn place<'n>(&self, name: &'n str) -> Result<(Arc<dyn Store>, &'n str), StoreError> {
        match divide(name) {
            Some((bucket, rest)) => Ok((self.client(bucket)?, rest)),
            None => Ok((Arc::clone(&self.home), name)),
        }
    }
}

/// Gives an object of the folder `folder` the name that it has in the home bucket.
fn named(folder: &str, mut meta: Meta) -> Meta {
    if let Some((bucket, _)) = divide(folder) {
        meta.name = format!("//{bucket}/{}", meta.name);
    }
    meta
}

impl Store for Buckets {
    fn title(&self) -> String {
        self.home.title()
    }

    fn create(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        let (client, name) = self.place(name)?;
        client.create(name, body)
    }

    fn put(&self, name: &str, body: Bytes) -> Result<(), StoreError> {
        let (client, name) = self.place(name)?;
        client.put(name, body)
    }

    fn get(&self, name: &str) -> Result<Bytes, StoreError> {
        let (client, name) = self.place(name)?;
        client.get(name)
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let (client, name) = self.place(name)?;
        client.get_range(name, range)
    }

    fn get_many(&self, wants: &[(String, Range<u64>)]) -> Vec<Result<Bytes, StoreError>> {
        // Each bucket answers its part at once, and the buckets one after the other.
        let mut parts: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
        for (index, (name, _)) in wants.iter().enumerate() {
            parts.entry(divide(name).map(|(bucket, _)| bucket)).or_default().push(index);
        }
        let none = || Err(StoreError::Failed("there is no answer".to_owned()));
        let mut answers: Vec<_> = wants.iter().map(|_| none()).collect();
        for (bucket, indexes) in parts {
            let client = bucket.map_or_else(|| Ok(Arc::clone(&self.home)), |b| self.client(b));
            let rest = |name: &str| divide(name).map_or(name, |(_, rest)| rest).to_owned();
            let part: Vec<_> = indexes
                .iter()
                .filter_map(|&index| wants.get(index))
                .map(|(name, range)| (rest(name), range.clone()))
                .collect();
            let found = match client {
                Ok(client) => client.get_many(&part),
                Err(error) => part.iter().map(|_| Err(error.clone())).collect(),
            };
            for (index, answer) in indexes.into_iter().zip(found) {
                if let Some(place) = answers.get_mut(index) {
                    *place = answer;
                }
            }
        }
        answers
    }

    fn head(&self, name: &str) -> Result<Meta, StoreError> {
        let (client, rest) = self.place(name)?;
        client.head(rest).map(|meta| named(name, meta))
    }

    fn list(&self, folder: &str) -> Result<Vec<Meta>, StoreError> {
        let (client, rest) = self.place(folder)?;
        let found = client.list(rest)?;
        Ok(found.into_iter().map(|meta| named(folder, meta)).collect())
    }

    fn delete(&self, name: &str) -> Result<(), StoreError> {
        let (client, name) = self.place(name)?;
        client.delete(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulated::{SimStore, Weather};

    fn two() -> Buckets {
        let stores = ["a", "b"].map(|_| Arc::new(SimStore::new(1, Weather::default())));
        let open = move |bucket: &str| -> Result<Arc<dyn Store>, StoreError> {
            match bucket {
                "a" => Ok(Arc::clone(&stores[0]) as Arc<dyn Store>),
                "b" => Ok(Arc::clone(&stores[1]) as Arc<dyn Store>),
                _ => Err(StoreError::Refused(format!("no bucket {bucket}"))),
            }
        };
        Buckets::new("a", open).expect("a bucket")
    }

    /// U1: each name leads to its bucket, also in one call for several.
    #[test]
    fn names_lead_to_their_buckets() {
        let store = two();
        store.put("v/x", Bytes::from_static(b"home")).expect("a good store");
        store.put("//b/v/x", Bytes::from_static(b"away")).expect("a good store");
        assert_eq!(store.get("//a/v/x").expect("the same bucket"), "home");
        let wants = ["//b/v/x", "v/x", "//c/v/x", "//b/v/x"].map(|name| (name.to_owned(), 1..3));
        let answers: Vec<_> = store.get_many(&wants).into_iter().map(Result::ok).collect();
        assert_eq!(answers, ["wa", "om", "", "wa"].map(|t| (!t.is_empty()).then(|| t.into())));
        let listed = store.list("//b/v").expect("a good store");
        assert_eq!(listed.iter().map(|meta| &meta.name).collect::<Vec<_>>(), ["//b/v/x"]);
        store.delete("//b/v/x").expect("a good store");
        assert_eq!(store.get("//b/v/x"), Err(StoreError::NotFound));
        assert_eq!(store.get("v/x").expect("another object"), "home");
    }

    /// A prefix keeps its meaning on the way from bucket to bucket, and back.
    #[test]
    fn prefixes_are_seen_from_each_bucket() {
        for (prefix, from, to, expected) in [
            ("v", "a", "a", "v"),
            ("v/w", "a", "b", "//a/v/w"),
            ("//a/v/w", "b", "a", "v/w"),
            ("//a/v", "b", "c", "//a/v"),
            ("", "a", "b", "//a"),
            ("//a", "b", "a", ""),
        ] {
            assert_eq!(seen(prefix, from, to), expected, "{prefix} of {from} in {to}");
        }
    }
}
