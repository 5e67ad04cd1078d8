//! The figures as a page to look at: bars beside Linux, with the range of the runs.
//!
//! # What must hold
//!
//! - The page is one file and loads nothing from the network. Names are in it as data, never as
//!   markup.
//! - The page has only figures of the kept files, or of the outputs that it was asked to draw.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};

use super::growth;
use super::kept::{Figure, Release, Row, is_time, read};
use super::mount::Load;

/// The page around the data. Its script draws.
const PAGE: &str = include_str!("page.html");

/// The columns of the experiments, in the colours 0 to 3 of the page.
const EXPERIMENTS: [&str; 4] =
    ["library", "library on a loop device", "mount by /dev/fuse", "mount by io_uring"];

/// What grows in the cases of growth. The page gives each a colour.
const COUNTS: [(u8, &str); 4] = [(0, "steps"), (3, "allocations"), (2, "written"), (4, "memory")];

/// The subject that all others are compared with.
const LINUX: &str = "kernel btrfs";

/// The page of the kept figures.
pub(super) fn kept(release: &Release, loads: &[Load], cases: &[growth::Case]) -> String {
    let rows: Vec<_> = release.rows.iter().map(experiment).collect();
    let experiments = json!({
        "title": "Experiments", "base": "Linux",
        "about": [format!("Bars begin at Linux's btrfs: to the right is better. Figures are {}.", release.method)],
        "legend": EXPERIMENTS.iter().enumerate().collect::<Vec<_>>(),
        "rows": rows,
    });
    let everyday = json!({
        "title": "Everyday loads by a mount", "base": "Linux",
        "about": ["The band is the range of Linux's own runs. A diamond is an empty server on the same \
                   transport, which answers from memory."],
        "legend": [[2, EXPERIMENTS[2]], [3, EXPERIMENTS[3]],
                   ["limit", "empty server"]],
        "rows": loads.iter().map(Load::drawn).collect::<Vec<_>>(),
    });
    let tiles = [&experiments, &everyday].map(tiles).concat();
    page(
        &format!("Figures of Buttress {}", release.version),
        &[format!("Measured {}: {}.", release.measured, release.machine)],
        &tiles,
        &[experiments, everyday, growing(cases)],
    )
}

/// The page of outputs of `buttress-bench --json`.
///
/// # Errors
///
/// In words: an output cannot be read, or has no figures.
pub(super) fn printed(files: &[impl AsRef<Path>]) -> Result<String, String> {
    let parts: Result<Vec<_>, String> = files
        .iter()
        .map(|file| {
            let file = file.as_ref();
            let found: Value = read(file)?;
            if found["rows"].is_array() {
                return Ok(growing(&growth::cases(file)?));
            }
            let list = found.as_array().or_else(|| found["figures"].as_array());
            let list = list.ok_or(format!("{}: no figures", file.display()))?;
            let name = found["experiment"].as_str().map(str::to_owned);
            let stem = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            Ok(bars(&name.unwrap_or_else(stem), list))
        })
        .collect();
    let parts = parts?;
    let tiles: Vec<_> = parts.iter().flat_map(tiles).collect();
    Ok(page("Figures of buttress-bench", &[], &tiles, &parts))
}

fn page(title: &str, about: &[String], tiles: &[Value], parts: &[Value]) -> String {
    let data = json!({ "title": title, "about": about, "tiles": tiles, "parts": parts });
    // A `</script>` in the data would end the script element, so the data must not contain `<`.
    let data = data.to_string().replace('<', "\\u003c");
    PAGE.replace("{{title}}", title).replace("{{data}}", &data)
}

/// An experiment of a release.
fn experiment(row: &Row) -> Value {
    let columns =
        [&row.library, &row.library_on_loop_device, &row.mount_by_device, &row.mount_by_io_uring];
    let bars = columns.iter().enumerate().filter_map(|(at, figure)| {
        let figure: &Figure = figure.as_ref()?;
        let more = figure.times_ext4.map(|times| format!("{times} × ext4"));
        Some(json!({
            "subject": EXPERIMENTS[at], "colour": at, "median": figure.median, "min": figure.min,
            "max": figure.max, "ratio": figure.times_btrfs, "more": more.into_iter().collect::<Vec<_>>(),
        }))
    });
    json!({
        "name": row.experiment, "unit": row.unit, "less": is_time(&row.unit), "asked": row.asked,
        "note": row.shortfall, "bars": bars.collect::<Vec<_>>(),
    })
}

/// What grows, as dots.
fn growing(cases: &[growth::Case]) -> Value {
    json!({
        "title": "What costs grow as",
        "about": ["Each dot is a case at 1, 4, 16 and 64 times a size: its cost grows as the size to \
                   this power. The strong lines are the limits: 0.3 for a fixed number of operations \
                   in a larger structure, 1.15 for work on each unit."],
        "legend": COUNTS,
        "counts": COUNTS.map(|(_, name)| name),
        "cases": cases,
    })
}

