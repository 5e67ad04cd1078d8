//! `buttress map`: a picture that shows where the content of a volume lies.
//!
//! # What must hold
//!
//! - A page is one file and loads nothing from the network. File names are in the page as data,
//!   never as markup.

mod draw;

use std::ffi::OsString;
use std::path::PathBuf;

use buttress_base::text;
use buttress_control::named::Named;
use buttress_survey::Map;
use serde_json::{Value, json};

use self::draw::Drawing;
use crate::client;
use crate::exit::{Context, Exit, Failure, Result};
use crate::image::Devices;
use crate::location::show;
use crate::order::{Order, Spot, SurveyRequest};
use crate::ui::Ui;

/// The page around the drawing, with marks that are replaced by the drawing and its data.
const PAGE: &str = include_str!("map/page.html");

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
    let at = Spot { path: b"/".to_vec(), ..spot };
    let order = Order::Survey { at, request: SurveyRequest::Map };
    let done = client::run(&order, &volume, &args.devices, "map", ui)?;
    let map: Map = serde_json::from_value(done).context(|| "the answer")?;
    let Some(output) = &args.output else {
        ui.document(&document(&map))?;
        return Ok(Exit::Success);
    };
    let name = volume.file_name().unwrap_or(volume.as_os_str());
    let drawing = Drawing::of(&map, &show(name.as_encoded_bytes()));
    let text = match output.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => drawing.svg,
        Some("html" | "htm") => page(&map, &drawing),
        _ => {
            let what = format!("{}: not a name that ends in .html or .svg", output.display());
            return Err(Failure::new(Exit::Usage, what));
        }
    };
    std::fs::write(output, text).context(|| output.display().to_string())?;
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

fn page(map: &Map, drawing: &Drawing) -> String {
    let groups: Vec<Value> = map
        .groups
        .iter()
        .zip(&drawing.cards)
        .map(|(group, card)| {
            let cells = group
                .cells
                .iter()
                .map(|cell| json!([cell.used, cell.shared, cell.extents, cell.name]));
            json!({
                "start": group.start,
                "len": group.len,
                "title": format!("{}, {}", group.kind, group.profile),
                "x": card.x,
                "y": card.y,
                "columns": card.columns,
                "pitch": card.pitch,
                "cells": cells.collect::<Vec<_>>(),
            })
        })
        .collect();
    let names: Vec<String> = map.names.iter().map(|(_, path)| show(path)).collect();
    let data = json!({ "groups": groups, "names": names }).to_string();
    // A `</script>` in the data would end the script element, so the data must not contain `<`.
    let data = data.replace('<', "\\u003c");
    let page = PAGE.replace("{{title}}", &draw::escaped(&drawing.title));
    page.replace("{{drawing}}", &drawing.svg).replace("{{data}}", &data)
}
