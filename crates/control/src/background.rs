//! Work that goes on in a process of its own, after the program that began it has ended.
//!
//! # Invariants
//!
//! - **B1** The process in the background has no terminal and none of the pipes of its caller. So a
//!   shell or a script that reads the caller's output does not wait for the process in the
//!   background.
//! - **B2** The caller ends when the work has begun, or with the message of work that failed before
//!   that. No time decides. So a status that is asked for next knows of the work.

use std::env;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Once;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::exit::{Context, Exit, Failure, Result};

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
/// The message of the new process, if that process fails before its work has begun.
pub fn begin() -> Result<Option<u32>> {
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
        .process_group(0)
        .spawn()
        .context(what)?;
    let mut told = Vec::new();
    output.read_to_end(&mut told).context(what)?;
    if told.first() != Some(&BEGUN) {
        let status = child.wait().context(what)?;
        let mut text = String::new();
        errors.rewind().context(what)?;
        // A message that is not UTF-8 is not shown.
        let _ = errors.read_to_string(&mut text);
        let text = text.trim().trim_start_matches("ERROR: ");
        if !status.success() && !text.is_empty() {
            return Err(Failure::new(Exit::Failure, text));
        }
    }
    Ok(Some(child.id()))
}

/// Says that the work of this process has begun, if this is a process in the background. From then
/// on it has no standard output (B1).
pub(crate) fn begun() {
    static ONCE: Once = Once::new();
    if env::var_os(MARK).is_none() {
        return;
    }
    ONCE.call_once(|| {
        // Without an answer the caller waits for the end of the work.
        let told = io::stdout().write_all(&[BEGUN]).and_then(|()| io::stdout().flush());
        let null = OpenOptions::new().write(true).open("/dev/null");
        let left = null.and_then(|null| Ok(rustix::stdio::dup2_stdout(&null)?));
        if let Err(error) = told.and(left) {
            tracing::debug!(%error, "the caller does not know that the work has begun");
        }
    });
}
