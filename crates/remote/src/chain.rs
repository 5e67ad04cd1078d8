//! The chain of manifests: finding its end, and adding to it.
//!
//! # Invariants
//!
//! - **H1** A commit is in the chain when its manifest was created and, after that, the very
//!   manifest that it follows was still there. Numbers are deleted from the lowest up. So the
//!   number was not deleted before, and was created once.
//! - **H2** An answer that may hide a success is settled by reading the manifest back: the nonce in
//!   it says which writer made it.

use std::time::Duration;

use bytes::Bytes;

use buttress_base::clock;

use crate::envelope::{Kind, VolumeId};
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::names::Names;
use crate::patient::Patient;
use crate::store::StoreError;
use crate::units::CommitNumber;

/// What came of the creation of a manifest.
#[derive(Debug)]
pub(crate) enum Added {
    /// It is in the chain.
    Ours,
    /// Another writer's manifest has the number, or the chain has gone on long ago.
    Theirs(Box<Manifest>),
}

/// The chain of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) store: Patient,
    pub(crate) names: Names,
    /// How the volume is called in messages.
    pub(crate) place: String,
}

impl Chain {
    /// The same with little patience, for work that can be done another time.
    pub(crate) fn brief(&self) -> Self {
        let store = self.store.with_patience(Duration::from_secs(5));
        Self { store, ..self.clone() }
    }

    /// The manifest of a number, if it is there.
    pub(crate) fn get(&self, number: CommitNumber) -> Result<Option<(VolumeId, Manifest)>> {
        let name = self.names.manifest(number);
        self.store.get_as(&name, |bytes| Manifest::decode(&name, Kind::Manifest, bytes))
    }

    /// The numbers that are listed, in order. The list may lack the newest.
    pub(crate) fn listed(&self) -> Result<Vec<CommitNumber>> {
        let listed = self.store.list(&self.names.folder("manifest"))?;
        let mut numbers: Vec<_> =
            listed.iter().filter_map(|meta| Names::manifest_number(&meta.name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The newest manifest: the last that is listed, and those that follow it.
    pub(crate) fn head(&self) -> Result<Option<(VolumeId, Manifest)>> {
        // A manifest may go between the list and the read, where a newer one is listed the next
        // time.
        for _ in 0..3 {
            let Some(&last) = self.listed()?.last() else { return Ok(None) };
            if let Some(head) = self.follow(last)? {
                return Ok(Some(head));
            }
        }
        Err(Error::Damaged {
            name: self.names.folder("manifest"),
            why: "manifests are listed and not there".to_owned(),
        })
    }

    /// The newest manifest from a number on.
    pub(crate) fn follow(&self, from: CommitNumber) -> Result<Option<(VolumeId, Manifest)>> {
        let mut newest = None;
        let mut number = from;
        while let Some(found) = self.get(number)? {
            newest = Some(found);
            number.0 += 1;
        }
        Ok(newest)
    }

    /// Adds a manifest to the chain (H1, H2).
    pub(crate) fn add(&self, volume: VolumeId, manifest: &Manifest) -> Result<Added> {
        let name = self.names.manifest(manifest.number);
        let body = Bytes::from(manifest.encode(Kind::Manifest, volume));
        let begun = clock::now();
        for attempt in 0.. {
            let answer = self.store.create_once(&name, body.clone());
            if let Err(source @ StoreError::Refused(_)) = answer {
                return Err(Error::Store { name, source });
            }
            if answer.is_err() {
                match self.get(manifest.number)? {
                    Some((_, found)) if found.nonce == manifest.nonce => {}
                    Some((_, theirs)) => return Ok(Added::Theirs(Box::new(theirs))),
                    // The store denied it, and there is none: a race of the store's own, or the
                    // request is lost.
                    None if clock::since(begun) < self.store.patience() => {
                        self.store.pause(attempt);
                        continue;
                    }
                    None => {
                        let source = answer.err().unwrap_or(StoreError::NotFound);
                        return Err(Error::Store { name, source });
                    }
                }
            }
            return self.settle(manifest);
        }
        Ok(Added::Ours)
    }

    /// Says whether a manifest that was created is in the chain: its predecessor tells (H1).
    fn settle(&self, manifest: &Manifest) -> Result<Added> {
        if manifest.number.0 == 1 {
            return Ok(Added::Ours);
        }
        let before = self.get(CommitNumber(manifest.number.0 - 1))?;
        if before.is_some_and(|(_, before)| before.nonce == manifest.follows) {
            return Ok(Added::Ours);
        }
        match self.head()? {
            Some((_, theirs)) => Ok(Added::Theirs(Box::new(theirs))),
            None => Err(Error::NoVolume { place: self.place.clone() }),
        }
    }
}
