//! The secrets of an encrypted volume: its key, and the identities that tell volumes apart.
//!
//! # Invariants
//!
//! - **Y1** A clone has the key of its base, and an identity of its own. The identity is in the
//!   associated data of every object that the volume seals. So no object of one volume passes for
//!   an object of another volume.
//! - **Y2** The identities never come from an object that they authenticate. They are stored beside
//!   the master key, encrypted by the secret.

use std::fmt;

use serde::{Deserialize, Serialize};

use buttress_store::StoreError;

type Result<T> = std::result::Result<T, StoreError>;

/// Bytes of an identity.
pub(crate) const IDENTITY: usize = 16;

/// The key that seals the objects of a volume.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Master(pub(crate) [u8; 32]);

/// The value that tells the objects of a volume from the objects of its clones. Volumes that
/// earlier versions of the program made have no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity(pub(crate) Option<[u8; IDENTITY]>);

/// The key of a volume, its identity, and the identities of its bases.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) master: Master,
    pub(crate) identity: Identity,
    /// Prefix and identity of each base, the oldest first.
    pub(crate) bases: Vec<(String, Identity)>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("bases", &self.bases.len()).finish_non_exhaustive()
    }
}

/// The encrypted part of a `key/NUMBER`. Bytes are hexadecimal.
#[derive(Serialize, Deserialize)]
struct Inner {
    master: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identity: Option<String>,
    #[serde(default)]
    bases: Vec<InnerBase>,
}

#[derive(Serialize, Deserialize)]
struct InnerBase {
    prefix: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    identity: Option<String>,
}

impl Identity {
    fn text(self) -> Option<String> {
        self.0.map(|bytes| hex(&bytes))
    }

    fn of_text(text: Option<&String>) -> Result<Self> {
        text.map(|text| array(text)).transpose().map(Self)
    }
}

impl Keys {
    /// Keys for a new volume.
    pub(crate) fn random() -> Result<Self> {
        let mut master = [0; 32];
        fill(&mut master)?;
        Ok(Self { master: Master(master), identity: fresh()?, bases: Vec::new() })
    }

    /// Keys for a clone of the volume that has these keys and lies under `prefix`.
    pub(crate) fn cloned(&self, prefix: &str) -> Result<Self> {
        let mut bases = self.bases.clone();
        bases.push((prefix.to_owned(), self.identity));
        Ok(Self { master: self.master.clone(), identity: fresh()?, bases })
    }

    /// The same keys with other names for the bases.
    pub(crate) fn renamed(mut self, seen: impl Fn(&str) -> String) -> Self {
        for (prefix, _) in &mut self.bases {
            *prefix = seen(prefix);
        }
        self
    }

    /// Whether two sets of keys belong to clones of one volume. The identities of such clones
    /// differ.
    pub(crate) fn is_sibling(&self, other: &Self) -> bool {
        self.master == other.master && self.bases == other.bases
    }

    /// The identity of the volume under a prefix, as seen by the volume under `own`.
    pub(crate) fn identity_of(&self, prefix: &str, own: &str) -> Result<Identity> {
        if prefix == own {
            return Ok(self.identity);
        }
        let base = self.bases.iter().find(|(base, _)| base == prefix);
        // A volume of the first version does not list its bases, which are of that version, too.
        let oldest = self.bases.first().map_or(self.identity, |(_, identity)| *identity);
        if base.is_none() && oldest.0.is_none() {
            return Ok(oldest);
        }
        let none = || StoreError::Damaged(format!("the key has no base {prefix:?}"));
        base.map(|(_, identity)| *identity).ok_or_else(none)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let base = |(prefix, identity): &(String, Identity)| InnerBase {
            prefix: prefix.clone(),
            identity: identity.text(),
        };
        let inner = Inner {
            master: hex(&self.master.0),
            identity: self.identity.text(),
            bases: self.bases.iter().map(base).collect(),
        };
        serde_json::to_vec(&inner).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let inner: Inner = serde_json::from_slice(bytes)
            .map_err(|_| StoreError::Damaged("the key is of no known form".to_owned()))?;
        let base = |base: &InnerBase| {
            Ok((base.prefix.clone(), Identity::of_text(base.identity.as_ref())?))
        };
        Ok(Self {
            master: Master(array(&inner.master)?),
            identity: Identity::of_text(inner.identity.as_ref())?,
            bases: inner.bases.iter().map(base).collect::<Result<_>>()?,
        })
    }

    /// The keys of a volume of the first version, which has a master key alone.
    pub(crate) fn decode_first(bytes: &[u8]) -> Result<Self> {
        let wrong = |_| StoreError::Damaged("the key has another length".to_owned());
        let master = Master(bytes.try_into().map_err(wrong)?);
        Ok(Self { master, identity: Identity(None), bases: Vec::new() })
    }
}

fn fresh() -> Result<Identity> {
    let mut identity = [0; IDENTITY];
    fill(&mut identity)?;
    Ok(Identity(Some(identity)))
}

/// Fills a buffer with bytes of the machine's generator.
pub(crate) fn fill(bytes: &mut [u8]) -> Result<()> {
    use std::io::Read;
    let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
    read.map_err(|error| StoreError::Key(format!("/dev/urandom: {error}")))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn of_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(pair).collect())?
}

fn array<const N: usize>(text: &str) -> Result<[u8; N]> {
    let bytes = of_hex(text).and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| StoreError::Damaged("the key is of no known form".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys can be read back unchanged, and a clone knows its bases (Y1).
    #[test]
    fn keys_come_back_with_their_bases() {
        let base = Keys::random().expect("bytes");
        let clone = base.cloned("b").expect("bytes");
        let second = clone.cloned("c").expect("bytes");
        for keys in [&base, &clone, &second] {
            assert!(Keys::decode(&keys.encode()).expect("right") == *keys);
        }
        assert!(clone.is_sibling(&base.cloned("b").expect("bytes")) && !clone.is_sibling(&second));
        let of = |prefix| second.identity_of(prefix, "d");
        assert_eq!(of("b").expect("a base"), base.identity);
        assert_eq!(of("c").expect("a base"), clone.identity);
        assert_eq!(of("d").expect("its own"), second.identity);
        of("e").expect_err("no base");
        assert!(base.identity != clone.identity && clone.identity != second.identity);
        let first = Keys::decode_first(&[7; 32]).expect("a key");
        assert_eq!(first.identity, Identity(None));
        let of_first = first.cloned("a").expect("bytes");
        assert!(Keys::decode(&of_first.encode()).expect("right") == of_first);
        let older = [first.identity_of("older", "a"), of_first.identity_of("older", "b")];
        assert!(older.iter().all(|found| matches!(found, Ok(Identity(None)))));
        Keys::decode_first(&[7; 31]).expect_err("short");
        Keys::decode(b"{}").expect_err("nothing in it");
    }
}
