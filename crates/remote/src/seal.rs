//! Encrypted objects: a store in front of another store, which encrypts and authenticates ("seals")
//! each object.
//!
//! # Invariants
//!
//! - **E1** All of an object except its name, its length and its time is sealed. A piece is
//!   accepted only if it was sealed with the key of the volume, under the same name and at the same
//!   place. Besides, the volume to which the name belongs must have sealed the piece: this volume
//!   or a base.
//! - **E2** No nonce is used twice: each write of an object draws 16 random bytes, and the number
//!   of the piece follows them. So a name may be written twice without harm.
//! - **E3** A part of an object can be read without the rest, since pieces are sealed one by one,
//!   and have equal lengths.
//!
//! # Format
//!
//! ```text
//! 16 bytes     "BUTTSEAL", version (2), logarithm of the piece's length (2), zero (4)
//! each piece   nonce (24), up to 16384 bytes sealed, tag (16)
//! ```
//!
//! The cipher is XChaCha20-Poly1305. The associated data of a piece is the first 16 bytes, the
//! identity of the volume (16), and three more parts. These are the name of the object within its
//! volume, a zero byte, and the number of the piece (8). In version 1 the associated data has no
//! identity. A volume that was made with version 1 keeps that version.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use buttress_base::sync::Mutex;
use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};

use crate::cache_seal::CacheSeal;
use crate::envelope::{self, VolumeId};
use crate::keys::{Identity, Keys};
use crate::names::Names;
use crate::random;
use crate::secret::Secret;
use buttress_store::{Meta, Store, StoreError};

/// The version of volumes without an identity, and the version of all other volumes.
const VERSION_FIRST: u16 = 1;
const VERSION: u16 = 2;
const HEAD: usize = 16;
const PIECE_LOG: u16 = 14;
const PIECE: u64 = 1 << PIECE_LOG;
const NONCE: usize = 24;
const TAG: usize = 16;
const SEALED: u64 = PIECE + (NONCE + TAG) as u64;

type Result<T> = std::result::Result<T, StoreError>;

fn head(identity: Identity) -> [u8; HEAD] {
    let version = if identity.0.is_some() { VERSION } else { VERSION_FIRST };
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(envelope::SEALED);
    head[8..10].copy_from_slice(&version.to_le_bytes());
    head[10..12].copy_from_slice(&PIECE_LOG.to_le_bytes());
    head
}

/// The part of a name that a volume keeps when its objects are moved to another prefix.
fn bound(name: &str) -> &str {
    let mut slashes = name.rmatch_indices('/').map(|(at, _)| at);
    let (_, second, third) = (slashes.next(), slashes.next(), slashes.next());
    let from = |slash: Option<usize>| slash.map_or(0, |at| at + 1);
    let is_shard = |part: &str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit());
    let short = &name[from(second)..];
    let has_shard = short.split('/').next().is_some_and(is_shard);
    if has_shard { &name[from(third)..] } else { short }
}

/// The keys of a volume, ready for use.
struct Seal {
    cipher: XChaCha20Poly1305,
    keys: Keys,
    /// The prefix of the volume.
    own: String,
}

/// One object: the associated data of its pieces, without their numbers.
struct Object<'n> {
    identity: Identity,
    bound: &'n str,
}

impl Object<'_> {
    fn associated(&self, piece: u64) -> Vec<u8> {
        let identity = self.identity.0.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let (head, name) = (head(self.identity), self.bound.as_bytes());
        [&head[..], identity, name, &[0], &piece.to_le_bytes()].concat()
    }
}

impl Seal {
    fn new(keys: Keys, own: &str) -> Self {
        let cipher = XChaCha20Poly1305::new(&keys.master.0.into());
        Self { cipher, keys, own: own.to_owned() }
    }

