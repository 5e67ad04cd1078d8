//! Requests for further mounts of a volume that a process serves already, and the answers.
//!
//! # Place
//!
//! `mount` asks the server that has the volume, over its socket. The server answers with the
//! descriptor of a detached mount. The asking process attaches this mount to the directory tree. So
//! the kernel checks the rights of the asking process, in the namespace of that process.
//!
//! # Invariants
//!
//! - **J1** The server keeps the volume mounted until the asking process closes the connection.
//!   That process does so after it has attached the mount.
//! - **J2** If the volume was just unmounted, the server soon closes the volume. The server says
//!   so, and the asking process waits. If the volume was unmounted lazily, it may stay in use for
//!   long, and the server refuses.
//! - **J3** Options of the whole volume stay as the first mount set them. The answer names every
//!   requested option that differs from the first mount's options.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use buttress_fs::{MountOptions, TreeId};
use buttress_fuse::{Sharer, Subtree, Top};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::descriptor;
use crate::exit::{Context, Exit, Failure, Result};
use crate::names;

/// How long the kernel may take to end a mount that nothing uses.
const LETTING_GO_MAX: Duration = Duration::from_secs(1);
/// The largest answer, in bytes.
const ANSWER_MAX: usize = 1 << 20;
const LOOK: Duration = Duration::from_millis(5);

/// A request for a mount.
#[derive(Debug, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The subvolume by its path.
    pub subvol: Option<Vec<u8>>,
    /// The subvolume by its number.
    pub subvolid: Option<u64>,
    /// Whether the mount refuses writes.
    pub read_only: bool,
    /// All options, as they were given.
    pub words: Vec<String>,
}

/// The server's answer to a [`JoinRequest`].
#[derive(Debug, Serialize, Deserialize)]
struct Granted {
    /// The subvolume's path below the top level.
    #[serde(with = "names::path")]
    top: PathBuf,
    /// Options without effect, because the first mount has other values.
    differing: Vec<String>,
}

/// A detached mount, not yet attached to the directory tree.
#[derive(Debug)]
pub struct Joining {
    /// The subtree that the mount shows.
    pub subtree: Subtree,
    /// Path of the shown subtree, from the top level.
    pub top: PathBuf,
    /// Options that have no effect.
    pub differing: Vec<String>,
    /// The connection. Dropping the connection tells the server that the mount is attached (J1).
    _server: UnixStream,
}

/// The answer, the mount, and the guard that keeps the volume mounted meanwhile.
type Given = (Granted, Subtree, Top);

/// The way in which a server makes further mounts.
pub enum JoinHandler {
    /// The server can have only one mount, for this reason.
    Alone(&'static str),
    /// A further mount shares the server's FUSE superblock.
    Shared {
        /// Makes the mount.
        sharer: Sharer,
        /// The options of the first mount.
        words: Vec<String>,
        /// Lists the options that differ from the options of the first mount.
        differing: fn(&[String], &[String]) -> Vec<String>,
    },
}

impl JoinHandler {
    /// Answers a request, and waits until the mount is attached (J1).
    pub(super) fn answer(
        &self,
        request: &str,
        is_closing: impl Fn() -> bool,
        stream: &UnixStream,
    ) -> std::io::Result<()> {
        let mut stream = stream;
        let (granted, subtree, _whole) = match self.grant(request, &is_closing) {
            Ok(Some(granted)) => granted,
            Ok(None) => return writeln!(stream, "{}", json!({ "closing": true })),
            Err(failure) => {
                let exit = failure.exit as u8;
                let answer = json!({ "error": failure.to_string(), "exit": exit });
                return writeln!(stream, "{answer}");
            }
        };
        let line = format!("{}\n", json!({ "granted": granted }));
        descriptor::send(stream, line.as_bytes(), subtree.as_fd())?;
        drop(subtree);
        stream.set_read_timeout(None)?;
        while stream.read(&mut [0; 16])? > 0 {}
        Ok(())
    }

    /// Makes the mount; returns `None` while the volume is being closed (J2).
    fn grant(&self, request: &str, is_closing: impl Fn() -> bool) -> Result<Option<Given>> {
        let (sharer, first, differing) = match self {
            Self::Alone(why) => return Err(Failure::new(Exit::Failure, *why)),
            Self::Shared { sharer, words, differing } => (sharer, words, differing),
        };
        let request: JoinRequest = serde_json::from_str(request).context(|| "the request")?;
        let Some(whole) = sharer.top() else {
            let begun = Instant::now();
            while begun.elapsed() < LETTING_GO_MAX {
                if is_closing() {
                    return Ok(None);
                }
                std::thread::sleep(LOOK);
            }
            let what = "it was unmounted, and programs still use it: they have to end first";
            return Err(Failure::new(Exit::Failure, what));
        };
        let fs = sharer.filesystem();
        let mut options = MountOptions::default();
        options.subvol = request.subvol;
        options.subvolid = request.subvolid.map(TreeId);
        let tree = fs.find_subvolume(&options).context(|| "the subvolume")?;
        if !request.read_only {
            // The volume may have been made read-only by a remount.
            fs.set_read_only(false).context(|| "it is open for reading only: mount it with ro")?;
        }
        let all = fs.subvolumes().context(|| "the list of subvolumes")?;
        let path = all.into_iter().find(|info| info.tree == tree).map(|info| info.path);
        let top = Path::new("/").join(PathBuf::from(OsString::from_vec(path.unwrap_or_default())));
        let subtree = sharer.subtree(&whole, tree).context(|| "the kernel's mount")?;
        let differing = differing(first, &request.words);
        Ok(Some((Granted { top, differing }, subtree, whole)))
    }
}

/// Asks the server that listens at `socket` for a mount; returns `None` if the server is closing
/// the volume (J2).
///
/// # Errors
///
/// The server refuses, with its reason, or ends before it answers.
pub fn join(socket: &Path, request: &JoinRequest) -> Result<Option<Joining>> {
    let name = || socket.display().to_string();
    let text = serde_json::to_string(request).context(|| "the request")?;
    let mut server = UnixStream::connect(socket).context(name)?;
    writeln!(server, "join {text}").context(name)?;
    let (line, tree) = descriptor::receive(&server, ANSWER_MAX).context(name)?;
    let answer: serde_json::Value = serde_json::from_slice(&line).context(|| "the answer")?;
    if let Some(error) = answer["error"].as_str() {
        return Err(Failure::new(Exit::of(&answer["exit"]), error));
    }
    if answer["closing"] == json!(true) {
        return Ok(None);
    }
    let granted = Granted::deserialize(&answer["granted"]).context(|| "the answer")?;
    let none = || Failure::new(Exit::Failure, "the server gave no mount");
    let subtree = Subtree::from(tree.ok_or_else(none)?);
    let Granted { top, differing } = granted;
    Ok(Some(Joining { subtree, top, differing, _server: server }))
}
