//! The part of the page about everyday loads on a mount, from the output of `buttress-bench --json
//! mount`.
//!
//! # What must hold
//!
//! - The kept file has one line for each load. A load that was not measured again keeps its line.
//! - Sentences about shortfalls are written by hand into the kept file, and stay there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use buttress_bench_page::is_time;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::kept::{item, number, short};

/// A load, with its figures by subject.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Load {
    load: String,
    /// `1/s` or `s`.
    unit: String,
    /// What the load has many of, such as `file`.
    each: String,
    /// Medians by subject, with their ranges.
    subjects: BTreeMap<String, Found>,
    /// Why the load misses its goal, in a sentence written by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shortfall: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Found {
    median: f64,
    min: f64,
    max: f64,
    /// How many times better than the kernel's btrfs.
    times_btrfs: f64,
    /// How many times better than an empty server on the same transport.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    times_empty: Option<f64>,
    /// Requests for each unit, and those among them for which a program waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    requests: Option<[f64; 2]>,
    /// The figure of each run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    runs: Vec<f64>,
}

impl Load {
    /// The load for the page of bars: a bar for each transport, and Linux as their base.
    pub(super) fn drawn(&self) -> Value {
        let found = |at: usize| self.subjects.get(COLUMNS[at].1);
        // The second number is the empty server on the same transport.
        let transports = [(2, 1, "mount by /dev/fuse"), (4, 3, "mount by io_uring")];
        let bars = transports.iter().zip(2..).filter_map(|((own, empty, subject), colour)| {
            let own = found(*own)?;
            let more = own.requests.map(|[all, awaited]| {
                format!("{all} requests a {}, {awaited} of them waited for", self.each)
            });
            Some(json!({
                "subject": subject, "colour": colour, "median": own.median, "min": own.min,
                "max": own.max, "ratio": own.times_btrfs,
                "limit": found(*empty).map(|empty| empty.times_btrfs),
                "runs": (!own.runs.is_empty()).then_some(&own.runs),
                "more": more.into_iter().collect::<Vec<_>>(),
            }))
        });
        let base = found(0)
            .map(|linux| json!({ "median": linux.median, "min": linux.min, "max": linux.max }));
        json!({
            "name": self.load, "unit": self.unit, "less": is_time(&self.unit),
            "note": self.shortfall, "bars": bars.collect::<Vec<_>>(), "base": base,
        })
    }
}

#[derive(Debug, Deserialize)]
struct Printed {
    figures: Vec<PrintedRow>,
}

#[derive(Debug, Deserialize)]
struct PrintedRow {
    what: String,
    unit: String,
    each: String,
    count: u64,
    subject: String,
    median: f64,
    values: Vec<f64>,
    times_first: f64,
    times_empty: Option<f64>,
    requests: Option<BTreeMap<String, u64>>,
    awaited: Option<u64>,
}

impl PrintedRow {
    fn found(&self) -> Found {
        let each = |count: u64| short(count as f64 / self.count.max(1) as f64);
        let all = self.requests.as_ref().map(|kinds| kinds.values().sum::<u64>());
        Found {
            median: short(self.median),
            min: short(self.values.iter().copied().fold(f64::MAX, f64::min)),
            max: short(self.values.iter().copied().fold(f64::MIN, f64::max)),
            times_btrfs: short(self.times_first),
            times_empty: self.times_empty.map(short),
            runs: self.values.iter().copied().map(short).collect(),
            requests: all.zip(self.awaited).map(|(all, awaited)| [each(all), each(awaited)]),
        }
    }
}

/// Keeps the output of the program in a file of the project, a line for each load.
///
/// # Errors
///
/// In words: a file cannot be read or written, or is no output of this program.
pub(super) fn keep(printed: &Path, kept: &Path) -> Result<(), String> {
    let show = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let text = fs::read_to_string(printed).map_err(|error| show(printed, &error))?;
    let printed: Printed = serde_json::from_str(&text).map_err(|error| show(printed, &error))?;
    let before = fs::read_to_string(kept).unwrap_or_else(|_| "[]".to_owned());
    let before: Vec<Load> = serde_json::from_str(&before).map_err(|error| show(kept, &error))?;
    let lines: Vec<_> =
        merged(before, &printed.figures).iter().map(serde_json::to_string).collect();
    let lines: Vec<_> = lines.into_iter().collect::<Result<_, _>>().map_err(|e| show(kept, &e))?;
    let folder = kept.parent().unwrap_or(kept);
    fs::create_dir_all(folder).map_err(|error| show(folder, &error))?;
    fs::write(kept, format!("[\n{}\n]\n", lines.join(",\n"))).map_err(|error| show(kept, &error))
}

