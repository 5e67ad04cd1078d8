//! Curves: rates over time, and costs over a size. Charts of one group share the axis below, so
//! the pointer shows the same moment in all of them.

use serde_json::{Map, Value, json};

use crate::bars::Subjects;
use crate::basics::{colour, short};

/// Rates over time, with a group of charts for each rate. `None` without any.
pub(crate) fn over_time(series: &[Value], subjects: &Subjects<'_>) -> Option<Value> {
    let mut groups: Vec<(&Value, Vec<Value>)> = Vec::new();
    for one in series {
        let values: Vec<_> = one["values"].as_array().into_iter().flatten().map(number).collect();
        let step = one["step_seconds"].as_f64().unwrap_or(1.0);
        let chart = json!({
            "name": one["subject"], "unit": one["unit"], "values": values,
            "colour": subjects.colour(one["subject"].as_str().unwrap_or_default()),
            "x": (0..values.len()).map(|at| short(at as f64 * step)).collect::<Vec<_>>(),
        });
        match groups.iter_mut().find(|(what, _)| **what == one["what"]) {
            Some((_, charts)) => charts.push(chart),
            None => groups.push((&one["what"], vec![chart])),
        }
    }
    let groups: Vec<_> = groups
        .into_iter()
        .map(
            |(what, charts)| json!({ "name": what, "charts": charts, "below": "s", "alike": true }),
        )
        .collect();
    let about = "Each chart is the last run of a subject. Charts of a row share both scales. The \
                 dashed line is the mean.";
    (!groups.is_empty()).then(|| {
        json!({ "kind": "curves", "title": "Over time", "about": [about], "legend": [],
                "groups": groups })
    })
}

/// Costs by the number of block groups, from the rows of `scale`.
pub(crate) fn by_groups(rows: &[Value]) -> Value {
    let all = Map::new();
    let first = rows.first().and_then(Value::as_object).unwrap_or(&all);
    let names = first.keys().filter(|name| *name != "groups");
    let x: Vec<_> = rows.iter().map(|row| number(&row["groups"])).collect();
    let charts = names.enumerate().map(|(at, name)| {
        let (shown, unit, times) = match name.strip_suffix("_seconds") {
            Some(what) => (what, "ms", 1e3),
            None => (name.as_str(), "", 1.0),
        };
        let values = rows.iter().map(|row| short(row[name].as_f64().unwrap_or(0.0) * times));
        json!({
            "name": shown.replace('_', " "), "unit": unit, "colour": colour(at), "x": x,
            "values": values.collect::<Vec<_>>(),
        })
    });
    let charts: Vec<_> = charts.collect();
    let group = json!({
        "name": "by the number of block groups", "charts": charts, "below": "block groups",
        "alike": false, "log": true,
    });
    json!({
        "kind": "curves", "title": "Costs of many block groups", "legend": [], "groups": [group],
        "about": ["A level line is a cost that does not grow. The axis of block groups is \
                   logarithmic."],
    })
}

/// A chart of one figure over another, with a group of its own.
pub(crate) fn scaling(name: &str, unit: &str, below: &str, points: &[(f64, f64)]) -> Value {
    let (x, values): (Vec<_>, Vec<_>) = points.iter().map(|(x, y)| (short(*x), short(*y))).unzip();
    let chart = json!({ "name": name, "unit": unit, "colour": 0, "x": x, "values": values });
    let group = json!({ "name": "", "charts": [chart], "below": below, "alike": true });
    json!({ "kind": "curves", "title": name, "about": [], "legend": [], "groups": [group] })
}

fn number(value: &Value) -> f64 {
    short(value.as_f64().unwrap_or(0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_of_one_rate_stand_side_by_side() {
        let series = |what: &str, subject: &str| {
            json!({ "what": what, "unit": "1/s", "subject": subject, "step_seconds": 0.5,
                    "values": [1.0, 2.0, 3.0] })
        };
        let list = [series("small", "a"), series("small", "b"), series("large", "b")];
        let figures = [json!({ "subject": "a" }), json!({ "subject": "b" })];
        let subjects = Subjects::of(&figures);
        let part = over_time(&list, &subjects).expect("a part");
        let charts = |at: usize| part["groups"][at]["charts"].as_array().expect("charts").clone();
        assert_eq!((charts(0).len(), charts(1).len()), (2, 1));
        assert_eq!(charts(0)[1]["x"], json!([0.0, 0.5, 1.0]));
        assert_eq!(charts(0)[1]["colour"], charts(1)[0]["colour"], "a subject keeps its colour");
        assert!(over_time(&[], &subjects).is_none());
    }
}
