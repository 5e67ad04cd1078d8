//! The folder of a volume's local cache: its identity, its lock, and the log of a crashed writer.
//!
//! # Invariants
//!
//! - **D1** A folder belongs to one volume, and one process at a time writes it.
//! - **D2** A log is replayed only over the content on which it was written: the newest commit. The
//!   manifest of this commit must name this folder, and the commit must have a prefix of the log.
//! - **D3** A log with acknowledged writes is removed only when a commit has these writes, or when
//!   the user gave `--discard-local`. In the second case the log is first marked as given up, so
//!   that no later opening replays it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use buttress_base::{Rank, Ranked};
use buttress_block::LockFile;
use serde::{Deserialize, Serialize};

use crate::cache_seal::CacheSeal;
use crate::envelope::{Kind, VolumeId, unwrap, wrap_local};
use crate::error::{Error, Result};
use crate::log;
use crate::log::record::tag;
use crate::log::scan::{self, ScannedLog, Wanted};
use crate::manifest::{LocalLog, Manifest};
use crate::random;
use crate::unsent::Unsent;

/// The log that is in the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    /// The id of its writer.
    log: String,
    epoch: u32,
    /// Whether the user chose to go on without the log (D3).
    #[serde(default)]
    is_given_up: bool,
}

/// The content of the file that identifies the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Identity {
    cache: String,
    held: Option<Held>,
}

/// A log to replay: it fits the volume, and has writes that the newest commit lacks.
#[derive(Clone, Debug)]
pub(crate) struct Replay {
    pub(crate) log: String,
    pub(crate) found: ScannedLog,
    /// The newest commit has all writes of the log up to this position.
    pub(crate) committed: u64,
    /// Whether the log may be in clear text although the volume is encrypted.
    pub(crate) may_be_plain: bool,
}

/// The decision about the log that an opening found in the folder.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settled {
    pub(crate) replay: Option<Replay>,
    /// Acknowledged writes that are given up, because the user gave `--discard-local`.
    pub(crate) lost: Option<Unsent>,
}

/// The folder, opened by this process alone (D1).
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    volume: VolumeId,
    identity: Ranked<Identity>,
    /// The keys, if the volume is encrypted.
    seal: Option<CacheSeal>,
    /// Locked until it is released or dropped.
    lock: LockFile,
}

/// The acknowledged writes of a log that no commit has.
fn unsent(found: &ScannedLog) -> Option<Unsent> {
    (found.cuts > 0 || found.damage.is_some()).then(|| found.unsent())
}

fn failed(dir: &Path, why: &str) -> Error {
    Error::Cache { dir: dir.display().to_string(), why: why.to_owned() }
}

