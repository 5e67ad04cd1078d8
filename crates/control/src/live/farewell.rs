//! The end of a mount, told to the programs that wait for it.
//!
//! # Place
//!
//! `umount` connects before it takes the mount away, and reads until the server has closed the
//! volume. The server tells all that wait what came of that as the last thing that it does.
//!
//! # Invariants
//!
//! - **E1** A program that was told that it waits is told of the end, unless the server dies. So
//!   an end of the connection without a word means that the last commit may be missing.
//! - **E2** When the end is told, the locks on the devices are given up already.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::ask::is_patience;
use crate::exit::{Exit, Failure, Result};

/// Asks to be told of the end.
pub(super) const QUESTION: &str = "farewell";
/// How long an answer may take that takes no work.
const PATIENCE: Duration = Duration::from_secs(5);
/// Asks, on the same connection, whether the mount is used yet.
const USED: &str = "used";
/// How long a program waits before it says what it waits for.
const SILENCE: Duration = Duration::from_secs(1);
/// How long the kernel may take to let go of a mount that was taken away.
const LETTING_GO_MAX: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);
/// How long a process may take to end when it has said that all is done.
const EXIT_MAX: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The programs that wait for the end of this process's mount.
/// Unranked: a leaf; nothing is locked while it is held.
#[derive(Debug, Default)]
pub(super) struct Farewells(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waiting: Vec<UnixStream>,
    /// What came of closing, once that is known.
    closed: Option<Value>,
}

impl Farewells {
    /// Enters one that waits (E1), and answers it until it goes away.
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

    /// Tells all of the end.
    pub(super) fn tell(&self, failure: Option<String>) {
        let mut state = self.0.lock();
        let closed = json!({ "closed": true, "error": failure });
        for mut stream in std::mem::take(&mut state.waiting) {
            // One that went away needs no word.
            let _ = writeln!(stream, "{closed}");
        }
        state.closed = Some(closed);
    }
}

/// A wait for the end of another process's mount.
#[derive(Debug)]
pub struct Farewell {
    pid: u32,
    /// Nothing where the process is gone, or cannot be watched.
    process: Option<OwnedFd>,
    stream: UnixStream,
    answers: BufReader<UnixStream>,
    /// What came of closing, once it was told.
    closed: Option<Value>,
}

/// How a mount is after it was taken away from one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// The server closes the volume, or has done so.
    Closing,
    /// It is mounted elsewhere too, or a program has it open.
    Used,
}

impl Farewell {
    /// Begins to wait for the end of the server that listens at `socket`.
    ///
    /// # Errors
    ///
    /// When it does not answer, as servers of an older version do not.
    pub fn of(socket: &Path, pid: u32) -> std::io::Result<Self> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = raw.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "{QUESTION}")?;
        let answers = BufReader::new(stream.try_clone()?);
        let mut this = Self { pid, process, stream, answers, closed: None };
        match this.answer()? {
            Some(first) if first["waits"] == json!(true) => Ok(this),
            _ => Err(std::io::Error::other("the server tells of no end")),
        }
    }

    /// Says how the mount is, now that it was taken away from one place.
    ///
    /// # Errors
    ///
    /// When the server does not answer.
    pub fn left(&mut self) -> std::io::Result<Left> {
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
                return Ok(Left::Closing);
            }
            if begun.elapsed() >= LETTING_GO_MAX {
                return Ok(Left::Used);
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the volume is closed and its server has ended. After a second `say` is told
    /// what is waited for, once.
    ///
    /// # Errors
    ///
    /// What closing met; a server that ended without a word (E1).
    pub fn wait(mut self, say: impl FnOnce(&str)) -> Result<()> {
        let lost = |error: Option<std::io::Error>| {
            let error = error.map(|error| format!(": {error}")).unwrap_or_default();
            let what = "the server ended before it said that everything is durable";
            Failure::new(Exit::Failure, format!("{what}{error}"))
        };
        let mut say = Some(say);
        self.stream.set_read_timeout(Some(SILENCE)).map_err(|error| lost(Some(error)))?;
        let mut line = String::new();
        while self.closed.is_none() {
            match self.answers.read_line(&mut line) {
                Ok(0) => return Err(lost(None)),
                Ok(_) => {
                    let answer: Option<Value> = serde_json::from_str(&line).ok();
                    self.closed = answer.filter(|answer| answer.get("closed").is_some());
                    line.clear();
                }
                // What came of a line stays in it.
                Err(error) if is_patience(&error) => {
                    if let Some(say) = say.take() {
                        let pid = self.pid;
                        say(&format!("waiting for process {pid} to make everything durable"));
                    }
                }
                Err(error) => return Err(lost(Some(error))),
            }
        }
        if let Some(process) = &self.process {
            let mut ends = [PollFd::new(process, PollFlags::IN)];
            // The volume is closed; a process that takes its time to end keeps no program waiting
            // for ever.
            let _ = rustix::io::retry_on_intr(|| poll(&mut ends, Some(&EXIT_MAX)));
        }
        match self.closed.as_ref().and_then(|closed| closed["error"].as_str()) {
            Some(error) => Err(Failure::new(Exit::Failure, error)),
            None => Ok(()),
        }
    }

    /// The next line of the server; nothing at its end.
    fn answer(&mut self) -> std::io::Result<Option<Value>> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line)?))
    }
}
