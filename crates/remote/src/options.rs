//! How a volume in a store is opened.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::units::{LEN_MAX, SECTOR};

/// A commit of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum At {
    /// The newest commit.
    #[default]
    Newest,
    /// The commit with this number.
    Number(u64),
    /// The commit that is pinned under this name.
    Pin(String),
}

impl At {
    /// Returns the name of the pin, if the commit is named by a pin.
    pub(crate) fn pin(&self) -> Option<&str> {
        match self {
            Self::Pin(name) => Some(name),
            Self::Newest | Self::Number(_) => None,
        }
    }
}

/// Options of a volume in a store, without the options of the store itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether to allow writes.
    pub write: bool,
    /// Whether to take the volume from a writer that seems to be alive.
    pub takeover: bool,
    /// The commit to open. A commit other than the newest is opened for reading only.
    pub at: At,
    /// The length of a data object in bytes. It applies to new volumes only.
    pub object_len: u64,
    /// The length to which a shorter volume grows when it is opened for writing, in bytes.
    pub size: Option<u64>,
    /// The memory in bytes. A writer has a quarter, or two data objects, for what is on its way to
    /// the store. Of the rest the read cache has half and the map a quarter. The last quarter is
    /// for the index of the cache on a local disk.
    pub memory: u64,
    /// The most data objects that are sent at once. Less memory allows fewer.
    pub in_flight: usize,
    /// How long a failing store may take to recover.
    pub timeout: Duration,
    /// How long a commit that a flush deferred may wait.
    pub max_lag: Duration,
    /// How long old commits are kept.
    pub min_keep: Duration,
    /// The folder of the local cache.
    pub cache_dir: Option<PathBuf>,
    /// The most bytes that the local cache takes: half for the log, half for data that was read.
    pub cache_size: u64,
    /// The event for which a flush waits. `None` means the local log if there is a cache folder,
    /// and otherwise a commit.
    pub durability: Option<Durability>,
    /// Whether to go on without acknowledged writes in a local log that cannot be replayed.
    pub discard_local: bool,
    /// The file with the key of an encrypted volume.
    pub key_file: Option<PathBuf>,
    /// How often a reader looks for a newer commit. `None` means that the reader stays with its
    /// commit.
    pub follow: Option<Duration>,
}

/// The event for which a flush waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The log on a disk of this machine.
    Local,
    /// A commit in the store.
    Remote,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            write: false,
            takeover: false,
            at: At::Newest,
            object_len: 8 << 20,
            size: None,
            memory: 256 << 20,
            in_flight: 4,
            timeout: Duration::from_secs(600),
            max_lag: Duration::from_secs(5),
            min_keep: Duration::from_secs(600),
            cache_dir: None,
            cache_size: 10 << 30,
            durability: None,
            discard_local: false,
            key_file: None,
            follow: None,
        }
    }
}

/// The options that [`Options::accept`] takes. The first four are allowed only in the name of a
/// place.
pub const OPTION_NAMES: [&str; 15] = [
    "pin",
    "commit",
    "object-size",
    "memory",
    "in-flight",
    "timeout",
    "max-lag",
    "min-keep",
    "cache-dir",
    "cache-size",
    "durability",
    "discard-local",
    "follow",
    "key-file",
    "size",
];

/// The options of [`OPTION_NAMES`] that are mount options, too. The other options name a commit or
/// belong to a new volume.
pub const MOUNT_OPTION_NAMES: &[&str] = OPTION_NAMES.split_at(4).1;

/// How to open a volume, besides the options in its name. Options in the name take precedence over
/// the options here.
#[derive(Clone, Debug, Default)]
pub struct OpenRequest {
    /// Whether to take the volume from a writer that seems to be alive.
    pub takeover: bool,
    /// Whether to go on without acknowledged writes in a local log that cannot be replayed.
    pub discard_local: bool,
    /// Options, as the name of a place can have them.
    pub options: Vec<(String, String)>,
}

