//! The frame of `buttress-bench`: one published experiment, run by several subjects in turn.
//!
//! # Place
//!
//! An [`Experiment`] knows its job and its subjects. This module runs each subject once, then each
//! again, so that other work of the machine affects all subjects alike. The module reports medians.
//!
//! To add an experiment, implement [`Experiment`], and give it a verb in `command`.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    sync::Arc,
};

use serde_json::{Value, json};

use crate::{
    processors,
    report::median,
    series::{self, Series},
    subject, target,
};

pub use crate::allocate::Allocate;
pub use crate::enospc::Enospc;
pub use crate::nocow::Nocow;
pub use crate::plan::Plan;
pub use crate::read::Read;
pub use crate::report::Better;
pub use crate::subject::{Added, Subject};
pub use buttress_sim::Slowness;

/// One published job.
pub trait Experiment: Send + Sync {
    /// The word on the command line.
    fn name(&self) -> &'static str;

    /// The subjects, in the order of the table. The first subject is the baseline for ratios.
    fn subjects(&self, plan: &Plan) -> Vec<Subject>;

    /// Does the job once. Figures go to `out`.
    ///
    /// # Errors
    ///
    /// The cause of the failure, in words.
    fn run(&self, subject: &Subject, plan: &Plan, out: &mut Table) -> Result<(), String>;

    /// Whether all clocks and threads of the experiment are the engine's, so that [`processors`]
    /// can run it.
    fn runs_on_processors(&self) -> bool {
        false
    }
}

/// Runs an experiment: every subject in turn, `plan.runs` times. `say` gets messages about the
/// progress.
///
/// # Errors
///
/// The first failure, in words.
pub fn run(
    experiment: &Arc<dyn Experiment>,
    plan: &Plan,
    say: &mut dyn FnMut(&str),
) -> Result<Table, String> {
    let mut subjects = experiment.subjects(plan);
    if !plan.only.is_empty() {
        // A word that is the whole name of one subject selects no other subject.
        let names: Vec<_> = subjects.iter().map(|subject| subject.name.clone()).collect();
        let means = |word: &String, name: &String| {
            if names.contains(word) { word == name } else { name.contains(word) }
        };
        subjects.retain(|subject| plan.only.iter().any(|word| means(word, &subject.name)));
    }
    if plan.processors.is_some() {
        if !experiment.runs_on_processors() {
            return Err(format!("{} cannot be run with --processors", experiment.name()));
        }
        subjects.retain(|subject| subject.target.is_library());
    }
    if !target::has_loops() {
        let is_left_out = |subject: &Subject| subject.target.needs_loop();
        let left_out: Vec<_> = subjects.extract_if(.., |subject| is_left_out(subject)).collect();
        let names: Vec<_> = left_out.iter().map(|subject| subject.name.as_str()).collect();
        if !names.is_empty() {
            say(&format!("left out, for want of root or loop devices: {}", names.join(", ")));
        }
    }
    if subjects.is_empty() {
        return Err("none of the subjects has such a name, or what it needs".into());
    }
    subject::add_options(&mut subjects, &plan.options)?;
    let names = subjects.iter().map(|subject| subject.name.clone()).collect();
    let options = subjects.iter().map(|subject| subject.options.clone()).collect();
    let mut table = Table { name: experiment.name(), subjects: names, options, ..Table::default() };
    for run in 0..plan.runs {
        for subject in &subjects {
            say(&format!("run {} of {}: {}", run + 1, plan.runs, subject.name));
            let done = match plan.processors {
                None => experiment.run(subject, plan, &mut table),
                Some(count) => {
                    let (experiment, subject) = (Arc::clone(experiment), subject.clone());
                    let (plan, mut own) = (plan.clone(), std::mem::take(&mut table));
                    processors::run(count, move || {
                        experiment.run(&subject, &plan, &mut own)?;
                        Ok(own)
                    })
                    .map(|(own, waited)| {
                        table = own;
                        waited.iter().for_each(|line| say(line));
                    })
                }
            };
            done.map_err(|error| format!("{}: {error}", subject.name))?;
        }
    }
    Ok(table)
}

