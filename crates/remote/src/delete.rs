//! Deletes a whole volume.
//!
//! # Invariants
//!
//! - **V1** A volume is deleted only if no writer seems alive, and no lease or pin names it. A
//!   clone has a pin in its base, so its base is kept.
//! - **V2** The manifests are deleted before all other objects, the newest manifest last. So a
//!   volume is either whole or gone. The next deletion finishes an interrupted one.
//! - **V3** A volume with a base has a pin in the base. Before any manifest is deleted, a copy of
//!   the newest manifest is put into the folder `gone`. The copy stays until the pin is deleted, so
//!   any later deletion finds the pin.
//! - **V4** The names in `gone` are numbers from one on without a gap, so a deletion reads them one
//!   by one. A list may lack the object that was written last. A deletion that misses an encrypted
//!   object would still delete the key, and no program could read the object any more.

use bytes::Bytes;

use crate::chain::Chain;
use crate::claim;
use crate::envelope::{Kind, VolumeId};
use crate::error::{Error, Result};
use crate::lease::{self, Lease};
use crate::manifest::{Manifest, Writer};
use crate::names::Names;
use crate::open::Site;
use crate::pin;
use crate::units::CommitNumber;

/// The folders of a volume's objects, in the order of deletion. The volume has no pins at that
/// time.
const FOLDERS: [&str; 5] = ["data", "map", "lease", "trial", "writer"];
/// The folder that is deleted last: without a key, no program can read the folder `gone` (V3).
const KEYS: &str = "key";

/// Whether an object with this name may belong to a volume. Objects with other names are not
/// deleted.
fn is_ours(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    let is_hex = |part: &str| part.len() >= 8 && part.bytes().all(|b| b.is_ascii_hexdigit());
    last.split('-').all(is_hex)
}

/// Reads the manifests that earlier deletions put into `gone`, by number (V4).
fn numbered(chain: &Chain) -> Result<Vec<(String, Manifest)>> {
    let mut all = Vec::new();
    for number in 1.. {
        let name = chain.names.gone(number);
        match chain.store.get_as(&name, |bytes| Manifest::decode(&name, Kind::Pin, bytes))? {
            Some((_, last)) => all.push((name, last)),
            None => break,
        }
    }
    Ok(all)
}

/// Looks for a manifest that was written last, since a list may lack it. Such a manifest is the
/// first one of a new volume, or follows a manifest that an earlier deletion kept.
fn unlisted(chain: &Chain) -> Result<Option<(VolumeId, Manifest)>> {
    let kept = numbered(chain)?.into_iter().map(|(_, last)| last.number);
    for number in kept.chain([CommitNumber(1)]) {
        if let Some(head) = chain.follow(number)? {
            return Ok(Some(head));
        }
    }
    Ok(None)
}

/// Keeps the newest manifest of a volume with a base until the pin in the base is deleted (V3, V4).
fn keep_last(chain: &Chain, volume: VolumeId, newest: &Manifest) -> Result<()> {
    if newest.base_pin.is_none() {
        return Ok(());
    }
    let body = Bytes::from(newest.encode(Kind::Pin, volume));
    let number = numbered(chain)?.len() as u64 + 1;
    chain.store.put(&chain.names.gone(number), &body)
}

/// Deletes the pins in the bases of volumes that were deleted at this place (V3). Returns how many
/// such volumes there were.
fn release_bases(chain: &Chain) -> Result<u64> {
    let mut all = numbered(chain)?;
    // Earlier versions gave random names, which only a list shows.
    for meta in chain.store.list(&chain.names.folder("gone"))? {
        if !is_ours(&meta.name) || all.iter().any(|(name, _)| *name == meta.name) {
            continue;
        }
        let decode = |bytes: &Bytes| Manifest::decode(&meta.name, Kind::Pin, bytes);
        all.extend(chain.store.get_as(&meta.name, decode)?.map(|(_, last)| (meta.name, last)));
    }
    // The loop goes from the highest number down. So an interruption leaves no gap that hides the
    // rest from a later deletion (V4).
    all.sort_by(|(a, _), (b, _)| b.cmp(a));
    for (name, last) in &all {
        if let Some((base, pin)) = last.bases.last().zip(last.base_pin.as_ref()) {
            chain.store.delete(&Names::of_base(base).pin(pin))?;
        }
        chain.store.delete(name)?;
    }
    Ok(all.len() as u64)
}

/// Deletes the volume's objects in a folder. Returns their number.
fn empty(chain: &Chain, folder: &str) -> Result<u64> {
    let listed = chain.store.list(&chain.names.folder(folder))?;
    let mut count = 0;
    for meta in listed.iter().filter(|meta| is_ours(&meta.name)) {
        chain.store.delete(&meta.name)?;
        count += 1;
    }
    Ok(count)
}

