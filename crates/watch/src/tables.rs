//! Figures as people read them: grouped in tables, aligned, with units.
//!
//! # Invariants
//!
//! - **PE1** Without `--all`, a line or column that has only zeroes is left out. A heading without
//!   lines is left out, too.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::{Map, Value};

use buttress_control::live::{Answer, Section};
use buttress_control::location;
use buttress_control::ui::{Tone, Ui};

use crate::quantity;

/// In an object of figures, the name of the figure that counts events.
const TIMES: &str = "times";
/// The kinds of space. A figure that each of them has becomes a column of a table.
const KINDS: [&str; 3] = ["data", "metadata", "system"];

/// The options for showing an answer.
#[derive(Clone, Copy)]
pub struct ShowOptions<'l> {
    /// An earlier answer of the same process, and its age in seconds.
    pub before: Option<(&'l Answer, f64)>,
    /// Show zeroes, too (PE1).
    pub all: bool,
    /// The output, which has colours if they are wanted.
    pub ui: &'l Ui,
}

/// Cells of a line: its label, values at the right of their columns, and a text behind them.
struct Row {
    label: String,
    values: Vec<String>,
    behind: String,
}

/// Writes everything of one mount or server. Writing into a string cannot fail.
pub fn show(answer: &Answer, look: ShowOptions<'_>, text: &mut String) {
    let subject = &answer.subject;
    let name = |path: &Path| location::show(path.as_os_str().as_bytes());
    let mut head = name(&subject.image);
    if let Some(target) = &subject.target {
        let _ = write!(head, " on {}", name(target));
    }
    for uri in &subject.uris {
        let _ = write!(head, " at {uri}");
    }
    let _ = writeln!(text, "{} (process {})", look.ui.tint(Tone::Heading, &head), answer.pid);
    if let Some(cache) = &subject.cache {
        let _ = writeln!(text, "  cached by {}", name(cache));
    }
    for section in &answer.sections {
        let earlier = look.before.and_then(|(answer, seconds)| {
            let same = answer.sections.iter().find(|earlier| earlier.name == section.name)?;
            Some((same, seconds))
        });
        let tables = [
            accounts(section, look.all),
            objects(section, earlier, look.all),
            single(section, earlier, look.all),
        ];
        let tables: Vec<_> = tables.into_iter().filter(|(_, rows)| !rows.is_empty()).collect();
        if tables.is_empty() {
            continue;
        }
        let heading = section.name.replace('_', " ");
        let _ = writeln!(text, "\n  {}", look.ui.tint(Tone::Heading, &heading));
        for (heads, rows) in &tables {
            write_table(heads, rows, look.ui, text);
        }
    }
}

/// Names of columns, and rows.
type Table = (Vec<String>, Vec<Row>);

/// Writes rows with their values in columns.
fn write_table(heads: &[String], rows: &[Row], ui: &Ui, text: &mut String) {
    let label = rows.iter().map(|row| row.label.chars().count()).max().unwrap_or(0);
    let width = |column: usize| {
        let values = rows.iter().filter_map(|row| row.values.get(column));
        let head = heads.get(column).into_iter();
        values.chain(head).map(|value| value.chars().count()).max().unwrap_or(0)
    };
    let columns = rows.iter().map(|row| row.values.len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |label_text: &str, values: &[String], behind: &str| {
        let mut line = format!("    {label_text:<label$}");
        for (value, &width) in values.iter().zip(&widths) {
            let _ = write!(line, "  {value:>width$}");
        }
        if !behind.is_empty() {
            let _ = write!(line, "  {behind}");
        }
        line.trim_end().to_owned()
    };
    if !heads.is_empty() {
        let _ = writeln!(text, "{}", ui.tint(Tone::Dim, &line("", heads, "")));
    }
    for row in rows {
        let _ = writeln!(text, "{}", line(&row.label, &row.values, &row.behind));
    }
}

/// Returns the part of a figure's name after its kind of space: `total_bytes` for
/// `data_total_bytes`.
fn of_kind<'n>(name: &'n str, kind: &str) -> Option<&'n str> {
    name.strip_prefix(kind)?.strip_prefix('_')
}

/// Figures that each kind of space has.
fn common<'s>(section: &'s Section) -> Vec<&'s str> {
    let has = |kind: &str, rest: &str| {
        section.figures.iter().any(|(name, _)| of_kind(name, kind) == Some(rest))
    };
    let firsts = section.figures.iter().filter_map(|(name, _)| of_kind(name, KINDS[0]));
    firsts.filter(|rest| KINDS.iter().all(|kind| has(kind, rest))).collect::<Vec<&'s str>>()
}