/// Figures of several runs, by figure and by subject.
#[derive(Debug, Default)]
pub struct Table {
    name: &'static str,
    subjects: Vec<String>,
    /// Mount options of each subject.
    options: Vec<String>,
    figures: BTreeMap<(String, String), Vec<f64>>,
    order: Vec<(String, &'static str, Better)>,
    series: Vec<Series>,
}

impl Table {
    /// Adds one figure of one run.
    pub fn add(
        &mut self,
        what: &str,
        unit: &'static str,
        better: Better,
        subject: &Subject,
        value: f64,
    ) {
        if !self.order.iter().any(|(known, ..)| known == what) {
            self.order.push((what.to_string(), unit, better));
        }
        let key = (what.to_string(), subject.name.clone());
        self.figures.entry(key).or_default().push(value);
    }

    /// Adds the rate of a subject over time, with a sample every `step` seconds. The series of the
    /// last run is drawn.
    pub fn add_series(
        &mut self,
        what: &str,
        unit: &'static str,
        subject: &Subject,
        step: f64,
        values: Vec<f64>,
    ) {
        let (what, subject) = (what.to_string(), subject.name.clone());
        self.series.retain(|known| known.what != what || known.subject != subject);
        self.series.push(Series { what, unit, subject, step, values });
    }

    fn values(&self, what: &str, subject: &str) -> &[f64] {
        self.figures.get(&(what.to_string(), subject.to_string())).map_or(&[], Vec::as_slice)
    }

    /// How many times better than the first subject.
    fn ratio(&self, what: &str, better: Better, subject: &str) -> Option<f64> {
        let base = self.values(what, self.subjects.first()?);
        if base.is_empty() {
            return None;
        }
        let (own, base) = (median(self.values(what, subject)), median(base));
        if own == 0.0 || base == 0.0 {
            return None;
        }
        Some(if better == Better::More { own / base } else { base / own })
    }

    /// The subjects that have mount options, with the options.
    fn options(&self) -> impl Iterator<Item = (&String, &String)> {
        self.subjects.iter().zip(&self.options).filter(|(_, options)| !options.is_empty())
    }

    /// Everything as JSON: one row for each figure and subject.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut rows = Vec::new();
        for (what, unit, better) in &self.order {
            for subject in &self.subjects {
                let values = self.values(what, subject);
                if !values.is_empty() {
                    rows.push(json!({
                        "what": what, "unit": unit, "subject": subject, "median": median(values),
                        "values": values, "times_first": self.ratio(what, *better, subject),
                    }));
                }
            }
        }
        let row = |one: &Series| {
            json!({
                "what": one.what, "unit": one.unit, "subject": one.subject,
                "step_seconds": one.step, "values": one.values,
            })
        };
        let series: Vec<_> = self.series.iter().map(row).collect();
        let options: BTreeMap<_, _> = self.options().collect();
        json!({ "experiment": self.name, "options": options, "figures": rows, "series": series })
    }

