//! `buttress map`: a picture that shows where the content of a volume lies.

use std::ffi::OsString;
use std::path::PathBuf;

use buttress_base::text;
use buttress_control::named::Named;
use buttress_survey::Map;
use buttress_watch::map;
use serde_json::{Value, json};

use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::location::show;
use crate::order::{Order, PathInVolume, SurveyRequest};
use crate::output;
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The image or block device of the volume, or a directory where this user has mounted it.
    #[arg(value_name = "IMG")]
    image: OsString,
    /// The file to write: for .html, a page with zoom and file names; for .svg, only the drawing.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    devices: Devices,
}

pub(crate) fn run(args: &Args, ui: &Ui) -> Result<Exit> {
    if args.output.is_none() && !ui.json() {
        return Err(Failure::new(Exit::Usage, "--output or --json: where is the map to go?"));
    }
    let Named { volume, spot, .. } = Named::parse(&args.image)?;
    // Draws the whole volume, even if the argument names only a part of it.
    let at = PathInVolume { path: b"/".to_vec(), ..spot };
    let order = Order::Survey { at, request: SurveyRequest::Map };
    let done = client::run(&order, &volume, &args.devices, "map", ui)?;
    let map: Map = serde_json::from_value(done).context(|| "the answer")?;
    let Some(output) = &args.output else {
        ui.document(&document(&map))?;
        return Ok(Exit::Success);
    };
    let name = volume.file_name().unwrap_or(volume.as_os_str());
    let title = show(name.as_encoded_bytes());
    let text = match output.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => map::drawing(&map, &title),
        Some("html" | "htm") => map::page(&map, &title),
        _ => {
            let what = format!("{}: not a name that ends in .html or .svg", output.display());
            return Err(Failure::new(Exit::Usage, what));
        }
    };
    output::write(output, text.as_bytes())?;
    if ui.json() {
        ui.document(&document(&map))?;
    }
    Ok(Exit::Success)
}

/// The document for scripts: the map, with names as text.
fn document(map: &Map) -> Value {
    let names: Vec<Value> = map
        .names
        .iter()
        .map(|(tree, path)| json!({ "subvolume": tree, "path": text::encode(path) }))
        .collect();
    json!({ "devices": map.devices, "groups": map.groups, "names": names })
}
