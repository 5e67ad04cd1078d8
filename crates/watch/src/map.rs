//! Pictures that show where the content of a volume lies.
//!
//! # What must hold
//!
//! - A page is one file and loads nothing from the network. File names are in the page as data,
//!   never as markup.

mod draw;

use buttress_control::location::show;
use buttress_survey::Map;
use serde_json::{Value, json};

use self::draw::Drawing;

/// The page around the drawing, with marks that are replaced by the drawing and its data.
const PAGE: &str = include_str!("map/page.html");

/// The drawing of a volume with this name, as SVG.
#[must_use]
pub fn drawing(map: &Map, title: &str) -> String {
    Drawing::of(map, title).svg
}

/// A page with the drawing of a volume with this name.
#[must_use]
pub fn page(map: &Map, title: &str) -> String {
    let drawing = Drawing::of(map, title);
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
