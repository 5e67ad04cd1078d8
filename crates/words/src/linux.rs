//! Tells whether a place belongs to the kernel's btrfs, and passes command lines to btrfs-progs.
//!
//! # Invariants
//!
//! - **B1** A folder belongs to the file system that it lies on. A place that does not exist yet
//!   belongs to the nearest folder above it, and a bare name to the current folder.
//! - **B2** An image file is a volume of its own, so this program serves it on any file system.
//! - **B3** A block device belongs to the kernel's btrfs while the kernel has its volume mounted.
//! - **B4** No program of a chain of calls is called again. Two copies of this program under the
//!   name `btrfs` would call each other without end.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use buttress_control::named::begins_as_volume;
use buttress_remote::{Inside, divide, is_remote};

/// The types that `statfs` returns for Linux's btrfs and for FUSE.
const BTRFS: u64 = 0x9123_683E;
const FUSE: u64 = 0x6573_5546;
/// The folder with a folder for each volume that Linux has mounted.
const MOUNTED: &str = "/sys/fs/btrfs";
/// The device by which Linux is asked to register other devices.
const CONTROL: &str = "/dev/btrfs-control";
/// This variable has the programs that have called each other, as `device:inode,` each (B4).
const CALLERS: &str = "BUTTRESS_CALLERS";

/// What a command takes as its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Volumes, and places in them. An image is a volume.
    Volumes,
    /// Devices and images alone, also with a damaged superblock.
    Devices,
    /// Files. An image is a file like others on the kernel's btrfs.
    Files,
}

/// The program that serves a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The kernel's btrfs, so btrfs-progs.
    Linux,
    /// This project: an image, a volume in a store, or a mount by FUSE.
    Ours,
    /// Neither: another file system, or an unmounted device.
    Neither,
}

/// Returns the program that serves a place of a command.
#[must_use]
pub fn owner(place: &OsStr, takes: Takes) -> Owner {
    let path = Path::new(place);
    let Ok(metadata) = path.metadata() else { return of_absent(place) };
    let kind = metadata.file_type();
    if kind.is_block_device() {
        return if is_mounted(&metadata) { Owner::Linux } else { Owner::Neither };
    }
    let is_image = kind.is_file()
        && match takes {
            Takes::Volumes => begins_as_volume(path),
            Takes::Devices => true,
            Takes::Files => false,
        };
    if is_image { Owner::Ours } else { of_file_system(path) }
}

/// A place that does not exist on the host may lie in an image.
fn of_absent(place: &OsStr) -> Owner {
    let volume = divide(place).volume;
    let is_image = volume.metadata().is_ok_and(|found| !found.is_dir());
    if is_image || is_remote(&volume) || Inside::of(&volume).is_some() {
        return Owner::Ours;
    }
    let above = Path::new(place).ancestors().skip(1).find(|folder| folder.exists());
    of_file_system(above.unwrap_or(Path::new(".")))
}

fn of_file_system(path: &Path) -> Owner {
    match rustix::fs::statfs(path).map(|found| found.f_type as u64 & 0xFFFF_FFFF) {
        Ok(BTRFS) => Owner::Linux,
        Ok(FUSE) => Owner::Ours,
        _ => Owner::Neither,
    }
}

/// Whether Linux has mounted a volume with this device.
fn is_mounted(device: &Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(device.rdev()), rustix::fs::minor(device.rdev()));
    let number = format!("{major}:{minor}");
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries(Path::new(MOUNTED)).flat_map(|volume| entries(&volume.path().join("devices"))).any(
        |one| {
            std::fs::read_to_string(one.path().join("dev")).is_ok_and(|text| text.trim() == number)
        },
    )
}

/// Replaces this process by btrfs-progs. Returns the exit code if btrfs-progs is not installed.
#[must_use]
pub fn hand_over(words: &[OsString]) -> u8 {
    let Some(program) = find() else {
        let what = "the path lies on a mount of Linux, and btrfs-progs is not installed";
        // Standard error may be closed.
        let _ = writeln!(io::stderr(), "ERROR: {what}");
        return 1;
    };
    let error = Command::new(&program).args(words).env(CALLERS, callers()).exec();
    let _ = writeln!(io::stderr(), "ERROR: {}: {error}", program.display());
    1
}

/// Whether btrfs-progs is installed, and the kernel has a btrfs that it can ask.
#[must_use]
pub fn can_be_asked() -> bool {
    Path::new(CONTROL).exists() && find().is_some()
}

/// Runs btrfs-progs, and returns its standard output.
///
/// # Errors
///
/// If it is not installed, or cannot be started.
pub fn ask(words: &[OsString]) -> io::Result<Output> {
    let program = find().ok_or(io::ErrorKind::NotFound)?;
    Command::new(program).args(words).env(CALLERS, callers()).stderr(Stdio::inherit()).output()
}

