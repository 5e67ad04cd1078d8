//! Finds the process that has a volume open, and gives it orders.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::ask::{Answer, ask, reachable};
use super::farewell::is_patience;
use super::place::{Served, served};
use crate::closing;
use crate::exit::{Context, Exit, Failure, Result};
use crate::order::{Order, Step, Watch};

/// How often the client of an order is told how far it is, and whether it still waits is looked at.
pub(super) const STEP_PERIOD: Duration = Duration::from_millis(100);

/// The mount or server of `path`: an image, a cache, or a folder on a mount.
pub fn find(path: &Path) -> Result<Option<(PathBuf, Answer)>> {
    let full = path.canonicalize().context(|| path.display().to_string())?;
    if full.is_dir() {
        return Ok(served(path)?.map(|Served { socket, answer, .. }| (socket, answer)));
    }
    let found = reachable().into_iter().find(|(_, answer)| answer.subject.serves(&full));
    if found.as_ref().is_some_and(|(_, answer)| answer.is_closing) {
        // The volume is free when that is over.
        closing::until_closed(&full);
        return Ok(None);
    }
    Ok(found)
}

/// [`find`], where there must be one.
pub fn must_find(path: &Path) -> Result<(PathBuf, Answer)> {
    let none = || {
        let path = path.display();
        Failure::new(Exit::Failure, format!("{path}: no mount or server of this user has it open"))
    };
    find(path)?.ok_or_else(none)
}

/// Sends a message to the cache of the server at `socket`, and waits until it is done.
pub fn tell_cache(socket: &Path, message: &str) -> Result<()> {
    let text =
        ask(socket, &format!("cache {message}"), None).context(|| socket.display().to_string())?;
    let answer: Value = serde_json::from_str(&text).context(|| "the answer")?;
    match answer["error"].as_str() {
        Some(error) => Err(Failure::new(Exit::Failure, error)),
        None => Ok(()),
    }
}

/// Gives an order to the mount that listens at `socket`, and waits until it is carried out. When
/// `stop` is set, it is ended as soon as it can be.
pub fn give(socket: &Path, order: &Order, stop: &AtomicBool, watch: Watch<'_>) -> Result<Value> {
    let name = || socket.display().to_string();
    let text = serde_json::to_string(order).context(|| "the order")?;
    let mut stream = UnixStream::connect(socket).context(name)?;
    writeln!(stream, "order {text}").context(name)?;
    stream.set_read_timeout(Some(STEP_PERIOD)).context(name)?;
    let mut answers = BufReader::new(stream.try_clone().context(name)?);
    let mut line = String::new();
    let mut is_told = false;
    loop {
        if stop.load(Ordering::Relaxed) && !is_told {
            is_told = true;
            stream.shutdown(std::net::Shutdown::Write).context(name)?;
        }
        match answers.read_line(&mut line) {
            Ok(0) => return Err(Failure::new(Exit::Failure, "the mount ended before it answered")),
            Ok(_) => {}
            // What came of a line stays in it.
            Err(error) if is_patience(&error) => continue,
            Err(error) => return Err(error).context(name),
        }
        let answer: Value = serde_json::from_str(&line).context(|| "the answer")?;
        line.clear();
        if let Some(error) = answer["error"].as_str() {
            return Err(Failure::new(Exit::of(&answer["exit"]), error));
        }
        match answer.get("step").map(Step::deserialize) {
            Some(step) => drop(watch(&step.context(|| "the answer")?)),
            None => return Ok(answer["done"].clone()),
        }
    }
}
