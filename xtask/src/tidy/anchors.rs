//! The places of a document that a link can name behind `#`.
//!
//! mdBook and the pages of a forge make them of the headings by the same rule: letters in small,
//! `-` for blanks, nothing for other signs.

use std::collections::{BTreeMap, BTreeSet};

/// The anchors of all headings of a document in Markdown.
pub(super) fn of(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut times = BTreeMap::<String, usize>::new();
    let mut code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        let title = line.trim_start_matches('#');
        let depth = line.len() - title.len();
        if code || depth == 0 || depth > 6 || !title.starts_with(' ') {
            continue;
        }
        let anchor = slug(title.trim());
        let before = times.entry(anchor.clone()).or_default();
        found.insert(if *before == 0 { anchor } else { format!("{anchor}-{before}") });
        *before += 1;
    }
    found
}

/// The anchor of a heading.
fn slug(title: &str) -> String {
    let mut anchor = String::new();
    for letter in shown(title).chars() {
        match letter {
            ' ' => anchor.push('-'),
            '-' | '_' => anchor.push(letter),
            _ if letter.is_alphanumeric() => anchor.extend(letter.to_lowercase()),
            _ => {}
        }
    }
    anchor
}

/// The text of a heading without the targets of its links.
fn shown(title: &str) -> String {
    let mut parts = title.split("](");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str(part.split_once(')').map_or(part, |(_, rest)| rest));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_have_the_anchors_of_the_book() {
        let text = "# Order of locks\n## `--json`: a form\n## If [A](b.md#c) and B\n### No_1\n";
        let expected = ["--json-a-form", "if-a-and-b", "no_1", "order-of-locks"];
        assert_eq!(of(text), expected.map(str::to_owned).into());
    }

    #[test]
    fn same_headings_are_numbered_and_code_has_none() {
        let text = "## Same\n## Same\n```sh\n# comment\n```\n#hash\n";
        assert_eq!(of(text), ["same", "same-1"].map(str::to_owned).into());
    }
}
