//! How comments and documents are written: width, pronouns, links, length of sentences.
//!
//! # What must hold
//!
//! - Comments speak of code, threads and requests as of things. Words for persons are refused.
//! - A line of a comment or a document has at most 100 columns, except for tables, links and code.
//! - A link in a document leads to a file that exists, and to a heading of this file.

use std::fs;
use std::path::Path;

use super::anchors;

/// Columns of a line of a comment or a document.
const WIDTH_MAX: usize = 100;
/// Words of a sentence.
const WORDS_MAX: usize = 25;

/// Words for persons, which are never used for code.
pub(super) const PERSONS: [&str; 14] = [
    "who",
    "whose",
    "whoever",
    "whom",
    "somebody",
    "nobody",
    "anybody",
    "everybody",
    "someone",
    "anyone",
    "everyone",
    "he",
    "him",
    "his",
];

/// A finding: its line, counted from one, and its text.
pub(super) type Finding = (usize, String);

/// The faults in the prose of one file.
#[derive(Debug, Default)]
pub(super) struct Prose {
    /// Lines of comments or text.
    pub(super) lines: usize,
    /// Lines that are too wide.
    pub(super) wide: Vec<Finding>,
    /// Lines that speak of code as of a person.
    pub(super) persons: Vec<Finding>,
    /// Sentences that are too long.
    pub(super) long: Vec<Finding>,
    /// Links that lead nowhere.
    pub(super) dead_links: Vec<Finding>,
}

/// Looks at the comments of a Rust file.
pub(super) fn of_rust(text: &str) -> Prose {
    of_comments(text, |line| Some(line.strip_prefix("//")?.trim_start_matches(['/', '!'])))
}

/// Looks at the comments of a script or a manifest, and at the description of a package.
pub(super) fn of_script(text: &str) -> Prose {
    of_comments(text, script_comment)
}

/// The text of a line of a script or a manifest, if it is a comment or a description.
pub(super) fn script_comment(line: &str) -> Option<&str> {
    match line.strip_prefix('#') {
        Some(comment) if !comment.starts_with('!') => Some(comment),
        _ => line.strip_prefix("description = "),
    }
}

fn of_comments(text: &str, comment: impl Fn(&str) -> Option<&str>) -> Prose {
    let mut prose = Prose::default();
    let mut sentence = Sentence::default();
    let mut block = Block::default();
    for (index, line) in text.lines().enumerate() {
        let Some(comment) = comment(line.trim_start()) else {
            sentence.end(&mut prose);
            continue;
        };
        prose.lines += 1;
        if block.has(comment) {
            block.look_at(index + 1, comment, &mut prose);
            continue;
        }
        if line.chars().count() > WIDTH_MAX {
            prose.wide.push((index + 1, String::new()));
        }
        look_at(index + 1, comment, &mut sentence, &mut prose);
    }
    sentence.end(&mut prose);
    prose
}

/// Looks at a document in Markdown that lies in `folder`.
pub(super) fn of_markdown(text: &str, folder: &Path) -> Prose {
    let mut prose = Prose::default();
    let mut sentence = Sentence::default();
    let mut block = Block::default();
    for (index, line) in text.lines().enumerate() {
        prose.lines += 1;
        if block.has(line) {
            sentence.end(&mut prose);
            block.look_at(index + 1, line, &mut prose);
            continue;
        }
        let table = line.trim_start().starts_with('|');
        if line.chars().count() > WIDTH_MAX && !table && !line.contains("](") {
            prose.wide.push((index + 1, String::new()));
        }
        let dead = links(line).filter(|target| !is_there(target, text, folder));
        prose.dead_links.extend(dead.map(|target| (index + 1, target.to_owned())));
        if table {
            sentence.end(&mut prose);
            look_for_persons(index + 1, line, &mut prose);
        } else {
            look_at(index + 1, line, &mut sentence, &mut prose);
        }
    }
    sentence.end(&mut prose);
    prose
}

/// The fenced block that is being read. Code has words of its own. A block of `text` is a picture
/// or a table, with the words of a comment.
#[derive(Default)]
struct Block {
    /// What the opening fence says of the content.
    kind: Option<String>,
}

impl Block {
    /// Whether a line is a fence, or lies between two fences.
    fn has(&mut self, line: &str) -> bool {
        let Some(kind) = line.trim_start().strip_prefix("```") else {
            return self.kind.is_some();
        };
        self.kind = if self.kind.is_some() { None } else { Some(kind.trim().to_owned()) };
        true
    }

    fn look_at(&self, line: usize, text: &str, prose: &mut Prose) {
        if self.kind.as_deref() == Some("text") {
            look_for_persons(line, text, prose);
        }
    }
}

