//! The parts that one experiment alone has: growth, positions of a disk, a program beside a flush.

use serde_json::{Value, json};

use crate::bars::bars;
use crate::basics::{COUNTS, short};
use crate::curves::scaling;

/// What grows, as dots. The rows are those of `growth`, or those that are kept of them.
#[must_use]
pub fn growing(rows: &[Value]) -> Value {
    json!({
        "kind": "dots", "title": "What costs grow as",
        "about": ["Each dot is a case at 1, 4, 16 and 64 times a size: its cost grows as the size to \
                   this power. The strong lines are the limits: 0.3 for a fixed number of operations \
                   in a larger structure, 1.15 for work on each unit."],
        "legend": COUNTS,
        "counts": COUNTS.map(|(_, name)| name),
        "cases": rows.iter().map(case).collect::<Vec<_>>(),
    })
}

/// A row of `growth`, with exponents of two places and the largest size alone.
fn case(row: &Value) -> Value {
    let mut case = row.clone();
    if let Some(counts) = row["counts"].as_array() {
        case["size"] = json!(counts.iter().filter_map(|one| one["size"].as_u64()).max());
    }
    if let Some(case) = case.as_object_mut() {
        case.remove("counts");
    }
    for (_, name) in COUNTS {
        // The addition turns -0 into 0.
        let exponent = row[name].as_f64().unwrap_or(0.0);
        case[name] = json!((exponent * 100.0).round() / 100.0 + 0.0);
    }
    case
}

/// Where a disk wrote over time, with a panel for each order of write-back. Each panel has a name,
/// the time and the place at its edges (`seconds`, `bytes`), and `sets` of points.
#[must_use]
pub fn positions(panels: &[Value]) -> Value {
    json!({
        "kind": "positions", "title": "Positions on the disk", "legend": [], "panels": panels,
        "about": ["Time runs to the right, the position on the disk upwards. In grey the program \
                   writes, in blue the cache is flushed. A slanted line is a disk that moves in one \
                   direction."],
    })
}

/// Figures of the orders of write-back, with the order that does not sort as the first subject.
pub(crate) fn of_policies(policies: &[Value]) -> Vec<Value> {
    let mut found = Vec::new();
    for row in policies.iter().rev() {
        let disk = row["disk"].as_str().unwrap_or_default();
        let mut add = |what: &str, unit: &str, names: [&str; 3]| {
            if let Some(median) = row[names[0]].as_f64() {
                found.push(json!({
                    "what": format!("{what}, {disk}"), "unit": unit, "subject": row["writeback"],
                    "median": median, "min": row[names[1]], "max": row[names[2]],
                }));
            }
        };
        add("flush of the whole cache", "s", ["flush_seconds", "", ""]);
        add("write-back while the program writes", "blocks/s", ["drain_blocks_per_second", "", ""]);
        add("writes of the program", "1/s", ["iops_avg", "iops_min", "iops_max"]);
    }
    found
}

/// Times of a program's writes beside a flush, and how its writes scale.
pub(crate) fn of_foreground(output: &Value) -> Vec<Value> {
    let mut figures = Vec::new();
    for (name, what) in [
        ("p50", "half of the writes"),
        ("p99", "99 of 100 writes"),
        ("p999", "999 of 1000 writes"),
        ("max", "all writes"),
    ] {
        for (section, subject) in [("idle_us", "idle"), ("flushing_us", "beside a flush")] {
            if let Some(median) = output[section][name].as_f64() {
                figures.push(json!({
                    "what": format!("{what} take at most"), "unit": "us", "subject": subject,
                    "median": short(median),
                }));
            }
        }
    }
    let point = |row: &Value| Some((row["threads"].as_f64()?, row["writes_per_second"].as_f64()?));
    let points: Vec<_> =
        output["scaling"].as_array().into_iter().flatten().filter_map(point).collect();
    vec![
        bars("A program beside a flush", &figures),
        scaling("Writes of several threads", "1/s", "threads", &points),
    ]
}
