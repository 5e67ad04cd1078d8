//! Figures of mounts and servers in the text form of OpenMetrics, which Prometheus reads.
//!
//! # Invariants
//!
//! - **O1** The samples of a metric follow its `TYPE` line directly, with no other metric between
//!   them.
//! - **O2** The name of a metric has only letters, digits and `_`. The value of a label may be any
//!   text, escaped.
//!
//! The figure `name` of a section is the metric `buttress_SECTION_name`. If a figure is an object,
//! its name becomes the label `kind`, and each of its parts is a metric. Times of waits are a
//! histogram.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use buttress_control::live::{Answer, LIST, Section};

/// The section that holds the histogram: an object for each bucket.
const HISTOGRAM: &str = "wait_times";
/// The media type of the text.
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Samples by metric, in the order of names.
#[derive(Default)]
struct Metrics {
    samples: BTreeMap<String, Vec<String>>,
    /// The metrics that are histograms. All others have the type `unknown`, because a name does not
    /// say whether a figure is a counter.
    histograms: Vec<String>,
}

/// Returns the text for all answers.
pub fn text(answers: &[Answer]) -> String {
    let mut metrics = Metrics::default();
    for answer in answers {
        let labels = labels(answer);
        metrics.add("buttress_up", &labels, "1");
        for section in &answer.sections {
            match section.name.as_str() {
                HISTOGRAM => metrics.histogram(section, &labels),
                // Each request would be a metric of its own.
                LIST => {}
                _ => metrics.section(section, &labels),
            }
        }
    }
    metrics.text()
}

/// The labels that all samples of a mount or server have.
fn labels(answer: &Answer) -> String {
    let subject = &answer.subject;
    let mut labels = format!("image=\"{}\"", escaped(&subject.image.display().to_string()));
    if let Some(target) = &subject.target {
        let _ = write!(labels, ",target=\"{}\"", escaped(&target.display().to_string()));
    }
    labels
}

impl Metrics {
    fn add(&mut self, metric: &str, labels: &str, value: &str) {
        let line = format!("{metric}{{{labels}}} {value}");
        self.samples.entry(metric.to_owned()).or_default().push(line);
    }

    fn section(&mut self, section: &Section, labels: &str) {
        for (name, value) in &section.figures {
            let metric = format!("buttress_{}_{}", word(&section.name), word(name));
            if let Some(number) = number(value) {
                self.add(&metric, labels, &number);
            } else if let Some(parts) = value.as_object() {
                let labels = format!("{labels},kind=\"{}\"", escaped(name));
                for (part, value) in parts {
                    let metric = format!("buttress_{}_{}", word(&section.name), word(part));
                    if let Some(number) = number(value) {
                        self.add(&metric, &labels, &number);
                    }
                }
            }
        }
    }

    /// Adds the figures of `wait_times`: the number of waits below each limit in microseconds.
    fn histogram(&mut self, section: &Section, labels: &str) {
        let metric = "buttress_wait_seconds";
        let mut buckets: Vec<(f64, &Value)> = Vec::new();
        for (name, value) in &section.figures {
            let limit = name.strip_prefix("below_").and_then(|limit| limit.strip_suffix("us"));
            let limit = limit.and_then(|limit| limit.parse::<f64>().ok());
            buckets.push((limit.map_or(f64::INFINITY, |us| us / 1e6), value));
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let kinds = buckets.first().and_then(|(_, value)| value.as_object());
        for kind in kinds.into_iter().flat_map(serde_json::Map::keys) {
            let mut sum = 0;
            for (limit, counts) in &buckets {
                sum += counts.get(kind).and_then(Value::as_u64).unwrap_or(0);
                let limit = if limit.is_finite() { limit.to_string() } else { "+Inf".to_owned() };
                let labels = format!("{labels},kind=\"{}\",le=\"{limit}\"", escaped(kind));
                let line = format!("{metric}_bucket{{{labels}}} {sum}");
                self.samples.entry(metric.to_owned()).or_default().push(line);
            }
        }
        if !self.histograms.iter().any(|known| known == metric) {
            self.histograms.push(metric.to_owned());
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (metric, samples) in &self.samples {
            let is_histogram = self.histograms.contains(metric);
            let kind = if is_histogram { "histogram" } else { "unknown" };
            let _ = writeln!(text, "# TYPE {metric} {kind}");
            for line in samples {
                let _ = writeln!(text, "{line}");
            }
        }
        text.push_str("# EOF\n");
        text
    }
}

fn number(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(is) => Some(u8::from(*is).to_string()),
        _ => None,
    }
}

/// A part of a metric's name (O2).
fn word(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

/// A label's value (O2).
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use buttress_control::live::Subject;

    fn answer(image: &str) -> Answer {
        let bucket = |count: u64| json!({ "data_all": count });
        let section = |name: &str, figures: Vec<(&str, Value)>| Section {
            name: name.to_owned(),
            figures: figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        };
        Answer {
            pid: 1,
            subject: Subject { image: image.into(), ..Subject::default() },
            is_closing: false,
            sections: vec![
                section("space", vec![("used_bytes", json!(7)), ("known", json!(true))]),
                section("waits", vec![("data_all", json!({ "times": 3 }))]),
                section("waiters", vec![("0", json!({ "since_ms": 3 }))]),
                section(
                    "wait_times",
                    vec![("longer", bucket(1)), ("below_2us", bucket(4)), ("below_1us", bucket(2))],
                ),
            ],
        }
    }

    #[test]
    fn metrics_are_grouped_and_escaped() {
        let text = text(&[answer("a\"b"), answer("c")]);
        let expected = "\
# TYPE buttress_space_known unknown
buttress_space_known{image=\"a\\\"b\"} 1
buttress_space_known{image=\"c\"} 1
# TYPE buttress_space_used_bytes unknown
buttress_space_used_bytes{image=\"a\\\"b\"} 7
buttress_space_used_bytes{image=\"c\"} 7
# TYPE buttress_up unknown
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("buttress_waits_times{image=\"c\",kind=\"data_all\"} 3\n"));
        assert!(!text.contains("since_ms"), "{text}");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn waits_are_a_histogram_with_growing_buckets() {
        let text = text(&[answer("c")]);
        let expected = "\
# TYPE buttress_wait_seconds histogram
buttress_wait_seconds_bucket{image=\"c\",kind=\"data_all\",le=\"0.000001\"} 2
buttress_wait_seconds_bucket{image=\"c\",kind=\"data_all\",le=\"0.000002\"} 6
buttress_wait_seconds_bucket{image=\"c\",kind=\"data_all\",le=\"+Inf\"} 7
";
        assert!(text.contains(expected), "{text}");
    }
}
