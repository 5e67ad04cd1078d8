//! The part of the page about the growth of costs, from the output of `buttress-bench --json
//! growth`.
//!
//! # What must hold
//!
//! - The kept file has one line for each case, so that a change shows which exponents moved.
//! - The page names every case that grows faster than its limit, with the reason.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::kept::{item, read};

/// Stands for the reason of a case that has none. `--check` refuses the page then.
pub(super) const NO_REASON: &str = "to be mended";

/// A case of `buttress-bench growth`: exponents over its three largest sizes.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Case {
    case: String,
    grows: String,
    /// The largest size, in units of the quantity that grows.
    size: u64,
    /// The greatest allowed exponent.
    most: f64,
    steps: f64,
    allocations: f64,
    written: f64,
    memory: f64,
    /// The reason why the case may grow faster.
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
}

/// The document that the program prints.
#[derive(Debug, Deserialize)]
struct Printed {
    rows: Vec<PrintedRow>,
}

#[derive(Debug, Deserialize)]
struct PrintedRow {
    case: String,
    grows: String,
    most: f64,
    because: Option<String>,
    steps: f64,
    allocations: f64,
    written: f64,
    memory: f64,
    counts: Vec<Size>,
}

#[derive(Debug, Deserialize)]
struct Size {
    size: u64,
}

impl From<PrintedRow> for Case {
    fn from(row: PrintedRow) -> Self {
        // The addition turns -0 into 0.
        let round = |number: f64| (number * 100.0).round() / 100.0 + 0.0;
        Self {
            size: row.counts.iter().map(|one| one.size).max().unwrap_or(0),
            case: row.case,
            grows: row.grows,
            most: row.most,
            steps: round(row.steps),
            allocations: round(row.allocations),
            written: round(row.written),
            memory: round(row.memory),
            because: row.because,
        }
    }
}

impl Case {
    fn is_above(&self) -> bool {
        let counts = [self.steps, self.allocations, self.written, self.memory];
        counts.iter().any(|found| *found > self.most)
    }
}

/// Keeps the output of the program in a file of the project, a line for each case. Cases that were
/// not measured keep their lines.
///
/// # Errors
///
/// In words: a file cannot be read or written, or is no output of this program.
pub(super) fn keep(printed: &Path, kept: &Path) -> Result<(), String> {
    let show = |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let found = cases(printed)?;
    let before = fs::read_to_string(kept).unwrap_or_else(|_| "[]".to_owned());
    let before: Vec<Case> = serde_json::from_str(&before).map_err(|error| show(kept, &error))?;
    let cases = merged(before, found.into_iter());
    let lines = cases.iter().map(serde_json::to_string);
    let lines: Vec<_> = lines.collect::<Result<_, _>>().map_err(|error| show(kept, &error))?;
    let text = format!("[\n{}\n]\n", lines.join(",\n"));
    let folder = kept.parent().unwrap_or(kept);
    fs::create_dir_all(folder).map_err(|error| show(folder, &error))?;
    fs::write(kept, text).map_err(|error| show(kept, &error))
}

/// The cases in an output of the program.
///
/// # Errors
///
/// As [`keep`].
pub(super) fn cases(printed: &Path) -> Result<Vec<Case>, String> {
    let found: Printed = read(printed)?;
    Ok(found.rows.into_iter().map(Case::from).collect())
}

/// Puts new figures in the places of older figures of the same case, and adds new cases at the end.
fn merged(mut kept: Vec<Case>, found: impl Iterator<Item = Case>) -> Vec<Case> {
    for new in found {
        let is_same = |old: &&mut Case| (&old.case, &old.grows) == (&new.case, &new.grows);
        match kept.iter_mut().find(is_same) {
            Some(old) => *old = new,
            None => kept.push(new),
        }
    }
    kept
}

/// Writes the part of the page.
pub(super) fn render(cases: &[Case], page: &mut String) {
    page.push_str(
        "\n## What costs grow as\n\n\
         `buttress-bench growth` runs each case at 1, 4, 16 and 64 times a size. It counts steps \
         over\ntrees with reads of devices, allocations, bytes written, and the most memory. The \
         columns are\nexponents over the three largest sizes. Work for each unit may grow as 1.15, \
         and a fixed number\nof operations in a larger structure as 0.3.\n\n\
         | case | grows | up to | steps | allocations | written | memory |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for one in cases {
        // Writing to a string cannot fail.
        let _ = writeln!(
            page,
            "| {} | {} | {} | {} | {} | {} | {} |",
            one.case, one.grows, one.size, one.steps, one.allocations, one.written, one.memory
        );
    }
    let above: Vec<_> = cases.iter().filter(|one| one.is_above()).collect();
    if above.is_empty() {
        return;
    }
    page.push_str("\nThese grow faster:\n\n");
    for one in above {
        let why = one.because.as_deref().unwrap_or(NO_REASON);
        page.push_str(&item(&format!("{}, {}: {why}.", one.case, one.grows)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_names_the_cases_that_grow_faster() {
        let printed = r#"{ "rows": [
            { "case": "create", "grows": "names", "most": 1.15, "because": null, "steps": 0.984,
              "allocations": 1.0, "written": 0.9, "memory": 1.0, "counts": [{ "size": 4 }] },
            { "case": "link", "grows": "names", "most": 0.3, "because": "one item", "steps": 0.5,
              "allocations": 0.1, "written": -0.001, "memory": 0.0, "counts": [{ "size": 64 }] },
            { "case": "list", "grows": "names", "most": 1.15, "because": null, "steps": 1.0,
              "allocations": 1.0, "written": 0.0, "memory": 1.3,
              "counts": [{ "size": 8 }] } ] }"#;
        let found: Printed = serde_json::from_str(printed).expect("an output");
        let cases: Vec<Case> = found.rows.into_iter().map(Case::from).collect();
        let mut page = String::new();
        render(&cases, &mut page);
        assert!(page.contains("| create | names | 4 | 0.98 | 1 | 0.9 | 1 |\n"), "{page}");
        assert!(page.contains("| link | names | 64 | 0.5 | 0.1 | 0 | 0 |\n"), "{page}");
        // A case is also listed if only its memory grows too fast.
        let above =
            "These grow faster:\n\n- link, names: one item.\n- list, names: to be mended.\n";
        assert!(page.ends_with(above), "{page}");
    }

    /// A run of some cases changes their lines alone.
    #[test]
    fn cases_that_were_not_measured_stay() {
        let case = |name: &str, steps| Case {
            case: name.to_owned(),
            grows: "names".to_owned(),
            size: 4,
            most: 1.15,
            steps,
            allocations: 1.0,
            written: 1.0,
            memory: 1.0,
            because: None,
        };
        let kept = vec![case("create", 1.0), case("unlink", 1.0)];
        let all = merged(kept, [case("unlink", 0.9), case("stat", 1.0)].into_iter());
        let found: Vec<_> = all.iter().map(|one| (&*one.case, one.steps)).collect();
        assert_eq!(found, [("create", 1.0), ("unlink", 0.9), ("stat", 1.0)]);
    }
}
