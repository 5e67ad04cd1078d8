//! The sockets of running mounts and servers: their folder, and questions to one of them. The
//! folder also has the lock files by which processes take turns to mount.
//!
//! # Invariants
//!
//! - **L1** The folder belongs to the user alone. So a client that can connect may do what the user
//!   may do.

use std::fs::DirBuilder;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of the sockets, made if it is not there (L1). `BUTTRESS_RUNTIME_DIR` names another
/// folder.
pub(crate) fn folder() -> std::io::Result<PathBuf> {
    let uid = rustix::process::geteuid();
    let folder = if let Some(folder) = std::env::var_os("BUTTRESS_RUNTIME_DIR") {
        PathBuf::from(folder)
    } else if uid.is_root() {
        PathBuf::from("/run/buttress")
    } else if let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR") {
        PathBuf::from(folder).join("buttress")
    } else {
        std::env::temp_dir().join(format!("buttress-{}", uid.as_raw()))
    };
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = std::fs::symlink_metadata(&folder)?;
    if !found.is_dir() || found.uid() != uid.as_raw() || found.mode() & 0o077 != 0 {
        let what = format!("{}: is not a folder of this user alone", folder.display());
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, what));
    }
    Ok(folder)
}

/// Asks one question, and reads the whole answer.
pub(crate) fn ask(
    socket: &Path,
    question: &str,
    timeout: Option<Duration>,
) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(timeout)?;
    writeln!(stream, "{question}")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}
