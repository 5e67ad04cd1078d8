//! The findings of a check, kept within bounds.
//!
//! # Invariants
//!
//! - **P1** An issue is kept once, however often it is met.
//! - **P2** Memory is bounded for any amount of damage: a fixed number of issues is kept for each
//!   kind, and further issues are only counted.
//!
//! # Locks
//!
//! One short lock protects everything. Threads take it only for problems, which are few.

use std::collections::{BTreeMap, HashSet};

use buttress_base::{Rank, Ranked};
use serde::Serialize;

use buttress_issue::{Issue, Severity};

/// Issues of one kind that are kept.
const KEPT_PER_CODE: usize = 1000;

/// The result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Every issue, in the order in which the steps found them; at most a thousand of a kind.
    pub issues: Vec<Issue>,
    /// The number of further issues of each kind, which were not kept.
    pub more: BTreeMap<&'static str, u64>,
    /// The amounts that were checked.
    pub totals: Totals,
    /// Whether every copy of all data and of all nodes was read.
    #[serde(skip)]
    pub with_data: bool,
}

/// The amounts that the check covered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Bytes in use: the sum over all extents.
    pub bytes_used: u64,
    /// Bytes of tree nodes.
    pub tree_bytes: u64,
    /// Bytes of the nodes of subvolumes, and of the tree for moved data.
    pub fs_tree_bytes: u64,
    /// Bytes of the nodes of the extent tree.
    pub extent_tree_bytes: u64,
    /// Bytes of checksums.
    pub csum_bytes: u64,
    /// Bytes that data extents take.
    pub data_bytes: u64,
    /// Inodes, each counted in every subvolume.
    pub inodes: u64,
    /// Bytes of data verified against checksums, every copy counted.
    pub verified_bytes: u64,
    /// Bytes of parity compared with their data.
    pub parity_bytes: u64,
}

impl Report {
    /// Whether there are no errors; there may be notes and warnings.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.errors() == 0
    }

    /// The number of errors, including errors that were not kept.
    #[must_use]
    pub fn errors(&self) -> u64 {
        let kept = self.issues.iter().filter(|issue| issue.severity() == Severity::Error);
        let mut codes: BTreeMap<&str, u64> = BTreeMap::new();
        for issue in kept {
            *codes.entry(issue.code()).or_default() += 1;
        }
        // Of a kind with issues that were not kept, others were, and they tell its severity.
        codes.iter().map(|(code, kept)| kept + self.more.get(code).unwrap_or(&0)).sum()
    }

    /// Whether an issue of this kind was met.
    #[must_use]
    pub fn has(&self, code: &str) -> bool {
        self.issues.iter().any(|issue| issue.code() == code)
    }

    /// The problems as lines of text, for assertions.
    #[must_use]
    pub fn to_text(&self) -> String {
        let line =
            |issue: &Issue| format!("{} {}: {issue}\n", issue.severity().name(), issue.code());
        self.issues.iter().map(line).collect()
    }
}

/// Takes issues from every thread.
pub(crate) struct Findings(Ranked<State>);

#[derive(Default)]
struct State {
    issues: Vec<Issue>,
    seen: HashSet<Issue>,
    kept: BTreeMap<&'static str, usize>,
    more: BTreeMap<&'static str, u64>,
}

impl Findings {
    pub(crate) fn new() -> Self {
        Self(Ranked::new(Rank::Leaf, State::default()))
    }

    pub(crate) fn add(&self, issue: Issue) {
        let mut state = self.0.lock();
        let code = issue.code();
        let kept = state.kept.entry(code).or_default();
        if *kept >= KEPT_PER_CODE {
            if !state.seen.contains(&issue) {
                *state.more.entry(code).or_default() += 1;
            }
            return;
        }
        if state.seen.insert(issue.clone()) {
            *state.kept.entry(code).or_default() += 1;
            state.issues.push(issue);
        }
    }

    /// How many issues there are so far.
    pub(crate) fn count(&self) -> u64 {
        let state = self.0.lock();
        state.issues.len() as u64 + state.more.values().sum::<u64>()
    }

    /// The first issue that `is_it` accepts.
    pub(crate) fn find(&self, is_it: impl Fn(&Issue) -> bool) -> Option<Issue> {
        self.0.lock().issues.iter().find(|issue| is_it(issue)).cloned()
    }

    /// Every issue that was kept.
    pub(crate) fn into_issues(self) -> Vec<Issue> {
        self.0.into_inner().issues
    }

    pub(crate) fn into_report(self, totals: Totals, with_data: bool) -> Report {
        let state = self.0.into_inner();
        Report { issues: state.issues, more: state.more, totals, with_data }
    }
}

#[cfg(test)]
mod tests {
    use buttress_format::{Logical, TreeId};

    use super::*;

    /// P1 and P2: each issue is kept once, and not all issues are kept.
    #[test]
    fn keeps_each_once_and_not_all() {
        let findings = Findings::new();
        for at in 0..1500 {
            for _ in 0..2 {
                findings.add(Issue::CsumOverlap { at: Logical(at) });
            }
        }
        findings.add(Issue::LogPresent { log: Logical(1) });
        let report = findings.into_report(Totals::default(), false);
        assert_eq!(report.issues.len(), 1001);
        assert!(!report.is_clean());
        assert!(report.has("log-present"));
        assert!(report.more["csum-overlap"] >= 500, "P2");
        assert!(report.errors() >= 1500, "P2");
    }

    /// Warnings are no errors, however many there are.
    #[test]
    fn many_warnings_are_clean() {
        let findings = Findings::new();
        for number in 0..1500 {
            findings.add(Issue::UuidMissing { tree: TreeId(256 + number) });
        }
        let report = findings.into_report(Totals::default(), false);
        assert_eq!((report.more["uuid-missing"], report.errors()), (500, 0));
        assert!(report.is_clean());
    }
}
