//! Figures of `buttress-bench` as a page to look at: subjects side by side, with the range of their
//! runs, and rates over time.
//!
//! # What must hold
//!
//! - The page is one file and loads nothing from the network. Names are in it as data, never as
//!   markup.
//! - The page has only figures that it was given.
//!
//! A page has parts. A part is a JSON object that the script of the page draws, by its `kind`.

mod bars;
mod basics;
mod curves;
mod others;

use std::collections::BTreeMap;

use serde_json::{Value, json};

pub use bars::bars;
pub use basics::{LINUX, is_time};
pub use others::{growing, positions};

/// The page around the data. Its script draws.
const PAGE: &str = include_str!("page.html");

/// The parts of an output of `buttress-bench --json`. `None` if it has nothing to draw. An output
/// without a name of its own gets `name`.
#[must_use]
pub fn parts(name: &str, output: &Value) -> Option<Vec<Value>> {
    let name = output["experiment"].as_str().unwrap_or(name);
    if let Some(rows) = output["rows"].as_array() {
        let is_growth = rows.iter().all(|row| row["case"].is_string());
        return Some(vec![if is_growth { growing(rows) } else { curves::by_groups(rows) }]);
    }
    if let Some(policies) = output["policies"].as_array() {
        return Some(vec![bars("Orders of write-back", &others::of_policies(policies))]);
    }
    if output["idle_us"].is_object() {
        return Some(others::of_foreground(output));
    }
    let list = output.as_array().or_else(|| output["figures"].as_array())?;
    let subjects = bars::Subjects::of(list);
    let series = output["series"].as_array().map_or(&[][..], Vec::as_slice);
    let mut parts = vec![bars(name, list)];
    parts.extend(curves::over_time(series, &subjects));
    Some(parts)
}

/// The page of some parts, with a title and sentences about it.
#[must_use]
pub fn page(title: &str, about: &[String], parts: &[Value]) -> String {
    let tiles: Vec<_> = parts.iter().flat_map(tiles).collect();
    let data = json!({ "title": title, "about": about, "tiles": tiles, "parts": parts });
    // A `</script>` in the data would end the script element, so the data must not contain `<`.
    let data = data.to_string().replace('<', "\\u003c");
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    PAGE.replace("{{title}}", &title).replace("{{data}}", &data)
}

/// The geometric means of the ratios of a part, for each subject that has ratios.
fn tiles(part: &Value) -> Vec<Value> {
    let mut ratios: BTreeMap<(i64, String), Vec<f64>> = BTreeMap::new();
    let rows = part["rows"].as_array().into_iter().flatten();
    for bar in rows.flat_map(|row| row["bars"].as_array().into_iter().flatten()) {
        let subject = bar["subject"].as_str().unwrap_or_default();
        if let Some(ratio) = bar["ratio"].as_f64().filter(|ratio| *ratio > 0.0) {
            let colour = bar["colour"].as_i64().unwrap_or(0);
            ratios.entry((colour, subject.to_owned())).or_default().push(ratio.ln());
        }
    }
    let tile = |((colour, name), logs): ((i64, String), Vec<f64>)| {
        let mean = (logs.iter().sum::<f64>() / logs.len() as f64).exp();
        json!({
            "name": name, "colour": colour, "of": part["title"], "base": part["base"],
            "mean": mean, "count": logs.len(),
        })
    };
    ratios.into_iter().map(tile).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_the_script() {
        let text = page("a < b", &["</script><b>".to_owned()], &[]);
        assert!(text.contains("\\u003c/script>\\u003cb>") && !text.contains("</script><b>"));
        assert!(text.contains("<title>a &lt; b</title>"));
    }

    #[test]
    fn page_asks_for_nothing_outside_of_it() {
        let text = page("x", &[], &[]);
        assert!(text.contains("default-src 'none'"));
        let asks = ["src=", "href=", "url(", "fetch(", "import ", "https:"];
        assert!(asks.iter().all(|asks| !text.contains(asks)));
    }

    #[test]
    fn outputs_of_all_shapes_have_parts() {
        let series = json!({ "what": "w", "unit": "1/s", "subject": "a", "step_seconds": 0.5, "values": [1, 2] });
        let figure =
            json!({ "what": "w", "unit": "1/s", "subject": "a", "median": 2.0, "values": [2.0] });
        let kinds = |output: &Value| {
            let parts = parts("x", output)?;
            Some(parts.iter().map(|part| part["kind"].clone()).collect::<Vec<_>>())
        };
        let published =
            json!({ "experiment": "enospc", "figures": [figure], "series": [series, series] });
        assert_eq!(kinds(&published), Some(vec![json!("bars"), json!("curves")]));
        assert_eq!(kinds(&json!([figure])), Some(vec![json!("bars")]));
        let growth =
            json!({ "rows": [{ "case": "a", "counts": [{ "size": 3 }], "steps": 0.123 }] });
        assert_eq!(kinds(&growth), Some(vec![json!("dots")]));
        let scale = json!({ "rows": [{ "groups": 10, "open_seconds": 0.5 }] });
        assert_eq!(kinds(&scale), Some(vec![json!("curves")]));
        let writeback = json!({ "policies": [{ "writeback": "sorted", "disk": "simulated" }] });
        assert_eq!(kinds(&writeback), Some(vec![json!("bars")]));
        let foreground = json!({ "idle_us": { "p50": 1.0 }, "flushing_us": { "p50": 2.0 } });
        assert_eq!(kinds(&foreground), Some(vec![json!("bars"), json!("curves")]));
        assert_eq!(kinds(&json!("a table as text")), None);
    }
}
