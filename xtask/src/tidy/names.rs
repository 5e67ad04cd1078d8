//! Invariants that are named and declared, locks with a rank, words of the glossary.
//!
//! # What must hold
//!
//! - An invariant is declared once in the header of its file, as `- **K1** ...`.
//! - A name of an invariant stands in parentheses, or at the head of a comment or of an assertion's
//!   text. A plain name is declared in the same file. An invariant of another file has the whole
//!   path of its module before it, and from another crate also the crate's name: `txn::commit::W2`.
//!   Exactly one module of that path declares it.
//! - Every rank of the order of locks is used. A lock without a rank has the reason in its comment.

use std::collections::{BTreeMap, BTreeSet};

use super::prose::Finding;
use super::sources::Source;

/// In a lock's comment, the reason why the lock has no rank follows this word.
const WHY_UNRANKED: &str = "Unranked:";

/// Invariants that a file's header declares.
pub(super) fn declared(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter_map(|line| line.trim_start().strip_prefix("//!"))
        .filter_map(|line| line.trim_start().strip_prefix("- **"))
        .filter_map(|line| line.split("**").next())
        .filter(|name| is_invariant(name))
        .map(str::to_owned)
        .collect()
}

/// Invariants that files of a crate name as their own but do not declare.
pub(super) fn undeclared(sources: &[Source]) -> BTreeMap<String, Vec<Finding>> {
    let mut found = BTreeMap::new();
    for source in sources {
        let own = declared(&source.text);
        let mut findings: Vec<Finding> = Vec::new();
        for (index, line) in production(source) {
            let others = named(line).into_iter().filter(|name| !own.contains(name));
            findings.extend(others.map(|name| (index + 1, name)));
        }
        if !findings.is_empty() {
            found.insert(source.path.display().to_string(), findings);
        }
    }
    found
}

/// Invariants that files name with a path that is not the whole path of one module that declares
/// them.
pub(super) fn unknown(sources: &[Source]) -> BTreeMap<String, Vec<Finding>> {
    let declares: Vec<_> =
        sources.iter().map(|source| (full_module(source), declared(&source.text))).collect();
    let is_known = |own: &str, citation: &str| {
        let mut path: Vec<&str> = citation.split("::").collect();
        let name = path.pop().unwrap_or_default();
        let is_of = |module: &[&str]| {
            *module == path
                || module.split_first().is_some_and(|(c, rest)| *c == own && rest == path)
        };
        declares.iter().filter(|(module, names)| is_of(module) && names.contains(name)).count() == 1
    };
    let mut found = BTreeMap::new();
    for source in sources {
        let own = full_module(source).first().copied().unwrap_or_default();
        let mut findings: Vec<Finding> = Vec::new();
        for (index, line) in production(source) {
            let unknown = cited(line).into_iter().filter(|citation| !is_known(own, citation));
            findings.extend(unknown.map(|citation| (index + 1, citation)));
        }
        if !findings.is_empty() {
            found.insert(source.path.display().to_string(), findings);
        }
    }
    found
}

/// The lines outside of test code, counted from zero.
fn production(source: &Source) -> impl Iterator<Item = (usize, &str)> {
    source.text.lines().enumerate().filter(|(index, _)| !source.test_lines.contains(index))
}

/// The path of a file's module with its crate's name at the front.
fn full_module(source: &Source) -> Vec<&str> {
    let mut folders = source.path.iter().filter_map(|part| part.to_str());
    let name = folders.by_ref().take_while(|part| *part != "src").last();
    name.into_iter().chain(source.module.iter().map(String::as_str)).collect()
}

/// Invariants that a comment or an assertion's text names with their modules.
fn cited(line: &str) -> Vec<String> {
    let texts = [line.split_once("//"), line.split_once('"')];
    let Some((_, text)) = texts.into_iter().flatten().next() else { return Vec::new() };
    let is_path = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words = text.split(|c| !is_path(c)).map(|word| word.trim_end_matches(':'));
    let is_citation = |word: &&str| {
        word.rsplit_once("::").is_some_and(|(module, name)| {
            is_invariant(name) && module.starts_with(|c: char| c.is_ascii_lowercase())
        })
    };
    words.filter(is_citation).map(str::to_owned).collect()
}

