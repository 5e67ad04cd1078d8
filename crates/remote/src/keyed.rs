//! Places with encrypted volumes.

use std::sync::Arc;

use crate::cache_seal::CacheSeal;
use crate::envelope::VolumeId;
use crate::error::{Error, Result};
use crate::names::Names;
use crate::open::Site;
use crate::seal::SealedStore;
use crate::secret::Secret;
use buttress_store::{Store, StoreError};

impl Site {
    /// Returns the same place, with the secret that opens its objects. A volume that is made at
    /// this place is encrypted.
    #[must_use]
    pub fn encrypted(self, secret: Secret) -> Self {
        let seal = SealedStore::new(self.store, Names::new(&self.prefix), secret);
        let seal = Arc::new(seal);
        Self { store: Arc::clone(&seal) as Arc<dyn Store>, seal: Some(seal), ..self }
    }

    /// Encrypts the key of an encrypted volume anew. After that only `new` opens the volume.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] for a wrong key, or a volume that is not encrypted.
    pub fn rekey(&self, new: &Secret) -> Result<()> {
        let name = self.place.clone();
        let failed = |source| Error::Store { name, source };
        let none = || StoreError::Key("give the present key, too".to_owned());
        self.seal.as_ref().ok_or_else(none).and_then(|seal| seal.rekey(new)).map_err(failed)
    }

    /// The keys for the local cache of the volume, if it is encrypted.
    pub(crate) fn cache_seal(&self, volume: VolumeId) -> Result<Option<CacheSeal>> {
        let seal = self.seal.as_ref().map(|seal| seal.cache_seal(volume)).transpose();
        seal.map_err(|source| Error::Store { name: self.place.clone(), source })
    }

    /// Makes the keys of a volume that is about to be made. A clone has the master key of its base,
    /// and an identity of its own.
    pub(crate) fn make_key(&self, base: Option<&Self>) -> Result<()> {
        let base = base.map(|base| (base, base.seal.as_ref()));
        let made = match (&self.seal, base) {
            (None, None | Some((_, None))) => Ok(()),
            (Some(seal), None) => seal.make_key(None),
            (Some(seal), Some((base, Some(of_base)))) => {
                let seen = |prefix: &str| self.seen(base, prefix);
                of_base.keys_of_clone(seen).and_then(|keys| seal.make_key(Some(&keys)))
            }
            (None, Some((_, Some(_)))) => Err(StoreError::Key("its base is encrypted".to_owned())),
            (Some(_), Some((_, None))) => {
                Err(StoreError::Key("its base is not encrypted".to_owned()))
            }
        };
        made.map_err(|source| Error::Store { name: self.place.clone(), source })
    }
}

#[cfg(test)]
mod tests {
    use buttress_block::Device;
    use bytes::Bytes;

    use super::*;
    use crate::envelope::{Envelope, Kind, LEN};
    use crate::options::Options;
    use buttress_store::simulated::{SimStore, Weather};

    const SIZE: u64 = 4 << 20;

    fn site(store: &Arc<SimStore>, prefix: &str, write: bool) -> Site {
        let object_len = 64 << 10;
        let options = Options { write, object_len, takeover: write, ..Options::default() };
        let secret = Secret::new(b"secret".to_vec()).expect("some bytes");
        Site::in_store(store.clone(), prefix, options).encrypted(secret)
    }

    /// Writes a volume, and ends without a close, as in a crash. The store then has objects of each
    /// kind.
    fn written(site: &Site, byte: u8) {
        let device = site.open().expect("the key");
        device.write_at(4096, &[byte; 40960]).expect("within");
        device.checkpoint().expect("a store");
        device.write_at(8192, &[byte; 4096]).expect("within");
        device.flush().expect("a store");
        site.pin(&format!("kept-{byte}")).expect("a store");
        device.abandon();
    }

    fn content(store: &Arc<SimStore>, prefix: &str) -> Result<Vec<u8>> {
        let device = site(store, prefix, false).open()?;
        let mut found = vec![0; 65536];
        let read = device.read_at(0, &mut found);
        read.map_err(Error::Block).map(|()| found)
    }

