//! Copies a whole volume, byte by byte: between a store of objects and a file, or between two
//! stores.
//!
//! # Invariants
//!
//! - **W1** Existing data of a target is never overwritten. After a failure, a target in a store
//!   has nothing of the copy.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use buttress_block::{OpenOptions, probe};
use buttress_remote::{OpenRequest, divide, is_remote};

use crate::closing;
use crate::exit::{Exit, Failure, Result};
use crate::interrupted;
use crate::ui::Ui;

/// Returns the two volumes, if the words name whole volumes and at least one is in a store.
pub(super) fn named(source: &OsStr, target: &OsStr) -> Option<(PathBuf, PathBuf)> {
    let (from, to) = (divide(source), divide(target));
    let is_whole = from.path.is_none() && to.path.is_none();
    let is_any_remote = is_remote(&from.volume) || is_remote(&to.volume);
    (is_whole && is_any_remote).then_some((from.volume, to.volume))
}

/// Copies the whole volume `from` to `to`.
pub(super) fn copy(from: &Path, to: &Path, ui: &Ui) -> Result<Exit> {
    if let Some(folder) = [from, to].into_iter().find(|place| !is_remote(place) && place.is_dir()) {
        let folder = folder.display();
        let what = format!("{folder}: is a folder; the top of a volume is s3://bucket/volume:/");
        return Err(Failure::new(Exit::Usage, what));
    }
    let source = closing::open_device(from, OpenOptions::READ)?.device();
    let create = || buttress_remote::create(to, source.len(), &OpenRequest::default());
    let opened = closing::when_free(to, true, || interrupted::opening(to, create))?;
    let target = opened.device();
    if let Some(found) = probe::identify(&*target).map_err(Failure::of_device)? {
        let what = format!("{}: holds {found}; a copy overwrites nothing", to.display());
        return Err(Failure::new(Exit::Refused, what));
    }
    let bar = ui.bytes_bar("copying", source.len());
    let copied = buttress_remote::copy(&*source, &*target, &|bytes| bar.add(bytes));
    let bytes = copied.map_err(Failure::of_device)?;
    drop(bar);
    opened.release().map_err(Failure::of_remote)?;
    if ui.json() {
        ui.document(&serde_json::json!({ "bytes": bytes, "size": source.len() }))?;
    }
    Ok(Exit::Success)
}