/// Whether Linux has mounted the volume with an identifier.
#[must_use]
pub fn has_mounted(uuid: &str) -> bool {
    Path::new(MOUNTED).join(uuid).exists()
}

/// The programs that have called each other, this one among them.
fn callers() -> String {
    let own = std::env::current_exe().and_then(|own| own.metadata());
    let before = std::env::var(CALLERS).unwrap_or_default();
    before + &own.map(|own| mark(&own)).unwrap_or_default()
}

fn mark(program: &Metadata) -> String {
    format!("{}:{},", program.dev(), program.ino())
}

fn find() -> Option<PathBuf> {
    next(&callers(), &std::env::var_os("PATH").unwrap_or_default())
}

/// The next `btrfs` of a search path that is none of the `callers` (B4). A link to another copy of
/// this program is passed over.
fn next(callers: &str, path: &OsStr) -> Option<PathBuf> {
    let fixed = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(path).chain(fixed).map(|folder| folder.join("btrfs")).find(|program| {
        let Ok(found) = program.metadata() else { return false };
        let is_own = callers.split_inclusive(',').any(|caller| caller == mark(&found));
        let is_copy = program
            .canonicalize()
            .is_ok_and(|whole| whole.file_name().is_some_and(|name| name == "buttress"));
        !is_own && !is_copy && found.is_file() && found.mode() & 0o111 != 0
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn program(folder: &Path, name: &str, mode: u32) -> PathBuf {
        std::fs::create_dir_all(folder).expect("a folder");
        let path = folder.join(name);
        std::fs::write(&path, "#!/bin/sh\n").expect("a file");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("its mode");
        path
    }

    /// Links and copies of this program, files that nothing may run, and folders are passed over.
    /// The first of the others is found.
    #[test]
    fn the_next_program_of_the_path_is_found() {
        let temp = tempfile::tempdir().expect("a folder");
        let top = temp.path();
        let own = program(&top.join("own"), "buttress", 0o755);
        let copy = program(&top.join("copy"), "buttress", 0o755);
        for (folder, target) in [("link", &own), ("other", &copy)] {
            std::fs::create_dir(top.join(folder)).expect("a folder");
            symlink(target, top.join(folder).join("btrfs")).expect("a link");
        }
        std::fs::create_dir(top.join("hard")).expect("a folder");
        std::fs::hard_link(&own, top.join("hard/btrfs")).expect("a link");
        program(&top.join("plain"), "btrfs", 0o644);
        std::fs::create_dir_all(top.join("folder/btrfs")).expect("a folder");
        let first = program(&top.join("first"), "btrfs", 0o755);
        let second = program(&top.join("second"), "btrfs", 0o755);
        let path = |folders: &[&str]| {
            std::env::join_paths(folders.iter().map(|folder| top.join(folder))).expect("names")
        };
        let of = |program: &Path| mark(&program.metadata().expect("it is there"));
        let callers = of(&own);
        let passed = ["nothing", "link", "hard", "other", "plain", "folder"];
        for (last, wanted) in [(["first", "second"], &first), (["second", "first"], &second)] {
            let folders = [&passed[..], &last].concat();
            assert_eq!(next(&callers, &path(&folders)).as_ref(), Some(wanted));
        }
        // A program that has called this one is not called again.
        let both = callers.clone() + &of(&first);
        let folders = [&passed[..], &["first", "second"]].concat();
        assert_eq!(next(&both, &path(&folders)), Some(second));
        // Without another program in the search path, only the fixed folders are left.
        let left = next(&callers, &path(&passed));
        assert!(left.is_none_or(|found| !found.starts_with(top)), "only fixed folders are left");
    }

    /// A place in an image belongs to this program, and a name that exists nowhere to the folder
    /// above it.
    #[test]
    fn places_in_images_are_ours() {
        let temp = tempfile::tempdir().expect("a folder");
        let image = temp.path().join("image");
        std::fs::write(&image, "no superblock").expect("a file");
        let text = |more: &str| OsString::from(format!("{}{more}", image.display()));
        assert_eq!(owner(&text(":/a/b"), Takes::Files), Owner::Ours);
        assert_eq!(owner(&text(":/"), Takes::Volumes), Owner::Ours);
        assert_eq!(owner(OsStr::new("s3://bucket/volume"), Takes::Volumes), Owner::Ours);
        assert_eq!(owner(&text(""), Takes::Devices), Owner::Ours);
        let above = of_file_system(temp.path());
        assert_eq!(owner(&text("-new/below"), Takes::Volumes), above);
        assert_eq!(owner(OsStr::new("no such name"), Takes::Files), of_file_system(Path::new(".")));
    }
}
