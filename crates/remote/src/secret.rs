//! The key of an encrypted volume, and the secrets that open it.
//!
//! # Invariants
//!
//! - **X1** Objects are sealed with the *master key*, which never changes. The store has the master
//!   key and the identities only in encrypted form. Argon2id derives the key of this encryption
//!   from a passphrase or a file.
//! - **X2** The object `key/NUMBER` with the highest number is in use. A new object is read back
//!   before older ones are deleted. So at each moment one secret opens the volume.
//! - **X3** No message has a secret in it.
//! - **X4** Each message about a change of the secret is true, even if answers were lost. Either
//!   the new object was read back, or the message leaves open which secret is valid.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use argon2::{Algorithm, Argon2, Params, Version};
use buttress_base::thread;
use bytes::Bytes;
use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};

use crate::envelope::{Kind, VolumeId, unwrap, wrap};
use crate::keys::{Keys, fill, hex, of_hex};
use crate::names::Names;
use buttress_store::{Store, StoreError};

/// The work that Argon2id does for each guess of a passphrase.
const MEMORY_KIB: u32 = 64 << 10;
const PASSES: u32 = 3;
/// The most work that a stored key may ask for. A key that asks for more is refused, since it could
/// take all memory.
const MEMORY_KIB_MAX: u32 = 4 << 20;
const PASSES_MAX: u32 = 64;
/// The most bytes of a file with a key.
const FILE_MAX: u64 = 1 << 20;
/// The environment variables with a passphrase, and with a new passphrase.
const PASSPHRASE: &str = "BUTTRESS_PASSPHRASE";
const NEW_PASSPHRASE: &str = "BUTTRESS_NEW_PASSPHRASE";

type Result<T> = std::result::Result<T, StoreError>;

fn wrong<T>(why: impl Into<String>) -> Result<T> {
    Err(StoreError::Key(why.into()))
}

/// A passphrase, or the bytes of a key file.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The body of a `key/NUMBER`. Bytes are hexadecimal.
#[derive(Serialize, Deserialize)]
struct Wrapped {
    kdf: String,
    memory_kib: u32,
    passes: u32,
    salt: String,
    nonce: String,
    key: String,
}

impl Wrapped {
    /// The associated data of the encrypted keys: the parameters of the derivation.
    fn associated(&self) -> Vec<u8> {
        let Self { kdf, memory_kib, passes, salt, .. } = self;
        format!("buttress key {kdf} {memory_kib} {passes} {salt}").into_bytes()
    }
}

impl Secret {
    /// A secret of these bytes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Key`] if there are no bytes.
    pub fn new(bytes: Vec<u8>) -> Result<Self> {
        if bytes.is_empty() {
            wrong("the passphrase or key file is empty")
        } else {
            Ok(Self(bytes))
        }
    }

    /// The secret in a file, or else in the environment. `None` if neither is given.
    pub(crate) fn find(file: Option<&Path>) -> Result<Option<Self>> {
        Self::of(file, PASSPHRASE)
    }

    /// The new secret for a volume: in a file, or else in the environment.
    ///
    /// # Errors
    ///
    /// [`StoreError::Key`] if the file cannot be read, or neither is given.
    pub fn find_new(file: Option<&Path>) -> Result<Self> {
        match Self::of(file, NEW_PASSPHRASE)? {
            Some(secret) => Ok(secret),
            None => wrong(format!("give --new-key-file or the variable {NEW_PASSPHRASE}")),
        }
    }

    fn of(file: Option<&Path>, variable: &str) -> Result<Option<Self>> {
        let Some(path) = file else {
            let given = std::env::var_os(variable);
            return given.map(|text| Self::new(text.into_encoded_bytes())).transpose();
        };
        let read = || -> std::io::Result<Vec<u8>> {
            if path.metadata()?.len() > FILE_MAX {
                return Err(std::io::Error::other("it is too long for a key"));
            }
            std::fs::read(path)
        };
        match read() {
            Ok(bytes) => Self::new(bytes).map(Some),
            Err(error) => wrong(format!("the key file {}: {error}", path.display())),
        }
    }

    /// The key that encrypts the master key.
    fn cipher(&self, how: &Wrapped) -> Result<XChaCha20Poly1305> {
        if how.kdf != "argon2id" || how.memory_kib > MEMORY_KIB_MAX || how.passes > PASSES_MAX {
            return wrong("the key was made in a way that this program does not know");
        }
        let params = Params::new(how.memory_kib, how.passes, 1, Some(32));
        let salt = of_hex(&how.salt).unwrap_or_default();
        let mut key = [0; 32];
        let made = params.and_then(|params| {
            let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
            argon.hash_password_into(&self.0, &salt, &mut key)
        });
        match made {
            Ok(()) => Ok(XChaCha20Poly1305::new(&key.into())),
            Err(error) => wrong(format!("a key cannot be made of the passphrase: {error}")),
        }
    }

    /// Encrypts the keys of a volume.
    fn wrap(&self, keys: &Keys) -> Result<Bytes> {
        let body = self.encrypt(&keys.encode())?;
        Ok(wrap(Kind::Key, VolumeId::default(), 0, 0, &body).into())
    }

    /// The body of a key object with `msg` encrypted in it.
    pub(crate) fn encrypt(&self, msg: &[u8]) -> Result<Vec<u8>> {
        let (mut salt, mut nonce) = ([0; 16], [0; 24]);
        fill(&mut salt)?;
        fill(&mut nonce)?;
        let mut how = Wrapped {
            kdf: "argon2id".to_owned(),
            memory_kib: MEMORY_KIB,
            passes: PASSES,
            salt: hex(&salt),
            nonce: hex(&nonce),
            key: String::new(),
        };
        let payload = Payload { msg, aad: &how.associated() };
        match self.cipher(&how)?.encrypt(&XNonce::from(nonce), payload) {
            Ok(key) => how.key = hex(&key),
            Err(_) => return wrong("the key cannot be encrypted"),
        }
        Ok(serde_json::to_vec(&how).unwrap_or_default())
    }

