//! `buttress stats`: the figures of running mounts and servers.
//!
//! # Invariants
//!
//! - **S1** Scripts get every figure. People get the figures that are not zero, unless they ask for
//!   all ([`tables`]).

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use buttress_watch::openmetrics;
use buttress_watch::tables::{self, ShowOptions};
use serde_json::{Value, json};

use crate::exit::{Exit, Failure, Result};
use crate::live::{self, Answer};
use crate::ui::Ui;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A directory on a mount, an image that is mounted or served, or its cache. The default is all
    /// mounts and servers of this user.
    #[arg(value_name = "PLACE")]
    place: Option<PathBuf>,
    /// Repeat at this interval, and show how fast figures change.
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<f64>,
    /// Show figures that are zero as well. JSON and OpenMetrics always have them.
    #[arg(long, short)]
    all: bool,
    /// Print the figures in the text format of OpenMetrics, which Prometheus reads.
    #[arg(long, conflicts_with = "watch")]
    openmetrics: bool,
}

pub(crate) fn run(args: Args, ui: &Ui) -> Result<Exit> {
    let pause = match args.watch {
        Some(seconds) if !(0.05..=86400.0).contains(&seconds) => {
            return Err(Failure::new(Exit::Usage, "--watch: 0.05 to 86400 seconds"));
        }
        seconds => seconds.map(Duration::from_secs_f64),
    };
    let mut before: Option<(Instant, Vec<Answer>)> = None;
    loop {
        let answers: Vec<Answer> = match &args.place {
            Some(place) => vec![live::must_find(place)?.1],
            None => live::all()?.into_iter().map(|(_, answer)| answer).collect(),
        };
        let now = Instant::now();
        if args.openmetrics {
            ui.line(openmetrics::text(&answers).trim_end())?;
        } else if ui.json() {
            let documents: Vec<Value> = answers.iter().map(document).collect();
            let value = match &args.place {
                Some(_) => documents.into_iter().next().unwrap_or_default(),
                None => Value::Array(documents),
            };
            // With `--watch`, each document is on one line, so that a reader can process the
            // document at once.
            if pause.is_some() { ui.line(value.to_string())? } else { ui.document(&value)? }
        } else {
            let mut text = String::new();
            for answer in &answers {
                let before = before.as_ref().and_then(|(at, all)| {
                    let same = all.iter().find(|earlier| earlier.pid == answer.pid)?;
                    Some((same, now.duration_since(*at).as_secs_f64()))
                });
                tables::show(answer, ShowOptions { before, all: args.all, ui }, &mut text);
            }
            if answers.is_empty() {
                text.push_str("nothing is mounted or served by this user\n");
            }
            if pause.is_some() && std::io::stdout().is_terminal() {
                text.insert_str(0, "\x1b[H\x1b[J");
            }
            ui.line(text.strip_suffix('\n').unwrap_or(&text))?;
        }
        let Some(pause) = pause else { return Ok(Exit::Success) };
        before = Some((now, answers));
        std::thread::sleep(pause);
    }
}

/// Returns the figures for scripts, with one object for each section.
pub(super) fn document(answer: &Answer) -> Value {
    let mut value = json!({ "pid": answer.pid });
    if let (Some(object), Ok(Value::Object(subject))) =
        (value.as_object_mut(), serde_json::to_value(&answer.subject))
    {
        // Leaves out the fields by which Buttress processes distinguish places with equal names.
        let between_us = ["file", "cache_file", "device", "more", "is_shared"];
        object.extend(subject.into_iter().filter(|(name, _)| !between_us.contains(&name.as_str())));
        let sections = answer.sections.iter().map(|section| {
            let figures = section.figures.iter().cloned();
            let figures = match section.name.as_str() {
                live::LIST => Value::Array(figures.map(|(_, figure)| figure).collect()),
                _ => Value::Object(figures.collect()),
            };
            (section.name.clone(), figures)
        });
        object.insert("sections".to_owned(), Value::Object(sections.collect()));
    }
    value
}
