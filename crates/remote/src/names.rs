//! How the objects of a volume are named.

use crate::manifest::Base;
use crate::map::{Entry, Holds};
use crate::units::{CommitNumber, NUMBER_MAX, ObjectNumber};

/// The names under one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Names {
    prefix: String,
}

impl Names {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.trim_matches('/').to_owned() }
    }

    /// The names of a base, which may lie in another bucket.
    pub(crate) fn of_base(base: &Base) -> Self {
        Self { prefix: base.prefix.clone() }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    fn under(&self, name: &str) -> String {
        match self.prefix.as_str() {
            "" => name.to_owned(),
            prefix => format!("{prefix}/{name}"),
        }
    }

    /// The folder of a kind of object.
    pub(crate) fn folder(&self, kind: &str) -> String {
        self.under(kind)
    }

    pub(crate) fn manifest(&self, number: CommitNumber) -> String {
        self.under(&format!("manifest/{:020}", number.0))
    }

    /// Returns the number of a manifest from its name. `None` for a name that no writer gives.
    pub(crate) fn manifest_number(name: &str) -> Option<CommitNumber> {
        let number = name.rsplit('/').next()?.parse().ok()?;
        (number <= NUMBER_MAX).then_some(CommitNumber(number))
    }

    /// Returns epoch and number of a data or map object from its name.
    pub(crate) fn object_of(name: &str) -> Option<(u32, ObjectNumber)> {
        let (epoch, number) = name.rsplit('/').next()?.split_once('-')?;
        let number = u64::from_str_radix(number, 16).ok().map(ObjectNumber)?;
        Some((u32::from_str_radix(epoch, 16).ok()?, number))
    }

    pub(crate) fn pin(&self, name: &str) -> String {
        self.under(&format!("pin/{name}"))
    }

    /// The name of a deleted volume's last manifest. The manifest stays until the volume's pin in
    /// its base is deleted.
    pub(crate) fn gone(&self, number: u64) -> String {
        self.under(&format!("gone/{number:08}"))
    }

    pub(crate) fn writer(&self, epoch: u32, id: &str) -> String {
        self.under(&format!("writer/{epoch:08x}-{id}"))
    }

    pub(crate) fn trial(&self, nonce: &str) -> String {
        self.under(&format!("trial/{nonce}"))
    }

    /// The name of an encrypted key of the volume. The key with the highest number is in use.
    pub(crate) fn key(&self, number: u32) -> String {
        self.under(&format!("key/{number:08}"))
    }

    pub(crate) fn lease(&self, id: &str) -> String {
        self.under(&format!("lease/{id}"))
    }

    /// The name of a data object, or of an object with parts of the map.
    pub(crate) fn object(&self, number: ObjectNumber, epoch: u32, is_data: bool) -> String {
        let folder = if is_data { "data" } else { "map" };
        let ObjectNumber(number) = number;
        self.under(&format!("{folder}/{:02x}/{epoch:08x}-{number:016x}", number % 256))
    }
}

/// The names of all objects that a volume uses: its own names, and the names of its bases.
#[derive(Clone, Debug)]
pub(crate) struct AllNames {
    own: Names,
    bases: Vec<(Names, ObjectNumber)>,
}

impl AllNames {
    pub(crate) fn new(own: Names, bases: &[Base]) -> Self {
        let bases = bases.iter().map(|base| (Names::of_base(base), base.below)).collect();
        Self { own, bases }
    }

    /// Returns whether an object belongs to a base.
    pub(crate) fn is_shared(&self, number: ObjectNumber) -> bool {
        self.bases.last().is_some_and(|(_, below)| number < *below)
    }

    /// The name of an object that the table knows.
    pub(crate) fn of(&self, number: ObjectNumber, epoch: u32, is_data: bool) -> String {
        let base = self.bases.iter().find(|(_, below)| number < *below);
        base.map_or(&self.own, |(names, _)| names).object(number, epoch, is_data)
    }

    /// The name of an object by its entry.
    pub(crate) fn of_entry(&self, number: ObjectNumber, entry: &Entry) -> String {
        self.of(number, entry.epoch, matches!(entry.holds, Holds::Data(_)))
    }
}
