//! Errors of a volume in a store.

use crate::unsent::Unsent;
use buttress_store::StoreError;

/// Why a volume in a store cannot be opened, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path of a place in a store does not parse.
    #[error("{place}: {why}")]
    Place {
        /// The path as given.
        place: String,
        /// The fault.
        why: String,
    },
    /// There is no volume at the place.
    #[error("{place}: there is no volume; mkfs with --size makes one")]
    NoVolume {
        /// The place.
        place: String,
    },
    /// The volume at the place has another size.
    #[error("{place}: the volume there is {found} bytes long, not {wanted}")]
    OtherSize {
        /// The place.
        place: String,
        /// The length of the volume at the place, in bytes.
        found: u64,
        /// The length that was asked for.
        wanted: u64,
    },
    /// The store failed.
    #[error("{name}: {source}")]
    Store {
        /// The object.
        name: String,
        /// The answer of the store.
        source: StoreError,
    },
    /// The program that needs the answer is about to end, so its wait for the store was given up.
    #[error("{place}: the wait for the store was given up")]
    Abandoned {
        /// The place, or the object.
        place: String,
    },
    /// The content of an object is damaged.
    #[error("{name} is damaged: {why}")]
    Damaged {
        /// The object.
        name: String,
        /// The fault.
        why: String,
    },
    /// The volume is encrypted, and no key was given.
    #[error("{name} is encrypted: give key-file=FILE or the variable BUTTRESS_PASSPHRASE")]
    Encrypted {
        /// The object.
        name: String,
    },
    /// The volume was made by a newer version.
    #[error("{name} has version {found} of the format; this program knows version {known}")]
    Version {
        /// The object.
        name: String,
        /// Its version.
        found: u16,
        /// The newest version that this program reads.
        known: u16,
    },
    /// A device in a store must be the only device of its volume.
    #[error(
        "{place}: a device in a store of objects is the only one of its volume: several have no \
         common commit"
    )]
    Mixed {
        /// The device.
        place: String,
    },
    /// Another writer has the volume.
    #[error(
        "{place} is being written by process {pid} on {host}, last seen {age_seconds} s ago; \
         --takeover takes it from there"
    )]
    Busy {
        /// The place.
        place: String,
        /// The machine.
        host: String,
        /// The process id on that machine.
        pid: u32,
        /// Whether the process runs on this machine.
        here: bool,
        /// How long ago the writer was last seen, in seconds.
        age_seconds: u64,
    },
    /// Another writer took the volume while this writer had it.
    #[error("{place} was taken over by process {pid} on {host}; nothing more is written here")]
    Fenced {
        /// The place.
        place: String,
        /// The machine of the other writer.
        host: String,
        /// The process id on that machine.
        pid: u32,
    },
    /// The store did not pass its trial.
    #[error("{store} is not safe for writing: {why}")]
    Unsafe {
        /// The store.
        store: String,
        /// The fault.
        why: String,
    },
    /// An earlier write failed, so all later writes fail.
    #[error("{place} failed before: {why}")]
    Latched {
        /// The place.
        place: String,
        /// The first failure.
        why: String,
    },
    /// A pin does not exist, or exists already.
    #[error("{place}: {why}")]
    Pin {
        /// The place.
        place: String,
        /// The reason.
        why: String,
    },
    /// The folder of a local cache cannot be used.
    #[error("the cache {dir}: {why}")]
    Cache {
        /// The folder.
        dir: String,
        /// The fault.
        why: String,
    },
    /// A local log has acknowledged writes that do not fit the volume any more.
    #[error(
        "{place}: the log in {dir} has {unsent}, and cannot be replayed: {why}. \
         `remote salvage` writes them to an image; --discard-local goes on without them"
    )]
    Stale {
        /// The place.
        place: String,
        /// The folder of the log.
        dir: String,
        /// Why it does not fit.
        why: String,
        /// The acknowledged writes in the log.
        unsent: Unsent,
    },
    /// The preceding writer may have acknowledged writes in a local log that this opening does not
    /// have.
    #[error(
        "{place}: the last writer may have writes in its log {dir} on {host} that are in no \
         commit. Open the volume there with that cache-dir; --discard-local goes on without them"
    )]
    Elsewhere {
        /// The place.
        place: String,
        /// The machine of that writer.
        host: String,
        /// The folder on that machine.
        dir: String,
    },
    /// A file or block device of this machine.
    #[error(transparent)]
    Block(#[from] buttress_block::Error),
}

impl Error {
    /// Says whether another program has the volume.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Fenced { .. } => true,
            Self::Block(error) => error.is_in_use(),
            _ => false,
        }
    }
}

/// The result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;
