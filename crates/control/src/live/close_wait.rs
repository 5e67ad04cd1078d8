//! Reports the end of a mount to the programs that wait for it.
//!
//! # Place
//!
//! `umount` connects before it unmounts, and reads until the server has closed the volume. As its
//! last action, the server tells all waiting programs the result.
//!
//! # Invariants
//!
//! - **E1** Once the server has confirmed that a program waits, the server reports the end to that
//!   program, unless the server dies. So if the connection ends without a report, the last commit
//!   may be missing.
//! - **E2** When the server reports the end, it has already released the locks on the devices.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::ask::is_timeout;
use crate::exit::{Exit, Failure, Result};

/// The question that asks for a report of the end.
pub(super) const QUESTION: &str = "farewell";
/// The longest time for an answer that needs no work.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The question on the same connection that asks whether the mount is still used.
const USED: &str = "used";
/// The time after which a program prints the reason for its wait.
const SILENCE: Duration = Duration::from_secs(1);
/// The longest time for the kernel to release a mount after it was unmounted.
const LETTING_GO_MAX: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);
/// The longest time for a process to end after it has said that all is done.
const EXIT_MAX: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The programs that wait for the end of this process's mount. Unranked: a leaf; no other lock is
/// taken under it.
#[derive(Debug, Default)]
pub(super) struct CloseWaiters(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<UnixStream>,
    /// The result of closing, once it is known.
    closed: Option<Value>,
}

impl CloseWaiters {
    /// Registers a program that waits (E1), and answers its questions until it goes away.
    pub(super) fn serve(
        &self,
        stream: &UnixStream,
        is_closing: impl Fn() -> bool,
    ) -> std::io::Result<()> {
        let mut answers = stream.try_clone()?;
        stream.set_read_timeout(None)?;
        {
            let mut state = self.0.lock();
            writeln!(answers, "{}", json!({ "waits": true }))?;
            match &state.closed {
                Some(closed) => return writeln!(answers, "{closed}"),
                None => state.waiting.push(stream.try_clone()?),
            }
        }
        for line in BufReader::new(stream).lines() {
            if line?.trim() == USED {
                let answer = json!({ "used": !is_closing() });
                let _turn = self.0.lock();
                writeln!(answers, "{answer}")?;
            }
        }
        Ok(())
    }

    /// Tells all waiting programs what the end waits for.
    pub(super) fn tell(&self, text: &str) {
        let state = self.0.lock();
        let told = json!({ "waits_for": text });
        for mut stream in &state.waiting {
            // A program that went away needs no report.
            let _ = writeln!(stream, "{told}");
        }
    }

    /// Reports the end to all waiting programs.
    pub(super) fn report(&self, failure: Option<String>) {
        let mut state = self.0.lock();
        let closed = json!({ "closed": true, "error": failure });
        for mut stream in std::mem::take(&mut state.waiting) {
            // A program that went away needs no report.
            let _ = writeln!(stream, "{closed}");
        }
        state.closed = Some(closed);
    }
}

/// A wait for the end of another process's mount.
#[derive(Debug)]
pub struct CloseWait {
    pid: u32,
    /// `None` if the process has ended, or cannot be watched.
    process: Option<OwnedFd>,
    stream: UnixStream,
    answers: BufReader<UnixStream>,
    /// The result of closing, once it was reported.
    closed: Option<Value>,
}

/// The state of a mount after it was unmounted at one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MountUse {
    /// The server closes the volume, or has done so.
    Closing,
    /// The volume is also mounted elsewhere, or a program still uses the mount.
    Used,
}

impl CloseWait {
    /// Begins to wait for the end of the server that listens at `socket`.
    ///
    /// # Errors
    ///
    /// The server does not answer the question. Servers of an older version do not know the
    /// question.
    pub fn of(socket: &Path, pid: u32) -> std::io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = raw.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        writeln!(stream, "{QUESTION}")?;
        let answers = BufReader::new(stream.try_clone()?);
        let mut this = Self { pid, process, stream, answers, closed: None };
        match this.answer()? {
            Some(first) if first["waits"] == json!(true) => Ok(this),
            _ => Err(std::io::Error::other("the server tells of no end")),
        }
    }

    /// Returns the state of the mount, after it was unmounted at one place.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn mount_use(&mut self) -> std::io::Result<MountUse> {
        let begun = Instant::now();
        loop {
            // A server that has closed the volume may have ended.
            let is_asked = writeln!(self.stream, "{USED}").is_ok();
            let answer = if is_asked { self.answer()? } else { None };
            let is_used = answer.as_ref().is_some_and(|answer| answer["used"] == json!(true));
            if answer.as_ref().is_some_and(|answer| answer.get("closed").is_some()) {
                self.closed = answer;
            }
            if !is_used {
                return Ok(MountUse::Closing);
            }
            if begun.elapsed() >= LETTING_GO_MAX {
                return Ok(MountUse::Used);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the volume is closed and its server has ended. After a second, `say` gets the
    /// reason for the wait, once. It also gets what the server says about the wait.
    ///
    /// # Errors
    ///
    /// If closing failed, or the server ended without a report (E1).
    pub fn wait(mut self, say: impl Fn(&str)) -> Result<()> {
        let lost = |error: Option<std::io::Error>| {
            let error = error.map(|error| format!(": {error}")).unwrap_or_default();
            let what = "the server ended before it said that everything is durable";
            Failure::new(Exit::Failure, format!("{what}{error}"))
        };
        let mut is_silent = true;
        self.stream.set_read_timeout(Some(SILENCE)).map_err(|error| lost(Some(error)))?;
        let mut line = String::new();
        while self.closed.is_none() {
            match self.answers.read_line(&mut line) {
                Ok(0) => return Err(lost(None)),
                Ok(_) => {
                    let answer: Option<Value> = serde_json::from_str(&line).ok();
                    if let Some(told) = answer.as_ref().and_then(|told| told["waits_for"].as_str())
                    {
                        say(told);
                        is_silent = false;
                    }
                    self.closed = answer.filter(|answer| answer.get("closed").is_some());
                    line.clear();
                }
                // The part of a line that was read so far stays in `line`.
                Err(error) if is_timeout(&error) => {
                    if std::mem::take(&mut is_silent) {
                        let pid = self.pid;
                        say(&format!("waiting for process {pid} to make everything durable"));
                    }
                }
                Err(error) => return Err(lost(Some(error))),
            }
        }
        if let Some(process) = &self.process {
            let mut ends = [PollFd::new(process, PollFlags::IN)];
            // The volume is closed. The wait for the end of the process is bounded, because that
            // end may take long.
            let _ = rustix::io::retry_on_intr(|| poll(&mut ends, Some(&EXIT_MAX)));
        }
        match self.closed.as_ref().and_then(|closed| closed["error"].as_str()) {
            Some(error) => Err(Failure::new(Exit::Failure, error)),
            None => Ok(()),
        }
    }

    /// Returns the next line of the server, or `None` at its end.
    fn answer(&mut self) -> std::io::Result<Option<Value>> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}
