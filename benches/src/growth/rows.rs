//! The counts of cases, and the exponents of their growth.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::{Value, json};

use super::Case;

/// Fewer steps or allocations count as this number, so that the first few steps do not count as
/// growth.
const STEPS_MIN: u64 = 128;
/// Less memory counts as this number of bytes. Opening the volume caches the first nodes, so work
/// on a small structure needs almost no further memory.
const MEMORY_MIN: u64 = 64 << 10;
/// Fewer written bytes count as this number, about a small commit.
const WRITTEN_MIN: u64 = 256 << 10;

/// The counts of one size of a case.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Counts {
    /// The number of units.
    pub size: u64,
    /// Nodes and keys that were visited, and reads of devices. On a mount, the requests of the
    /// kernel.
    pub steps: u64,
    /// Nodes that were read from a device, except by the checker, which has its own reader.
    pub nodes_read: u64,
    /// Allocations.
    pub allocations: u64,
    /// Bytes written to devices.
    pub written: u64,
    /// The most bytes of memory at once, beyond the bytes from before the work.
    pub memory: u64,
    /// Processor seconds.
    pub seconds: f64,
}

/// A case, and the counts of its sizes.
#[derive(Clone, Debug)]
pub struct Row {
    /// The case.
    pub case: Case,
    /// By size.
    pub counts: Vec<Counts>,
}

/// The slope of a line through sizes and counts, both as logarithms.
fn exponent(counts: &[Counts], of: impl Fn(&Counts) -> f64) -> f64 {
    let points = counts.iter().map(|one| ((one.size as f64).ln(), of(one).max(1.0).ln()));
    let (mut x, mut y, mut xx, mut xy, mut n) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (log_size, log_count) in points {
        x += log_size;
        y += log_count;
        xx += log_size * log_size;
        xy += log_size * log_count;
        n += 1.0;
    }
    (n * xy - x * y) / (n * xx - x * x)
}

impl Row {
    /// The three largest sizes: fixed costs hide growth at the smallest sizes.
    fn largest(&self) -> &[Counts] {
        &self.counts[self.counts.len().saturating_sub(3)..]
    }

    /// The exponents of the counts: steps, allocations, bytes written.
    #[must_use]
    pub fn exponents(&self) -> [f64; 3] {
        let of: [fn(&Counts) -> u64; 3] = [
            |one| one.steps.max(STEPS_MIN),
            |one| one.allocations.max(STEPS_MIN),
            |one| one.written.max(WRITTEN_MIN),
        ];
        of.map(|of| exponent(self.largest(), |one| of(one) as f64))
    }

    /// The largest exponent.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.exponents().into_iter().fold(0.0, f64::max)
    }

    /// The exponent of memory.
    #[must_use]
    pub fn memory(&self) -> f64 {
        exponent(self.largest(), |one| one.memory.max(MEMORY_MIN) as f64)
    }

    /// The exponent of processor time.
    #[must_use]
    pub fn time(&self) -> f64 {
        exponent(self.largest(), |one| one.seconds * 1e6)
    }

    /// Whether the case grows faster than allowed.
    #[must_use]
    pub fn is_above(&self) -> bool {
        self.is_above_by(0.0)
    }

    /// Whether the largest exponent is above the allowed one by more than `slack`. Small sizes need
    /// a slack, because a change rewrites leaves that are still filling up.
    #[must_use]
    pub fn is_above_by(&self, slack: f64) -> bool {
        self.worst() > self.case.most() + slack
    }

    /// One row of the generated figures.
    #[must_use]
    pub fn json(&self) -> Value {
        let [steps, allocations, written] = self.exponents();
        json!({
            "case": self.case.name, "grows": self.case.grows, "most": self.case.usual(),
            "is_above": self.is_above(), "because": self.case.because.map(|(_, why)| why),
            "steps": steps,
            "allocations": allocations, "written": written, "memory": self.memory(),
            "processor_time": self.time(), "counts": self.counts,
        })
    }

    pub(super) fn line(&self) -> String {
        let [steps, allocations, written] = self.exponents();
        let most = self.counts.last().copied().unwrap_or_default();
        let mark = if self.is_above() { " <" } else { "" };
        format!(
            "{:<34} {:<22} {:>7} {steps:>6.2} {allocations:>6.2} {written:>6.2} {:>6.2} {:>6.2} \
             {:>10.1} {:>9.3}{mark}",
            self.case.name,
            self.case.grows,
            most.size,
            self.memory(),
            self.time(),
            most.memory as f64 / 1024.0,
            most.seconds,
        )
    }
}

/// All rows as text. Rows that grow too fast are repeated at the end.
#[must_use]
pub fn table(rows: &[Row]) -> String {
    let mut out = format!(
        "{:<34} {:<22} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>10} {:>9}\n",
        "case", "grows", "size", "steps", "allocs", "writes", "memory", "time", "KiB", "seconds"
    );
    for row in rows {
        // Writing into a string cannot fail.
        let _ = writeln!(out, "{}", row.line());
    }
    let above: Vec<_> = rows.iter().filter(|row| row.is_above()).collect();
    let _ = writeln!(out, "\n{} of {} grow faster than they may", above.len(), rows.len());
    for row in above {
        let _ = writeln!(out, "{}", row.line());
    }
    for row in rows {
        if let Some((most, why)) = row.case.because {
            let _ = writeln!(out, "{}, at most {most}: {why}", row.case.name);
        }
    }
    out
}

/// All rows as JSON.
#[must_use]
pub fn json(rows: &[Row]) -> Value {
    let rows: Vec<_> = rows.iter().map(Row::json).collect();
    json!({ "experiment": "growth", "rows": rows })
}
