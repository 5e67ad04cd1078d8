//! The last commit of a mounted volume, held for a program that reads the devices by itself.
//!
//! # Place
//!
//! `check` asks, and then opens the devices past the server's lock. So the server lends nothing of
//! its memory or time to the check, and a fault of the check cannot reach it.
//!
//! # Invariants
//!
//! - **H1** The commit has all that programs wrote before the question, or the answer says why not.
//! - **H2** The server keeps what the commit reaches until the asking process closes the
//!   connection. A server that ends before closes it, and [`Hold::is_kept`] says so.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use buttress_base::text;
use buttress_format::Superblock;
use buttress_format::limits::SUPER_OFFSETS;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{OpenVolume, ask};
use crate::exit::{Context, Exit, Failure, Result};
use crate::names;
use crate::order::Order;
use crate::target::{Open, Stream};

/// Asks for the last commit.
pub(super) const QUESTION: &str = "hold";

/// What the server says of the commit.
#[derive(Debug, Serialize, Deserialize)]
struct HeldCommit {
    /// The superblock as it lies at its first place.
    superblock: Vec<u8>,
    /// The devices that the volume has now, as whole names.
    devices: Vec<String>,
    /// Why it lacks what was written last, if it does.
    left_out: Option<String>,
}

impl OpenVolume {
    /// Commits, answers, and holds the commit until the connection ends (H2).
    pub(super) fn hold(&self, name: &str, stream: &UnixStream) -> std::io::Result<()> {
        let open = Open { fs: &self.fs, name, kernel_sync: self.kernel_sync.as_ref() };
        let committed = (self.executor)(&Order::Commit, &open, Stream::None, &mut |_| true);
        let held = self.fs.hold_commit();
        let whole = |name: &str| {
            let name = text::decode(name).unwrap_or_else(|| name.as_bytes().to_vec());
            names::of_path(self.folder.join(OsString::from_vec(name)))
        };
        let commit = HeldCommit {
            superblock: held.superblock().to_bytes(SUPER_OFFSETS[0]),
            devices: self.fs.devices().iter().map(|device| whole(&device.name)).collect(),
            left_out: committed.err().map(|failure| failure.to_string()),
        };
        let mut stream = stream;
        stream.write_all(format!("{}\n", json!({ "held": commit })).as_bytes())?;
        stream.set_read_timeout(None)?;
        while stream.read(&mut [0; 16])? > 0 {}
        Ok(())
    }
}

/// A commit that a server holds, as long as this lives.
#[derive(Debug)]
pub struct Hold {
    /// The superblock of the commit.
    pub superblock: Superblock,
    /// The devices of the volume.
    pub devices: Vec<PathBuf>,
    /// Why the commit lacks what was written last, if it does.
    pub left_out: Option<String>,
    server: UnixStream,
}

impl Hold {
    /// Whether the server holds the commit yet (H2).
    #[must_use]
    pub fn is_kept(&self) -> bool {
        let mut server = &self.server;
        // It says nothing more: what can be read is the end.
        server.set_nonblocking(true).is_ok()
            && matches!(server.read(&mut [0]), Err(error) if ask::is_timeout(&error))
    }
}

/// Has the server at `socket` hold the last commit; nothing when it is closing the volume.
///
/// # Errors
///
/// When it refuses, says why; when it is of a version without such a question.
pub fn hold(socket: &Path) -> Result<Option<Hold>> {
    let name = || socket.display().to_string();
    let mut server = UnixStream::connect(socket).context(name)?;
    writeln!(server, "{QUESTION}").context(name)?;
    let mut line = String::new();
    // Nothing comes behind the line, so no byte of it is lost with this reader.
    std::io::BufRead::read_line(&mut std::io::BufReader::new(&server), &mut line).context(name)?;
    let answer: Value = serde_json::from_str(&line).context(|| "the answer")?;
    if let Some(error) = answer["error"].as_str() {
        return Err(Failure::new(Exit::of(&answer["exit"]), error));
    }
    if answer["closing"] == json!(true) {
        return Ok(None);
    }
    if answer.get("held").is_none() {
        let what = "its server is of a version that holds no commit: unmount it first";
        return Err(Failure::new(Exit::Unsupported, what));
    }
    let commit = HeldCommit::deserialize(&answer["held"]).context(|| "the answer")?;
    let superblock =
        Superblock::parse(&commit.superblock, SUPER_OFFSETS[0]).context(|| "the answer")?;
    let path = |name: &String| text::decode(name).map(|name| OsString::from_vec(name).into());
    let devices = commit.devices.iter().filter_map(path).collect();
    Ok(Some(Hold { superblock, devices, left_out: commit.left_out, server }))
}
