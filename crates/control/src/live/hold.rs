//! The last commit of a mounted volume, held for a program that reads the devices by itself.
//!
//! # Place
//!
//! `check` asks the server to hold the commit. Then `check` opens the devices in spite of the
//! server's lock. So the check uses no memory and no time of the server, and an error of the check
//! cannot harm the server.
//!
//! # Invariants
//!
//! - **H1** The commit has everything that programs wrote before the question. Otherwise the answer
//!   has the reason.
//! - **H2** The server keeps everything that the commit refers to until the asking process closes
//!   the connection. If the server ends earlier, the connection ends too, and [`Hold::is_kept`]
//!   returns false.

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

/// The server's answer.
#[derive(Debug, Serialize, Deserialize)]
struct HeldCommit {
    /// The bytes of the superblock, as they lie at its first place on a device.
    superblock: Vec<u8>,
    /// The devices that the volume has now, as full paths.
    devices: Vec<String>,
    /// Why the commit lacks the last writes. `None` if the commit has all writes.
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

/// A commit that a server holds. Dropping this value ends the hold.
#[derive(Debug)]
pub struct Hold {
    /// The superblock of the commit.
    pub superblock: Superblock,
    /// The devices of the volume.
    pub devices: Vec<PathBuf>,
    /// Why the commit lacks the last writes. `None` if the commit has all writes.
    pub left_out: Option<String>,
    server: UnixStream,
}

impl Hold {
    /// Whether the server still holds the commit (H2).
    #[must_use]
    pub fn is_kept(&self) -> bool {
        let mut server = &self.server;
        // The server sends nothing more. So a read would block while the connection lives.
        server.set_nonblocking(true).is_ok()
            && matches!(server.read(&mut [0]), Err(error) if ask::is_timeout(&error))
    }
}

/// Asks the server at `socket` to hold the last commit. Returns `None` if the server is closing the
/// volume.
///
/// # Errors
///
/// The reason of the server if it refuses. An older server refuses a question that it does not
/// know.
pub fn hold(socket: &Path) -> Result<Option<Hold>> {
    let name = || socket.display().to_string();
    let mut server = UnixStream::connect(socket).context(name)?;
    writeln!(server, "{QUESTION}").context(name)?;
    let mut line = String::new();
    // The server sends nothing after the line, so this buffer cannot take bytes that belong to a
    // later read.
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