/// A sentence that is being read, which may go over several lines.
#[derive(Default)]
struct Sentence {
    began: usize,
    words: usize,
}

impl Sentence {
    fn end(&mut self, prose: &mut Prose) {
        if self.words > WORDS_MAX {
            prose.long.push((self.began, format!("{} words", self.words)));
        }
        *self = Self::default();
    }
}

fn look_at(line: usize, text: &str, sentence: &mut Sentence, prose: &mut Prose) {
    let start = text.trim_start();
    let item = start.starts_with("- ") || start.starts_with("* ") || start.starts_with('#');
    if start.is_empty() || item {
        sentence.end(prose);
    }
    look_for_persons(line, text, prose);
    for word in text.split_whitespace() {
        if !word.contains(char::is_alphanumeric) {
            continue;
        }
        if sentence.words == 0 {
            sentence.began = line;
        }
        sentence.words += 1;
        let bare = word.trim_end_matches(['"', '\'', ')', '*', '_', '`']);
        // A colon or a semicolon also ends a sentence here.
        if bare.ends_with(['.', '!', '?', ':', ';']) && !matches!(bare, "e.g." | "i.e." | "vs.") {
            sentence.end(prose);
        }
    }
    if start.starts_with('#') {
        sentence.end(prose);
    }
}

fn look_for_persons(line: usize, text: &str, prose: &mut Prose) {
    // Text in backquotes is a name, and is not checked.
    let spoken: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ");
    let found = spoken
        .split(|c: char| !c.is_alphabetic())
        .find(|word| PERSONS.contains(&word.to_lowercase().as_str()));
    if let Some(word) = found {
        prose.persons.push((line, word.to_owned()));
    }
}

/// Targets of the links of a line.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// Whether the target of a link exists. The link stands in the document `text` in `folder`.
fn is_there(target: &str, text: &str, folder: &Path) -> bool {
    if target.contains("://") {
        return true;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = folder.join(file);
    if anchor.is_empty() {
        return file.is_empty() || path.exists();
    }
    if file.is_empty() {
        return anchors::of(text).contains(anchor);
    }
    fs::read_to_string(path).is_ok_and(|text| anchors::of(&text).contains(anchor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_that_speaks_of_persons_is_found() {
        let prose =
            of_rust("// Whoever writes waits.\nlet who = 1; // fine\n// The `who` field.\n");
        assert_eq!(prose.persons, [(1, "Whoever".to_owned())]);
    }

    #[test]
    fn comments_and_descriptions_of_scripts_are_read() {
        let person = PERSONS[0];
        let text = format!("#!/bin/{person}\n# A thread {person} waits.\necho {person}\n");
        assert_eq!(of_script(&text).persons, [(2, person.to_owned())]);
        let manifest = format!("description = \"A thread {person} waits.\"\n");
        assert_eq!(of_script(&manifest).persons.len(), 1);
    }

    #[test]
    fn pictures_are_read_and_code_is_not() {
        let person = PERSONS[0];
        let text = format!("```text\n a thread {person} waits\n```\n```sh\n{person}\n```\n");
        assert_eq!(of_markdown(&text, Path::new(".")).persons, [(2, person.to_owned())]);
        let comment = text.lines().map(|line| format!("//! {line}\n")).collect::<String>();
        assert_eq!(of_rust(&comment).persons, [(2, person.to_owned())]);
    }

    #[test]
    fn a_sentence_over_two_lines_is_counted_whole() {
        let words = "word ".repeat(13);
        let prose = of_rust(&format!("// {words}\n// {words}end.\n// Short.\n"));
        assert_eq!(prose.long, [(1, "27 words".to_owned())]);
    }

    #[test]
    fn a_wide_comment_is_found_and_wide_code_is_left_to_rustfmt() {
        let wide = "x".repeat(120);
        let prose = of_rust(&format!("// {wide}\nlet a = \"{wide}\";\n"));
        assert_eq!(prose.wide.len(), 1);
    }

    #[test]
    fn a_dead_link_is_found() {
        let prose = of_markdown("[a](nothing-here.md) [b](https://example.org)", Path::new("."));
        assert_eq!(prose.dead_links, [(1, "nothing-here.md".to_owned())]);
    }

    #[test]
    fn a_link_to_no_heading_is_found() {
        let folder = std::env::temp_dir().join(format!("buttress-anchors-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("other.md"), "# Other\n## A `part`\n").expect("a file");
        let text = "# Here\n[a](#here) [b](#there) [c](other.md#a-part) [d](other.md#part)\n";
        let prose = of_markdown(text, &folder);
        fs::remove_dir_all(&folder).expect("a folder");
        let expected = ["#there", "other.md#part"].map(|target| (2, target.to_owned()));
        assert_eq!(prose.dead_links, expected);
    }
}
