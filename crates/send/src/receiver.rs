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
//! An incomplete subvolume stays, as `btrfs receive` leaves it, and the error names it.

mod apply;
mod home;
mod walk;

use std::io::Read;

use crate::error::{Error, Result, shortened};
use crate::stream::{Command, Source, StreamError, StreamReader, Uuid};
use apply::Current;
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
}

/// Receives every stream of the input; returns the number of subvolumes.
///
/// # Errors
///
/// The first error in the stream or while applying it; [`Error::Incomplete`] around the error
/// names the incomplete subvolume.
pub fn receive(
    home: &impl Home,
    mut input: impl Read,
    mut report: impl FnMut(Event<'_>),
) -> Result<usize> {
    let mut receiver = Receiver { home, current: None, count: 0 };
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
                    let top = top.map_err(|error| step("creating subvolume", name, error))?;
                    self.current = Some(Current::new(name, source, top));
                    report(Event::Subvolume(name));
                }
                Command::Snapshot { name, source, parent } => {
                    self.finish(report)?;
                    let name = name.as_bytes();
                    let tree = self.home.find(&parent)?;
                    let tree = tree.ok_or_else(|| Error::NoParent(uuid_text(&parent.uuid)))?;
                    let top = self.home.snapshot(name, tree);
                    let top = top.map_err(|error| step("creating snapshot", name, error))?;
                    self.current = Some(Current::new(name, source, top));
                    report(Event::Snapshot(name));
                }
                Command::End => {
                    self.finish(report)?;
                    return Ok(true);
                }
                command => {
                    let Some(current) = &mut self.current else {
                        return Err(Error::Refused("a command before any subvolume was begun"));
                    };
                    current.apply(self.home, &command)?;
                }
            }
        }
    }

    /// Completes the subvolume (R2).
    fn finish(&mut self, report: &mut impl FnMut(Event<'_>)) -> Result<()> {
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
