//! Devices with a write-back cache in front, for every verb that takes `--cache`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{Device, OpenOptions};
use buttress_cache::layout::Cut;
use buttress_cache::{CacheDevice, CacheOptions, Error, Mode, PmemDevice};
use buttress_remote::is_remote;

use serde_json::json;

use crate::closing;
use crate::exit::{Exit, Failure, Result};
use crate::figures::Figures;
use crate::names;

/// The device to use, and the cache in front of it, if there is one.
type Wrapped = (Arc<dyn Device>, Option<Arc<CacheDevice>>);

/// The cache of a device.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Cached {
    /// A write-back cache in front of the image, made by `buttress cache format` or by Linux's
    /// dm-writecache.
    #[arg(long, value_name = "CACHE")]
    pub cache: Option<PathBuf>,
    /// Options of the cache, as for dm-writecache, separated by commas; an unknown one prints a
    /// list of all.
    #[arg(long, value_name = "OPTIONS", requires = "cache")]
    pub cache_options: Option<String>,
    /// Use the cache even if it belongs to another image. Its blocks overwrite this image, and
    /// blocks past the end of the image are dropped.
    #[arg(long, requires = "cache")]
    pub force_cache: bool,
}

impl Cached {
    /// Returns the options that were given.
    pub fn options(&self) -> Result<CacheOptions> {
        let list = self.cache_options.as_deref().unwrap_or_default();
        let options =
            CacheOptions::parse(list).map_err(|error| failure("--cache-options", error))?;
        Ok(CacheOptions { force: options.force || self.force_cache, ..options })
    }

    /// Refuses a cache in front of a store of objects: the cache would write blocks in another
    /// order than the volume did.
    pub fn refuse_remote(&self, origin: &Path) -> Result<()> {
        if self.cache.is_some() && is_remote(origin) {
            let origin = origin.display();
            let what = format!("{origin}: --cache is for files and block devices");
            return Err(Failure::new(Exit::Unsupported, what));
        }
        Ok(())
    }

    /// Returns the full path of the cache, by which [`crate::live`] finds its server.
    pub fn full_path(&self) -> Option<PathBuf> {
        self.cache.as_ref().map(|path| path.canonicalize().unwrap_or_else(|_| path.clone()))
    }

    /// If a cache was named, puts the cache in front of an open device.
    pub fn wrap(&self, origin: Arc<dyn Device>, how: OpenOptions) -> Result<Wrapped> {
        let Some(path) = &self.cache else { return Ok((origin, None)) };
        self.refuse_remote(Path::new(&origin.name()))?;
        let device = Arc::new(open(origin, path, self.options()?, how)?);
        Ok((Arc::clone(&device) as Arc<dyn Device>, Some(device)))
    }
}

/// Opens a cache in front of `origin`.
pub fn open(
    origin: Arc<dyn Device>,
    cache: &Path,
    options: CacheOptions,
    how: OpenOptions,
) -> Result<CacheDevice> {
    let how = OpenOptions { direct: how.direct || options.direct, ..how };
    let device = open_medium(cache, options.mode, how)?;
    CacheDevice::open(origin, device, options)
        .map_err(|error| failure(&cache.display().to_string(), error))
}

/// Opens the device of a cache.
pub fn open_medium(path: &Path, mode: Mode, how: OpenOptions) -> Result<Arc<dyn Device>> {
    match mode {
        Mode::Pmem => {
            let device = PmemDevice::open(path, how).map_err(Failure::of_device)?;
            if !device.is_dax() {
                tracing::info!(
                    cache = names::of_path(path),
                    "no persistent memory: flushing with msync"
                );
            }
            Ok(Arc::new(device))
        }
        Mode::Ssd => Ok(closing::open_device(path, how)?.device()),
    }
}

/// Closes a cache, with everything durable.
pub fn close(device: &CacheDevice) -> Result<()> {
    device.close().map_err(|error| failure(&device.name(), error))
}

/// Returns the figures of an open cache. The last figure is the status line of dm-writecache.
pub fn figures(device: &CacheDevice) -> Figures {
    let status = device.status();
    let dirty = status.blocks - status.free;
    let figures = [
        ("block_size", json!(status.block_size)),
        ("blocks", json!(status.blocks)),
        ("free", json!(status.free)),
        ("dirty_bytes", json!(dirty * status.block_size)),
        ("dirty_percent", json!(dirty as f64 * 100.0 / status.blocks.max(1) as f64)),
        ("writing_back", json!(status.writeback)),
        ("reads", json!(status.reads)),
        ("read_hits", json!(status.read_hits)),
        ("writes", json!(status.writes)),
        ("hits_uncommitted", json!(status.hits_uncommitted)),
        ("hits_committed", json!(status.hits_committed)),
        ("writes_around", json!(status.writes_around)),
        ("writes_allocated", json!(status.writes_allocated)),
        ("writes_blocked", json!(status.writes_blocked)),
        ("flushes", json!(status.flushes)),
        ("discards", json!(status.discards)),
        ("seq_count", json!(status.committed.0)),
        ("failed", json!(status.error != 0)),
        ("origin_alone", json!(origin_alone(Some(status.cut), dirty == 0))),
        ("status", json!(status.to_string())),
    ];
    figures.map(|(name, value)| (name.to_owned(), value)).into()
}

/// Describes the state of the origin without its cache.
pub fn origin_alone(cut: Option<Cut>, is_empty: bool) -> String {
    match cut {
        _ if is_empty => "everything is in it".to_owned(),
        Some(Cut::Whole(epoch)) => format!("whole, as of the commit before epoch {epoch}"),
        Some(Cut::Towards(epoch)) => {
            format!("in pieces, on the way to epoch {epoch}; needs its cache")
        }
        _ => "in pieces; needs its cache".to_owned(),
    }
}

/// A failure of a cache, with the exit code that its kind means.
pub fn failure(what: &str, error: Error) -> Failure {
    let exit = match &error {
        error if error.is_corrupt() => Exit::Corrupt,
        error if error.is_refusal() => Exit::Refused,
        Error::Version { .. } | Error::TooManyBlocks { .. } => Exit::Unsupported,
        Error::Option { .. } => Exit::Usage,
        _ => Exit::Failure,
    };
    Failure::with_source(exit, what, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An option that is wrong is a usage error, before anything is opened.
    #[test]
    fn options_are_checked_early() {
        let cached =
            Cached { cache_options: Some("writeback=fast".to_owned()), ..Cached::default() };
        assert_eq!(cached.options().expect_err("wrong").exit, Exit::Usage);
    }
}
