//! Work that goes on in a process of its own, after the program that began it has ended.
//!
//! # Invariants
//!
//! - **B1** Once its work has begun, the process in the background has no terminal and none of the
//!   pipes of its caller. So a shell or a script that reads the caller's output does not wait for
//!   the process in the background.
//! - **B2** The caller ends when the work has begun, or as work that failed before that. No time
//!   decides. So a status that is asked for next knows of the work.
//! - **B3** A caller that is interrupted before the work has begun takes the work with it. The
//!   process in the background is in the session and the group of its caller until then. It ends
//!   if it finds no caller any more.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::exit::{Context, Exit, Failure, Result};
use crate::ui::Ui;

/// This variable is set only for the process in the background.
const MARK: &str = "BUTTRESS_BACKGROUND";
/// What the process in the background writes to its standard output when its work has begun. No
/// text begins with this byte.
const BEGUN: u8 = 0;

/// Runs this program once more, with the same arguments, in a process in the background. Returns
/// the number of the new process when its work has begun or ended (B2). In the new process, which
/// does the work, returns `None`.
///
/// # Errors
///
/// The message and the exit code of the new process, if it fails before its work has begun.
pub fn begin(ui: &Ui) -> Result<Option<u32>> {
    if env::var_os(MARK).is_some() {
        return Ok(None);
    }
    let what = || "a process in the background";
    let memory = memfd_create("errors", MemfdFlags::CLOEXEC).map_err(io::Error::from);
    let mut errors = File::from(memory.context(what)?);
    let (mut output, its_end) = io::pipe().context(what)?;
    let mut words = env::args_os();
    let called = words.next().unwrap_or_default();
    let mut child = Command::new(env::current_exe().context(what)?)
        .arg0(called)
        .args(words)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(its_end)
        .stderr(errors.try_clone().context(what)?)
        .spawn()
        .context(what)?;
    let waiting = ui.wait_bar("beginning");
    let mut first = [0];
    let has_begun = output.read(&mut first).context(what)? == 1 && first[0] == BEGUN;
    if !has_begun {
        // What it prints besides is the answer of work that has ended already.
        io::copy(&mut output, &mut io::sink()).context(what)?;
        let status = child.wait().context(what)?;
        drop(waiting);
        let mut text = String::new();
        errors.rewind().context(what)?;
        // A message that is not UTF-8 is not shown.
        let _ = errors.read_to_string(&mut text);
        ended(status, &text, ui)?;
    }
    Ok(Some(child.id()))
}

/// Returns the failure of a process that ended before its work had begun. Its text is the failure
/// from the last line on that begins as an error, and the lines in front are notes.
fn ended(status: ExitStatus, text: &str, ui: &Ui) -> Result<()> {
    let bare = |line: &str| {
        let line = line.strip_prefix("buttress: ").unwrap_or(line);
        line.strip_prefix("ERROR: ").unwrap_or(line).to_owned()
    };
    let lines: Vec<_> = text.trim().lines().collect();
    let begins = |line: &&str| line.starts_with("ERROR: ") || line.starts_with("buttress: ");
    let from = match status.success() {
        true => lines.len(),
        false => lines.iter().rposition(begins).unwrap_or(0),
    };
    let (notes, failure) = lines.split_at(from);
    notes.iter().for_each(|line| ui.note(bare(line)));
    if status.success() {
        return Ok(());
    }
    let exit = status.code().map_or(Exit::Failure, |code| Exit::of(&code.into()));
    let what = match failure {
        [] => format!("the process in the background ended with {status}"),
        lines => bare(&lines.join("\n")),
    };
    Err(Failure::new(exit, what))
}

/// Says that the work of this process has begun, if this is a process in the background. From then
/// on it has no output (B1). Returns whether the work shall go on (B3).
pub(crate) fn begun() -> bool {
    static HAS_CALLER: OnceLock<bool> = OnceLock::new();
    if env::var_os(MARK).is_none() {
        return true;
    }
    *HAS_CALLER.get_or_init(|| {
        // This comes first: a caller that has its answer ends, and its session with it. The signal
        // of that end goes to the whole process group. A new session has no terminal.
        let alone = rustix::process::setsid().map(drop).map_err(io::Error::from);
        let told = io::stdout().write_all(&[BEGUN]).and_then(|()| io::stdout().flush());
        let null = OpenOptions::new().write(true).open("/dev/null");
        let left = null.and_then(|null| {
            rustix::stdio::dup2_stdout(&null)?;
            Ok(rustix::stdio::dup2_stderr(&null)?)
        });
        if let Err(error) = alone.and(left) {
            tracing::debug!(%error, "the process in the background is not by itself");
        }
        told.is_ok()
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// A process that ended early gives its caller its last error with all lines, and its exit
    /// code. One without a word gives the signal that ended it.
    #[test]
    fn early_ends_are_told() {
        let ui = Ui::new(false).quiet(true);
        let told = |status: i32, text: &str| {
            let failure = ended(ExitStatus::from_raw(status), text, &ui).expect_err("it failed");
            (failure.exit, failure.to_string())
        };
        let (exit, what) = told(2 << 8, "buttress: waiting for a server\nbuttress: i: nothing\n");
        assert_eq!((exit, what.as_str()), (Exit::Usage, "i: nothing"));
        assert_eq!(told(1 << 8, "ERROR: no\n").1, "no");
        let told_as = told(1 << 8, "buttress: a note\nERROR: running.\nTo cancel use 'x'\n").1;
        assert_eq!(told_as, "running.\nTo cancel use 'x'");
        assert!(told(9, "").1.contains("signal: 9"), "{}", told(9, "").1);
        assert!(ended(ExitStatus::from_raw(0), "buttress: a note\n", &ui).is_ok());
    }
}