    /// The associated data for an object of this volume or of one of its bases.
    fn object<'n>(&self, name: &'n str) -> Result<Object<'n>> {
        let bound = bound(name);
        let prefix = name[..name.len() - bound.len()].trim_end_matches('/');
        Ok(Object { identity: self.keys.identity_of(prefix, &self.own)?, bound })
    }

    /// Seals a whole object (E2).
    fn seal(&self, name: &str, plain: &[u8]) -> Result<Bytes> {
        let object = self.object(name)?;
        let pieces = plain.len().div_ceil(PIECE as usize);
        let mut sealed = Vec::with_capacity(HEAD + plain.len() + pieces * (NONCE + TAG));
        sealed.extend_from_slice(&head(object.identity));
        let drawn = random::bytes();
        for (number, msg) in (0_u64..).zip(plain.chunks(PIECE as usize)) {
            let mut nonce = [0; NONCE];
            nonce[..16].copy_from_slice(&drawn);
            nonce[16..].copy_from_slice(&number.to_le_bytes());
            let payload = Payload { msg, aad: &object.associated(number) };
            let failed = |_| StoreError::Refused("the cipher takes no such piece".to_owned());
            let done = self.cipher.encrypt(&XNonce::from(nonce), payload).map_err(failed)?;
            sealed.extend_from_slice(&nonce);
            sealed.extend_from_slice(&done);
        }
        Ok(sealed.into())
    }

    /// Opens pieces from number `first` on (E1).
    fn open(&self, name: &str, first: u64, sealed: &[u8]) -> Result<Vec<u8>> {
        let damaged = |why: &str| Err(StoreError::Damaged(why.to_owned()));
        let object = self.object(name)?;
        let mut plain = Vec::with_capacity(sealed.len());
        let mut drawn = None;
        for (number, piece) in (first..).zip(sealed.chunks(SEALED as usize)) {
            let Some((nonce, msg)) = piece.split_first_chunk::<NONCE>() else {
                return damaged("a piece is cut off");
            };
            if nonce[16..] != number.to_le_bytes()
                || drawn.is_some_and(|d: &[u8]| *d != nonce[..16])
            {
                return damaged("a piece is of another place");
            }
            drawn = Some(&nonce[..16]);
            let payload = Payload { msg, aad: &object.associated(number) };
            match self.cipher.decrypt(&XNonce::from(*nonce), payload) {
                Ok(part) => plain.extend_from_slice(&part),
                Err(_) => return damaged("a piece was not sealed with the volume's key"),
            }
        }
        Ok(plain)
    }
}

/// The pieces that hold a range of an object, as a range of its sealed bytes.
fn sealed_range(range: &Range<u64>) -> (u64, Range<u64>) {
    let (first, end) = (range.start / PIECE, range.end.div_ceil(PIECE));
    (first, HEAD as u64 + first * SEALED..HEAD as u64 + end.max(first + 1) * SEALED)
}

/// Cuts a range out of opened pieces. The result is shorter if the object ends within the range.
fn cut(plain: &[u8], first: u64, range: &Range<u64>) -> Bytes {
    let from = (range.start - first * PIECE) as usize;
    let end = ((range.end - first * PIECE) as usize).min(plain.len());
    Bytes::copy_from_slice(plain.get(from..end).unwrap_or_default())
}

/// A store with the sealed objects of one volume.
pub(crate) struct SealedStore {
    inner: Arc<dyn Store>,
    names: Names,
    secret: Secret,
    /// The keys; `None` until they were read. Unranked: held across I/O.
    seal: Mutex<Option<Arc<Seal>>>,
}

impl fmt::Debug for SealedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl SealedStore {
    pub(crate) fn new(inner: Arc<dyn Store>, names: Names, secret: Secret) -> Self {
        Self { inner, names, secret, seal: Mutex::new(None) }
    }

    /// The keys of the local caches of this volume.
    pub(crate) fn cache_seal(&self, volume: VolumeId) -> Result<CacheSeal> {
        let none = || StoreError::Key("no key for the local cache can be derived".to_owned());
        CacheSeal::new(&self.seal()?.keys.master, volume).ok_or_else(none)
    }

    /// The keys for a clone of this volume. `seen` says how the clone names a prefix.
    pub(crate) fn keys_of_clone(&self, seen: impl Fn(&str) -> String) -> Result<Keys> {
        Ok(self.seal()?.keys.cloned(self.names.prefix())?.renamed(seen))
    }

    /// Makes the keys of a new volume, unless it has keys. The keys of a clone are `of_clone`.
    pub(crate) fn make_key(&self, of_clone: Option<&Keys>) -> Result<()> {
        // Keys that were read before belong to a volume that was deleted since.
        self.forget();
        let fresh = Keys::random()?;
        self.secret.create(&*self.inner, &self.names, 1, of_clone.unwrap_or(&fresh))?;
        let found = self.seal()?;
        if of_clone.is_some_and(|wanted| !wanted.is_sibling(&found.keys)) {
            return Err(StoreError::Key("there is a key of another volume already".to_owned()));
        }
        Ok(())
    }

    /// Encrypts the keys anew with another secret, and deletes the copies that earlier secrets
    /// open.
    pub(crate) fn rekey(&self, new: &Secret) -> Result<()> {
        new.replace(&*self.inner, &self.names, &self.seal()?.keys)
    }

    /// Forgets the keys. The next request reads the keys from the store again.
    pub(crate) fn forget(&self) {
        *self.seal.lock() = None;
    }

    fn seal(&self) -> Result<Arc<Seal>> {
        let mut seal = self.seal.lock();
        if let Some(seal) = &*seal {
            return Ok(Arc::clone(seal));
        }
        let keys = self.secret.load(&*self.inner, &self.names)?;
        Ok(Arc::clone(seal.insert(Arc::new(Seal::new(keys, self.names.prefix())))))
    }
}

impl Store for SealedStore {
    fn title(&self) -> String {
        self.inner.title()
    }

    fn create(&self, name: &str, body: Bytes) -> Result<()> {
        let sealed = self.seal()?.seal(name, &body)?;
        self.inner.create(name, sealed)
    }

