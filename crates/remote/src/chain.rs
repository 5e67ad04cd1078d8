//! The chain of manifests: finding its end, and adding to it.
//!
//! # Invariants
//!
//! - **H1** A manifest belongs to the chain if, after its creation, its predecessor still exists
//!   with the expected nonce. Manifests are deleted from the lowest number up. While the
//!   predecessor exists, the new number cannot have been deleted, so the number was created only
//!   once.
//! - **H2** A creation may have succeeded although its answer is an error or was lost. The writer
//!   then reads the manifest back: its nonce says which writer made it.
//! - **H3** If [`Chain::add`] returns a refusal of the store, the manifest is not there, and never
//!   arrives later.

use std::time::Duration;

use bytes::Bytes;

use buttress_base::{clock, thread};

use crate::envelope::{Kind, VolumeId};
use crate::error::{Error, Result};
use crate::manifest::Manifest;
use crate::names::Names;
use crate::retrying::RetryingStore;
use crate::units::CommitNumber;
use buttress_store::StoreError;

/// The result of creating a manifest.
#[derive(Debug)]
pub(crate) enum Added {
    /// The manifest is in the chain.
    Ours,
    /// Another writer created the number, with this manifest. If that number is deleted already,
    /// the value is the newest manifest instead.
    Theirs(Box<Manifest>),
}

/// The chain of one volume.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    pub(crate) store: RetryingStore,
    pub(crate) names: Names,
    /// The volume's name in messages.
    pub(crate) place: String,
}

impl Chain {
    /// A copy that gives up on a failing store after five seconds at most, for work that can be
    /// done later.
    pub(crate) fn brief(&self) -> Self {
        let store = self.store.with_timeout(self.store.timeout().min(Duration::from_secs(5)));
        Self { store, ..self.clone() }
    }

    /// A copy that gives up on a failing store after half a minute, for an opening. At that time no
    /// write can be lost, and the name may be wrong: some stores give the same answer for a missing
    /// bucket as for a failing one.
    pub(crate) fn at_opening(&self) -> Self {
        let store = self.store.with_timeout(self.store.timeout().min(Duration::from_secs(30)));
        Self { store, ..self.clone() }
    }

    /// The manifest of a number, if it exists.
    pub(crate) fn get(&self, number: CommitNumber) -> Result<Option<(VolumeId, Manifest)>> {
        let name = self.names.manifest(number);
        self.store.get_as(&name, |bytes| Manifest::decode(&name, Kind::Manifest, bytes))
    }

    /// The numbers that are listed, in order. The list may lack the newest number.
    pub(crate) fn listed(&self) -> Result<Vec<CommitNumber>> {
        let listed = self.store.list(&self.names.folder("manifest"))?;
        let mut numbers: Vec<_> =
            listed.iter().filter_map(|meta| Names::manifest_number(&meta.name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The newest manifest: the last listed one, or the last of the manifests that follow it.
    pub(crate) fn head(&self) -> Result<Option<(VolumeId, Manifest)>> {
        // The collector may delete the manifest between the list and the read. The next list then
        // has a newer manifest.
        for _ in 0..3 {
            let Some(&last) = self.listed()?.last() else { return Ok(None) };
            if let Some(head) = self.follow_listed(last)? {
                return Ok(Some(head));
            }
        }
        Err(Error::Damaged {
            name: self.names.folder("manifest"),
            why: "manifests are listed and not there".to_owned(),
        })
    }

    /// Reads manifests from a number on, and returns the last one before the first gap.
    pub(crate) fn follow(&self, from: CommitNumber) -> Result<Option<(VolumeId, Manifest)>> {
        let mut newest = None;
        let mut number = from;
        while let Some(found) = self.get(number)? {
            newest = Some(found);
            number.0 += 1;
        }
        Ok(newest)
    }

    /// Works as [`Chain::follow`] from the newest listed number. Requests this manifest and the
    /// next one at the same time, since mostly no next manifest exists.
    fn follow_listed(&self, last: CommitNumber) -> Result<Option<(VolumeId, Manifest)>> {
        let after = CommitNumber(last.0 + 1);
        let (this, next) = thread::scope(|scope| {
            let next = scope.spawn(|| self.get(after));
            (self.get(last), next.join())
        });
        let next = next.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        match (this?, next) {
            (Some(_), Some(next)) => Ok(self.follow(CommitNumber(after.0 + 1))?.or(Some(next))),
            (this, _) => Ok(this),
        }
    }

    /// Adds a manifest to the chain (H1 to H3).
    pub(crate) fn add(&self, volume: VolumeId, manifest: &Manifest) -> Result<Added> {
        let name = self.names.manifest(manifest.number);
        let body = Bytes::from(manifest.encode(Kind::Manifest, volume));
        let begun = clock::now();
        for attempt in 0.. {
            let answer = self.store.create_once(&name, body.clone());
            if let Err(source) = &answer
                && source.is_refusal()
            {
                // An earlier attempt without an answer may still arrive. So the result is a
                // failure, not a refusal (H3).
                let source = match attempt {
                    0 => source.clone(),
                    _ => StoreError::Failed(source.to_string()),
                };
                return Err(Error::Store { name, source });
            }
            if answer.is_err() {
                match self.get(manifest.number)? {
                    Some((_, found)) if found.nonce == manifest.nonce => {}
                    Some((_, theirs)) => return Ok(Added::Theirs(Box::new(theirs))),
                    // The creation failed, and there is no such manifest. The request was lost, or
                    // the store refused it because of a race inside the store. The loop tries
                    // again.
                    None if clock::since(begun) < self.store.timeout() => {
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

    /// Checks the predecessor of a manifest that was just created, and returns whether the manifest
    /// is in the chain (H1).
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