fn is_common(section: &Section, name: &str) -> bool {
    let names = common(section);
    KINDS.iter().any(|kind| of_kind(name, kind).is_some_and(|rest| names.contains(&rest)))
}

/// Makes a table with a row for each kind of space, and a column for each figure that all of them
/// have.
fn accounts(section: &Section, all: bool) -> Table {
    let value = |kind: &str, rest: &str| {
        let found = section.figures.iter().find(|(name, _)| of_kind(name, kind) == Some(rest));
        found.map_or(&Value::Null, |(_, value)| value)
    };
    let columns = common(section);
    let columns = columns.into_iter();
    let columns: Vec<&str> = columns
        .filter(|rest| all || KINDS.iter().any(|kind| !is_zero(value(kind, rest))))
        .collect();
    let rows = KINDS.iter().map(|kind| Row {
        label: (*kind).to_owned(),
        values: columns.iter().map(|rest| cell(rest, value(kind, rest))).collect(),
        behind: String::new(),
    });
    let rows = if columns.is_empty() { Vec::new() } else { rows.collect() };
    (columns.iter().map(|rest| label(rest)).collect(), rows)
}

/// Makes a table with a row for each object, and a column for each of its figures. The count of
/// events is first.
fn objects(section: &Section, earlier: Option<(&Section, f64)>, all: bool) -> Table {
    let objects =
        section.figures.iter().filter_map(|(name, value)| Some((name, value.as_object()?)));
    let is_shown = |parts: &Map<String, Value>| all || parts.values().any(|part| !is_zero(part));
    let objects: Vec<_> = objects.filter(|(_, parts)| is_shown(parts)).collect();
    let mut columns: Vec<&str> = Vec::new();
    for (name, value) in objects.iter().flat_map(|(_, parts)| parts.iter()) {
        if !columns.contains(&name.as_str()) && (all || !is_zero(value)) {
            columns.push(name);
        }
    }
    columns.sort_by_key(|name| *name != TIMES);
    let rows = objects.iter().map(|(name, parts)| Row {
        label: label(name),
        values: columns
            .iter()
            .map(|column| cell(column, parts.get(*column).unwrap_or(&Value::Null)))
            .collect(),
        behind: section
            .figures
            .iter()
            .find(|(other, _)| other == *name)
            .and_then(|(name, value)| {
                earlier.and_then(|(before, seconds)| rate(before, name, value, seconds))
            })
            .unwrap_or_default(),
    });
    let rows = rows.collect();
    (columns.iter().map(|name| label(name)).collect(), rows)
}

/// Makes a table of all other figures, one on each line.
fn single(section: &Section, earlier: Option<(&Section, f64)>, all: bool) -> Table {
    let figures = section.figures.iter().filter(|(name, value)| {
        !value.is_object() && !is_common(section, name) && (all || !is_zero(value))
    });
    let rows = figures.map(|(name, value)| {
        let rate = earlier.and_then(|(before, seconds)| rate(before, name, value, seconds));
        let rate = rate.unwrap_or_default();
        // A text may be longer than any number, so it is not aligned.
        let (values, behind) = match value {
            Value::String(text) => (Vec::new(), text.clone()),
            value => (vec![shown(name, value)], rate),
        };
        Row { label: label_in(section, name), values, behind }
    });
    (Vec::new(), rows.collect())
}

/// A name in words, without the unit that its value shows.
fn label(name: &str) -> String {
    let plain = ["_bytes", "_us", "_ms"].iter().find_map(|unit| name.strip_suffix(unit));
    plain.unwrap_or(name).replace('_', " ")
}

/// The label of a line. If a figure without the unit has the same label, the unit is added.
fn label_in(section: &Section, name: &str) -> String {
    let is_there = |plain: &str| section.figures.iter().any(|(other, _)| other == plain);
    match name.strip_suffix("_bytes") {
        Some(plain) if is_there(plain) => format!("{} in bytes", label(name)),
        _ => label(name),
    }
}

fn is_bytes(name: &str) -> bool {
    name.ends_with("bytes")
}

/// Whether a value is zero or empty.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Object(parts) => parts.values().all(is_zero),
        _ => false,
    }
}

/// A value in a table, where a dash means zero.
fn cell(name: &str, value: &Value) -> String {
    if is_zero(value) { "-".to_owned() } else { shown(name, value) }
}

fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if is_bytes(name) => quantity::bytes(bytes),
            Some(us) if name.ends_with("_us") => quantity::duration(us),
            Some(ms) if name.ends_with("_ms") => quantity::duration(ms.saturating_mul(1000)),
            Some(inode) if name == "inode" => inode.to_string(),
            Some(number) => quantity::count(number),
            None => {
                number.as_f64().map_or_else(|| number.to_string(), |float| format!("{float:.1}"))
            }
        },
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}

/// Returns how fast a number changes. For an object, the number is its count of events. Returns
/// `None` if the number has not changed.
fn rate(before: &Section, name: &str, value: &Value, seconds: f64) -> Option<String> {
    let (_, earlier) = before.figures.iter().find(|(earlier, _)| earlier == name)?;
    let count = |value: &Value| value.get(TIMES).unwrap_or(value).as_u64();
    let (earlier, now) = (count(earlier)?, count(value)?);
    if earlier == now || seconds <= 0.0 {
        return None;
    }
    let each = (now.abs_diff(earlier) as f64 / seconds).round() as u64;
    let each = if is_bytes(name) { quantity::bytes(each) } else { quantity::count(each) };
    let sign = if now > earlier { '+' } else { '-' };
    Some(format!("{sign}{each}/s"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn section(figures: Value) -> Section {
        let figures = figures.as_object().expect("an object").clone();
        Section { name: "space".to_owned(), figures: figures.into_iter().collect() }
    }

    fn text_of(section: Section, all: bool) -> String {
        let answer: Answer = serde_json::from_value(json!({
            "pid": 7,
            "subject": { "image": "/a" },
            "sections": [section],
        }))
        .expect("an answer");
        let mut text = String::new();
        let look = ShowOptions { before: None, all, ui: &Ui::new(true) };
        show(&answer, look, &mut text);
        text
    }

    /// Sizes and times have units, changed numbers have a speed, and words stay as they are.
    #[test]
    fn figures_are_shown_with_units_and_speed() {
        let of = |free: u64| section(json!({ "free_bytes": free, "origin_alone": "whole" }));
        let speed = rate(&of(4096), "free_bytes", &json!(2048), 2.0);
        assert_eq!(speed.as_deref(), Some("-1.00 KiB/s"));
        assert_eq!(rate(&of(1), "origin_alone", &json!("whole"), 2.0), None);
        let of = |name, value| shown(name, &value);
        assert_eq!(of("free_bytes", json!(512)), "512 B");
        assert_eq!(of("wait_us", json!(7)), "7 µs");
        assert_eq!(of("wait_us", json!(2_500)), "2.5 ms");
        assert_eq!(of("calls", json!(1_234_567)), "1,234,567");
    }

    /// PE1: zeroes are left out unless `all` is set.
    #[test]
    fn zeroes_are_shown_where_they_are_asked_for() {
        let figures = json!({ "refused": 0, "step": { "times": 0, "max_us": 0 }, "calls": 3 });
        let text = text_of(section(figures.clone()), false);
        assert!(!text.contains("refused") && !text.contains("step"), "{text}");
        let text = text_of(section(figures), true);
        assert!(text.contains("refused") && text.contains("step"), "{text}");
        assert_eq!(text_of(section(json!({ "refused": 0 })), false).lines().count(), 1);
    }

    /// Figures of the kinds of space, and figures of objects, are in columns.
    #[test]
    fn tables_have_columns() {
        let text = text_of(
            section(json!({
                "data_used_bytes": 2048, "metadata_used_bytes": 1024, "system_used_bytes": 0,
                "data_pinned_bytes": 0, "metadata_pinned_bytes": 0, "system_pinned_bytes": 0,
                "commit": { "max_us": 7, "times": 3 },
            })),
            false,
        );
        let wanted = "/a (process 7)\n\n  space\n\
                      \x20                   used\n\
                      \x20   data      2.00 KiB\n\
                      \x20   metadata  1.00 KiB\n\
                      \x20   system           -\n\
                      \x20           times   max\n\
                      \x20   commit      3  7 µs\n";
        assert_eq!(text, wanted.replace("                    used", "                  used"));
    }

    /// A count and the memory of what it counts have different labels.
    #[test]
    fn labels_of_a_section_differ() {
        let names = ["known_inodes", "known_inodes_bytes", "cached_bytes"];
        let figures = names.map(|name| (name.to_owned(), Value::from(5000)));
        let section = Section { name: "memory".to_owned(), figures: figures.to_vec() };
        let labels: Vec<_> =
            single(&section, None, false).1.into_iter().map(|row| row.label).collect();
        assert_eq!(labels, ["known inodes", "known inodes in bytes", "cached"]);
    }
}
