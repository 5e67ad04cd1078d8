//! Paths of source files in documents: each is the path of a file.
//!
//! # What must hold
//!
//! - A path with its crate, as `crates/base/src/rank.rs` or `base/src/rank.rs`, is that of a file.
//! - A shorter path is the end of a file's path in a crate that the sentence names. If the sentence
//!   names none, the document does. A row of a table is a sentence.
//! - A code span names a crate: by the crate's name, by a path in it, or by a name of Rust that
//!   begins with the crate's.

use std::collections::{BTreeMap, BTreeSet};

use super::prose::Finding;

/// Code spans of a sentence, each with the line in which it ends.
type Spans = Vec<(usize, String)>;

/// The source files of the project, and the folders of its crates.
#[derive(Debug, Default)]
pub(super) struct SourceFiles {
    /// Paths below the top of the project, in parts.
    files: Vec<Vec<String>>,
    /// For the name of each crate, the parts of the path of its folder.
    crates: BTreeMap<String, Vec<String>>,
}

impl SourceFiles {
    pub(super) fn add(&mut self, path: &str) {
        let parts = parts(path);
        let depth = if is_group(&parts[0]) { 2 } else { 1 };
        if let Some(folder) = parts.get(..depth) {
            self.crates.insert(folder[depth - 1].clone(), folder.to_vec());
        }
        self.files.push(parts);
    }

    /// The folder of the crate that a span names.
    fn named(&self, span: &str) -> Option<&[String]> {
        let head = span.split("::").next().unwrap_or_default();
        let parts = parts(head);
        let name = if parts.len() == 1 {
            head.strip_prefix("buttress-").unwrap_or(head)
        } else {
            let skipped = usize::from(is_group(&parts[0]) && self.crates.contains_key(&parts[1]));
            let inside = parts.get(skipped + 1).map(String::as_str);
            let has_sources = matches!(inside, Some("src" | "tests" | "examples"));
            if skipped == 0 && !has_sources {
                return None;
            }
            parts[skipped].as_str()
        };
        self.crates.get(name).map(Vec::as_slice)
    }

    /// Whether a file of the crate in `folder` has a path that ends so.
    fn is_below(&self, folder: &[String], end: &[String]) -> bool {
        self.files.iter().any(|file| {
            file.strip_prefix(folder).is_some_and(|rest| {
                rest.len() >= end.len() && are_like(end, &rest[rest.len() - end.len()..])
            })
        })
    }

    fn is_file(&self, path: &[String]) -> bool {
        self.files
            .iter()
            .any(|file| are_like(path, file) || is_group(&file[0]) && are_like(path, &file[1..]))
    }
}

fn parts(path: &str) -> Vec<String> {
    path.split('/').map(str::to_owned).collect()
}

/// Whether a folder at the top has crates in it, and is none itself.
fn is_group(folder: &str) -> bool {
    matches!(folder, "crates" | "tests")
}

/// Whether a path has these parts, of which each may have one `*`.
fn are_like(patterns: &[String], parts: &[String]) -> bool {
    let is_like = |(pattern, part): (&String, &String)| match pattern.split_once('*') {
        None => pattern == part,
        Some((head, tail)) => {
            part.len() >= head.len() + tail.len() && part.starts_with(head) && part.ends_with(tail)
        }
    };
    patterns.len() == parts.len() && patterns.iter().zip(parts).all(is_like)
}

/// Paths of a document that lead to no file, by line.
pub(super) fn dead(text: &str, files: &SourceFiles) -> Vec<Finding> {
    let sentences = sentences(text);
    let named = |spans: &Spans, is_counted: fn(&str) -> bool| -> BTreeSet<Vec<String>> {
        let spans = spans.iter().map(|(_, span)| span.as_str()).filter(|span| is_counted(span));
        spans.flat_map(each_of).filter_map(|span| Some(files.named(&span)?.to_vec())).collect()
    };
    let everywhere: BTreeSet<_> = sentences.iter().flat_map(|it| named(it, |_| true)).collect();
    let mut found = Vec::new();
    for spans in &sentences {
        let near = named(spans, |_| true);
        // A crate that only another file's path names leaves this path free.
        let is_bound = !named(spans, |span| !span.ends_with(".rs")).is_empty();
        for (line, span) in spans {
            for path in span.split_whitespace().filter(|word| word.ends_with(".rs")) {
                let is_there = |path: &String| {
                    let path = parts(path);
                    let below = |crates: &BTreeSet<Vec<String>>| {
                        crates.iter().any(|folder| files.is_below(folder, &path))
                    };
                    let is_whole = path[0] == "crates" || files.named(&path.join("/")).is_some();
                    files.is_file(&path)
                        || !is_whole && (below(&near) || !is_bound && below(&everywhere))
                };
                if !each_of(path).iter().all(is_there) {
                    found.push((*line, path.to_owned()));
                }
            }
        }
    }
    found
}

