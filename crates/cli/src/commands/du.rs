//! `buttress du`: the space that folders take on the devices, alone and together with others.

use std::ffi::OsString;

use buttress_base::text;
use buttress_control::named::Named;
use buttress_survey::FolderRow;
use serde_json::{Value, json};

use crate::client;
use crate::exit::{Context, Exit, Result};
use crate::image::Devices;
use crate::location::show;
use crate::order::{Order, SurveyRequest};
use crate::size::human;
use crate::ui::{Tone, Ui};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Files or folders, as IMG:/path or as paths on a mount.
    #[arg(value_name = "IMG:/PATH | PATH", required = true)]
    places: Vec<OsString>,
    /// Show the folders down to this depth below each place.
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    depth: usize,
    /// Show only a total for each place.
    #[arg(long, short, conflicts_with = "depth")]
    summarize: bool,
    /// Leave out other subvolumes.
    #[arg(long, short = 'x')]
    one_subvolume: bool,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    let depth = if args.summarize { 0 } else { args.depth };
    let mut documents = Vec::new();
    if !ui.json() {
        let head =
            line(["Data", "On disk", "Exclusive", "Shared", "Packed", "Files"].map(str::to_owned));
        ui.line(ui.tint(Tone::Heading, &format!("{head}  Name")))?;
    }
    for place in &args.places {
        let Named { volume, spot, .. } = Named::parse(place)?;
        let request = SurveyRequest::Folders { depth, stay: args.one_subvolume };
        let order = Order::Survey { at: spot, request };
        let done = client::run(&order, &volume, &args.devices, "du", ui)?;
        let rows: Vec<FolderRow> = serde_json::from_value(done).context(|| "the answer")?;
        for row in &rows {
            let name = below(place, &row.path);
            if ui.json() {
                documents.push(document(&name, row));
            } else {
                ui.line(format!("{}  {}", columns(row), show(&name)))?;
            }
        }
    }
    if ui.json() {
        ui.document(&documents)?;
    }
    Ok(Exit::Success)
}

/// Returns the name of an object below a place, in the form in which the place was given.
pub(crate) fn below(place: &OsString, path: &[u8]) -> Vec<u8> {
    let mut name = place.as_encoded_bytes().to_vec();
    if !path.is_empty() {
        if name.last() != Some(&b'/') {
            name.push(b'/');
        }
        name.extend(path);
    }
    name
}

fn document(name: &[u8], row: &FolderRow) -> Value {
    json!({
        "path": text::encode(name),
        "files": row.files,
        "data_bytes": row.data,
        "disk_bytes": row.disk,
        "unpacked_bytes": row.unpacked,
        "exclusive_bytes": row.exclusive,
        "shared_bytes": row.disk - row.exclusive,
    })
}

fn columns(row: &FolderRow) -> String {
    let packed = match row.unpacked {
        0 => "-".to_owned(),
        unpacked => format!("{}%", (row.disk as f64 * 100.0 / unpacked as f64).round()),
    };
    line([
        human(row.data),
        human(row.disk),
        human(row.exclusive),
        human(row.disk - row.exclusive),
        packed,
        row.files.to_string(),
    ])
}

fn line([data, disk, exclusive, shared, packed, files]: [String; 6]) -> String {
    format!("{data:>10} {disk:>10} {exclusive:>10} {shared:>10} {packed:>7} {files:>8}")
}
