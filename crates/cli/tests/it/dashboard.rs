//! The dashboard for Grafana, against the figures of a mount.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use crate::live::{Mounted, has};

const DASHBOARD: &str = include_str!("../../../../packaging/grafana.json");

/// A query of the dashboard, and the legend of its lines.
type Query = (String, String);

/// A sample: its metric, and its labels with their values.
type Sample = (String, BTreeSet<(String, String)>);

/// All queries below a value.
fn queries(value: &Value, found: &mut Vec<Query>) {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    if let Value::Object(object) = value {
        let query = text(object.get("expr").or(object.get("query")));
        if query.contains("buttress_") {
            found.push((query, text(object.get("legendFormat"))));
        }
        object.values().for_each(|value| queries(value, found));
    }
    value.as_array().into_iter().flatten().for_each(|value| queries(value, found));
}

/// The metrics that a query names, each with the text behind it.
fn metrics(query: &str) -> Vec<(&str, &str)> {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let starts = query.match_indices("buttress_").map(|(at, _)| at);
    let whole = starts.filter(|at| !query[..*at].ends_with(is_inside));
    let metric = |at: usize| {
        let rest = &query[at..];
        rest.split_at(rest.find(|c| !is_inside(c)).unwrap_or(rest.len()))
    };
    whole.map(metric).collect()
}

/// The pairs `NAME="VALUE"` of a list of labels. Those with `=~` have a `~` before the value.
fn labels(list: &str) -> BTreeSet<(String, String)> {
    let pairs = list.split("\",").filter_map(|pair| pair.trim_end_matches('"').split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.replacen('"', "", 1))).collect()
}

fn samples(text: &str) -> Vec<Sample> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (metric, rest) = line.split_once('{').expect("labels");
            let (list, _) = rest.rsplit_once('}').expect("an end of the labels");
            (metric.to_owned(), labels(list))
        })
        .collect()
}

/// What a query asks for and no sample has.
fn lacking((query, legend): &Query, samples: &[Sample]) -> Vec<String> {
    let mut found = Vec::new();
    let within = |text: &str, open: &str, close: &str| -> Vec<String> {
        let parts = text.split(open).skip(1).filter_map(|part| part.split(close).next());
        parts.flat_map(|part| part.split(',')).map(|name| name.trim().to_owned()).collect()
    };
    let mut named = within(query, "by (", ")");
    named.extend(within(legend, "{{", "}}"));
    named.extend(within(query, "label_values(", ")").into_iter().skip(1));
    for (metric, rest) in metrics(query) {
        let of_metric: Vec<_> = samples.iter().filter(|(name, _)| name == metric).collect();
        if of_metric.is_empty() {
            found.push(format!("no metric {metric}"));
        }
        let asked = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
        for (name, value) in asked.map(labels).unwrap_or_default() {
            let is_exact = !value.starts_with('~');
            let is_there = of_metric.iter().any(|(_, labels)| {
                labels.iter().any(|(a, b)| *a == name && (!is_exact || *b == value))
            });
            if !is_there {
                found.push(format!("no {name}={value} of {metric}"));
            }
        }
        for name in &named {
            if !of_metric.iter().any(|(_, labels)| labels.iter().any(|(label, _)| label == name)) {
                found.push(format!("no label {name} of {metric}"));
            }
        }
    }
    found
}

/// Every metric and label of the dashboard is among the figures of a mount that has done some work.
#[test]
fn dashboard_asks_for_figures_that_mounts_have() {
    if !has(&["umount"], Some("/dev/fuse")) {
        return;
    }
    let dashboard: Value = serde_json::from_str(DASHBOARD).expect("it is JSON");
    let mut asked = Vec::new();
    queries(&dashboard, &mut asked);
    assert!(asked.len() >= 20, "{asked:?}");

    let bench = crate::bench();
    bench.volume("image", "300M");
    fs::write(bench.path("before"), "some bytes").expect("it is written");
    // The kernel has no content of this file, so it asks for it.
    bench.ok(&["cp", "before", "image:/before"]);
    let mounted = Mounted::new(&bench, &[]);
    fs::read(bench.path("mnt/before")).expect("it is read");
    let path = bench.path("mnt/file");
    fs::write(&path, vec![7; 1 << 20]).expect("it is written");
    fs::File::open(&path).and_then(|file| file.sync_all()).expect("it is durable");
    let said = bench.ok(&["stats", "--openmetrics"]);
    mounted.end();

    let samples = samples(&said);
    let found: Vec<_> = asked.iter().flat_map(|query| lacking(query, &samples)).collect();
    assert!(found.is_empty(), "{found:#?}\n{said}");
    let gone =
        |query: &str, legend: &str| lacking(&(query.to_owned(), legend.to_owned()), &samples);
    assert_eq!(gone("rate(buttress_no_such{a=~\"b\"}[1m])", "").len(), 2);
    assert_eq!(gone("sum by (moon) (buttress_latency_bytes{kind=\"moon\"})", "").len(), 2);
    assert_eq!(gone("buttress_up{image=~\"x\"}", "{{moon}}"), ["no label moon of buttress_up"]);
}