/// Names of invariants in a line: those in parentheses, and those at the head of a comment or of an
/// assertion's text.
fn named(line: &str) -> Vec<String> {
    let mut names = Vec::new();
    for group in line.split('(').skip(1).filter_map(|rest| rest.split(')').next()) {
        let parts: Vec<_> = group.split(", ").collect();
        if parts.iter().all(|part| is_invariant(part)) {
            names.extend(parts.into_iter().map(str::to_owned));
        }
    }
    let comment =
        line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']));
    let texts = [comment, line.split_once('"').map(|(_, text)| text)];
    for (head, _) in texts.into_iter().flatten().filter_map(|text| text.split_once(':')) {
        let parts: Vec<_> = head.trim_start().split(", ").collect();
        if parts.iter().all(|part| is_invariant(part)) {
            names.extend(parts.into_iter().map(str::to_owned));
        }
    }
    names
}

fn is_invariant(name: &str) -> bool {
    let mut chars = name.chars();
    let letter = chars.next().is_some_and(|c| c.is_ascii_uppercase());
    let digits = chars.as_str();
    letter && (1..=2).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_digit())
}

/// Locks of the standard library's kind without a comment on why they have no rank.
pub(super) fn unranked(source: &Source) -> Vec<Finding> {
    let lines: Vec<_> = source.text.lines().collect();
    let says_why = |line: usize| {
        lines[..line]
            .iter()
            .rev()
            .skip(1)
            .map(|line| line.trim_start())
            .take_while(|line| line.starts_with("//") || line.starts_with("#["))
            .chain(std::iter::once(lines[line - 1]))
            .any(|line| line.contains(WHY_UNRANKED))
    };
    // A field's span begins with its comment.
    let places = source.locks.iter().map(|(line, name)| {
        let is_comment = |line: &&str| {
            let line = line.trim_start();
            line.starts_with("//") || line.starts_with("#[")
        };
        let own = lines.iter().skip(line - 1).take_while(|line| is_comment(line)).count();
        (line + own, name.clone())
    });
    places.filter(|(line, _)| !says_why(*line)).collect()
}

/// Names of threads, locks and queues that a seeded run does not schedule. `std::sync::Mutex` is
/// absent: a lock that is held for a few instructions, under which its thread cannot lose the turn,
/// is allowed and says so.
const UNSEEDED: [&str; 8] = [
    "parking_lot",
    "sync::mpsc",
    "std::sync::Condvar",
    "std::sync::Barrier",
    "std::thread;",
    "std::thread::s",
    "std::thread::park",
    "std::thread::Builder",
];

/// Lines of production code that start threads or wait outside of the scheduler of seeded runs.
pub(super) fn unseeded(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().enumerate();
    let code = lines.filter(|(at, _)| !source.test_lines.contains(at));
    code.filter_map(|(at, line)| Some((at + 1, unseeded_name(line)?.to_owned()))).collect()
}

fn unseeded_name(line: &str) -> Option<&'static str> {
    let is_comment = line.trim_start().starts_with("//");
    UNSEEDED.into_iter().find(|name| !is_comment && line.contains(name))
}

/// Ranks that the order of locks has and no file of `sources` names.
pub(super) fn unused_ranks<'a>(
    order: &str,
    sources: impl Iterator<Item = &'a Source> + Clone,
) -> Vec<String> {
    let used = |rank: &&str| {
        let name = format!("Rank::{rank}");
        sources.clone().any(|source| {
            !source.path.ends_with("base/src/rank.rs")
                && source.text.lines().enumerate().any(|(index, line)| {
                    !source.test_lines.contains(&index) && line.contains(&name)
                })
        })
    };
    ranks(order).filter(|rank| !used(rank)).map(str::to_owned).collect()
}

