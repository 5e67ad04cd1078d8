//! Operations on a volume as a whole: listing commits, pinning and cloning.

use buttress_base::thread;

use crate::chain::Added;
use crate::envelope::VolumeId;
use crate::error::{Error, Result};
use crate::manifest::{Base, Manifest, Writer};
use crate::names::Names;
use crate::open::Site;
use crate::pin::{self, Commit};
use crate::random;
use crate::units::CommitNumber;

impl Site {
    /// Lists the newest commits, at most `count`, and all pins. The list is sorted by number, the
    /// oldest commit first.
    ///
    /// # Errors
    ///
    /// Those of the store; [`Error::NoVolume`] if there is none.
    pub fn commits(&self, count: usize) -> Result<Vec<Commit>> {
        let chain = self.chain();
        let listed = chain.listed()?;
        if listed.is_empty() {
            return Err(Error::NoVolume { place: self.place.clone() });
        }
        let mut commits = Vec::new();
        for (name, manifest) in pin::all(&chain)? {
            commits.push(Commit::of(&manifest, Some(name)));
        }
        for number in listed.iter().rev().take(count) {
            commits.extend(chain.get(*number)?.map(|(_, manifest)| Commit::of(&manifest, None)));
        }
        commits.sort_by(|a, b| (a.number, &a.pin).cmp(&(b.number, &b.pin)));
        Ok(commits)
    }

    /// Pins the commit that the options name, or else the newest commit, under a name.
    ///
    /// # Errors
    ///
    /// [`Error::Pin`] for a name that is taken or invalid.
    pub fn pin(&self, name: &str) -> Result<CommitNumber> {
        let chain = self.chain();
        let (volume, manifest) = self.commit(&chain)?;
        pin::create(&chain, volume, &manifest, name, self.options.at.pin())?;
        Ok(manifest.number)
    }

    /// Deletes a pin. The collector may then delete the commit that the pin kept.
    ///
    /// # Errors
    ///
    /// [`Error::Pin`] if no pin has this name.
    pub fn unpin(&self, name: &str) -> Result<()> {
        pin::delete(&self.chain(), name)
    }

    /// Makes a new volume of the commit that the options name, or else of the newest commit. The
    /// clone shares all objects with this volume, and a new pin in this volume keeps these objects.
    /// Returns the name of the pin.
    ///
    /// # Errors
    ///
    /// [`Error::Pin`] if there is a volume already, or the target is in another store.
    pub fn clone_to(&self, target: &Self) -> Result<String> {
        let wrong = |why: &str| {
            let place = target.place.clone();
            Err(Error::Pin { place, why: why.to_owned() })
        };
        let is_reached = match (&target.buckets, &self.buckets) {
            (Some(there), Some(own)) => {
                let failed = |source| Error::Store { name: target.place.clone(), source };
                there.names(own).map_err(failed)?
            }
            _ => self.store.title() == target.store.title(),
        };
        if !is_reached {
            return wrong("a clone lies in the same store as its base, in any bucket of it");
        }
        let (from, to) = (self.chain(), target.chain());
        // Reading the target's head does not depend on reading the base, so both run at the same
        // time.
        let (base, there) = thread::scope(|scope| {
            let there = scope.spawn(|| to.head());
            (self.commit(&from), there.join())
        });
        let there = there.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (volume, base) = base?;
        if there?.is_some() {
            return wrong("there is a volume already");
        }
        target.make_key(Some(self))?;
        // No trial of the store is made here, since the store passed a trial when the base was
        // made. The first writer of the clone makes another trial.
        let id = VolumeId(random::bytes());
        let name = format!("clone-{}", random::hex());
        let mut bases = base.bases.clone();
        bases.push(Base { prefix: from.names.prefix().to_owned(), below: base.next_object });
        for base in &mut bases {
            base.prefix = target.seen(self, &base.prefix);
        }
        let first = Manifest {
            number: CommitNumber(1),
            nonce: random::hex(),
            follows: String::new(),
            writer: Writer::this(),
            bases,
            base_pin: Some(name.clone()),
            local: None,
            logs: Vec::new(),
            ..base.clone()
        };
        // The place of the clone has to read what lies in another bucket. Credentials or a region
        // that do not fit are found here.
        let is_read = || match first.bases.last().map(Names::of_base) {
            Some(names) if names.prefix() != from.names.prefix() => {
                let object = names.pin(&name);
                let failed = |source| Error::Store { name: object.clone(), source };
                target.store.get(&object).map(drop).map_err(failed)
            }
            _ => Ok(()),
        };
        let pinned = pin::create(&from, volume, &base, &name, self.options.at.pin());
        let pinned = pinned.and_then(|()| is_read());
        // Without a clone nothing needs the pin.
        let unpin = || pin::delete_if_there(&from, &name);
        if let Err(error) = pinned {
            let _ = unpin();
            return Err(error);
        }
        match to.add(id, &first) {
            Ok(Added::Ours) => Ok(name),
            Ok(Added::Theirs(_)) => {
                unpin()?;
                wrong("another volume was made there at the same time")
            }
            Err(Error::Store { name: object, source }) if source.is_refusal() => {
                unpin()?;
                Err(Error::Store { name: object, source })
            }
            // The manifest may still arrive, and then the clone needs the pin.
            Err(error) => {
                let place = &self.place;
                wrong(&format!(
                    "whether the clone was made is not known: {error}. If it does not appear, \
                     `remote unpin {place} {name}` frees what it would have needed"
                ))
            }
        }
    }
}
