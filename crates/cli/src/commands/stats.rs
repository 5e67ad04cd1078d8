//! `buttress stats`: figures of running mounts and servers.
//!
//! # Invariants
//!
//! - **S1** Scripts get every figure. The text for people leaves out objects of zeroes alone, and
//!   headings without figures.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::exit::{Exit, Failure, Result};
use crate::live::{self, Answer, Section};
use crate::openmetrics;
use crate::size;
use crate::ui::{Tone, Ui};

/// The name of the count in an object of figures.
const TIMES: &str = "times";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A mounted directory, an image that is mounted or served, or its cache; all of this user
    /// unless given.
    #[arg(value_name = "PLACE")]
    place: Option<PathBuf>,
    /// Ask again and again, and show how fast the figures change.
    #[arg(long, short, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<f64>,
    /// Print the text form of OpenMetrics, which Prometheus reads.
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
            // One line for each time, so that a script can read along.
            if pause.is_some() { ui.line(value.to_string())? } else { ui.document(&value)? }
        } else {
            let mut text = String::new();
            for answer in &answers {
                let earlier = before.as_ref().and_then(|(at, all)| {
                    let same = all.iter().find(|earlier| earlier.pid == answer.pid)?;
                    Some((same, now.duration_since(*at).as_secs_f64()))
                });
                show(answer, earlier, ui, &mut text);
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

/// Returns the JSON document for scripts, with one object for each section.
fn document(answer: &Answer) -> Value {
    let mut value = json!({ "pid": answer.pid });
    if let (Some(object), Ok(Value::Object(subject))) =
        (value.as_object_mut(), serde_json::to_value(&answer.subject))
    {
        // These fields tell a place apart from another one of the same name. They are internal.
        let between_us = ["file", "cache_file", "device", "more", "is_shared"];
        object.extend(subject.into_iter().filter(|(name, _)| !between_us.contains(&name.as_str())));
        let sections = answer.sections.iter().map(|section| {
            let figures: Map<String, Value> = section.figures.iter().cloned().collect();
            (section.name.clone(), Value::Object(figures))
        });
        object.insert("sections".to_owned(), Value::Object(sections.collect()));
    }
    value
}

/// Appends the text for people. Writing into a string cannot fail.
fn show(answer: &Answer, before: Option<(&Answer, f64)>, ui: &Ui, text: &mut String) {
    let subject = &answer.subject;
    let mut head = subject.image.display().to_string();
    if let Some(target) = &subject.target {
        let _ = write!(head, " on {}", target.display());
    }
    for uri in &subject.uris {
        let _ = write!(head, " at {uri}");
    }
    let _ = writeln!(text, "{} (process {})", ui.tint(Tone::Heading, &head), answer.pid);
    if let Some(cache) = &subject.cache {
        let _ = writeln!(text, "  cached by {}", cache.display());
    }
    for section in &answer.sections {
        if section.figures.iter().all(|(_, value)| is_empty(value)) {
            continue;
        }
        let heading = section.name.replace('_', " ");
        let _ = writeln!(text, "  {}", ui.tint(Tone::Heading, &heading));
        let earlier = before.and_then(|(answer, seconds)| {
            let same = answer.sections.iter().find(|earlier| earlier.name == section.name)?;
            Some((same, seconds))
        });
        for (name, value) in section.figures.iter().filter(|(_, value)| !is_empty(value)) {
            let rate = earlier.and_then(|(section, seconds)| rate(section, name, value, seconds));
            let rate = rate.map(|rate| ui.tint(Tone::Dim, &rate)).unwrap_or_default();
            let label = name.replace('_', " ");
            let line = format!("    {label:<20} {:<16} {rate}", shown(name, value));
            let _ = writeln!(text, "{}", line.trim_end());
        }
    }
}

/// Returns whether a figure is an object of zeroes alone (S1).
fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(|parts| parts.values().all(|part| part.as_f64() == Some(0.0)))
}

fn is_bytes(name: &str) -> bool {
    name.ends_with("bytes")
}

fn shown(name: &str, value: &Value) -> String {
    match value {
        Value::Number(number) => match number.as_u64() {
            Some(bytes) if is_bytes(name) => size::human(bytes),
            Some(number) => number.to_string(),
            None => {
                number.as_f64().map_or_else(|| number.to_string(), |float| format!("{float:.1}"))
            }
        },
        Value::String(text) => text.clone(),
        Value::Object(parts) => in_a_line(parts),
        other => other.to_string(),
    }
}

/// Returns one line with the count of an object, followed by its parts that are not zero.
fn in_a_line(parts: &Map<String, Value>) -> String {
    let times = parts.get(TIMES).map(|times| format!("{times} {TIMES}"));
    let others = parts.iter().filter(|(name, value)| *name != TIMES && value.as_u64() != Some(0));
    let others = others.map(|(name, value)| {
        let value = shown(name, value);
        match name.strip_suffix("_us") {
            Some(name) => format!("{} {value}us", name.replace('_', " ")),
            None if name == "bytes" => value,
            None => format!("{} {value}", name.trim_end_matches("_bytes").replace('_', " ")),
        }
    });
    times.into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

/// Returns the rate at which a whole number changes, if it does. For an object it is the rate of
/// its count.
fn rate(before: &Section, name: &str, value: &Value, seconds: f64) -> Option<String> {
    let (_, earlier) = before.figures.iter().find(|(earlier, _)| earlier == name)?;
    let count = |value: &Value| value.get(TIMES).unwrap_or(value).as_u64();
    let (earlier, now) = (count(earlier)?, count(value)?);
    if earlier == now || seconds <= 0.0 {
        return None;
    }
    let each = (now.abs_diff(earlier) as f64 / seconds).round() as u64;
    let each = if is_bytes(name) { size::human(each) } else { each.to_string() };
    let sign = if now > earlier { '+' } else { '-' };
    Some(format!("{sign}{each}/s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes in units, numbers that change with their speed, words as they are.
    #[test]
    fn figures_are_shown_with_their_speed() {
        let section = |free: u64| Section {
            name: "cache".to_owned(),
            figures: vec![
                ("free_bytes".to_owned(), json!(free)),
                ("origin_alone".to_owned(), json!("whole")),
            ],
        };
        let (before, now) = (section(4096), section(2048));
        let speed = rate(&before, "free_bytes", &now.figures[0].1, 2.0);
        assert_eq!(speed.as_deref(), Some("-1.00KiB/s"));
        assert_eq!(rate(&before, "origin_alone", &now.figures[1].1, 2.0), None);
        assert_eq!(shown("free_bytes", &now.figures[0].1), "2.00KiB");
        assert_eq!(shown("origin_alone", &now.figures[1].1), "whole");
    }

    /// Each object is one line that begins with its count. Parts that are zero are left out.
    #[test]
    fn objects_are_shown_in_a_line() {
        let row = |times: u64| json!({ "times": times, "gained": 0, "forecast_bytes": 4096, "bytes": 512, "max_us": 7 });
        let line = "3 times, 512.00B, forecast 4.00KiB, max 7us";
        assert_eq!(shown("metadata_commit", &row(3)), line);
        let section = |times| Section {
            name: "flush_steps".to_owned(),
            figures: vec![("metadata_commit".to_owned(), row(times))],
        };
        let speed = rate(&section(3), "metadata_commit", &row(9), 2.0);
        assert_eq!(speed.as_deref(), Some("+3/s"));
        assert!(is_empty(&json!({ "times": 0, "max_us": 0 })) && is_empty(&json!({})));
        assert!(!is_empty(&json!(0)) && !is_empty(&row(0)));
    }
}
