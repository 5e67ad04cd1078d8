//! Finds the file system that a path of the host lies on, and the Buttress mount that serves the
//! path.
//!
//! # Invariants
//!
//! - **P1** The name of a path never decides whether the path belongs to a volume. The device
//!   number of the path decides: it must be the number of a Buttress mount. With `-o submounts` it
//!   may also be the number of one of the mount's subvolumes. So a foreign mount inside of a
//!   Buttress mount does not belong to the volume. A bind mount of the volume at another place
//!   belongs to the volume.
//! - **P2** A server counts only while its mount is still at its place. Errors and later questions
//!   name the volume by that place.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use buttress_fuse::Listed;
use rustix::fs::{Mode, OFlags};

use super::Subject;
use super::ask::{Answer, reachable};
use crate::closing::TYPES;
use crate::exit::{Exit, Failure, Result};
use crate::sockets::ask;

/// The question for the mounts of subvolumes. It is a separate question, because its answer waits
/// while subvolumes are being mounted.
pub(super) const QUESTION: &str = "submounts";

/// A mount that serves a path, and the rest of the path below the mount's top.
#[derive(Debug)]
pub struct Served {
    /// The socket of the server.
    pub socket: PathBuf,
    /// The answer of the server.
    pub answer: Answer,
    /// The top of the mount.
    pub target: PathBuf,
    /// The path within that mount.
    pub within: PathBuf,
}

/// The mount on which a path lies.
#[derive(Debug, PartialEq, Eq)]
struct HostMount {
    device: u64,
    kind: String,
    /// The mount point.
    point: PathBuf,
    /// The path from the top of the file system, not from the mount point. The two differ if a
    /// folder is bind-mounted.
    within: PathBuf,
}

impl HostMount {
    /// Returns the mount of an existing full path, or `None` if the list of mounts cannot be read.
    fn of(path: &Path) -> Option<Self> {
        let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let device = rustix::fs::fstat(&opened).ok()?.st_dev;
        let info = format!("/proc/self/fdinfo/{}", opened.as_raw_fd());
        let info = std::fs::read_to_string(info).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        Self::listed(&Listed::all().ok()?, id.trim().parse().ok()?, device, path)
    }

    /// Finds the mount with the number `id` in the list.
    fn listed(list: &[Listed], id: u64, device: u64, path: &Path) -> Option<Self> {
        let mount = list.iter().find(|mount| mount.id == id)?;
        let below = path.strip_prefix(&mount.point).ok()?;
        let within = joined([mount.top.strip_prefix("/").ok()?, below]);
        Some(Self { device, kind: mount.kind.clone(), point: mount.point.clone(), within })
    }
}

/// Joins the parts of a path. An empty part adds no slash.
fn joined<const N: usize>(parts: [&Path; N]) -> PathBuf {
    parts.into_iter().filter(|part| !part.as_os_str().is_empty()).collect()
}

/// Returns the newest mount of ours from this image or block device.
pub fn mounted_from(source: &Path) -> Option<Listed> {
    let all = Listed::all().ok()?.into_iter().rev();
    all.into_iter().find(|mount| is_ours(mount) && mount.source == source)
}

/// Returns all mounts of the same file system, including `mount` if that mount still exists. The
/// device number alone is not enough: after the end of this file system, another file system may
/// get the number.
///
/// # Errors
///
/// The errors of reading the list.
pub fn all_of_same(mount: &Listed) -> std::io::Result<Vec<Listed>> {
    let mut all = Listed::all()?;
    all.retain(|other| other.device == mount.device && other.source == mount.source);
    Ok(all)
}

/// Whether a mount is one of ours.
pub fn is_ours(mount: &Listed) -> bool {
    TYPES.contains(&mount.kind.as_str())
}

/// Returns the places at which subvolumes of a server's mount have mounts of their own.
pub fn submounts(socket: &Path) -> Vec<PathBuf> {
    let text = ask(socket, QUESTION, None).unwrap_or_default();
    // An older server does not know the question, and its answer does not parse.
    let found: Vec<(Vec<u8>, u64)> = serde_json::from_str(&text).unwrap_or_default();
    found.into_iter().map(|(place, _)| PathBuf::from(OsString::from_vec(place))).collect()
}

/// Returns the existing part of a path, and the last name if that name does not exist yet.
fn there(path: &Path) -> Option<(PathBuf, PathBuf)> {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(whole), ..) => Some((whole, PathBuf::new())),
        (Err(_), Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Some((parent.canonicalize().ok()?, PathBuf::from(name)))
        }
        _ => None,
    }
}

