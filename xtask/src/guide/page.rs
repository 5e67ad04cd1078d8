//! A page of the guide as a script.
//!
//! # What must hold
//!
//! - Each line of the script has the number of its line on the page, so that the shell reports
//!   lines of the page.
//! - A block that is not run has its reason in the source of the page.
//!
//! # Comments of a page
//!
//! | comment | meaning |
//! |---|---|
//! | a block of `sh` in a comment | commands that are run, and that readers do not see |
//! | `not run: REASON` | the next block is not run |
//! | `needs: PROGRAM, ...` | the next block is run only where these programs are |
//! | `prints: TEXT` | the last block, if it was run, has printed this text |
//! | `run with: A => B` | `B` stands for `A` in the commands from here on |
//! | `after each block: COMMAND` | the command is run after each of the following blocks |

use std::path::Path;

/// A page as a script.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The commands, each on the line that it has on the page.
    pub(crate) script: String,
    /// The number of blocks that are run.
    pub(crate) blocks: usize,
    /// The blocks that are not run: line, and reason.
    pub(crate) left_out: Vec<(usize, String)>,
    /// The blocks that this machine cannot run: line, and program that is missing.
    pub(crate) lacking: Vec<(usize, String)>,
}

/// What the next block is.
enum Next {
    Run,
    NotRun(String),
    Lacking(String),
}

/// The fence before commands, and the one after them.
const OPEN: &str = "```sh";
const CLOSE: &str = "```";

/// Functions that the script calls. `begin` stands before each block, and `prints` behind one.
/// Output goes to the file `$OUTPUT`.
pub(super) const PRELUDE: &str = r#"
begin() { cat "$OUTPUT" >>"$OUTPUT.before"; : >"$OUTPUT"; }
prints() { grep -qF -e "$1" "$OUTPUT" || { echo "it did not print: $1"; return 1; }; }
"#;

impl Page {
    /// Reads a page. `has` says whether a program is there.
    ///
    /// # Errors
    ///
    /// In words, with the line: a comment that is not known or has no block, or a command that may
    /// fail and the shell goes on.
    pub(crate) fn of(text: &str, has: &dyn Fn(&str) -> bool) -> Result<Self, String> {
        let mut page = Self::default();
        let mut places: Vec<(String, String)> = Vec::new();
        let (mut next, mut is_run, mut is_code, mut is_hidden) = (Next::Run, false, false, false);
        let (mut named, mut after, mut was_run) = (0, String::new(), false);
        for (index, line) in text.lines().enumerate() {
            let at = index + 1;
            let mut command = String::new();
            if is_code {
                if line == CLOSE {
                    if is_run && !is_hidden {
                        command.clone_from(&after);
                    }
                    (is_code, is_run) = (false, false);
                } else if is_run {
                    command =
                        places.iter().fold(line.to_owned(), |line, (a, b)| line.replace(a, b));
                    if !is_hidden && line.contains(" && ") {
                        return Err(format!("{at}: a failure before && is not noticed"));
                    }
                }
            } else if line == OPEN {
                (is_code, was_run) = (true, false);
                match std::mem::replace(&mut next, Next::Run) {
                    Next::Run => {
                        (is_run, was_run) = (true, true);
                        page.blocks += usize::from(!is_hidden);
                        "begin".clone_into(&mut command);
                    }
                    Next::NotRun(reason) => page.left_out.push((at, reason)),
                    Next::Lacking(program) => page.lacking.push((at, program)),
                }
            } else if line.starts_with("```") {
                is_code = true;
            } else if line == "<!--" {
                is_hidden = true;
            } else if line == "-->" {
                is_hidden = false;
            } else if let Some(comment) = line.strip_prefix("<!-- ") {
                let comment =
                    comment.strip_suffix(" -->").ok_or(format!("{at}: no end: {line}"))?;
                match comment.split_once(": ") {
                    Some(("not run", reason)) => next = Next::NotRun(reason.to_owned()),
                    Some(("needs", programs)) => {
                        let lacks = programs.split(", ").find(|program| !has(program));
                        next = lacks.map_or(Next::Run, |program| Next::Lacking(program.to_owned()));
                    }
                    Some(("prints", words)) if was_run => {
                        command = format!("prints {}", quoted(words));
                    }
                    Some(("prints", _)) => {}
                    Some(("run with", place)) => {
                        let (a, b) = place.split_once(" => ").ok_or(format!("{at}: A => B"))?;
                        places.push((a.to_owned(), b.to_owned()));
                    }
                    Some(("after each block", command)) => command.clone_into(&mut after),
                    _ => return Err(format!("{at}: a comment that is not known: {comment}")),
                }
                named = at;
            } else if !line.is_empty() && !matches!(next, Next::Run) {
                return Err(format!("{named}: no block follows this comment"));
            }
            page.script.push_str(&command);
            page.script.push('\n');
        }
        if is_code || is_hidden {
            return Err("the last block has no end".to_owned());
        }
        Ok(page)
    }
}

/// A word for the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether a document has commands.
pub(super) fn has_commands(text: &str) -> bool {
    text.lines().any(|line| line == OPEN)
}

/// Whether one of the folders of `PATH` has this program.
pub(super) fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).to_owned());
    std::env::split_paths(&path).chain(system).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# A page\n\n<!--\n```sh\nmkdir a && cd a\n```\n-->\n\n\
        <!-- run with: /mnt => /srv -->\n```sh\nls /mnt   # a mount\n```\n<!-- prints: it's -->\n\n\
        <!-- not run: needs a moon -->\n```sh\nfly\n```\n\n\
        <!-- needs: sh, moon -->\n```sh\nland\n```\n<!-- prints: dust -->\n\nWords.\n\n\
        ```text\nnot this\n```\n";

    #[test]
    fn commands_keep_their_lines() {
        let page = Page::of(TEXT, &|program| program == "sh").expect("a page");
        let lines = page.script.lines().enumerate().filter(|(_, line)| !line.is_empty());
        let lines: Vec<_> = lines.map(|(at, line)| (at + 1, line)).collect();
        let wanted = [
            (4, "begin"),
            (5, "mkdir a && cd a"),
            (10, "begin"),
            (11, "ls /srv   # a mount"),
            (13, r"prints 'it'\''s'"),
        ];
        assert_eq!(lines, wanted);
        assert_eq!(page.script.lines().count(), TEXT.lines().count());
        assert_eq!(page.blocks, 1);
        assert!(has_commands(TEXT) && !has_commands("```text\nls\n```\n"));
        assert_eq!(page.left_out, [(16, "needs a moon".to_owned())]);
        assert_eq!(page.lacking, [(21, "moon".to_owned())]);
    }

    #[test]
    fn pages_with_slips_are_refused() {
        let said = |text: &str| Page::of(text, &|_| true).expect_err("a slip");
        assert_eq!(said("<!-- nt run: x -->\n"), "1: a comment that is not known: nt run: x");
        assert_eq!(said("\n<!-- not run: x -->\nwords\n"), "2: no block follows this comment");
        assert_eq!(said("```sh\na && b\n```\n"), "2: a failure before && is not noticed");
        assert_eq!(said("```sh\na\n"), "the last block has no end");
    }
}
