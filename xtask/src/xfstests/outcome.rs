//! The outcome of a test, and the file of results.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Result;

/// The ways in which a test ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Passed,
    /// The test needs something that is missing.
    Lacking,
    Failed,
    /// The test did not end within the time limit.
    Late,
}

/// The outcome of one test.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Outcome {
    pub(super) kind: Kind,
    /// How long the test took, in seconds.
    pub(super) seconds: u64,
    /// The reason that the suite printed, on one line.
    pub(super) why: String,
}

impl Outcome {
    /// Parses the output of the suite's `check`. `code` is the exit code of timeout(1): 124 after
    /// the time limit, 137 if timeout(1) had to kill the test.
    pub(super) fn read(text: &str, code: Option<i32>, seconds: u64) -> Self {
        let kind = if text.lines().any(|line| line.starts_with("Passed all 1 tests")) {
            if text.contains("[not run]") || text.contains("Not run: ") {
                Kind::Lacking
            } else {
                Kind::Passed
            }
        } else if matches!(code, Some(124 | 137)) {
            Kind::Late
        } else {
            Kind::Failed
        };
        let why = match kind {
            Kind::Passed => String::new(),
            Kind::Late => format!("killed after {seconds} seconds"),
            Kind::Lacking => {
                let line = text.lines().find_map(|line| line.split_once("[not run]"));
                line.map(|(_, why)| why.trim().to_owned()).unwrap_or_default()
            }
            Kind::Failed => reason(text),
        };
        Self { kind, seconds, why }
    }
}

/// The first unexpected line in the output of a failed test.
fn reason(text: &str) -> String {
    let added = |line: &&str| line.starts_with("    +") && !line.starts_with("    +++");
    let line = text.lines().find(added).or_else(|| text.lines().rfind(|line| !line.is_empty()));
    let line = line.unwrap_or("it printed nothing").trim().trim_start_matches('+');
    line.trim().chars().take(90).collect()
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} s {}", self.kind, self.seconds, self.why)
    }
}

/// A line of the file of results.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    test: String,
    #[serde(flatten)]
    outcome: Outcome,
}

/// The results of a commit with a set of mount options. If a test has several lines, the last line
/// counts.
#[derive(Debug)]
pub(super) struct Results {
    file: File,
    known: BTreeMap<String, Outcome>,
}

impl Results {
    /// Opens or makes the file in a folder.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("results.jsonl");
        let fail = |error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir_all(folder).map_err(fail)?;
        let mut file = File::options().create(true).append(true).open(&path).map_err(fail)?;
        let text = std::fs::read_to_string(&path).map_err(fail)?;
        // An interrupted run may leave a cut line. The next result must not be appended to that
        // line.
        if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n").map_err(fail)?;
        }
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Line>(line).ok());
        let known = lines.map(|line| (line.test, line.outcome)).collect();
        Ok(Self { file, known })
    }

    pub(super) fn has(&self, test: &str) -> bool {
        self.known.contains_key(test)
    }

    pub(super) fn of(&self, test: &str) -> Option<&Outcome> {
        self.known.get(test)
    }

    pub(super) fn add(&mut self, test: &str, outcome: Outcome) -> Result<()> {
        let line = Line { test: test.to_owned(), outcome };
        let mut text = serde_json::to_string(&line).map_err(|error| error.to_string())?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).map_err(|error| error.to_string())?;
        self.known.insert(line.test, line.outcome);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILS: &str = "\
generic/015 - output mismatch
    --- tests/generic/015.out
    +++ results/generic/015.out.bad
    @@ -1,7 +1,9 @@
    +   !!! disk full (expected)
Failed 1 of 1 tests
";

    #[test]
    fn outcome_is_what_the_suite_printed() {
        let of = |text, code| Outcome::read(text, code, 7);
        let passed = of("generic/001  3s\nRan: generic/001\nPassed all 1 tests\n", Some(0));
        assert_eq!(passed.kind, Kind::Passed);
        let text =
            "generic/032 [not run] fiemap failed\nNot run: generic/032\nPassed all 1 tests\n";
        let lacking = of(text, Some(0));
        assert_eq!((lacking.kind, lacking.why.as_str()), (Kind::Lacking, "fiemap failed"));
        let failed = of(FAILS, Some(1));
        assert_eq!((failed.kind, failed.why.as_str()), (Kind::Failed, "!!! disk full (expected)"));
        assert_eq!(of("generic/001", Some(124)).kind, Kind::Late);
        assert_eq!(of("", Some(137)).kind, Kind::Late);
        assert_eq!(of("", Some(1)).why, "it printed nothing");
    }

    #[test]
    fn results_go_on_behind_a_line_that_was_cut_off() {
        let folder = std::env::temp_dir().join(format!("xfstests-results-{}", std::process::id()));
        let outcome = Outcome::read(FAILS, Some(1), 7);
        Results::open(&folder).expect("a file").add("001", outcome.clone()).expect("a line");
        let path = folder.join("results.jsonl");
        let mut text = std::fs::read_to_string(&path).expect("a file");
        text.push_str("{\"test\":\"00");
        std::fs::write(&path, text).expect("a file");
        Results::open(&folder).expect("a file").add("003", outcome).expect("a line");
        let results = Results::open(&folder).expect("a file");
        assert!(results.has("001") && results.has("003") && !results.has("002"));
        std::fs::remove_dir_all(&folder).expect("a folder");
    }
}
