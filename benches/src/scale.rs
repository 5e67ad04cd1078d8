//! `buttress-bench scale`: volumes of ten to a million block groups, made and measured.
//!
//! # Place
//!
//! This module makes a volume in a sparse file, and has [`groups`](crate::groups) measure it
//! several times. Each measurement is a new process with its own memory. The table shows medians.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Map, Value, json};

use crate::{groups, report::median};

/// The default numbers of groups.
pub const GROUPS: [u64; 4] = [10, 1000, 100_000, 1_000_000];

/// Rounds of quick operations.
const ROUNDS: u64 = 20_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Groups of each volume.
    pub groups: Vec<u64>,
    /// The number of measurements of each volume.
    pub runs: usize,
    /// A folder with enough space. For a million groups it must support files of a petabyte, as
    /// tmpfs does.
    pub dir: PathBuf,
}

/// Measures one volume in this process. The result is for [`run`].
///
/// # Errors
///
/// The cause of the failure, in words.
pub fn measure_image(image: &Path, groups: u64) -> Result<Value, String> {
    let row = groups::measure(&groups::open(image)?, groups, ROUNDS)?;
    serde_json::to_value(&row).map_err(|error| error.to_string())
}

struct Image(PathBuf);

impl Drop for Image {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Makes and measures volumes. `child` is a command that calls [`measure_image`] and prints the
/// result. `say` gets messages about the progress. Returns a row of medians for each volume.
///
/// # Errors
///
/// The cause of the failure, in words.
pub fn run(
    plan: &Plan,
    child: &dyn Fn(&Path, u64) -> Command,
    say: &mut dyn FnMut(&str),
) -> Result<Value, String> {
    let mut rows = Vec::new();
    for &groups in &plan.groups {
        let image = plan.dir.join(format!("buttress-scale-{}-{groups}.img", std::process::id()));
        let image = Image(image);
        say(&format!("{groups} groups: making the volume"));
        let made = groups::make_volume(&groups::create(&image.0, groups)?, groups)?;
        let mut found: Vec<Map<String, Value>> = Vec::new();
        for run in 0..plan.runs {
            say(&format!("{groups} groups: run {} of {}", run + 1, plan.runs));
            let out = child(&image.0, groups).output().map_err(|error| error.to_string())?;
            if !out.status.success() {
                return Err(String::from_utf8_lossy(&out.stderr).trim().to_owned());
            }
            found.push(serde_json::from_slice(&out.stdout).map_err(|error| error.to_string())?);
        }
        rows.push(medians(&found, made));
    }
    Ok(json!({ "runs": plan.runs, "rows": rows }))
}

/// The median of each figure.
fn medians(found: &[Map<String, Value>], made: f64) -> Value {
    let names = found.first().into_iter().flat_map(Map::keys);
    let of = |name: &String| {
        let values: Vec<f64> = found.iter().filter_map(|row| row.get(name)?.as_f64()).collect();
        (name.clone(), json!(median(&values)))
    };
    let mut row: Map<String, Value> = names.map(of).collect();
    row.insert("make_seconds".into(), json!(made));
    Value::Object(row)
}

/// The rows as text.
#[must_use]
pub fn table(value: &Value) -> String {
    const COLUMNS: [(&str, &str, f64, usize); 16] = [
        ("groups", "groups", 1.0, 0),
        ("make_seconds", "made, s", 1.0, 1),
        ("open_seconds", "open, ms", 1e3, 1),
        ("open_reads", "requests", 1.0, 0),
        ("known_seconds", "known, ms", 1e3, 1),
        ("known_reads", "requests", 1.0, 0),
        ("bytes_per_group", "B/group", 1.0, 0),
        ("chunk_lookup", "chunk, ns", 1.0, 0),
        ("group_lookup", "group, ns", 1.0, 0),
        ("small", "4 KiB, ns", 1.0, 0),
        ("large", "64 KiB, ns", 1.0, 0),
        ("gap", "gap, ns", 1.0, 0),
        ("in_vain", "in vain, ns", 1.0, 0),
        ("commit", "commit, us", 1e-3, 0),
        ("commit_nodes", "nodes", 1.0, 1),
        ("chunk", "chunk, us", 1e-3, 0),
    ];
    let mut out = String::new();
    for (_, title, _, _) in COLUMNS {
        // Writing into a string cannot fail.
        let _ = write!(out, "{title:>12}");
    }
    out.push('\n');
    for row in value["rows"].as_array().into_iter().flatten() {
        for (name, _, factor, digits) in COLUMNS {
            let figure = row[name].as_f64().unwrap_or(f64::NAN) * factor;
            let _ = write!(out, "{figure:>12.digits$}");
        }
        out.push('\n');
    }
    out
}
