//! Draws the position on the disk over time, one panel for each order, which shows the effect of
//! sorting.

use std::fmt::Write as _;

use buttress_bench_page as page;
use serde_json::{Value, json};

use super::Figures;
use crate::disk::Done;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 190.0;
const GAP: f64 = 46.0;
/// Points of one panel and colour at most.
const POINTS: usize = 3000;

/// Draws grey points while the foreground writes, and blue points during the flush. Panels of one
/// disk share a scale of time.
pub(super) fn svg(all: &[Figures]) -> String {
    let total = all.len() as f64 * (HEIGHT + GAP) + GAP;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 960 {total:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let points = |figures: &Figures| {
        let both = figures.steady.iter().chain(&figures.flush);
        both.map(|done| (done.at, done.offset + done.len)).collect::<Vec<_>>()
    };
    for (index, figures) in all.iter().enumerate() {
        let is_alike = |other: &&Figures| (other.disk == "file") == (figures.disk == "file");
        let alike: Vec<_> = all.iter().filter(is_alike).flat_map(points).collect();
        let longest = alike.iter().map(|point| point.0).fold(1e-3, f64::max);
        let span = alike.iter().map(|point| point.1).max().unwrap_or(1);
        let top = GAP * 0.8 + index as f64 * (HEIGHT + GAP);
        let _ = writeln!(
            text,
            "<text x=\"60\" y=\"{:.0}\">{}, {}: flush in {:.1} s, {:.0} blocks/s before it; 0 to \
             {longest:.0} s, 0 to {} MiB</text>\n<rect x=\"60\" y=\"{top:.0}\" width=\"{WIDTH}\" \
             height=\"{HEIGHT}\" fill=\"none\" stroke=\"#999\"/>",
            top - 6.0,
            escape(&figures.name),
            figures.disk,
            figures.flush_seconds,
            figures.drain_rate,
            span >> 20,
        );
        for (done, colour) in [(&figures.steady, "#aaa"), (&figures.flush, "#06c")] {
            let step = done.len().div_ceil(POINTS).max(1);
            let mut path = String::new();
            for point in done.iter().step_by(step) {
                let x = 60.0 + point.at / longest * WIDTH;
                let y = top + HEIGHT - point.offset as f64 / span as f64 * HEIGHT;
                let _ = write!(path, "M{x:.1} {y:.1}h1.4");
            }
            let _ = writeln!(text, "<path d=\"{path}\" stroke=\"{colour}\" stroke-width=\"1.4\"/>");
        }
    }
    let _ = writeln!(
        text,
        "<text x=\"60\" y=\"{:.0}\">time to the right, position on the disk upwards; grey: the foreground \
         writes, blue: flush</text>\n</svg>",
        total - 12.0,
    );
    text
}

/// The page: the figures as bars, and the positions side by side.
pub(super) fn page(all: &[Figures], figures: &Value) -> String {
    let mut parts = page::parts("write-back", figures).unwrap_or_default();
    let panels: Vec<_> = all.iter().map(|one| panel(one, all)).collect();
    parts.push(page::positions(&panels));
    let about = format!(
        "Orders of write-back of a cache of {} MiB in front of a hard disk.",
        figures["cache_mib"]
    );
    page::page("Write-back of a cache", &[about], &parts)
}

/// The positions of one order. Panels of one disk share their scales.
fn panel(figures: &Figures, all: &[Figures]) -> Value {
    let alike = all.iter().filter(|other| (other.disk == "file") == (figures.disk == "file"));
    let done: Vec<&Done> =
        alike.flat_map(|other| other.steady.iter().chain(&other.flush)).collect();
    let set = |done: &[Done], is_flush: bool| {
        let step = done.len().div_ceil(POINTS).max(1);
        let points =
            done.iter().step_by(step).map(|done| ((done.at * 1e3).round() / 1e3, done.offset));
        json!({ "flush": is_flush, "points": points.collect::<Vec<_>>() })
    };
    json!({
        "name": format!("{}, {}", figures.name, figures.disk),
        "about": format!("flush in {:.1} s", figures.flush_seconds),
        "seconds": done.iter().map(|done| done.at).fold(1e-3, f64::max),
        "bytes": done.iter().map(|done| done.offset + done.len).max().unwrap_or(1),
        "sets": [set(&figures.steady, false), set(&figures.flush, true)],
    })
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
