//! The manual pages. Each verb has a page, made from the definition of the command line and from
//! written examples. The page `buttress-format(5)` is written by hand.
//!
//! Each page has at least one example. Each example is a valid command line. Tests verify both
//! rules.

use clap::Command;
use clap_mangen::Man;

/// `[page]`, then for each example a sentence and a line that begins with `$ `.
const EXAMPLES: &str = include_str!("manual/examples.txt");
/// The part that only the page of the whole program has.
const PROGRAM: &str = include_str!("manual/buttress.roff");
/// The part that only the page of `buttress mount` has.
const MOUNT: &str = include_str!("manual/mount.roff");
/// `buttress-format(5)`, whole.
const FORMAT: &str = include_str!("manual/format.roff");

/// A page.
pub(crate) struct Page {
    /// Its file name, such as `buttress-mkfs.8`.
    pub(crate) name: String,
    /// Its text, in roff.
    pub(crate) text: Vec<u8>,
}

/// An example of a page.
struct Example {
    says: &'static str,
    command: &'static str,
}

/// All pages of a command line.
pub(crate) fn pages(line: Command) -> Vec<Page> {
    let mut pages = vec![Page { name: "buttress-format.5".into(), text: FORMAT.into() }];
    add(&whole(line), &mut pages);
    pages
}

/// The command line with the names of all verbs. The verb `help` has no page.
fn whole(line: Command) -> Command {
    // The end of the help is left out, because the page has sections of its own for this content.
    let mut command = line.disable_help_subcommand(true).after_help("");
    command.build();
    command
}

fn add(command: &Command, pages: &mut Vec<Page>) {
    let name = name(command);
    let mut text = Vec::new();
    let version = concat!("buttress ", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).title(name.to_uppercase()).section("8");
    let written = page.source(version).manual("Buttress").render(&mut text);
    debug_assert!(written.is_ok(), "memory takes every byte");
    match name.as_str() {
        "buttress" => text.extend(PROGRAM.as_bytes()),
        "buttress-mount" => text.extend(MOUNT.as_bytes()),
        _ => {}
    }
    text.extend(examples_section(&name).into_bytes());
    let others = "buttress(8), buttress-mount(8), buttress-format(5), btrfs(8)";
    text.extend(format!(".SH \"SEE ALSO\"\n{others}\n").into_bytes());
    pages.push(Page { name: format!("{name}.8"), text });
    command.get_subcommands().filter(|verb| !verb.is_hide_set()).for_each(|verb| add(verb, pages));
}

fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn examples_section(page: &str) -> String {
    let mut text = String::new();
    let mut said = "";
    for example in examples(page) {
        if text.is_empty() {
            text.push_str(".SH EXAMPLES\n");
        }
        if example.says != said {
            text.push_str(&format!(".PP\n{}\n", example.says));
        }
        said = example.says;
        // In roff, a plain backslash or a plain hyphen must be escaped.
        let command = example.command.replace('\\', "\\e").replace('-', "\\-");
        text.push_str(&format!(".PP\n.nf\n.RS 4\n{command}\n.RE\n.fi\n"));
    }
    text
}

fn examples(page: &str) -> Vec<Example> {
    let mut found = Vec::new();
    let mut here = false;
    let mut says = "";
    for line in EXAMPLES.lines() {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            here = name == page;
        } else if let Some(command) = line.strip_prefix("$ ") {
            if here {
                found.push(Example { says, command });
            }
        } else if !line.is_empty() {
            says = line;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    fn each(command: &Command, look: &mut dyn FnMut(&Command)) {
        look(command);
        command.get_subcommands().filter(|verb| !verb.is_hide_set()).for_each(|verb| {
            each(verb, look);
        });
    }

    #[test]
    fn every_page_has_an_example() {
        for page in pages(crate::Cli::command()) {
            let text = String::from_utf8(page.text).expect("text");
            let examples = text.split(".SH EXAMPLES\n").nth(1).unwrap_or_default();
            let command = examples.lines().skip_while(|line| !line.starts_with(".nf")).nth(2);
            let is_command = command.is_some_and(|line| line.starts_with("buttress"));
            assert!(is_command, "{} has none", page.name);
        }
    }

    #[test]
    fn examples_belong_to_pages_and_are_command_lines() {
        let mut names = Vec::new();
        each(&whole(crate::Cli::command()), &mut |command| names.push(name(command)));
        for line in EXAMPLES.lines().filter(|line| line.starts_with('[')) {
            let page = line.trim_matches(['[', ']']);
            assert!(names.iter().any(|name| name == page), "no page {page}");
            for example in examples(page) {
                // The part after a pipe or a redirection does not belong to the command.
                let line = example.command.split(['|', '>']).next().unwrap_or_default();
                let words: Vec<_> = line.split_whitespace().collect();
                let verb = page.replace('-', " ");
                let command = example.command.replace('-', " ");
                assert!(command.starts_with(&verb), "{page}: {}", example.command);
                assert!(example.says.ends_with(':'), "{}", example.says);
                if let Err(error) = crate::Cli::try_parse_from(words) {
                    assert!(!error.use_stderr(), "{}: {error}", example.command);
                }
            }
        }
    }

    #[test]
    fn pages_are_roff() {
        for page in pages(crate::Cli::command()) {
            let text = String::from_utf8(page.text).expect("text");
            assert!(text.contains(".TH "), "{}", page.name);
            assert!(text.contains(".SH \"SEE ALSO\""), "{}", page.name);
        }
    }
}
