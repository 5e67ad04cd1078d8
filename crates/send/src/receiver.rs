//! Receiving: subvolumes from streams.
//!
//! # Invariants
//!
//! - **R1** Nothing outside the received subvolume is changed, whatever the stream says. Paths are
//!   walked name by name from the top of that subvolume; no symbolic link is followed, and no path
//!   leads into another subvolume. Clone sources come from the subvolume that the stream names, by
//!   the same walk.
//! - **R2** A subvolume is marked as received, and made read-only, only after its last command. So
//!   a subvolume without a received uuid is incomplete.
//!
//! # Failure
//!
//! An incomplete subvolume stays, as `btrfs receive` leaves it, and the error names it. The first
//! failed command ends receiving, or a later one by [`ReceiveOptions::max_errors`]. A subvolume
//! with a failed command is never complete (R2). So nothing is received after that subvolume.

mod apply;
mod home;
mod walk;

use std::io::Read;
use std::num::NonZeroU64;

use crate::error::{Error, Result, shortened, with_causes};
use crate::stream::{Command, Source, StreamError, StreamReader, Uuid};
use apply::Current;
use buttress_fs::Inode;
pub use home::{Home, Subvolumes};

/// An event that a receiver reports while it works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A subvolume was made. The commands that follow fill it.
    Subvolume(&'a [u8]),
    /// A snapshot was made. The commands that follow change it.
    Snapshot(&'a [u8]),
    /// A subvolume is complete.
    Complete(&'a [u8]),
    /// A command failed, and the next commands are tried. The text has the cause.
    Failed(&'a str),
}

/// Options of a receiver.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ReceiveOptions {
    /// The number of failed commands at which receiving ends; without a limit with `None`. An error
    /// in the stream itself always ends receiving.
    pub max_errors: Option<NonZeroU64>,
}

impl Default for ReceiveOptions {
    /// Ends at the first failed command.
    fn default() -> Self {
        Self { max_errors: Some(NonZeroU64::MIN) }
    }
}

/// Receives every stream of the input; returns the number of subvolumes.
///
/// # Errors
///
/// The first error in the stream or while applying it; [`Error::Incomplete`] around the error
/// names the incomplete subvolume.
pub fn receive(home: &impl Home, input: impl Read, report: impl FnMut(Event<'_>)) -> Result<usize> {
    receive_with(home, input, ReceiveOptions::default(), report)
}

/// Receives every stream of the input as [`receive`] does, with options.
///
/// # Errors
///
/// As [`receive`]. [`Error::Failed`] at the end of a subvolume of which commands failed.
pub fn receive_with(
    home: &impl Home,
    mut input: impl Read,
    options: ReceiveOptions,
    mut report: impl FnMut(Event<'_>),
) -> Result<usize> {
    let mut receiver =
        Receiver { home, max_errors: options.max_errors, failed: 0, current: None, count: 0 };
    let mut done = Ok(false);
    let mut streams = 0;
    while done.is_ok() {
        done = receiver.stream(&mut input, &mut report);
        match done {
            Ok(true) => streams += 1,
            Ok(false) => break,
            Err(_) => {}
        }
    }
    match done {
        Ok(_) if streams == 0 => Err(StreamError::Empty.into()),
        Ok(_) => Ok(receiver.count),
        Err(source) => Err(match receiver.current {
            None => source,
            Some(current) => {
                let name = current.name.escape_ascii().to_string();
                Error::Incomplete { name, source: Box::new(source) }
            }
        }),
    }
}

struct Receiver<'h, H> {
    home: &'h H,
    max_errors: Option<NonZeroU64>,
    /// Commands of the current subvolume that failed. If there is no current subvolume, making it
    /// has failed.
    failed: u64,
    current: Option<Current>,
    count: usize,
}

impl<H: Home> Receiver<'_, H> {
    /// Receives one stream; returns whether there was one.
    fn stream(
        &mut self,
        input: &mut impl Read,
        report: &mut impl FnMut(Event<'_>),
    ) -> Result<bool> {
        let Some(mut reader) = StreamReader::open(input)? else { return Ok(false) };
        loop {
            match reader.command()? {
                Command::Subvol { name, source } => {
                    self.finish(report)?;
                    let name = name.as_bytes();
                    let top = self.home.create(name);
                    match top.map_err(|error| step("creating subvolume", name, error)) {
                        Ok(top) => {
                            self.current = Some(Current::new(name, source, top));
                            report(Event::Subvolume(name));
                        }
                        Err(error) => self.fail(error, report)?,
                    }
                }
                Command::Snapshot { name, source, parent } => {
                    self.finish(report)?;
                    let name = name.as_bytes();
                    match self.snapshot(name, &parent) {
                        Ok(top) => {
                            self.current = Some(Current::new(name, source, top));
                            report(Event::Snapshot(name));
                        }
                        Err(error) => self.fail(error, report)?,
                    }
                }
                Command::End => {
                    self.finish(report)?;
                    return Ok(true);
                }
                command => match &mut self.current {
                    Some(current) => {
                        if let Err(error) = current.apply(self.home, &command) {
                            self.fail(error, report)?;
                        }
                    }
                    // There is no subvolume to change, and the reason was reported.
                    None if self.failed > 0 => {}
                    None => {
                        return Err(Error::Refused("a command before any subvolume was begun"));
                    }
                },
            }
        }
    }

    fn snapshot(&self, name: &[u8], parent: &Source) -> Result<Inode> {
        let tree = self.home.find(parent)?;
        let tree = tree.ok_or_else(|| Error::NoParent(uuid_text(&parent.uuid)))?;
        let top = self.home.snapshot(name, tree);
        top.map_err(|error| step("creating snapshot", name, error))
    }

    /// Reports a failed command. Returns the error if the command was the last that may fail.
    fn fail(&mut self, error: Error, report: &mut impl FnMut(Event<'_>)) -> Result<()> {
        self.failed += 1;
        if self.max_errors.is_some_and(|max| self.failed >= max.get()) {
            return Err(error);
        }
        report(Event::Failed(&with_causes(&error)));
        Ok(())
    }

    /// Completes the subvolume (R2).
    fn finish(&mut self, report: &mut impl FnMut(Event<'_>)) -> Result<()> {
        if self.failed > 0 {
            return Err(Error::Failed(self.failed));
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.drop_inodes();
        self.home.finish(&current.top, &current.source)?;
        self.count += 1;
        if let Some(done) = self.current.take() {
            report(Event::Complete(&done.name));
        }
        Ok(())
    }
}

fn step(command: &'static str, path: &[u8], source: impl Into<Error>) -> Error {
    Error::Step { command, path: shortened(path), source: Box::new(source.into()) }
}

fn uuid_text(uuid: &Uuid) -> String {
    crate::stream::uuid_text(uuid)
}

/// How well a root item matches the source that a stream names: higher is better.
fn likeness(item: &buttress_format::RootItem, source: &Source) -> u8 {
    match () {
        () if source.uuid == [0; 16] => 0,
        () if item.received_uuid == source.uuid && item.stransid.0 == source.ctransid => 3,
        () if item.received_uuid == source.uuid => 2,
        () if item.uuid == source.uuid => 1,
        () => 0,
    }
}