/// Bars of one output: figures by what was measured, each with its subjects. The first subject is
/// what the others are compared with.
fn bars(name: &str, figures: &[Value]) -> Value {
    let mut subjects: Vec<&str> = Vec::new();
    let mut rows: Vec<(&str, Vec<&Value>)> = Vec::new();
    for row in figures {
        if !subjects.contains(&subject(row)) {
            subjects.push(subject(row));
        }
        let what = row["what"].as_str().unwrap_or("?");
        match rows.iter_mut().find(|(found, _)| *found == what) {
            Some((_, list)) => list.push(row),
            None => rows.push((what, vec![row])),
        }
    }
    let base = subjects.iter().find(|name| **name == LINUX).or(subjects.first());
    let base = base.copied().unwrap_or("?");
    subjects.retain(|name| *name != base);
    let drawn = rows.iter().map(|(what, list)| {
        let unit = list[0]["unit"].as_str().unwrap_or_default();
        let others = list.iter().filter(|row| subject(row) != base);
        let bars = others.map(|row| {
            let at = subjects.iter().position(|name| *name == subject(row)).unwrap_or(0);
            let mut bar = runs(row);
            bar["subject"] = json!(subject(row));
            bar["colour"] = json!([0, 2, 3, 4, 1][at % 5]);
            let ratio = row["times_first"].as_f64().or_else(|| row["times_btrfs"].as_f64());
            bar["ratio"] = json!(ratio);
            bar
        });
        let compared = list.iter().find(|row| subject(row) == base).map(|row| runs(row));
        json!({
            "name": what, "unit": unit, "less": is_time(unit), "base": compared,
            "bars": bars.collect::<Vec<_>>(),
        })
    });
    let legend = subjects.iter().zip([0, 2, 3, 4, 1].into_iter().cycle());
    json!({
        "title": name, "base": base,
        "about": [format!("Bars begin at {base}, and the band is the range of its runs: to the right is better.")],
        "legend": legend.map(|(name, colour)| json!([colour, name])).collect::<Vec<_>>(),
        "rows": drawn.collect::<Vec<_>>(),
    })
}

fn subject(row: &Value) -> &str {
    row["subject"].as_str().or_else(|| row["target"].as_str()).unwrap_or("?")
}

/// A figure with its runs and their range.
fn runs(row: &Value) -> Value {
    let runs = row["values"].as_array().into_iter().flatten();
    let runs: Vec<f64> = runs.filter_map(Value::as_f64).collect();
    json!({
        "median": row["median"], "min": runs.iter().copied().reduce(f64::min),
        "max": runs.iter().copied().reduce(f64::max), "runs": runs,
    })
}

/// The geometric means of the ratios of a part, for each subject that has ratios.
fn tiles(part: &Value) -> Vec<Value> {
    let mut ratios: BTreeMap<(u64, String), Vec<f64>> = BTreeMap::new();
    let rows = part["rows"].as_array().into_iter().flatten();
    for bar in rows.flat_map(|row| row["bars"].as_array().into_iter().flatten()) {
        let subject = bar["subject"].as_str().unwrap_or_default();
        if let Some(ratio) = bar["ratio"].as_f64().filter(|ratio| *ratio > 0.0) {
            let colour = bar["colour"].as_u64().unwrap_or(0);
            ratios.entry((colour, subject.to_owned())).or_default().push(ratio.ln());
        }
    }
    let tile = |((colour, name), logs): ((u64, String), Vec<f64>)| {
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        json!({
            "name": name, "colour": colour, "of": part["title"], "base": part["base"],
            "mean": mean, "count": logs.len(),
        })
    };
    ratios.into_iter().map(tile).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_the_script() {
        let text = page("x", &["</script><b>".to_owned()], &[], &[]);
        assert!(text.contains("\\u003c/script>\\u003cb>") && !text.contains("</script><b>"));
    }

    #[test]
    fn an_output_becomes_bars_with_its_runs() {
        let figures = json!([
            { "what": "write", "unit": "MiB/s", "subject": LINUX, "median": 2.0,
              "values": [1.0, 2.0, 3.0], "times_first": 1.0 },
            { "what": "write", "unit": "MiB/s", "subject": "buttress", "median": 8.0,
              "values": [8.0], "times_first": 4.0 },
        ]);
        let part = bars("fsync", figures.as_array().expect("a list"));
        assert_eq!((&part["base"], &part["rows"][0]["base"]["min"]), (&json!(LINUX), &json!(1.0)));
        assert_eq!(part["rows"][0]["bars"][0]["runs"], json!([8.0]));
        let tiles = tiles(&part);
        assert_eq!((tiles.len(), tiles[0]["name"].as_str()), (1, Some("buttress")));
        assert!((tiles[0]["mean"].as_f64().expect("a mean") - 4.0).abs() < 1e-9);
    }
}
