//! Figures of everyday loads as a table, and as JSON.
//!
//! # What must hold
//!
//! - A ratio above one means better, for rates and for times.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use super::loads::Load;
use super::server::Spent;
use super::{BEFORE, Figure, Figures};
use crate::report::{Better, median};

impl Figures {
    fn of(&self, load: &Load, subject: &str) -> &[Figure] {
        self.seen.get(&(load.name, subject.to_owned())).map_or(&[], Vec::as_slice)
    }

    /// The median of the results of a load: a rate, or seconds.
    fn median(&self, load: &Load, subject: &str) -> Option<f64> {
        let values: Vec<f64> = self.of(load, subject).iter().map(|one| value(load, one)).collect();
        (!values.is_empty()).then(|| median(&values))
    }

    /// How many times better than another subject.
    fn ratio(&self, load: &Load, subject: &str, other: &str) -> Option<f64> {
        let (own, other) = (self.median(load, subject)?, self.median(load, other)?);
        Some(if load.better == Better::More { own / other } else { other / own })
    }

    /// The costs of a server, in the run with the median of its processor time.
    fn spent(&self, load: &Load, subject: &str) -> Option<Spent> {
        let mut all: Vec<_> =
            self.of(load, subject).iter().filter_map(|one| one.server.clone()).collect();
        all.sort_by_key(|spent| spent.time);
        let middle = all.len() / 2;
        (!all.is_empty()).then(|| all.swap_remove(middle))
    }

    fn programs(&self, load: &Load, subject: &str) -> Option<Duration> {
        let mut all: Vec<_> = self.of(load, subject).iter().map(|one| one.programs).collect();
        all.sort();
        all.get(all.len() / 2).copied()
    }
}

fn value(load: &Load, figure: &Figure) -> f64 {
    let seconds = figure.took.as_secs_f64();
    if load.better == Better::More { load.count as f64 / seconds } else { seconds }
}

fn unit(load: &Load) -> &'static str {
    if load.better == Better::More { "1/s" } else { "s" }
}

/// The empty server on the transport of a subject.
fn floor_of(subject: &str) -> String {
    subject.trim_start_matches(BEFORE).replace("buttress mount", "empty server")
}

/// Everything as JSON: one row for each load and subject.
pub(super) fn json(figures: &Figures) -> Value {
    let mut rows = Vec::new();
    for load in &figures.loads {
        for subject in &figures.subjects {
            let Some(own) = figures.median(load, subject) else { continue };
            let all = figures.of(load, subject).iter();
            let values: Vec<f64> = all.map(|one| value(load, one)).collect();
            let first = &figures.subjects[0];
            let floor = floor_of(subject);
            let spent = figures.spent(load, subject);
            rows.push(json!({
                "what": load.name, "unit": unit(load), "subject": subject, "median": own,
                "values": values, "count": load.count, "each": load.each,
                "times_first": figures.ratio(load, subject, first),
                "times_empty": (&floor != subject).then(|| figures.ratio(load, subject, &floor)),
                "programs_seconds": figures.programs(load, subject).map(|time| time.as_secs_f64()),
                "server_seconds": spent.as_ref().map(|spent| spent.time.as_secs_f64()),
                "server_sleeps": spent.as_ref().map(|spent| spent.sleeps),
                "requests": spent.as_ref().map(|spent| &spent.requests),
                "awaited": spent.as_ref().map(Spent::awaited),
            }));
        }
    }
    json!({ "experiment": "mount", "figures": rows })
}

/// All results as text: figures, then requests.
pub(super) fn text(figures: &Figures) -> String {
    let mut out = String::new();
    for load in &figures.loads {
        // Writing into a string cannot fail.
        let _ = writeln!(out, "\n{}, {}", load.name, unit(load));
        for subject in &figures.subjects {
            let Some(own) = figures.median(load, subject) else { continue };
            let all = figures.of(load, subject).iter().map(|one| value(load, one));
            let (low, high) = all.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
            let places = if high < 100.0 { 2 } else { 0 };
            let range = format!("({low:.places$} to {high:.places$})");
            let _ = write!(out, "  {subject:<28}{own:>10.places$}  {range:<22}");
            if let Some(ratio) = figures.ratio(load, subject, &figures.subjects[0]) {
                let _ = write!(out, "{ratio:>7.2}x");
            }
            let floor = floor_of(subject);
            if &floor != subject
                && let Some(ratio) = figures.ratio(load, subject, &floor)
            {
                let _ = write!(out, ", {ratio:.2}x empty");
            }
            let each = |time: Duration| time.as_secs_f64() * 1e6 / load.count as f64;
            let programs = figures.programs(load, subject).map(each).unwrap_or_default();
            let _ = write!(out, "  programs {programs:.1} us");
            if let Some(spent) = figures.spent(load, subject) {
                let sleeps = spent.sleeps as f64 / load.count as f64;
                let _ = write!(out, ", server {:.1} us, {sleeps:.2} sleeps", each(spent.time));
            }
            out.push('\n');
        }
        let _ = write!(out, "{}", requests(figures, load));
    }
    out
}

/// Requests of one unit of a load, by kind. Servers on one transport get the same requests.
fn requests(figures: &Figures, load: &Load) -> String {
    let mut out = String::new();
    for subject in figures.subjects.iter().filter(|name| name.starts_with("buttress")) {
        let Some(spent) = figures.spent(load, subject) else { continue };
        let each = |count: u64| count as f64 / load.count as f64;
        let mut kinds: Vec<_> = spent.requests.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds = kinds.into_iter().filter(|(_, count)| each(**count) >= 0.005);
        let kinds: Vec<_> =
            kinds.map(|(name, count)| format!("{name} {:.2}", each(*count))).collect();
        let all: u64 = spent.requests.values().sum();
        // Writing into a string cannot fail.
        let _ = writeln!(
            out,
            "  requests of a {}, {subject}: {:.2}, awaited {:.2}: {}",
            load.each,
            each(all),
            each(spent.awaited()),
            kinds.join(", ")
        );
    }
    out
}
