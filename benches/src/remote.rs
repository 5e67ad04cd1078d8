//! `buttress-bench remote`: a volume in a store beside the same volume in a file.
//!
//! # What must hold
//!
//! - All places take turns in each run. The store is in memory, so a difference comes from the
//!   device itself, or from the chosen latency.
//! - Requests are counted by the store, not by the device.

mod loads;
mod store;
mod whole;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use buttress_block::{Device, FileDevice, OpenOptions};
use buttress_fs::{Filesystem, MakeOptions, MountOptions};
use buttress_remote::{Options, RemoteDevice, Site};
use serde_json::{Value, json};

use self::store::{Counts, MemoryStore};
use crate::report::median;
use crate::work::text;

type Result<T> = std::result::Result<T, String>;

/// What to measure, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The folder for the local file and the caches.
    pub dir: PathBuf,
    /// Runs of each place. Places take turns.
    pub runs: usize,
    /// MiB of the large file.
    pub mib: u64,
    /// The time during which fsyncs are counted.
    pub time: Duration,
    /// Small files.
    pub files: u64,
    /// Latencies of the store, in milliseconds.
    pub latencies_ms: Vec<u64>,
    /// Objects of the big volume. Zero leaves it out.
    pub objects: u64,
    /// MiB of the device that is overwritten at random. Zero leaves it out.
    pub overwritten_mib: u64,
}

/// The place of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Local,
    Store { latency_ms: u64, cache: bool },
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Local => f.pad("local file"),
            Self::Store { latency_ms, cache: false } => f.pad(&format!("store {latency_ms} ms")),
            Self::Store { latency_ms, .. } => f.pad(&format!("store {latency_ms} ms, cache")),
        }
    }
}

/// A volume of one place in one run.
struct Bed {
    place: Place,
    dir: PathBuf,
    store: Arc<MemoryStore>,
}

/// An open volume.
struct Open {
    fs: Filesystem,
    remote: Option<Arc<RemoteDevice>>,
}

impl Open {
    fn close(self) -> Result<()> {
        self.fs.close().map_err(text)?;
        self.remote.map_or(Ok(()), |device| device.close().map_err(text))
    }
}

impl Bed {
    fn new(place: Place, dir: &Path, len: u64) -> Result<Self> {
        let dir = dir.join("buttress-bench-remote");
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).map_err(text)?;
        let this = Self { place, dir, store: Arc::default() };
        let options = MakeOptions { seed: Some(1), ..MakeOptions::default() };
        match place {
            Place::Local => {
                let device = FileDevice::create(this.image(), len).map_err(text)?;
                Filesystem::make(&device, &options).map_err(text)?;
            }
            Place::Store { latency_ms, .. } => {
                let device = this.site(true).create(len).map_err(text)?;
                Filesystem::make(&device, &options).map_err(text)?;
                device.close().map_err(text)?;
                this.store.set_latency(Duration::from_millis(latency_ms));
            }
        }
        Ok(this)
    }

    fn image(&self) -> PathBuf {
        self.dir.join("image")
    }

    fn site(&self, write: bool) -> Site {
        let has_cache = matches!(self.place, Place::Store { cache: true, .. });
        let options = Options {
            write,
            cache_dir: has_cache.then(|| self.dir.join("cache")),
            ..Options::default()
        };
        Site::in_store(self.store.clone(), "v", options)
    }

    fn open(&self) -> Result<Open> {
        let options = MountOptions::parse("rw,noatime").map_err(text)?;
        let (device, remote): (Arc<dyn Device>, _) = match self.place {
            Place::Local => {
                let device = FileDevice::open(self.image(), OpenOptions::WRITE).map_err(text)?;
                (Arc::new(device), None)
            }
            Place::Store { .. } => {
                let device = Arc::new(self.site(true).open().map_err(text)?);
                (Arc::clone(&device) as Arc<dyn Device>, Some(device))
            }
        };
        let fs = Filesystem::open(vec![device], options).map_err(text)?;
        Ok(Open { fs, remote })
    }

    /// Empties the local cache, for a cold start.
    fn forget(&self) {
        let _ = fs::remove_dir_all(self.dir.join("cache"));
    }

    fn counts(&self) -> Counts {
        self.store.counts()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Figures by name and unit, then by place.
#[derive(Debug, Default)]
struct Figures(BTreeMap<(String, &'static str), BTreeMap<Place, Vec<f64>>>);

impl Figures {
    fn add(&mut self, what: &str, unit: &'static str, place: Place, value: f64) {
        let row = self.0.entry((what.to_owned(), unit)).or_default();
        row.entry(place).or_default().push(value);
    }

    fn json(&self) -> Value {
        let mut rows = Vec::new();
        for ((what, unit), places) in &self.0 {
            let local = places.get(&Place::Local).map(|values| median(values));
            for (place, values) in places {
                let own = median(values);
                rows.push(json!({
                    "what": what, "unit": unit, "place": place.to_string(), "median": own,
                    "values": values, "times_local": local.map(|local| own / local),
                }));
            }
        }
        Value::Array(rows)
    }

    fn table(&self) -> String {
        let mut table = String::new();
        for ((what, unit), places) in &self.0 {
            // Writing to a string cannot fail.
            let _ = writeln!(table, "\n{what}, {unit}");
            let local = places.get(&Place::Local).map(|values| median(values));
            for (place, values) in places {
                let own = median(values);
                let low = values.iter().copied().fold(f64::MAX, f64::min);
                let high = values.iter().copied().fold(f64::MIN, f64::max);
                let times = local.map_or(String::new(), |of| format!("{:.2}x local", own / of));
                let _ =
                    writeln!(table, "  {place:<20}{own:>12.1}  ({low:.1} to {high:.1})  {times}");
            }
        }
        table
    }
}

/// Runs everything. Returns the figures as JSON and as text.
///
/// # Errors
///
/// The cause of the failure.
pub fn run(plan: &Plan, say: &mut dyn FnMut(&str)) -> Result<(Value, String)> {
    let mut places = vec![Place::Local];
    for &latency_ms in &plan.latencies_ms {
        places.extend([false, true].map(|cache| Place::Store { latency_ms, cache }));
    }
    let mut figures = Figures::default();
    for run in 1..=plan.runs.max(1) {
        for &place in &places {
            say(&format!("run {run}: {place}"));
            let bed = Bed::new(place, &plan.dir, (plan.mib * 4 + 512) << 20)?;
            loads::run(&bed, plan, &mut figures)?;
        }
    }
    whole::run(plan, &mut figures, say)?;
    Ok((figures.json(), figures.table()))
}