impl Cache {
    /// Opens the folder for a volume, and creates it if it does not exist. `None` if another
    /// process has the folder open.
    ///
    /// With `seal` the folder belongs to an encrypted volume. If an earlier version of the program
    /// made the folder, its content stays in clear text until the next log begins.
    pub(crate) fn open(
        dir: &Path,
        volume: VolumeId,
        seal: Option<CacheSeal>,
    ) -> Result<Option<Self>> {
        let wrong = |error: io::Error| failed(dir, &error.to_string());
        std::fs::create_dir_all(dir).map_err(wrong)?;
        let dir = &dir.canonicalize().map_err(wrong)?;
        let path = dir.join("identity");
        let is_new = || path.try_exists().map(|exists| !exists).map_err(wrong);
        // No lock file is made in a folder with other files.
        if is_new()? && has_others(dir).map_err(wrong)? {
            return Err(failed(dir, "is no cache, and is not empty"));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let lock = options.open(dir.join("lock")).map_err(wrong)?;
        let Some(lock) = LockFile::try_lock(lock).map_err(wrong)? else { return Ok(None) };
        // Another process may have made the cache before this process had the lock (D1).
        let is_new = is_new()?;
        let identity = if is_new {
            Identity { cache: random::hex(), held: None }
        } else {
            read_identity(dir, &path, volume)?
        };
        let identity = Ranked::new(Rank::Leaf, identity);
        let this = Self { dir: dir.clone(), volume, identity, seal, lock };
        if is_new {
            this.write_identity()?;
        }
        Ok(Some(this))
    }

    /// Refuses a folder that a reader of the volume must not use.
    pub(crate) fn check(dir: &Path, volume: VolumeId) -> Result<()> {
        let wrong = |error: io::Error| failed(dir, &error.to_string());
        std::fs::create_dir_all(dir).map_err(wrong)?;
        let path = dir.join("identity");
        if path.try_exists().map_err(wrong)? {
            return read_identity(dir, &path, volume).map(drop);
        }
        match has_others(dir).map_err(wrong)? {
            true => Err(failed(dir, "is no cache, and is not empty")),
            false => Ok(()),
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of the log.
    pub(crate) fn log_dir(&self) -> PathBuf {
        self.dir.join("log")
    }

    /// Unlocks the folder, so that another process can open it. This process writes nothing to the
    /// folder any more.
    pub(crate) fn release(&self) {
        self.lock.release();
    }

    /// Returns the entry by which a writer's manifests name this folder.
    pub(crate) fn mark(&self, host: &str) -> LocalLog {
        let (cache, dir) = (self.identity.lock().cache.clone(), self.dir.display().to_string());
        LocalLog { cache, host: host.to_owned(), dir, sealed: self.seal.is_some() }
    }

    /// The keys, if the volume is encrypted.
    pub(crate) fn seal(&self) -> Option<&CacheSeal> {
        self.seal.as_ref()
    }

    /// The log of a writer in the folder `folder`, as a scan expects it.
    pub(crate) fn wanted<'a>(
        &'a self,
        folder: &'a Path,
        log: &str,
        may_be_plain: bool,
    ) -> Wanted<'a> {
        let seal = self.seal.as_ref();
        Wanted { folder, volume: self.volume, tag: tag(log), seal, may_be_plain }
    }

    /// Whether a log over this commit may be in clear text (`log::L5`).
    pub(crate) fn may_be_plain(head: &Manifest) -> bool {
        head.local.as_ref().is_none_or(|local| !local.sealed)
    }

    /// The log in the folder: the id of its writer, and the epoch.
    pub(crate) fn held_log(&self) -> Option<(String, u32)> {
        self.identity.lock().held.as_ref().map(|held| (held.log.clone(), held.epoch))
    }

    /// Whether a manifest names this folder.
    pub(crate) fn is_of_this(&self, head: &Manifest) -> bool {
        head.local.as_ref().is_some_and(|local| local.cache == self.identity.lock().cache)
    }

    /// Reads the log, if there is one, and counts the writes that the commit `head` lacks. The
    /// commit has all writes up to position `committed`.
    pub(crate) fn found(
        &self,
        head: &Manifest,
        committed: u64,
    ) -> Result<Option<(String, ScannedLog)>> {
        let Some(held) = self.identity.lock().held.clone() else { return Ok(None) };
        let folder = self.log_dir();
        let wanted = self.wanted(&folder, &held.log, Self::may_be_plain(head));
        let found = scan::look(wanted, committed)?;
        Ok(Some((held.log, found)))
    }

    /// Decides whether to replay the log, when the newest manifest is `head` (D2).
    ///
    /// # Errors
    ///
    /// [`Error::Stale`] if the log has acknowledged writes and does not fit the newest commit.
    pub(crate) fn settle(&self, head: &Manifest, place: &str) -> Result<Option<Replay>> {
        let Some(held) = self.identity.lock().held.clone() else { return Ok(None) };
        let marked = head.marked(&held.log);
        let Some((log, found)) = self.found(head, marked.unwrap_or(0))? else { return Ok(None) };
        let Some(has) = unsent(&found) else { return Ok(None) };
        let stale = |why: String| {
            let dir = self.dir.display().to_string();
            Err(Error::Stale { place: place.to_owned(), dir, why, unsent: has.clone() })
        };
        if let Some(damage) = &found.damage {
            return stale(damage.clone());
        }
        let is_newest = head.epoch == held.epoch || head.is_opening;
        if held.is_given_up {
            return stale("--discard-local was given before".to_owned());
        }
        if !self.is_of_this(head) || !is_newest {
            let (host, pid) = (&head.writer.host, head.writer.pid);
            return stale(format!("process {pid} on {host} has written the volume since"));
        }
        match marked {
            Some(committed) if found.begins <= committed => {
                Ok(Some(Replay { log, found, committed, may_be_plain: Self::may_be_plain(head) }))
            }
            _ => stale("it begins after the newest commit".to_owned()),
        }
    }

    /// Marks the log as given up (D3), and returns its writes that no commit has.
    pub(crate) fn give_up(&self, head: &Manifest) -> Result<Option<Unsent>> {
        let Some(mut held) = self.identity.lock().held.clone() else { return Ok(None) };
        let marked = head.marked(&held.log).unwrap_or(0);
        let lost = self.found(head, marked)?.and_then(|(_, found)| unsent(&found));
        held.is_given_up = true;
        self.hold(Some(held))?;
        Ok(lost)
    }

    /// Removes the earlier log, and notes the log of a new writer in the folder (D3).
    pub(crate) fn begin(&self, log: &str, epoch: u32) -> Result<()> {
        self.end()?;
        self.hold(Some(Held { log: log.to_owned(), epoch, is_given_up: false }))
    }

    /// Removes the log. The caller knows that a commit has all writes of the log, or that the user
    /// gave the log up.
    pub(crate) fn end(&self) -> Result<()> {
        self.hold(None)?;
        log::remove_files(&self.log_dir()).map_err(|error| failed(&self.dir, &error.to_string()))
    }

    fn hold(&self, held: Option<Held>) -> Result<()> {
        self.identity.lock().held = held;
        self.write_identity()
    }

    fn write_identity(&self) -> Result<()> {
        let body = serde_json::to_vec(&*self.identity.lock()).unwrap_or_default();
        // Earlier versions of the program refuse a file with this version, so they write no clear
        // text into the folder of an encrypted volume.
        let bytes = wrap_local(self.seal.is_some(), Kind::Cache, self.volume, (0, 0), &body);
        let replace = || -> io::Result<()> {
            let (new, path) = (self.dir.join("identity.new"), self.dir.join("identity"));
            let mut file = File::create(&new)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            File::open(&self.dir)?.sync_all()
        };
        replace().map_err(|error| failed(&self.dir, &error.to_string()))
    }
}

/// Whether a folder without an identity has files that a new cache cannot have.
fn has_others(dir: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        if !matches!(name.to_str(), Some("lock" | "identity.new" | "read" | "lost+found")) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn read_identity(dir: &Path, path: &Path, volume: VolumeId) -> Result<Identity> {
    let bytes = std::fs::read(path).map_err(|error| failed(dir, &error.to_string()))?;
    let (envelope, body) = unwrap(&path.display().to_string(), Kind::Cache, &bytes)?;
    if envelope.volume != volume {
        return Err(failed(dir, "is the cache of another volume"));
    }
    serde_json::from_slice(body).map_err(|error| failed(dir, &error.to_string()))
}