/// The ranks in the order of locks, the outermost first.
fn ranks(order: &str) -> impl Iterator<Item = &str> {
    let inside = order.split("pub enum Rank {").nth(1).and_then(|rest| rest.split('}').next());
    let lines = inside.unwrap_or_default().lines().map(str::trim);
    lines.filter(|line| !line.starts_with("//")).filter_map(|line| line.strip_suffix(','))
}

/// Places at which the numbered list of a document differs from the order of locks: the number,
/// and both names. A line of the list is `1. `Rank`: what it is`.
pub(super) fn wrong_order(order: &str, document: &str) -> Vec<String> {
    let listed: Vec<&str> = document
        .lines()
        .skip_while(|line| *line != "## Order of locks")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
        .filter_map(|line| line.split('`').nth(1))
        .collect();
    let ranks: Vec<&str> = ranks(order).collect();
    let at =
        |list: &[&str], index: usize| list.get(index).map_or("nothing", |name| name).to_owned();
    (0..ranks.len().max(listed.len()))
        .map(|index| (index + 1, at(&ranks, index), at(&listed, index)))
        .filter(|(_, rank, listed)| rank != listed)
        .map(|(number, rank, listed)| format!("{number}: {rank} is listed as {listed}"))
        .collect()
}

/// Words that the glossary forbids: those behind `Never:`.
pub(super) fn forbidden_words(glossary: &str) -> Vec<String> {
    glossary
        .lines()
        .filter_map(|line| Some(line.split_once("Never: ")?.1))
        .flat_map(|line| line.split(','))
        .map(|word| word.trim().trim_matches(['`', '.']).to_lowercase())
        .filter(|word| !word.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_outside_of_the_scheduler_are_found() {
        assert_eq!(unseeded_name("use std::sync::mpsc::channel;"), Some("sync::mpsc"));
        assert_eq!(unseeded_name("    std::thread::scope(|scope| {"), Some("std::thread::s"));
        assert_eq!(unseeded_name("    thread::scope(|scope| {"), None);
        assert_eq!(unseeded_name("//! as `parking_lot` does"), None);
    }

    #[test]
    fn invariants_are_found_where_they_are_named() {
        assert_eq!(named("waits for the commit (T2, E1)."), ["T2", "E1"]);
        assert_eq!(named("assert!(a, \"K1: taken twice\");"), ["K1"]);
        assert_eq!(named("    // R6, R7: the driver"), ["R6", "R7"]);
        assert!(named("f(X11, y) and \"a: b\"").is_empty());
        assert!(named("as in another file (`commit::W2`)").is_empty());
    }

    #[test]
    fn citations_have_the_modules_that_are_named() {
        assert_eq!(
            cited("/// As elsewhere (`commit::W2`, `a::b::X1`)."),
            ["commit::W2", "a::b::X1"]
        );
        assert_eq!(cited("assert!(a, \"queues::Q1: {a}\");"), ["queues::Q1"]);
        assert!(cited("let a = b::C1; // of `Rank::L1`").is_empty());
    }

    #[test]
    fn a_list_in_another_order_is_found() {
        let order = "pub enum Rank {\n    /// Outer.\n    A,\n    B,\n}";
        let list = |lines: &str| format!("## Order of locks\n\n{lines}\n## Next\n1. `C`\n");
        assert!(wrong_order(order, &list("1. `A`: outer\n2. `B`: inner\n")).is_empty());
        assert_eq!(wrong_order(order, &list("1. `B`: x\n2. `A`: y\n")).len(), 2);
        assert_eq!(wrong_order(order, &list("1. `A`: x\n")), ["2: B is listed as nothing"]);
    }

    #[test]
    fn forbidden_words_are_found_behind_other_text() {
        let text = "- **driver**: a thread.\n  Linux: `x`. Never: `gaggle`, `vow`.\n";
        assert_eq!(forbidden_words(text), ["gaggle", "vow"]);
    }

    #[test]
    fn a_header_declares_its_invariants() {
        let names = declared("//! - **M1** Cost.\n//! - **M2** More.\n// - **M3** None.\n");
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["M1", "M2"]);
    }
}