    fn put(&self, name: &str, body: Bytes) -> Result<()> {
        let sealed = self.seal()?.seal(name, &body)?;
        self.inner.put(name, sealed)
    }

    fn get(&self, name: &str) -> Result<Bytes> {
        let sealed = self.inner.get(name)?;
        let seal = self.seal()?;
        match sealed.strip_prefix(&head(seal.object(name)?.identity)) {
            Some(pieces) => seal.open(name, 0, pieces).map(Bytes::from),
            None => Err(StoreError::Damaged("it is not encrypted as this program does".to_owned())),
        }
    }

    fn get_range(&self, name: &str, range: Range<u64>) -> Result<Bytes> {
        let (first, sealed) = sealed_range(&range);
        let found = self.inner.get_range(name, sealed)?;
        Ok(cut(&self.seal()?.open(name, first, &found)?, first, &range))
    }

    fn get_many(&self, wants: &[(String, Range<u64>)]) -> Vec<Result<Bytes>> {
        let each = |(name, range): &(String, Range<u64>)| (name.clone(), sealed_range(range).1);
        let sealed: Vec<_> = wants.iter().map(each).collect();
        let found = self.inner.get_many(&sealed).into_iter().zip(wants);
        let open = |(found, (name, range)): (Result<Bytes>, &(String, Range<u64>))| {
            let (first, _) = sealed_range(range);
            Ok(cut(&self.seal()?.open(name, first, &found?)?, first, range))
        };
        found.map(open).collect()
    }

    fn head(&self, name: &str) -> Result<Meta> {
        self.inner.head(name)
    }

    fn list(&self, folder: &str) -> Result<Vec<Meta>> {
        self.inner.list(folder)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.inner.delete(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Master;

    fn seal(byte: u8) -> Seal {
        let keys = Keys {
            master: Master([byte; 32]),
            identity: Identity(Some([9; 16])),
            bases: vec![("a/base".to_owned(), Identity(None))],
        };
        Seal::new(keys, "a/b")
    }

    /// E1: only the same key, name and place open a piece, and every changed bit is detected.
    #[test]
    fn a_piece_opens_with_its_key_name_and_place_alone() {
        let plain: Vec<u8> = (0..40_000_u32).map(|at| (at / 7) as u8).collect();
        let name = "a/b/data/0a/00000001-000000000000000a";
        let sealed = seal(1).seal(name, &plain).expect("sealed");
        let pieces = &sealed[HEAD..];
        assert_eq!(seal(1).open(name, 0, pieces).expect("right"), plain);
        let moved = Seal { own: "elsewhere/data".to_owned(), ..seal(1) };
        let elsewhere = name.replace("a/b", "elsewhere/data");
        assert_eq!(moved.open(&elsewhere, 0, pieces).expect("of another prefix"), plain);
        seal(1).open(&elsewhere, 0, pieces).expect_err("of no base");
        let of_base = name.replace("a/b", "a/base");
        seal(1).open(&of_base, 0, pieces).expect_err("of a base");
        let base = seal(1).seal(&of_base, &plain).expect("sealed");
        assert_eq!(seal(1).open(&of_base, 0, &base[HEAD..]).expect("of a base"), plain);
        seal(1).open(name, 0, &base[HEAD..]).expect_err("of a base, not its own");
        seal(2).open(name, 0, pieces).expect_err("another key");
        seal(1).open(&name.replace("-0", "-1"), 0, pieces).expect_err("another name");
        seal(1).open(name, 1, pieces).expect_err("another place");
        seal(1).open(name, 0, &pieces[..pieces.len() - 1]).expect_err("cut");
        let second = seal(1).seal(name, &plain).expect("sealed");
        let mixed = [&pieces[..SEALED as usize], &second[HEAD + SEALED as usize..]].concat();
        seal(1).open(name, 0, &mixed).expect_err("of two writings");
        for at in (0..pieces.len()).step_by(501) {
            let mut other = pieces.to_vec();
            other[at] ^= 1 << (at % 8);
            seal(1).open(name, 0, &other).expect_err("changed");
        }
    }

    /// E3: each range has the same bytes as that range of the whole object.
    #[test]
    fn ranges_are_parts_of_the_whole() {
        let plain: Vec<u8> = (0..50_000_u32).map(|at| (at / 3) as u8).collect();
        let sealed = seal(1).seal("a/b/map/0a/x", &plain).expect("sealed");
        for range in
            [0..1, 0..50_000, 16_383..16_385, 16_384..32_768, 49_999..50_000, 32_000..33_000]
        {
            let (first, bytes) = sealed_range(&range);
            let end = (bytes.end as usize).min(sealed.len());
            let pieces = &sealed[bytes.start as usize..end];
            let plain_part = seal(1).open("a/b/map/0a/x", first, pieces).expect("right");
            let wanted = &plain[range.start as usize..range.end as usize];
            assert_eq!(cut(&plain_part, first, &range), wanted, "{range:?}");
        }
    }
}
