//! `buttress remote`: verbs for a volume in a store of objects: commits, pins, clones, garbage.

use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::{OpenOptions, probe};
use buttress_dump::when;
use buttress_remote::{Inside, OpenRequest, Options, RemoteDevice, Secret, Site, is_remote};
use buttress_volume::Volume;
use serde_json::{Value, json};

use crate::client;
use crate::closing;
use crate::exit::{Exit, Failure, Result};
use crate::image::Devices;
use crate::interrupted::{leaving, opening};
use crate::live;
use crate::order::Order;
use crate::size::human;
use crate::ui::Ui;

/// The actions on a volume in a store.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// List the latest commits of a volume, and all pins.
    Log {
        /// The volume, as s3://bucket/prefix or file:///dir.
        place: PathBuf,
        /// Number of commits.
        #[arg(long, short = 'n', default_value_t = 20)]
        count: usize,
    },
    /// Keep the latest commit, or the commit of `?commit=N`, under a name.
    Pin {
        place: PathBuf,
        /// The name.
        name: String,
    },
    /// Remove a name, so that its commit is no longer kept.
    Unpin {
        place: PathBuf,
        /// The name.
        name: String,
    },
    /// Show how many bytes are in use, and how many are shared with other volumes.
    Usage { place: PathBuf },
    /// Create a volume that shares all objects with another one. Cloning takes the same short time
    /// for any size. Both volumes can be written.
    Clone {
        /// The source. Its latest commit is cloned, or the commit of `?pin=NAME` or `?commit=N`.
        base: PathBuf,
        /// The new volume, in any bucket of the same service.
        target: PathBuf,
        /// Keep the UUID of the file system. Linux does not mount two file systems with the same
        /// UUID.
        #[arg(long)]
        same_uuid: bool,
    },
    /// Give an encrypted volume another passphrase or key file. BUTTRESS_NEW_PASSPHRASE has the new
    /// passphrase. Objects in the store are not encrypted again. The former passphrase no longer
    /// opens the volume.
    Rekey {
        /// The volume, with its present key in `?key-file=FILE` or BUTTRESS_PASSPHRASE.
        place: PathBuf,
        /// The new key file.
        #[arg(long, value_name = "FILE")]
        new_key_file: Option<PathBuf>,
    },
    /// Wait until all written data is in the store. A volume that is not mounted is opened for
    /// writing. With `?cache-dir=DIR`, this replays a local log.
    Push {
        /// The volume, or the directory of its mount.
        place: PathBuf,
    },
    /// Save the content of a local log that no longer fits its volume. The target is an image or a
    /// new volume. The result is the volume as of the last acknowledged write.
    Salvage {
        /// The volume.
        place: PathBuf,
        /// The folder that was the volume's cache-dir.
        cache_dir: PathBuf,
        /// The new image or volume.
        target: PathBuf,
    },
    /// Delete a volume and all of its objects. The deletion is refused while a writer, a reader, a
    /// pin or a clone needs the volume.
    Delete {
        place: PathBuf,
        /// Go on without writes that only the local log of a writer has.
        #[arg(long)]
        discard_local: bool,
    },
    /// Remove unused objects of a volume that is not mounted. A mount does this by itself.
    Gc { place: PathBuf },
}

pub(crate) fn run(verb: Verb, ui: &Ui) -> Result<Exit> {
    match verb {
        Verb::Log { place, count } => log(&place, count, ui),
        Verb::Pin { place, name } => {
            let number = site(&place)?.pin(&name).map_err(Failure::of_remote)?;
            let text = format!("commit {} is kept as {name}", number.0);
            say(ui, &json!({ "pin": name, "commit": number }), &text)
        }
        Verb::Unpin { place, name } => {
            site(&place)?.unpin(&name).map_err(Failure::of_remote)?;
            say(ui, &json!({ "pin": name }), &format!("pin {name} is removed"))
        }
        Verb::Usage { place } => table(&json!(open(&place, OpenOptions::READ)?.status()), ui),
        Verb::Rekey { place, new_key_file } => {
            let site = site(&place)?;
            let new = Secret::find_new(new_key_file.as_deref())
                .map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
            let left = format!(
                "{}: interrupted: either the former key opens the volume, or the new key does. \
                 In the first case give the command again",
                place.display()
            );
            leaving(left, || site.rekey(&new)).map_err(Failure::of_remote)?;
            say(ui, &json!({}), "the volume has another key")
        }
        Verb::Push { place } => push(&place, ui),
        Verb::Salvage { place, cache_dir, target } => salvage(&place, cache_dir, &target, ui),
        Verb::Delete { place, discard_local } => {
            let options = Options { write: true, discard_local, ..Options::default() };
            let site = Site::of(&place, options).map_err(Failure::of_remote)?;
            let left = format!(
                "{}: interrupted: the volume is whole, or it is deleted and some of its objects \
                 are left. Give the command again to delete what is left",
                place.display()
            );
            let objects = leaving(left, || site.delete()).map_err(Failure::of_remote)?;
            let text = format!("{} is deleted: {objects} objects", place.display());
            say(ui, &json!({ "objects": objects }), &text)
        }
        Verb::Clone { base, target, same_uuid } => clone(&base, &target, same_uuid, ui),
        Verb::Gc { place } => {
            let device = open(&place, OpenOptions::WRITE)?;
            let done = device.collect_all().map_err(Failure::of_remote)?;
            device.close().map_err(Failure::of_remote)?;
            table(&json!(done), ui)
        }
    }
}

fn site(place: &Path) -> Result<Site> {
    Site::of(place, Options::default()).map_err(Failure::of_remote)
}