impl OpenRequest {
    /// Returns the options for opening `volume`.
    pub(crate) fn options(&self, volume: &Path, write: bool) -> Result<Options> {
        let Self { takeover, discard_local, .. } = *self;
        let mut options = Options { write, takeover, discard_local, ..Options::default() };
        let place = volume.display().to_string();
        for (key, value) in &self.options {
            options.accept(&place, key, value)?;
        }
        Ok(options)
    }
}

impl Options {
    /// Whether a flush waits for the local log alone.
    pub(crate) fn is_local(&self) -> bool {
        self.write && self.cache_dir.is_some() && self.durability != Some(Durability::Remote)
    }

    /// Refuses options that need another option that is missing.
    ///
    /// # Errors
    ///
    /// [`Error::Place`], which names the option that is missing.
    pub(crate) fn check(&self, place: &str) -> Result<()> {
        if self.durability == Some(Durability::Local) && self.cache_dir.is_none() {
            let why = "durability=local needs cache-dir=".to_owned();
            return Err(Error::Place { place: place.to_owned(), why });
        }
        let why = match &self.at {
            _ if self.follow.is_none() => return Ok(()),
            _ if self.write => "follow= is for reading: it needs the mount option ro",
            At::Newest => return Ok(()),
            At::Number(_) | At::Pin(_) => {
                "follow= goes with the newest commit, not with one of them"
            }
        };
        Err(Error::Place { place: place.to_owned(), why: why.to_owned() })
    }

    /// Sets the option `key`. Returns whether [`Options`] has such an option.
    ///
    /// # Errors
    ///
    /// [`Error::Place`] for a value that is wrong.
    pub fn accept(&mut self, place: &str, key: &str, value: &str) -> Result<bool> {
        let wrong = |why: &str| {
            let why = format!("option {key}={value}: {why}");
            Error::Place { place: place.to_owned(), why }
        };
        let seconds = || value.parse().map(Duration::from_secs).map_err(|_| wrong("no seconds"));
        let within = |least: u64, most: u64| match bytes(value) {
            Some(bytes) if (least..=most).contains(&bytes) => Ok(bytes),
            _ => Err(wrong(&format!("not from {least} to {most}"))),
        };
        match key {
            "object-size" => {
                let len = within(64 << 10, 256 << 20)?;
                if !len.is_multiple_of(4096) {
                    return Err(wrong("not a multiple of 4096"));
                }
                self.object_len = len;
            }
            "size" => self.size = Some(within(1 << 20, LEN_MAX)?.next_multiple_of(SECTOR)),
            "pin" => self.at = At::Pin(value.to_owned()),
            "commit" => self.at = At::Number(value.parse().map_err(|_| wrong("no number"))?),
            "memory" => self.memory = within(16 << 20, 1 << 40)?,
            "in-flight" => self.in_flight = within(1, 64)? as usize,
            "timeout" | "patience" => self.timeout = seconds()?,
            "max-lag" => self.max_lag = seconds()?,
            "min-keep" => self.min_keep = seconds()?,
            "follow" => match seconds()? {
                Duration::ZERO => return Err(wrong("not a second at least")),
                interval => self.follow = Some(interval),
            },
            "cache-dir" | "key-file" => {
                let path = PathBuf::from(value);
                if !path.is_absolute() {
                    return Err(wrong("not an absolute path"));
                }
                let is_key = key == "key-file";
                *(if is_key { &mut self.key_file } else { &mut self.cache_dir }) = Some(path);
            }
            "cache-size" => self.cache_size = within(16 << 20, 1 << 50)?,
            "durability" => {
                self.durability = Some(match value {
                    "local" => Durability::Local,
                    "remote" => Durability::Remote,
                    _ => return Err(wrong("neither local nor remote")),
                });
            }
            "discard-local" => {
                self.discard_local = match value {
                    "1" | "yes" | "true" => true,
                    "0" | "no" | "false" => false,
                    _ => return Err(wrong("neither yes nor no")),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Parses a number of bytes. The unit may be K, M, G or T, also written KiB and so on, or s for
/// sectors of 512 bytes.
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(end);
    let unit: u64 = match unit.to_ascii_lowercase().as_str() {
        "" => 1,
        "s" => 512,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
