//! Figures of several runs, as medians and ratios.

use std::{collections::BTreeMap, fmt};

use serde_json::{Value, json};

use crate::target::Target;

/// Whether more is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Better {
    /// More is better.
    More,
    /// Less is better.
    Less,
}

type Figures = BTreeMap<Target, Vec<f64>>;

/// All figures of a run.
#[derive(Debug, Default)]
pub(crate) struct Report {
    figures: BTreeMap<(String, &'static str, Better), Figures>,
}

pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Report {
    /// Adds one figure of one run.
    pub(crate) fn add(
        &mut self,
        what: &str,
        unit: &'static str,
        better: Better,
        target: Target,
        value: f64,
    ) {
        let figures = self.figures.entry((what.to_string(), unit, better)).or_default();
        figures.entry(target).or_default().push(value);
    }

    /// How many times better than kernel btrfs, if that ran too.
    fn ratio(better: Better, figures: &Figures, own: f64) -> Option<f64> {
        let peer = median(figures.get(&Target::Btrfs)?);
        Some(if better == Better::More { own / peer } else { peer / own })
    }

    /// Everything as JSON.
    pub(crate) fn json(&self) -> Value {
        let mut rows = Vec::new();
        for ((what, unit, better), figures) in &self.figures {
            for (target, values) in figures {
                let own = median(values);
                rows.push(json!({
                    "what": what, "unit": unit, "target": target.to_string(), "median": own,
                    "values": values, "times_btrfs": Self::ratio(*better, figures, own),
                }));
            }
        }
        Value::Array(rows)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((what, unit, better), figures) in &self.figures {
            writeln!(f, "\n{what}, {unit}")?;
            for (target, values) in figures {
                let own = median(values);
                let (low, high) =
                    values.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
                let range = format!("({low:.1} to {high:.1})");
                write!(f, "  {:<18}{own:>12.1}  {range:<26}", target.to_string())?;
                match Self::ratio(*better, figures, own) {
                    Some(ratio) => writeln!(f, "{ratio:>7.2}x kernel btrfs")?,
                    None => writeln!(f)?,
                }
            }
        }
        Ok(())
    }
}
