//! `buttress remote`: verbs for a volume in a store of objects: commits, pins, clones, garbage.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use buttress_block::OpenOptions;
use buttress_dump::when;
use buttress_remote::{Options, RemoteDevice, Site};
use buttress_volume::Volume;
use serde_json::{Value, json};

use crate::closing;
use crate::exit::{Exit, Failure, Result};
use crate::size::human;
use crate::ui::Ui;

/// The verbs.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Verb {
    /// List the newest commits of a volume, and all pins.
    Log {
        /// The volume, as s3://bucket/prefix or file:///dir.
        place: PathBuf,
        /// How many commits.
        #[arg(long, short = 'n', default_value_t = 20)]
        count: usize,
    },
    /// Keep a commit under a name: the newest, or the one of `?commit=N`.
    Pin {
        place: PathBuf,
        /// The name.
        name: String,
    },
    /// Let go of a commit that a name keeps.
    Unpin {
        place: PathBuf,
        /// The name.
        name: String,
    },
    /// Say how many bytes are live and shared.
    Usage { place: PathBuf },
    /// Make a volume that shares all objects with another, in constant time. Both can be written.
    Clone {
        /// The base: its newest commit, or the one of `?pin=NAME` or `?commit=N`.
        base: PathBuf,
        /// The new volume, in the same store.
        target: PathBuf,
        /// Keep the identifier of the file system. Linux does not mount two with one identifier.
        #[arg(long)]
        same_uuid: bool,
    },
    /// Collect garbage of a volume that is not mounted. A mount does so by itself.
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
            say(ui, &json!({ "pin": name }), &format!("{name} is let go of"))
        }
        Verb::Usage { place } => table(&json!(open(&place, OpenOptions::READ)?.status()), ui),
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
    let pin = site(base)?.clone_to(&site(target)?).map_err(Failure::of_remote)?;
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
