//! The drawings of `--plot`: which verbs have which, and the page.

use std::fs;
use std::path::Path;

use buttress_bench_page as page;
use buttress_cli::exit::{Context, Exit, Failure, Result};
use serde_json::Value;

use super::Verb;

/// Whether a file becomes a page. Otherwise it becomes an SVG.
pub(crate) fn is_page(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("html"))
}

/// Whether a verb draws more than its figures, and so draws by itself.
pub(super) fn draws_itself(verb: &Verb) -> bool {
    matches!(verb, Verb::Writeback { .. })
}

/// Refuses drawings that a verb does not have.
pub(super) fn expect_known(verb: &Verb, path: &Path) -> Result<()> {
    let refused = |why: &str| Err(Failure::new(Exit::Usage, format!("--plot: {why}")));
    if matches!(verb, Verb::Choice { .. }) {
        return refused("choice prints only a table");
    }
    if !is_page(path) && !draws_itself(verb) {
        return refused("this verb draws only pages: name a file that ends in .html");
    }
    Ok(())
}

/// The page of the figures that a verb prints as JSON.
pub(super) fn page(figures: &Value) -> String {
    let parts = page::parts("buttress-bench", figures).unwrap_or_default();
    page::page("Figures of buttress-bench", &about(figures), &parts)
}

/// What was measured besides figures: mount options.
fn about(figures: &Value) -> Vec<String> {
    let options = figures["options"].as_object().into_iter().flatten();
    let words: Vec<_> = options
        .filter_map(|(subject, options)| Some(format!("{subject}: {}", options.as_str()?)))
        .collect();
    if words.is_empty() {
        Vec::new()
    } else {
        vec![format!("Mount options of {}.", words.join("; "))]
    }
}

/// Fails if a drawing cannot be written, before a long run. A drawing that is there stays.
pub(super) fn expect_writable(path: &Path) -> Result<()> {
    let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
    file.map(|_| ()).context(|| path.display().to_string())
}

/// Writes a drawing.
pub(super) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn verbs_without_a_drawing_are_refused_before_they_run() {
        let choice = Verb::Choice { groups: 1 };
        assert!(expect_known(&choice, Path::new("a.html")).is_err());
        let allocate = Verb::Allocate { workers: vec![1], fragmented: false };
        assert!(expect_known(&allocate, Path::new("a.HTML")).is_ok());
        let growth = Verb::Growth { factors: vec![1], no_check: true };
        assert!(expect_known(&growth, Path::new("a.svg")).is_err());
    }

    #[test]
    fn page_has_figures_and_options() {
        let figure = json!({ "what": "w", "unit": "1/s", "subject": "fast", "median": 6.0, "values": [6.0] });
        let text = page(&json!({
            "experiment": "count", "figures": [figure], "options": { "fast": "alloc=linear" },
        }));
        assert!(text.contains("fast: alloc=linear") && text.contains("\"median\":6.0"));
    }
}
