//! The options of the command line for parts of a source: subvolumes, and flags of inodes.

use std::path::{Component, Path, PathBuf};

use buttress_fs::Filesystem;

use crate::exit::{Context, Exit, Failure, Result};
use crate::transfer::{Flags, Special};

/// The properties of a new subvolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Role {
    /// The subvolume cannot be changed.
    is_read_only: bool,
    /// The subvolume is mounted if a mount names no other subvolume.
    is_default: bool,
}

/// A folder that becomes a subvolume: `[ro:|rw:|default:|default-ro:]DIR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subvolume {
    role: Role,
    path: PathBuf,
}

/// Flags for a path: `FLAG[,FLAG...]:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flagged {
    flags: Flags,
    path: PathBuf,
}

/// Reads a path below the source. Refuses a path that leads out of the source.
fn below(text: &str) -> Result<PathBuf, String> {
    let mut path = PathBuf::new();
    for part in Path::new(text).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::CurDir | Component::RootDir => {}
            _ => return Err(format!("{text} leads out of the source")),
        }
    }
    match path.as_os_str().is_empty() {
        true => Err("names nothing below the source".into()),
        false => Ok(path),
    }
}

/// Reads a word of `--subvol`.
pub(crate) fn subvolume(text: &str) -> Result<Subvolume, String> {
    let role = |is_read_only, is_default| Role { is_read_only, is_default };
    let words = [
        ("rw:", role(false, false)),
        ("ro:", role(true, false)),
        ("default:", role(false, true)),
        ("default-ro:", role(true, true)),
    ];
    let found = words.iter().find_map(|(word, role)| Some((*role, text.strip_prefix(word)?)));
    let (role, path) = found.unwrap_or((Role::default(), text));
    Ok(Subvolume { role, path: below(path)? })
}

/// Reads a word of `--inode-flags`.
pub(crate) fn flagged(text: &str) -> Result<Flagged, String> {
    let (words, path) = text.split_once(':').ok_or("is written FLAG[,FLAG]:PATH")?;
    let mut flags = Flags::default();
    for word in words.split(',') {
        match word {
            "nodatacow" => flags.nodatacow = true,
            "nodatasum" => flags.nodatasum = true,
            _ => return Err(format!("{word:?}: one of nodatacow, nodatasum")),
        }
    }
    Ok(Flagged { flags, path: below(path)? })
}

/// Returns the paths that the copy treats specially.
pub(crate) fn special(subvolumes: &[Subvolume], flags: &[Flagged]) -> Result<Special> {
    if subvolumes.iter().filter(|one| one.role.is_default).count() > 1 {
        return Err(Failure::new(Exit::Usage, "--subvol: only one subvolume can be the default"));
    }
    let mut special = Special::default();
    for one in subvolumes {
        special.subvolume(one.path.clone());
    }
    for one in flags {
        special.flags(one.path.clone(), one.flags);
    }
    Ok(special)
}

/// The failure for a path that does not exist in the source.
pub(crate) fn nothing_at(path: &Path, exit: Exit) -> Failure {
    Failure::new(exit, format!("{}: the source has nothing there for it", path.display()))
}

/// Does the work that is left after the copy. A path that was not in the source is an error.
pub(crate) fn finish(special: &Special, fs: &Filesystem, subvolumes: &[Subvolume]) -> Result<()> {
    if let Some(path) = special.unused() {
        // This case is no usage error, because the volume is already made. The source was standard
        // input, or has changed since the first check.
        return Err(nothing_at(path, Exit::Failure));
    }
    for Subvolume { role, path } in subvolumes {
        let Some(tree) = special.made(path) else { continue };
        let name = || path.display().to_string();
        if role.is_default {
            fs.set_default_subvolume(tree).context(name)?;
        }
        if role.is_read_only {
            fs.set_subvolume_read_only(tree, true).context(name)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of btrfs-progs are accepted, and only paths within the source.
    #[test]
    fn words_are_read() {
        let read = |text| subvolume(text).map(|one| (one.role, one.path));
        let role = |is_read_only, is_default| Role { is_read_only, is_default };
        assert_eq!(read("a/b/"), Ok((role(false, false), "a/b".into())));
        assert_eq!(read("ro:/a"), Ok((role(true, false), "a".into())));
        assert_eq!(read("default-ro:./a"), Ok((role(true, true), "a".into())));
        for wrong in ["", "/", "ro:", "../a", "a/../b"] {
            subvolume(wrong).expect_err(wrong);
        }
        let both = Flags { nodatacow: true, nodatasum: true };
        let one = Flagged { flags: both, path: "db".into() };
        assert_eq!(flagged("nodatasum,nodatacow:db"), Ok(one));
        for wrong in ["db", "sync:db", "nodatacow:", ":db", "nodatacow,:db"] {
            flagged(wrong).expect_err(wrong);
        }
    }
}