/// Lists each pin and each lease that needs a volume.
fn holders(pins: &[(String, Manifest)], leases: &[Lease]) -> String {
    let pin = |(name, manifest): &(String, Manifest)| {
        let holder = if name.starts_with("clone-") { "a clone" } else { "the pin" };
        format!("{holder} {name} keeps commit {}", manifest.number.0)
    };
    let all: Vec<String> =
        pins.iter().map(pin).chain(leases.iter().map(ToString::to_string)).collect();
    let how = match pins.is_empty() {
        true => "readers let go of it when they end, or after five minutes",
        false => "remote unpin takes a pin away, and remote delete of a clone that of the clone",
    };
    format!("it is needed: {}; {how}", all.join(", "))
}

impl Site {
    /// Deletes the volume and all of its objects (V1 to V4). Returns how many objects there were.
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] while another writer seems to be alive. [`Error::Pin`] while a pin or a
    /// reader needs the volume. [`Error::NoVolume`] if there is no object of a volume.
    pub fn delete(&self) -> Result<u64> {
        let chain = self.chain();
        let wrong = |why: String| Err(Error::Pin { place: self.place.clone(), why });
        let mut count = 0;
        let head = match chain.head()? {
            None => unlisted(&chain)?,
            head => head,
        };
        if let Some((volume, head)) = head {
            let pins = pin::all(&chain)?;
            if !pins.is_empty() {
                // The time of the store is not known before something is written. A lease that is
                // valid now was valid at the time of the newest manifest.
                let manifests = chain.store.list(&chain.names.folder("manifest"))?;
                let then_ms = manifests.iter().map(|meta| meta.modified_ms).max().unwrap_or(0);
                return wrong(holders(&pins, &lease::all(&chain, then_ms)?));
            }
            // `take` refuses while another writer is alive. A writer that continues later finds the
            // new manifest or no manifest, and stops.
            let writer = Writer::this();
            let (newest, _) = self.take(&chain, volume, head, &writer, None)?;
            let shown = chain.store.head(&chain.names.writer(newest.epoch, &writer.id))?;
            let now_ms = shown.map_or(0, |meta| meta.modified_ms);
            let (leases, pins) = (lease::all(&chain, now_ms)?, pin::all(&chain)?);
            if !leases.is_empty() || !pins.is_empty() {
                claim::end(&chain, newest.epoch, &writer)?;
                return wrong(holders(&pins, &leases));
            }
            keep_last(&chain, volume, &newest)?;
            for number in chain.listed()? {
                if number < newest.number {
                    chain.store.delete(&chain.names.manifest(number))?;
                    count += 1;
                }
            }
            chain.store.delete(&chain.names.manifest(newest.number))?;
            count += 1;
        }
        for folder in FOLDERS {
            count += empty(&chain, folder)?;
        }
        // This volume needs no object of its base any more.
        count += release_bases(&chain)?;
        count += empty(&chain, KEYS)?;
        if let Some(seal) = &self.seal {
            seal.forget();
        }
        if count == 0 {
            return Err(Error::NoVolume { place: self.place.clone() });
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::options::Options;
    use buttress_store::simulated::{SimStore, Weather};

    /// A refusal lists all that needs the volume: pins, clones and readers. An old lease does not
    /// count.
    #[test]
    fn a_refusal_lists_what_needs_the_volume() {
        let store = Arc::new(SimStore::new(1, Weather::default()));
        let site = |prefix: &str| {
            let options = Options { write: true, object_len: 64 << 10, ..Options::default() };
            Site::in_store(store.clone(), prefix, options)
        };
        site("v").create(4 << 20).expect("a store").close().expect("a store");
        let chain = site("v").chain();
        let (volume, _) = chain.head().expect("a store").expect("a volume");
        let refused = || site("v").delete().expect_err("it is needed").to_string();
        lease::renew(&chain, volume, "aaaaaaaaold", CommitNumber(1)).expect("a store");
        store.advance_ms(400_000);
        lease::renew(&chain, volume, "bbbbbbbbnew", CommitNumber(2)).expect("a store");
        store.advance_ms(7_000);
        let said = refused();
        assert!(said.contains("reader bbbbbbbb of commit 2, seen 7 s ago"), "{said}");
        assert!(!said.contains("aaaaaaaa") && !said.contains("unpin"), "{said}");
        site("v").pin("monday").expect("a store");
        let clone = site("v").clone_to(&site("w")).expect("a store");
        let said = refused();
        for part in ["the pin monday", &format!("a clone {clone}"), "reader bbbbbbbb", "unpin"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        lease::end(&chain, "bbbbbbbbnew").expect("a store");
        site("v").unpin("monday").expect("a store");
        site("w").delete().expect("nothing needs it");
        site("v").delete().expect("nothing needs it");
    }
}