/// Puts new figures in the places of older figures of the same load, and adds new loads at the end.
fn merged(mut kept: Vec<Load>, printed: &[PrintedRow]) -> Vec<Load> {
    for row in printed {
        let at = kept.iter().position(|load| load.load == row.what).unwrap_or(kept.len());
        if at == kept.len() {
            kept.push(Load {
                load: row.what.clone(),
                unit: row.unit.clone(),
                each: row.each.clone(),
                subjects: BTreeMap::new(),
                shortfall: None,
            });
        }
        kept[at].subjects.insert(row.subject.clone(), row.found());
    }
    kept
}

/// The columns: the title, and the subject in the output of the program.
const COLUMNS: [(&str, &str); 5] = [
    ("kernel btrfs", "kernel btrfs"),
    ("empty server, device", "empty server"),
    ("device", "buttress mount"),
    ("empty server, io_uring", "empty server by io_uring"),
    ("io_uring", "buttress mount by io_uring"),
];

/// Writes the part of the page.
pub(super) fn render(loads: &[Load], page: &mut String) {
    page.push_str(
        "\n## Everyday loads by a mount\n\n\
         `buttress-bench mount` measures these loads on each subject in turn. An empty server \
         answers\nfrom memory, so its figure is the limit of a mount. The last columns have the \
         requests for a unit\nof the load, and those for which a program waits. \"x\" is the ratio \
         to the kernel's btrfs.\n\n| load | unit |",
    );
    for (title, _) in COLUMNS {
        // Writing to a string cannot fail.
        let _ = write!(page, " {title} |");
    }
    page.push_str(" a unit | requests | waited for |\n|---|---|---|---|---|---|---|---|---|---|\n");
    for load in loads {
        let _ = write!(page, "| {} | {} |", load.load, load.unit);
        for (at, (_, subject)) in COLUMNS.iter().enumerate() {
            let cell = load.subjects.get(*subject).map(|found| cell(found, at > 0));
            let _ = write!(page, " {} |", cell.unwrap_or_default());
        }
        let asked = load.subjects.get(COLUMNS[2].1).and_then(|found| found.requests);
        let [all, awaited] = asked.map_or(Default::default(), |two| two.map(|one| one.to_string()));
        let _ = writeln!(page, " {} | {all} | {awaited} |", load.each);
    }
    let short: Vec<_> = loads.iter().filter(|load| load.shortfall.is_some()).collect();
    if short.is_empty() {
        return;
    }
    page.push_str("\nWhere a mount falls short:\n\n");
    for load in short {
        let why = load.shortfall.as_deref().unwrap_or_default();
        page.push_str(&item(&format!("{}: {why}", load.load)));
    }
}

fn cell(found: &Found, has_ratio: bool) -> String {
    let mut text = number(found.median);
    if has_ratio {
        // Writing to a string cannot fail.
        let _ = write!(text, ", {}x", found.times_btrfs);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_keep_their_sentences_and_other_subjects() {
        let row = |subject: &str, median: f64| PrintedRow {
            what: "create".into(),
            unit: "1/s".into(),
            each: "file".into(),
            count: 10,
            subject: subject.into(),
            median,
            values: vec![median, median + 1.0],
            times_first: 0.5,
            times_empty: None,
            requests: Some(BTreeMap::from([("LOOKUP".into(), 20), ("CREATE".into(), 10)])),
            awaited: Some(15),
        };
        let first = vec![row("kernel btrfs", 100.0), row("buttress mount", 1.0)];
        let mut kept = merged(Vec::new(), &first);
        kept[0].shortfall = Some("two processors.".into());
        let kept = merged(kept, &[row("buttress mount", 50.0)]);
        let mut page = String::new();
        render(&kept, &mut page);
        assert!(
            page.contains("| create | 1/s | 100 |  | 50, 0.5x |  |  | file | 3 | 1.5 |"),
            "{page}"
        );
        assert!(page.ends_with("\n- create: two processors.\n"), "{page}");
    }
}
