//! Finds devices of a volume, and returns their failure counts.

use std::path::Path;
use std::sync::Arc;

use buttress_base::text;
use buttress_block::{Device, OpenOptions, probe};
use buttress_format::DeviceId;
use buttress_fs::{DeviceInfo, Filesystem, ReplaceState};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::names;

/// The JSON document for scripts, in the words of `btrfs device stats`.
#[derive(Serialize, Deserialize)]
pub struct Row {
    /// The device, as a path or its number.
    pub device: String,
    /// Its number.
    pub devid: u64,
    write_io_errs: u64,
    read_io_errs: u64,
    flush_io_errs: u64,
    corruption_errs: u64,
    generation_errs: u64,
}

impl Row {
    fn of(device: DeviceInfo) -> Self {
        let [write, read, flush, corruption, generation] = device.stats.counts;
        Self {
            device: device.name,
            devid: device.id.0,
            write_io_errs: write,
            read_io_errs: read,
            flush_io_errs: flush,
            corruption_errs: corruption,
            generation_errs: generation,
        }
    }

    /// The five counters with their names, in the order that `btrfs device stats` prints.
    pub fn counts(&self) -> [(&'static str, u64); 5] {
        [
            ("write_io_errs", self.write_io_errs),
            ("read_io_errs", self.read_io_errs),
            ("flush_io_errs", self.flush_io_errs),
            ("corruption_errs", self.corruption_errs),
            ("generation_errs", self.generation_errs),
        ]
    }
}

/// Opens a new device as [`fresh`] does, for a volume that is open. Fails if the volume or the new
/// device is in a store of objects: such a volume has only one device.
pub(super) fn fresh_for(fs: &Filesystem, path: &Path, force: bool) -> Result<Arc<dyn Device>> {
    let here = fs.devices();
    let paths = here.iter().map(|device| Path::new(&device.name)).chain([path]);
    buttress_remote::check_alone(paths, true).map_err(Failure::of_remote)?;
    fresh(path, force)
}

/// Makes a device part of the volume. With `discard`, its content is discarded first, once the
/// volume is known to be able to take the device.
pub(super) fn add(fs: &Filesystem, path: &Path, force: bool, discard: bool) -> Result<Value> {
    let new = fresh_for(fs, path, force)?;
    let len = new.len();
    let added = if discard { fs.add_discarded_device(new) } else { fs.add_device(new) };
    let id = added.context(|| path.display().to_string())?;
    let mut done = json!({ "devid": id.0 });
    if fs.is_seed() {
        done["grown_from"] = full_names(fs).into();
    }
    if discard {
        done["discarded_bytes"] = len.into();
    }
    Ok(done)
}

/// Opens the device that replaces another. If this replacement was begun before, the device holds
/// the mark of that, and may be open already.
pub(super) fn next_for(fs: &Filesystem, path: &Path, force: bool) -> Result<Arc<dyn Device>> {
    let full = |path: &Path| closing::full_name(path).ok();
    if let Some(target) = fs.replace_target()
        && full(&names::to_path(&target.name())).is_some_and(|found| Some(found) == full(path))
    {
        return Ok(target);
    }
    let name = || path.display().to_string();
    let is_begun = matches!(fs.replace_status().context(name)?, Some(status)
        if status.state == ReplaceState::Suspended);
    if is_begun && !buttress_remote::is_remote(path) {
        let device = closing::open_device(path, OpenOptions::WRITE)?.device();
        if fs.is_replace_target(&*device) {
            return Ok(device);
        }
    }
    fresh_for(fs, path, force)
}

/// Opens a device that is to become part of a volume, after a check of its content.
pub fn fresh(path: &Path, force: bool) -> Result<Arc<dyn Device>> {
    if !force {
        expect_empty(path)?;
    }
    let device = closing::open_device(path, OpenOptions::WRITE)?.device();
    let name = path.display().to_string();
    // The device may have changed before it was locked.
    if !force && let Some(found) = probe::identify(&*device).context(|| &name)? {
        return Err(holds(path, &found));
    }
    Ok(device)
}

/// Refuses a place where a new file system would overwrite something. The check opens nothing for
/// writing, and makes or grows no file.
///
/// # Errors
///
/// [`Exit::Refused`], or an error of reading the place.
pub fn expect_empty(path: &Path) -> Result<()> {
    match buttress_remote::overwritten(path).map_err(Failure::of_remote)? {
        Some(found) => Err(holds(path, &found)),
        None => Ok(()),
    }
}

/// The refusal of a place that has content.
pub fn holds(path: &Path, found: &str) -> Failure {
    let what = format!("{}: holds {found}; --force overwrites it", path.display());
    Failure::new(Exit::Refused, what)
}

/// Returns the full names of all devices, encoded. A caller may be in another folder.
pub(super) fn full_names(fs: &Filesystem) -> Vec<String> {
    let full = |name: String| match closing::full_name(&names::to_path(&name)) {
        Ok(path) => text::of_path(&path),
        Err(_) => name,
    };
    fs.devices().into_iter().map(|device| full(device.name)).collect()
}

/// Returns the device with a number or a path, or the one that is `missing`. `called` is encoded.
pub(super) fn find(fs: &Filesystem, called: &str, name: &str) -> Result<DeviceId> {
    let here = fs.devices();
    let by_path = || {
        let full = |name: &str| closing::full_name(&names::to_path(name)).ok();
        let path = full(called);
        let same = |name: &str| name == called || (path.is_some() && path == full(name));
        here.iter().find(|device| same(&device.name)).map(|device| device.id)
    };
    let id = match called {
        "missing" => fs.missing_devices().context(|| name)?.first().copied(),
        number => number.parse().ok().map(DeviceId).or_else(by_path),
    };
    id.ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{called}: no device of {name} is called that"))
    })
}

/// Returns the failure counts of each device. With `reset` the counts are set to zero afterwards.
pub(super) fn stats_of(fs: &Filesystem, reset: bool, name: &str) -> Result<Value> {
    let rows: Vec<Row> = fs.devices().into_iter().map(Row::of).collect();
    if reset {
        fs.reset_device_stats(None).context(|| name)?;
    }
    serde_json::to_value(&rows).context(|| "output")
}

/// Returns the status of the running or last replacement of a device, or `null` if there was no
/// replacement.
pub(super) fn replacement(fs: &Filesystem) -> buttress_fs::Result<Value> {
    let Some(status) = fs.replace_status()? else { return Ok(Value::Null) };
    let state = match status.state {
        ReplaceState::Running => "running",
        ReplaceState::Finished => "finished",
        ReplaceState::Canceled => "canceled",
        ReplaceState::Suspended => "suspended",
    };
    Ok(json!({
        "status": state,
        "started": status.started,
        "ended": status.ended,
        "copied_bytes": status.copied,
        "total_bytes": status.total,
        "write_errors": status.write_errors,
        "uncorrectable_errors": status.lost,
    }))
}
