//! Bars: what was measured, each with its subjects beside the first one.

use serde_json::{Value, json};

use crate::basics::{LINUX, colour, is_time};

/// The colour of the subject that the others are compared with.
const GREY: i8 = -1;

/// The subjects of an output, each with a colour that it has in all parts.
pub(crate) struct Subjects<'f> {
    /// Linux's btrfs, or else the first subject: what the others are compared with.
    base: &'f str,
    others: Vec<&'f str>,
}

impl<'f> Subjects<'f> {
    pub(crate) fn of(figures: &'f [Value]) -> Self {
        let mut others: Vec<&str> = Vec::new();
        for row in figures {
            if !others.contains(&subject(row)) {
                others.push(subject(row));
            }
        }
        let base = others.iter().find(|name| **name == LINUX).or(others.first());
        let base = base.copied().unwrap_or("?");
        others.retain(|name| *name != base);
        Self { base, others }
    }

    pub(crate) fn colour(&self, name: &str) -> i8 {
        let index = self.others.iter().position(|other| *other == name);
        index.map_or(GREY, colour)
    }
}

/// Bars of one output: figures by what was measured, each with its subjects. Linux's btrfs, or else
/// the first subject, is what the others are compared with.
#[must_use]
pub fn bars(name: &str, figures: &[Value]) -> Value {
    let subjects = Subjects::of(figures);
    let mut rows: Vec<(&str, Vec<&Value>)> = Vec::new();
    for row in figures {
        let what = row["what"].as_str().unwrap_or("?");
        match rows.iter_mut().find(|(found, _)| *found == what) {
            Some((_, list)) => list.push(row),
            None => rows.push((what, vec![row])),
        }
    }
    let drawn: Vec<_> = rows.iter().map(|(what, list)| drawn(what, list, &subjects)).collect();
    let Subjects { base, others } = &subjects;
    let mut legend: Vec<_> =
        others.iter().map(|name| json!([subjects.colour(name), name])).collect();
    if drawn.iter().any(|row| row["base"].is_null()) {
        legend.insert(0, json!([GREY, base]));
    }
    let about = if others.is_empty() {
        "Bars are medians. Points are the runs.".to_owned()
    } else {
        format!(
            "Bars begin at {base}, and the band is the range of its runs: to the right is better."
        )
    };
    json!({
        "kind": "bars", "title": name, "base": base, "about": [about], "legend": legend,
        "rows": drawn,
    })
}

/// One row: a figure of all subjects. If nothing can be compared, all of them have bars.
fn drawn(what: &str, list: &[&Value], subjects: &Subjects<'_>) -> Value {
    let base = subjects.base;
    let unit = list[0]["unit"].as_str().unwrap_or_default();
    let compared = list.iter().find(|row| subject(row) == base);
    let first = compared.and_then(|row| row["median"].as_f64());
    let ratio = |row: &Value| ratio(row, first, unit);
    let others = list.iter().filter(|row| subject(row) != base);
    let has_ratios = others.clone().any(|row| ratio(row).is_some());
    let is_less = others.clone().find_map(|row| is_less(row, first)).unwrap_or(is_time(unit));
    let bar = |row: &Value| {
        let mut bar = runs(row);
        bar["subject"] = json!(subject(row));
        bar["colour"] = json!(subjects.colour(subject(row)));
        bar["ratio"] = json!(ratio(row).filter(|_| has_ratios));
        bar
    };
    let shown = list.iter().filter(|row| !has_ratios || subject(row) != base);
    json!({
        "name": what, "unit": unit, "less": is_less,
        "base": compared.filter(|_| has_ratios).map(|row| runs(row)),
        "bars": shown.map(|row| bar(row)).collect::<Vec<_>>(),
    })
}

fn subject(row: &Value) -> &str {
    let names = ["subject", "target", "place"].map(|name| row[name].as_str());
    names.into_iter().flatten().next().unwrap_or("?")
}

/// How many times better a figure is than the first subject's. Of a unit that is neither a rate nor
/// a time it is not known which is better.
fn ratio(row: &Value, first: Option<f64>, unit: &str) -> Option<f64> {
    let told = ["times_first", "times_btrfs"].map(|name| row[name].as_f64());
    if let Some(told) = told.into_iter().flatten().next() {
        return Some(told);
    }
    let (own, first) = (row["median"].as_f64()?, first?);
    let ratio = if is_time(unit) { first / own } else { own / first };
    let is_known = is_time(unit) || unit.ends_with("/s");
    (is_known && ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// Whether less of a figure is better, by the ratio that the output has.
fn is_less(row: &Value, first: Option<f64>) -> Option<bool> {
    let (own, first) = (row["median"].as_f64()?, first?);
    let told = row["times_first"].as_f64().or_else(|| row["times_btrfs"].as_f64())?;
    Some((told - first / own).abs() < (told - own / first).abs())
}

/// A figure with its runs and their range.
fn runs(row: &Value) -> Value {
    let runs = row["values"].as_array().into_iter().flatten();
    let runs: Vec<f64> = runs.filter_map(Value::as_f64).collect();
    let edge = |name: &str, found: Option<f64>| found.or_else(|| row[name].as_f64());
    json!({
        "median": row["median"], "min": edge("min", runs.iter().copied().reduce(f64::min)),
        "max": edge("max", runs.iter().copied().reduce(f64::max)), "runs": runs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tiles;

    #[test]
    fn an_output_becomes_bars_with_its_runs() {
        let figures = json!([
            { "what": "write", "unit": "MiB/s", "subject": LINUX, "median": 2.0,
              "values": [1.0, 2.0, 3.0], "times_first": 1.0 },
            { "what": "write", "unit": "MiB/s", "subject": "buttress", "median": 8.0,
              "values": [8.0], "times_first": 4.0 },
        ]);
        let part = bars("fsync", figures.as_array().expect("a list"));
        assert_eq!((&part["base"], &part["rows"][0]["base"]["min"]), (&json!(LINUX), &json!(1.0)));
        assert_eq!(part["rows"][0]["bars"][0]["runs"], json!([8.0]));
        let tiles = tiles(&part);
        assert_eq!((tiles.len(), tiles[0]["name"].as_str()), (1, Some("buttress")));
        assert!((tiles[0]["mean"].as_f64().expect("a mean") - 4.0).abs() < 1e-9);
    }

    #[test]
    fn figures_without_ratios_are_compared_where_it_is_known_which_is_better() {
        let figure = |what: &str, unit: &str, place: &str, median: f64| json!({ "what": what, "unit": unit, "place": place, "median": median, "values": [median] });
        let list = [
            figure("open", "ms", "local", 1.0),
            figure("open", "ms", "store", 4.0),
            figure("asked", "requests", "local", 1.0),
            figure("asked", "requests", "store", 9.0),
        ];
        let part = bars("remote", &list);
        let (open, asked) = (&part["rows"][0], &part["rows"][1]);
        assert_eq!((&open["bars"][0]["ratio"], &open["less"]), (&json!(0.25), &json!(true)));
        assert_eq!(asked["bars"].as_array().map(Vec::len), Some(2));
        assert!(asked["bars"][1]["ratio"].is_null() && asked["base"].is_null());
    }

    #[test]
    fn ratio_of_an_output_says_that_less_is_better() {
        let figure = |subject: &str, median: f64, times: f64| {
            json!({ "what": "spread", "unit": "%", "subject": subject, "median": median,
                    "values": [median], "times_first": times })
        };
        let part = bars("x", &[figure("a", 8.0, 1.0), figure("b", 2.0, 4.0)]);
        assert_eq!(part["rows"][0]["less"], json!(true));
    }
}