fn open(place: &Path, how: OpenOptions) -> Result<Arc<RemoteDevice>> {
    closing::open_device(place, how)?.remote().map_err(Failure::of_remote)
}

/// Waits until everything is in the store. The server of the volume does the work, if there is one.
/// Otherwise this process opens the volume for writing, which replays the log of a crashed writer.
fn push(place: &Path, ui: &Ui) -> Result<Exit> {
    let served = live::find(place)?.map(|(_, answer)| answer.subject.image);
    if !is_remote(served.as_deref().unwrap_or(place)) {
        let what = format!("{}: is in no store of objects", place.display());
        return Err(Failure::new(Exit::Usage, what));
    }
    if served.is_some() {
        client::run(&Order::Commit, place, &Devices::default(), "pushing", ui)?;
    } else {
        let device = open(place, OpenOptions::WRITE)?;
        device.push().map_err(Failure::of_remote)?;
        device.close().map_err(Failure::of_remote)?;
    }
    say(ui, &json!({}), "everything is in the store")
}

fn salvage(place: &Path, cache_dir: PathBuf, target: &Path, ui: &Ui) -> Result<Exit> {
    // Nothing is overwritten, and no existing file is grown.
    let has_bytes = |found: &Metadata| found.is_file() && found.len() > 0;
    let found = match target.metadata() {
        Ok(found) if has_bytes(&found) => Some("other content".to_owned()),
        _ => buttress_remote::overwritten(target).map_err(Failure::of_remote)?,
    };
    if let Some(found) = found {
        return Err(no_overwriting(target, &found));
    }
    let is_host = !is_remote(target) && Inside::of(target).is_none();
    let is_fresh = is_host && !target.exists();
    let done = salvage_to(place, cache_dir, target, ui);
    if done.is_err() && is_fresh {
        // An incomplete copy is of no use.
        let _ = std::fs::remove_file(target);
    }
    done
}

fn no_overwriting(target: &Path, found: &str) -> Failure {
    let what = format!("{}: holds {found}; a salvage overwrites nothing", target.display());
    Failure::new(Exit::Refused, what)
}

fn salvage_to(place: &Path, cache_dir: PathBuf, target: &Path, ui: &Ui) -> Result<Exit> {
    let site = || -> buttress_remote::Result<Site> {
        let mut site = Site::of(place, Options::default())?;
        site.options.cache_dir = Some(std::path::absolute(&cache_dir).unwrap_or(cache_dir));
        Ok(site)
    };
    let bar = ui.bytes_bar("copying", 0);
    let (mut made, mut overwritten) = (None, None);
    let create = |len| {
        let opened =
            opening(target, || buttress_remote::create(target, len, &OpenRequest::default()))?;
        let device = opened.device();
        if let Some(found) = probe::identify(&*device)? {
            let why = format!("holds {found}; a salvage overwrites nothing");
            overwritten = Some(found);
            return Err(buttress_remote::Error::Place { place: device.name(), why });
        }
        crate::interrupted::watch(&opened);
        made = Some(opened);
        Ok(device)
    };
    let salvaged = site().and_then(|site| site.salvage(create, &|bytes| bar.add(bytes)));
    let unsent = salvaged.map_err(|error| match overwritten {
        Some(found) => no_overwriting(target, &found),
        None => Failure::of_remote(error),
    })?;
    drop(bar);
    if let Some(opened) = made {
        opened.release().map_err(Failure::of_remote)?;
    }
    let text = format!("{} has what was acknowledged: {unsent}", target.display());
    say(ui, &json!(unsent), &text)
}

fn say(ui: &Ui, document: &Value, text: &str) -> Result<Exit> {
    if ui.json() {
        ui.document(document)?;
    } else {
        ui.line(text)?;
    }
    Ok(Exit::Success)
}

/// Prints figures, a line each.
fn table(figures: &Value, ui: &Ui) -> Result<Exit> {
    let line = |(name, value): (&String, &Value)| match value.as_u64() {
        Some(bytes) if name.ends_with("bytes") => format!("{name:<16} {:>12}", human(bytes)),
        _ => format!("{name:<16} {:>12}", value.to_string()),
    };
    let lines: Vec<_> = figures.as_object().into_iter().flatten().map(line).collect();
    say(ui, figures, &lines.join("\n"))
}

fn log(place: &Path, count: usize, ui: &Ui) -> Result<Exit> {
    let commits = site(place)?.commits(count).map_err(Failure::of_remote)?;
    let lines = commits.iter().map(|commit| {
        let time = when::date_time((commit.time_ms / 1000) as i64);
        format!("{time}  {commit}")
    });
    say(ui, &json!(commits), &lines.collect::<Vec<_>>().join("\n"))
}

fn clone(base: &Path, target: &Path, same_uuid: bool, ui: &Ui) -> Result<Exit> {
    let left = format!(
        "{}: interrupted: if there is no volume, a pin clone-... in {base} may be of no use. \
         `buttress remote log {base}` shows the pins, and `remote unpin` removes one",
        target.display(),
        base = base.display()
    );
    let (from, to) = (site(base)?, site(target)?);
    let pin = leaving(left, || from.clone_to(&to)).map_err(Failure::of_remote)?;
    let device = open(target, OpenOptions::WRITE)?;
    let mut uuid = None;
    if !same_uuid && Volume::read_superblock(&*device).is_ok() {
        let new = uuid::Uuid::new_v4();
        device.rename(new.into_bytes()).map_err(Failure::of_remote)?;
        uuid = Some(new.to_string());
    }
    device.close().map_err(Failure::of_remote)?;
    let text = format!("{} shares the objects of {}", target.display(), base.display());
    say(ui, &json!({ "pin": pin, "uuid": uuid }), &text)
}