    /// Y1: a base and its clone have objects of the same names. For each kind of object, neither
    /// volume accepts an object of the other volume as its own.
    #[test]
    fn no_object_of_a_base_passes_for_one_of_its_clone() {
        let store = Arc::new(SimStore::new(1, Weather::default()));
        drop(site(&store, "b", true).create(SIZE).expect("a store"));
        site(&store, "b", true).clone_to(&site(&store, "c", true)).expect("a store");
        site(&store, "c", true).clone_to(&site(&store, "d", true)).expect("a store");
        let all = ["b", "c", "d"];
        for (byte, prefix) in (1..).zip(all) {
            written(&site(&store, prefix, true), byte);
            // Both volumes get a pin of the same name.
            site(&store, prefix, true).pin("kept").expect("a store");
        }
        let readers = all.map(|prefix| site(&store, prefix, false).store);
        let mut kinds = std::collections::BTreeSet::new();
        for (from, to) in all.iter().flat_map(|from| [0, 1, 2].map(|to| (*from, to))) {
            let (reader, to) = (&readers[to], all[to]);
            for meta in store.list(from).expect("a store") {
                let name = meta.name.strip_prefix(from).unwrap_or_default();
                let other = format!("{to}{name}");
                let Ok(right) = store.get(&other) else { continue };
                if from == to || name.starts_with("/key/") {
                    continue;
                }
                kinds.insert(name.split('/').nth(1).unwrap_or_default().to_owned());
                store.put(&other, store.get(&meta.name).expect("listed")).expect("a store");
                let found = reader.get(&other);
                assert!(matches!(found, Err(StoreError::Damaged(_))), "{from} {other}");
                let part = reader.get_range(&other, 0..100);
                assert!(matches!(part, Err(StoreError::Damaged(_))), "{from} {other}");
                store.put(&other, right).expect("a store");
            }
        }
        for kind in ["data", "manifest", "map", "pin"] {
            assert!(kinds.contains(kind), "{kinds:?}");
        }
        for (byte, prefix) in (1..).zip(all) {
            let found = content(&store, prefix).expect("all is right again");
            assert!(found[4096..8192] == [byte; 4096] && found[8192..12288] == [byte; 4096]);
        }
    }

    /// A volume of the first version stays readable and writable, and so do its clones. A clone
    /// has an identity, which the volume itself never gets.
    #[test]
    fn a_volume_without_identity_goes_on_and_has_clones() {
        let store = Arc::new(SimStore::new(2, Weather::default()));
        let secret = Secret::new(b"secret".to_vec()).expect("some bytes");
        let body = secret.encrypt(&[5; 32]).expect("a key");
        let envelope = Envelope {
            kind: Kind::Key,
            version: 1,
            len: (LEN + body.len()) as u64,
            volume: VolumeId::default(),
            number: 0,
            epoch: 0,
            sectors: 0,
            extents: 0,
            body_crc: crc_fast::crc32_iscsi(&body),
        };
        let key: Bytes = [&envelope.encode()[..], &body].concat().into();
        store.put("b/key/00000001", key).expect("a store");
        drop(site(&store, "b", true).create(SIZE).expect("a store"));
        written(&site(&store, "b", true), 1);
        let version = |prefix: &str| {
            let all = store.list(&format!("{prefix}/data")).expect("a store");
            let bytes = store.get(&all.last().expect("some").name).expect("listed");
            u16::from_le_bytes([bytes[8], bytes[9]])
        };
        site(&store, "b", true).rekey(&secret).expect("the key");
        site(&store, "b", true).clone_to(&site(&store, "c", true)).expect("a store");
        for (prefix, byte) in [("b", 1), ("c", 1), ("c", 2), ("b", 3)] {
            if byte != 1 {
                written(&site(&store, prefix, true), byte);
            }
            let found = content(&store, prefix).expect("the key");
            assert!(found[4096..8192] == [byte; 4096], "{prefix} {byte}");
        }
        assert_eq!((version("b"), version("c")), (1, 2));
    }
}
