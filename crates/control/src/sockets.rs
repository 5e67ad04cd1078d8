//! The sockets of running mounts and servers: their folder, and questions to one of them. The
//! folder also has the lock files by which processes take turns to mount.
//!
//! # Invariants
//!
//! - **L1** The folder belongs to the user alone, and so does each socket. So a client that can
//!   connect may do what the user may do.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
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

/// Listens at `path`, for programs of this user alone (L1).
pub(crate) fn listen(path: &Path) -> std::io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    // The socket has the mode that the caller's umask leaves, and the folder may be opened later.
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Returns whether this is the first call with `name` since the machine was booted. The folder
/// remembers the name. A folder of `BUTTRESS_RUNTIME_DIR` may outlive a boot.
pub fn is_first_since_boot(name: &str) -> bool {
    folder().is_ok_and(|folder| is_first_in(&folder, name))
}

fn is_first_in(folder: &Path, name: &str) -> bool {
    File::options().write(true).create_new(true).open(folder.join(name)).is_ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A name is new once. In a folder that is missing, no name is new.
    #[test]
    fn a_name_is_first_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let is_first = |name| is_first_in(folder.path(), name);
        assert_eq!([is_first("a"), is_first("a"), is_first("b")], [true, false, true]);
        assert!(!is_first_in(&folder.path().join("none"), "a"));
    }
}