/// Returns the mount of this user that serves a path. The last name of the path need not exist yet.
/// Returns `None` if the path is on no Buttress mount.
///
/// # Errors
///
/// The path lies on another mount inside of a Buttress mount, or no server answers for its mount
/// (P1, P2).
pub fn served(path: &Path) -> Result<Option<Served>> {
    let Some((whole, name)) = there(path) else { return Ok(None) };
    let Some(host_mount) = HostMount::of(&whole) else { return Ok(None) };
    let refuse =
        |what: String| Err(Failure::new(Exit::Failure, format!("{}: {what}", path.display())));
    let all = reachable().into_iter();
    let mut mounts = all.filter_map(|(socket, answer)| {
        let target = answer.subject.target.clone()?;
        Some(Served { socket, answer, target, within: PathBuf::new() })
    });
    let point = host_mount.point.display();
    if !TYPES.contains(&host_mount.kind.as_str()) {
        let above = mounts
            .find(|mount| whole.starts_with(&mount.target) && mount.answer.subject.is_mounted());
        let Some(above) = above else { return Ok(None) };
        return refuse(format!(
            "not on the volume that is mounted at {}, but on {} at {point}: name a place outside of that, or unmount it",
            above.target.display(),
            host_mount.kind,
        ));
    }
    let Some((mut served, top)) =
        mounts.find_map(|mount| top(&host_mount, &mount).map(|top| (mount, top)))
    else {
        return refuse(format!(
            "no mount of this user answers for {point}: ask as the user who mounted it"
        ));
    };
    if !served.answer.subject.is_mounted() {
        let target = served.target.display();
        return refuse(format!(
            "its mount at {target} was taken away or covered: mount the volume anew"
        ));
    }
    served.within = joined([&top, &host_mount.within, &name]);
    Ok(Some(served))
}

/// Returns the path from the top of a mount to the top of `host_mount`. `None` if `host_mount` is
/// neither the mount's file system nor one of its subvolumes.
fn top(host_mount: &HostMount, mount: &Served) -> Option<PathBuf> {
    let Subject { device, .. } = mount.answer.subject;
    if device.map_or(mount.target == host_mount.point, |own| own == host_mount.device) {
        return Some(PathBuf::new());
    }
    let text = ask(&mount.socket, QUESTION, None).ok()?;
    // An older server does not know the question, and its answer does not parse.
    let submounts: Vec<(Vec<u8>, u64)> = serde_json::from_str(&text).ok()?;
    let (place, _) = submounts.into_iter().find(|(_, device)| *device == host_mount.device)?;
    let place = PathBuf::from(OsString::from_vec(place));
    place.strip_prefix(&mount.target).ok().map(Path::to_owned)
}

/// Describes the file system of a path of the host, for a message: its kind and its mount point.
pub fn describe_host_mount(path: &Path) -> Option<String> {
    let host_mount = HostMount::of(&there(path)?.0)?;
    Some(format!("{} at {}", host_mount.kind, host_mount.point.display()))
}

/// Makes the failure for a folder that is given in place of an image.
pub fn no_image(folder: &Path) -> Failure {
    let what = match served(folder) {
        Err(failure) => return failure,
        Ok(Some(Served { answer, target, .. })) => format!(
            "on the mount at {}: this verb opens the volume itself, {}, when it is not mounted",
            target.display(),
            answer.subject.image.display()
        ),
        Ok(None) => match describe_host_mount(folder) {
            Some(host_mount) => {
                format!("is a directory on {host_mount}, which is no mount of buttress")
            }
            None => "is a directory, and no image".to_owned(),
        },
    };
    Failure::new(Exit::Failure, format!("{}: {what}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &[u8] = b"22 1 0:20 / / rw shared:1 - ext4 /dev/vda rw\n\
        40 22 0:50 / /mnt/with\\040space rw - fuse.buttress /a rw,user_id=0\n\
        41 40 0:51 / /mnt/with\\040space/there rw shared:2 master:3 - tmpfs none rw\n\
        42 22 0:50 /dir/more /other rw - fuse.buttress /a rw\n";

    #[track_caller]
    fn is(id: u64, path: &str, kind: &str, point: &str, within: &str) {
        let list = Listed::parse(LIST);
        let host_mount = HostMount::listed(&list, id, 7, Path::new(path)).expect("it is listed");
        let (kind, point, within) = (kind.to_owned(), point.into(), within.into());
        assert_eq!(host_mount, HostMount { device: 7, kind, point, within });
    }

    /// P1: a mount is found by its number. Escapes in names are decoded, and the path begins at the
    /// top of the file system.
    #[test]
    fn the_list_says_what_a_path_is_on() {
        is(40, "/mnt/with space/x/y", TYPES[0], "/mnt/with space", "x/y");
        is(41, "/mnt/with space/there/x", "tmpfs", "/mnt/with space/there", "x");
        is(42, "/other/x", TYPES[0], "/other", "dir/more/x");
        is(42, "/other", TYPES[0], "/other", "dir/more");
        // Paths are compared without regard to a slash at their end.
        assert_eq!(joined([Path::new("a/b"), Path::new("")]).as_os_str(), "a/b");
        assert_eq!(HostMount::listed(&Listed::parse(LIST), 4, 7, Path::new("/other/x")), None);
    }

    /// If several mounts have the same place, the last mount is seen there.
    #[test]
    fn mounts_are_found_by_their_place() {
        let all = Listed::parse(LIST);
        let of = |point: &str| all.iter().rev().find(|it| it.point == Path::new(point)).cloned();
        let found = of("/mnt/with space").expect("it is listed");
        assert!(is_ours(&found));
        assert_eq!(found.device_number(), rustix::fs::makedev(0, 50));
        assert_eq!((found.source, found.top), (PathBuf::from("/a"), PathBuf::from("/")));
        assert!(!is_ours(&of("/mnt/with space/there").expect("it is listed")));
        assert_eq!(of("/other").expect("it is listed").top, Path::new("/dir/more"));
        assert_eq!(of("/mnt"), None);
    }
}
