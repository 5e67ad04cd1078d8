//! Work that goes on in a process of its own, after the program that began it has ended.
//!
//! # Invariants
//!
//! - **B1** The process in the background has no terminal and none of the pipes of its caller. So a
//!   shell or a script that reads the caller's output does not wait for the process in the
//!   background.

use std::env;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::exit::{Context, Exit, Failure, Result};

/// This variable is set only for the process in the background.
const MARK: &str = "BUTTRESS_BACKGROUND";

/// How long the caller waits for an early failure, and how often it looks.
const EARLY: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(10);

/// Runs this program once more, with the same arguments, in a process in the background. Returns
/// the number of the new process. In the new process, which does the work, returns `None`.
///
/// # Errors
///
/// The message of the new process, if that process fails at once.
pub fn begin() -> Result<Option<u32>> {
    if env::var_os(MARK).is_some() {
        return Ok(None);
    }
    let what = || "a process in the background";
    let memory = memfd_create("errors", MemfdFlags::CLOEXEC).map_err(std::io::Error::from);
    let mut errors = File::from(memory.context(what)?);
    let mut words = env::args_os();
    let called = words.next().unwrap_or_default();
    let mut child = Command::new(env::current_exe().context(what)?)
        .arg0(called)
        .args(words)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(errors.try_clone().context(what)?)
        .process_group(0)
        .spawn()
        .context(what)?;
    let begun = Instant::now();
    while begun.elapsed() < EARLY {
        if let Some(status) = child.try_wait().context(what)? {
            let mut text = String::new();
            errors.rewind().context(what)?;
            // A message that is not UTF-8 is not shown.
            let _ = errors.read_to_string(&mut text);
            let text = text.trim().trim_start_matches("ERROR: ");
            if !status.success() && !text.is_empty() {
                return Err(Failure::new(Exit::Failure, text));
            }
            break;
        }
        std::thread::sleep(LOOK);
    }
    Ok(Some(child.id()))
}