/// All texts that `a{b,c}d` stands for.
fn each_of(text: &str) -> Vec<String> {
    let inside = text.split_once('{').and_then(|(head, rest)| Some((head, rest.split_once('}')?)));
    let Some((head, (middle, tail))) = inside else { return vec![text.to_owned()] };
    middle.split(',').flat_map(|part| each_of(&format!("{head}{}{tail}", part.trim()))).collect()
}

/// The code spans of a document, by sentences.
fn sentences(text: &str) -> Vec<Spans> {
    let mut found = vec![Spans::new()];
    let (mut is_code, mut is_open, mut span) = (false, false, String::new());
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        let is_fence = start.starts_with("```");
        is_code ^= is_fence;
        let digits = start.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_list = start.starts_with(['-', '*', '#']) || digits.starts_with(". ");
        let is_row = start.starts_with('|');
        if is_code || is_fence || is_row || is_list || start.is_empty() {
            found.push(Spans::new());
            (is_open, span) = (false, String::new());
        }
        if is_code || is_fence {
            continue;
        }
        for (at, letter) in line.char_indices() {
            let rest = line[at + letter.len_utf8()..].trim_start_matches([')', '*', '_', '"']);
            let is_last = rest.is_empty() || rest.starts_with(' ');
            match letter {
                '`' if is_open => {
                    let span = (index + 1, std::mem::take(&mut span));
                    found.last_mut().into_iter().for_each(|spans| spans.push(span.clone()));
                    is_open = false;
                }
                '`' => is_open = true,
                letter if is_open => span.push(letter),
                '.' | '!' | '?' if is_last && !is_row => found.push(Spans::new()),
                _ => {}
            }
        }
        if is_open {
            span.push(' ');
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Paths that are found in a document of a project with a few files.
    fn found(text: &str) -> Vec<(usize, String)> {
        let mut files = SourceFiles::default();
        for file in [
            "crates/txn/src/commit.rs",
            "crates/txn/src/commit/settle.rs",
            "crates/reserve/src/ledger.rs",
            "crates/reserve/tests/it/main.rs",
            "tests/hostile/src/targets.rs",
            "benches/src/plan.rs",
        ] {
            files.add(file);
        }
        dead(text, &files)
    }

    fn paths(text: &str) -> Vec<String> {
        found(text).into_iter().map(|(_, path)| path).collect()
    }

    #[test]
    fn rule_finds_whole_paths_that_are_no_files() {
        assert_eq!(paths("`crates/txn/src/gone.rs`"), ["crates/txn/src/gone.rs"]);
        assert_eq!(paths("`reserve/src/commit.rs`"), ["reserve/src/commit.rs"]);
        assert_eq!(paths("`benches/src/ledger.rs`"), ["benches/src/ledger.rs"]);
        let braces = "txn/src/{commit,gone}.rs";
        assert_eq!(paths(&format!("In `{braces}`.")), [braces]);
    }

    #[test]
    fn rule_finds_a_path_in_another_crate_than_the_sentence_names() {
        let text = "The crate `txn` has it.\n\n`commit.rs` and `ledger.rs` of\n`reserve`: both.";
        assert_eq!(found(text), [(3, "commit.rs".to_owned())]);
        let text = "Of `txn` and `reserve`.\n\n| `reserve::x` | `commit/settle.rs` |";
        assert_eq!(found(text), [(3, "commit/settle.rs".to_owned())]);
    }

    #[test]
    fn rule_finds_a_path_in_a_crate_that_the_document_does_not_name() {
        assert_eq!(paths("In `reserve`. See `ledger.rs`, not `plan.rs`."), ["plan.rs"]);
        assert_eq!(paths("No crate at all: `ledger.rs`."), ["ledger.rs"]);
    }

    #[test]
    fn rule_passes_files_by_their_whole_paths_and_short_ones() {
        let text = "`crates/txn/src/commit.rs`, `txn/src/commit/*.rs` and `hostile/src/targets.rs`.
            - `settle.rs` of `buttress-txn`, `commit/settle.rs` of `txn::commit`.
            - In `crates/reserve/src/{ledger}.rs`; `settle.rs` is of the first sentence.
            - `benches/src/plan.rs`, `it/main.rs`, `tests/it/main.rs` and `cargo test`.";
        assert!(found(text).is_empty(), "{:?}", found(text));
    }

    #[test]
    fn rule_leaves_code_alone() {
        assert!(found("```\n`gone.rs`\n```\nand gone.rs").is_empty());
    }
}