    /// Bars of the medians, with lines from the smallest to the largest, as an SVG document.
    #[must_use]
    pub fn svg(&self) -> String {
        const ROW: usize = 22;
        let rows: usize = self.order.len() * (self.subjects.len() + 2);
        let mut out = String::new();
        // Writing into a string cannot fail.
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"760\" height=\"{}\" \
             font-family=\"sans-serif\" font-size=\"12\">",
            (rows * ROW + 10) as f64 + self.series.len() as f64 * series::PITCH
        );
        let mut y = 16;
        for (what, unit, _) in &self.order {
            let _ = writeln!(
                out,
                "<text x=\"6\" y=\"{y}\" font-weight=\"bold\">{}</text>",
                escape(&format!("{what}, {unit}"))
            );
            let all = self.subjects.iter().flat_map(|subject| self.values(what, subject));
            let most = all.copied().fold(f64::MIN_POSITIVE, f64::max);
            let x = |value: f64| 230.0 + 430.0 * value / most;
            for subject in &self.subjects {
                let values = self.values(what, subject);
                if values.is_empty() {
                    continue;
                }
                y += ROW;
                let own = median(values);
                let (low, high) = ends(values);
                let _ = writeln!(
                    out,
                    "<text x=\"222\" y=\"{y}\" text-anchor=\"end\">{}</text>\
                     <rect x=\"230\" y=\"{}\" width=\"{:.1}\" height=\"14\" fill=\"#4a7ab5\"/>\
                     <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{}\" y2=\"{}\" stroke=\"#222\"/>\
                     <text x=\"{:.1}\" y=\"{y}\">{own:.1}</text>",
                    escape(subject),
                    y - 11,
                    x(own) - 230.0,
                    x(low),
                    x(high),
                    y - 4,
                    y - 4,
                    x(high) + 6.0,
                );
            }
            y += 2 * ROW;
        }
        for (index, one) in self.series.iter().enumerate() {
            // One scale for all subjects of the same job.
            let alike = self.series.iter().filter(|other| other.what == one.what);
            let most = alike.flat_map(|other| &other.values).copied().fold(0.0, f64::max);
            let name = escape(&format!("{}, {}: {}", one.what, one.unit, one.subject));
            series::draw(&mut out, one, y as f64 + index as f64 * series::PITCH, most, &name);
        }
        out.push_str("</svg>\n");
        out
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn ends(values: &[f64]) -> (f64, f64) {
    values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)))
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, unit, better) in &self.order {
            writeln!(f, "\n{what}, {unit}")?;
            for subject in &self.subjects {
                let values = self.values(what, subject);
                if values.is_empty() {
                    continue;
                }
                let (low, high) = ends(values);
                // For a fraction, such as a variation, one decimal place is too few.
                let places = if high < 10.0 { 2 } else { 1 };
                let range = format!("({low:.places$} to {high:.places$})");
                write!(f, "  {subject:<34}{:>12.places$}  {range:<28}", median(values))?;
                match self.ratio(what, *better, subject) {
                    Some(ratio) => writeln!(f, "{ratio:>8.2}x")?,
                    None => writeln!(f)?,
                }
            }
        }
        for one in self.series.iter().filter(|one| one.lasts_a_second()) {
            writeln!(f, "\n{}", one.by_the_second())?;
        }
        if self.options().next().is_some() {
            writeln!(f, "\nmount options")?;
        }
        for (subject, options) in self.options() {
            writeln!(f, "  {subject:<34}{options}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::Target;

    struct Count;

    impl Experiment for Count {
        fn name(&self) -> &'static str {
            "count"
        }

        fn subjects(&self, _: &Plan) -> Vec<Subject> {
            let subject = |name, options| Subject::new(name, Target::Library, options);
            vec![subject("slow", ""), subject("fast", "alloc=linear")]
        }

        fn run(&self, subject: &Subject, _: &Plan, out: &mut Table) -> Result<(), String> {
            let rate = if subject.name == "fast" { 6.0 } else { 2.0 };
            out.add("rate", "1/s", Better::More, subject, rate);
            out.add("wait", "ms", Better::Less, subject, 1.0 / rate);
            out.add_series("rate over time", "1/s", subject, 0.5, vec![rate, 0.0, rate]);
            Ok(())
        }
    }

    /// All subjects run equally often. Ratios compare with the first subject, whether more or less
    /// is better.
    #[test]
    fn subjects_take_turns() {
        let plan = Plan {
            dir: PathBuf::new(),
            runs: 3,
            scale: 1.0,
            only: Vec::new(),
            mount: false,
            options: vec![Added { option: "commit=9".to_owned(), is_for_mounts: false }],
            prefault: false,
            processors: None,
        };
        let mut said = Vec::new();
        let count: Arc<dyn Experiment> = Arc::new(Count);
        let table = run(&count, &plan, &mut |text| said.push(text.to_string())).expect("runs");
        assert_eq!(said[1], "run 1 of 3: fast");
        assert_eq!(said.len(), 6);
        assert_eq!(table.values("rate", "fast"), [6.0; 3]);
        assert_eq!(table.ratio("wait", Better::Less, "fast"), Some(3.0));
        assert_eq!(table.json()["figures"][1]["times_first"], 3.0);
        let options = json!({ "slow": "commit=9", "fast": "alloc=linear,commit=9" });
        assert_eq!(table.json()["options"], options);
        assert!(table.to_string().contains("alloc=linear,commit=9\n"));
        assert!(table.to_string().contains("3.00x"));
        assert!(table.to_string().contains("fast, second by second: 3 6\n"), "{table}");
        assert_eq!(table.json()["series"].as_array().map(Vec::len), Some(2), "the last run's");
        assert_eq!(table.svg().matches("<polyline").count(), 2);
        assert!(table.svg().ends_with("</svg>\n"));
        let only = vec!["slow".to_string(), "as".to_string()];
        let table = run(&count, &Plan { only, ..plan.clone() }, &mut |_| ()).expect("runs");
        assert_eq!(table.subjects, ["slow", "fast"]);
    }
}