    /// Decrypts the keys of a volume.
    fn unwrap(&self, name: &str, bytes: &[u8]) -> Result<Keys> {
        let damaged = |why: String| StoreError::Damaged(why);
        let (envelope, body) =
            unwrap(name, Kind::Key, bytes).map_err(|error| damaged(error.to_string()))?;
        let how: Wrapped =
            serde_json::from_slice(body).map_err(|error| damaged(error.to_string()))?;
        let nonce = of_hex(&how.nonce).and_then(|nonce| <[u8; 24]>::try_from(nonce).ok());
        let (Some(nonce), Some(msg)) = (nonce, of_hex(&how.key)) else {
            return Err(damaged("the key is not in hexadecimal".to_owned()));
        };
        let payload = Payload { msg: &msg, aad: &how.associated() };
        match self.cipher(&how)?.decrypt(&XNonce::from(nonce), payload) {
            Ok(keys) if envelope.version == 1 => Keys::decode_first(&keys),
            Ok(keys) => Keys::decode(&keys),
            Err(_) => wrong("the passphrase or key file is wrong"),
        }
    }

    /// Reads the keys of a volume (X2).
    pub(crate) fn load(&self, store: &dyn Store, names: &Names) -> Result<Keys> {
        // Between the list and the read, a change of the secret may delete the key that was listed.
        for _ in 0..3 {
            // A list may lack the newest objects.
            let name = names.key(numbers(store, names)?.last().copied().unwrap_or(1));
            match store.get(&name) {
                Err(StoreError::NotFound) => {}
                found => return self.unwrap(&name, &found?),
            }
        }
        wrong("the volume is not encrypted, and a key was given")
    }

    /// Writes the keys under a number, unless an object with that number exists.
    pub(crate) fn create(
        &self,
        store: &dyn Store,
        names: &Names,
        number: u32,
        keys: &Keys,
    ) -> Result<()> {
        if !numbers(store, names)?.is_empty() && number == 1 {
            return Ok(());
        }
        let name = names.key(number);
        match store.create(&name, self.wrap(keys)?) {
            Err(StoreError::Exists) => Ok(()),
            // The answer may be lost although the object was created.
            Err(StoreError::Failed(why)) => match store.get(&name) {
                Ok(there) if self.unwrap(&name, &there)? == *keys => Ok(()),
                _ => Err(StoreError::Failed(why)),
            },
            answer => answer,
        }
    }

    /// Writes the keys encrypted by this secret, and deletes the copies for other secrets (X2, X4).
    pub(crate) fn replace(&self, store: &dyn Store, names: &Names, keys: &Keys) -> Result<()> {
        let older = numbers(store, names)?;
        let number = older.last().map_or(1, |last| last + 1);
        let name = names.key(number);
        let body = self.wrap(keys)?;
        let other = || wrong("another program changed the key at the same time");
        match settled(store, &name, &body)? {
            Some(found) if found == body => {}
            Some(_) => return other(),
            None => {
                return wrong(
                    "the store did not answer, so the new secret or the old one opens the volume. \
                     Try the new one first. If it does, run `remote rekey` again with it as both",
                );
            }
        }
        // A list may have lacked the newest key. In that case the key that was just written is not
        // in use.
        match store.get(&names.key(number + 1)) {
            Err(StoreError::NotFound) => {}
            Ok(_) => return other(),
            Err(error) => return undeleted(&error),
        }
        let deleted = older.iter().try_for_each(|number| store.delete(&names.key(*number)));
        deleted.or_else(|error| undeleted(&error))
    }
}

/// Returns the error that an older key was not deleted. The new secret opens the volume. A program
/// that gets an older list may still open the volume with the old secret.
fn undeleted(error: &StoreError) -> Result<()> {
    wrong(format!(
        "the new secret opens the volume, and the old one was not deleted: run `remote rekey` \
         again with the new one as both ({error})"
    ))
}

/// Creates an object, and returns the content that the name has afterwards. Tries a few times.
/// `None` if no answer shows the content.
fn settled(store: &dyn Store, name: &str, body: &Bytes) -> Result<Option<Bytes>> {
    const TRIES: u32 = 6;
    const PAUSE: Duration = Duration::from_millis(50);
    let mut is_sent = false;
    for attempt in 0..TRIES {
        if attempt > 0 {
            thread::sleep(PAUSE * attempt);
        }
        match store.create(name, body.clone()) {
            Ok(()) => return Ok(Some(body.clone())),
            // A refusal proves nothing if an earlier attempt had no answer: that attempt may have
            // created the object.
            Err(refusal) if refusal.is_refusal() && !is_sent => return Err(refusal),
            Err(_) => is_sent = true,
        }
        if let Ok(found) = store.get(name) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// The numbers of the keys, in order.
fn numbers(store: &dyn Store, names: &Names) -> Result<Vec<u32>> {
    let listed = match store.list(&names.folder("key")) {
        Err(StoreError::NotFound) => Vec::new(),
        listed => listed?,
    };
    let number = |meta: &buttress_store::Meta| meta.name.rsplit('/').next()?.parse().ok();
    let mut numbers: Vec<u32> = listed.iter().filter_map(number).collect();
    // No writer gives a number above this limit. A new key gets the next number, and `replace` also
    // reads the number after that one.
    numbers.retain(|number| *number <= u32::MAX / 2);
    numbers.sort_unstable();
    Ok(numbers)
}
