//! Finds command lines with paths on the kernel's btrfs, and passes these lines to btrfs-progs.
//!
//! # Invariants
//!
//! - **B1** Every word of a command line that does not begin with a dash may be a path on the
//!   kernel's btrfs. For a path that does not exist yet, its parent directory decides.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The type that `statfs` returns for Linux's btrfs.
const MAGIC: u64 = 0x9123_683E;

/// Whether a part of the command line lies on Linux's btrfs.
#[must_use]
pub fn has_a_part(words: &[OsString]) -> bool {
    words.iter().filter(|word| !word.as_bytes().starts_with(b"-")).any(|word| lies_there(word))
}

fn lies_there(word: &OsStr) -> bool {
    let path = Path::new(word);
    let there = if path.exists() {
        path
    } else if word.as_bytes().contains(&b'/') {
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => return false,
        }
    } else {
        return false;
    };
    // An image file on the kernel's btrfs is a volume of its own, so this program serves it. A
    // directory on the kernel's btrfs belongs to btrfs-progs.
    if !there.is_dir() && there.is_file() {
        return false;
    }
    rustix::fs::statfs(there).is_ok_and(|found| found.f_type as u64 & 0xFFFF_FFFF == MAGIC)
}

/// Replaces this process by btrfs-progs. Returns the exit code if btrfs-progs is not installed.
#[must_use]
pub fn hand_over(words: &[OsString]) -> u8 {
    let Some(program) = find() else {
        let what = "the path lies on a mount of Linux, and btrfs-progs is not installed";
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "ERROR: {what}");
        return 1;
    };
    let error = Command::new(&program).args(words).exec();
    let _ = writeln!(std::io::stderr(), "ERROR: {}: {error}", program.display());
    1
}

/// The next `btrfs` of the search path that is not this program.
fn find() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?.metadata().ok()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let fixed = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(fixed).map(|folder| folder.join("btrfs")).find(|program| {
        let Ok(found) = program.metadata() else { return false };
        let is_own = (found.dev(), found.ino()) == (own.dev(), own.ino());
        !is_own && found.is_file() && found.mode() & 0o111 != 0
    })
}
